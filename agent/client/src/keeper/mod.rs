//! A session that keeps itself alive.
//!
//! | module | is |
//! |---|---|
//! | [`lease`] | when to renew and when to stop believing, pure |
//!
//! The keeper renews in a task of its own, at about a third of the TTL, and outlives every transient error until the
//! lease's deadline. It never believes in a session longer than the server has promised to keep it.

mod lease;

use crate::backoff::{Backoff, jitter};
use crate::client::Client;
use crate::clock::Moment;
use crate::duration::format_duration;
use crate::error::Error;
use crate::loss::Loss;
use crate::shape::session::NewSession;
use lease::{Lease, Step};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{debug, warn};

/// The TTL that Consul's own lock clients use.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// The shortest TTL that any agent can be told to allow, and the longest.
const TTL_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// How often a session's end is tried to be told to the agent before it is left to its TTL.
const DESTROY_TRIES: u32 = 5;

/// What kind of session to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// A name for people.
    pub name: String,
    /// The server ends the session when it was not renewed for twice this long; the keeper gives it up after this
    /// long. At least 10 s unless the cluster allows less, at most a day.
    pub ttl: Duration,
    /// How long its keys stay closed after an end that is not a release; `None` for the agent's default of 15 s.
    pub lock_delay: Option<Duration>,
    /// Delete the keys at the session's end, instead of releasing them.
    pub delete_keys: bool,
    /// Checks of this node that it depends on; `None` for the agent's default, the node's own health.
    pub node_checks: Option<Vec<String>>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            name: "Lockmesh session".into(),
            ttl: DEFAULT_TTL,
            lock_delay: None,
            delete_keys: false,
            node_checks: None,
        }
    }
}

impl SessionOptions {
    /// The defaults, with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether a session can be kept so: one without a TTL could not be believed in for any time at all.
    ///
    /// # Errors
    /// [`Error::Settings`] with what to change.
    pub fn check(&self) -> Result<(), Error> {
        if TTL_RANGE.contains(&self.ttl) {
            return Ok(());
        }
        let ttl = format_duration(self.ttl);
        Err(Error::Settings(format!(
            "a session cannot be kept with a TTL of {ttl}: choose 100ms to 24h, and no less than the agent's \
             `http.session_ttl_min`, which is 10s unless it was changed"
        )))
    }

    fn request(&self) -> NewSession {
        NewSession {
            name: Some(self.name.clone()),
            ttl: Some(format_duration(self.ttl)),
            lock_delay: self.lock_delay.map(lock_delay_text),
            behavior: Some(if self.delete_keys { "delete" } else { "release" }.into()),
            node_checks: self.node_checks.clone(),
            ..NewSession::default()
        }
    }
}

/// A session that is renewed until it is closed, dropped or lost. Clones stand for the same session.
#[derive(Clone, Debug)]
pub struct SessionKeeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kept: Arc<Kept>,
    renewals: AbortHandle,
}

/// What the keeper and its task share.
#[derive(Debug)]
struct Kept {
    client: Client,
    id: String,
    deadline: Mutex<Moment>,
    loss: watch::Sender<Option<Loss>>,
}

impl SessionKeeper {
    /// Creates a session and keeps it.
    ///
    /// # Errors
    /// [`Error::Settings`] for a TTL that is none. Whatever creating it says; a session that may have been created all the same ends with its TTL.
    pub async fn create(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        options.check()?;
        let sent = client.clock().now();
        let id = client.sessions().create(&options.request()).await?;
        let lease = Lease::new(options.ttl, sent, spread());
        let deadline = Mutex::new(lease.deadline());
        let kept = Arc::new(Kept { client: client.clone(), id, deadline, loss: watch::Sender::new(None) });
        let renewals = tokio::spawn(keep(Arc::clone(&kept), lease)).abort_handle();
        Ok(Self { inner: Arc::new(Inner { kept, renewals }) })
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.inner.kept.id
    }

    /// How long the session is surely alive from now on, unless somebody ends it on purpose or a health check does.
    pub fn remaining(&self) -> Duration {
        self.inner.kept.remaining()
    }

    /// Whether the session can still be believed in: see [`SessionKeeper::remaining`].
    pub fn is_alive(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Waits until the session is lost, and tells why. At once, when it is lost already.
    pub async fn lost(&self) -> Loss {
        self.inner.kept.lost().await
    }

    /// Ends the session now. Keys that it still holds are released or deleted, and closed for its lock-delay.
    ///
    /// # Errors
    /// When the agent could not be told; the session then ends with its TTL.
    pub async fn close(self) -> Result<(), Error> {
        self.inner.renewals.abort();
        if self.inner.kept.lose(Loss::Closed) {
            return self.inner.kept.client.sessions().destroy(&self.inner.kept.id).await;
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.kept.client
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewals.abort();
        if self.kept.lose(Loss::Closed) {
            self.kept.client.tidy(destroy(Arc::clone(&self.kept)));
        }
    }
}

impl Kept {
    fn remaining(&self) -> Duration {
        if self.loss.borrow().is_some() {
            return Duration::ZERO;
        }
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.since(self.client.clock().now())
    }

    async fn lost(&self) -> Loss {
        let mut loss = self.loss.subscribe();
        let lost = loss.wait_for(Option::is_some).await.ok().and_then(|loss| loss.clone());
        lost.unwrap_or(Loss::Closed)
    }

    /// Marks the session as lost; `false` when it was already, for whatever reason came first.
    fn lose(&self, reason: Loss) -> bool {
        self.loss.send_if_modified(|loss| {
            let first = loss.is_none();
            loss.get_or_insert(reason);
            first
        })
    }
}

/// Renews until the session is lost.
async fn keep(kept: Arc<Kept>, mut lease: Lease) {
    let clock = kept.client.clock();
    loop {
        match lease.step(clock.now()) {
            Step::Sleep(until) => clock.sleep_until(until).await,
            Step::Renew(patience) => {
                let sent = clock.now();
                let answer = kept.client.sessions().renew_within(&kept.id, patience).await;
                let now = clock.now();
                // An answer that comes after the deadline is too late: others may have been told already.
                match answer {
                    _ if now >= lease.deadline() => {}
                    Ok(Some(_)) => {
                        lease.renewed(sent, spread());
                        *kept.deadline.lock().unwrap_or_else(PoisonError::into_inner) = lease.deadline();
                    }
                    Ok(None) => {
                        kept.lose(Loss::SessionGone);
                        return;
                    }
                    Err(error) => {
                        debug!(session = kept.id, %error, "a renewal failed; trying again");
                        lease.failed(now);
                    }
                }
            }
            Step::Lost => {
                warn!(
                    session = kept.id,
                    "no renewal was acknowledged before the deadline: the session is lost"
                );
                kept.lose(Loss::Deadline);
                // Whoever waits for the locks need not wait for the server to notice, too.
                kept.client.tidy(destroy(Arc::clone(&kept)));
                return;
            }
        }
    }
}

/// Tells the agent that the session is given up, as well as that can be done.
async fn destroy(kept: Arc<Kept>) {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
    for _ in 0..DESTROY_TRIES {
        match kept.client.sessions().destroy(&kept.id).await {
            Err(error) if error.is_transient() => tokio::time::sleep(backoff.failed()).await,
            _ => return,
        }
    }
    debug!(session = kept.id, "the session could not be destroyed; it ends with its TTL");
}

fn spread() -> f64 {
    jitter(Duration::from_secs(1)).as_secs_f64()
}

/// Agents read anything below a microsecond as seconds; nobody means that here.
fn lock_delay_text(delay: Duration) -> String {
    match delay {
        Duration::ZERO => "0s".into(),
        delay => format_duration(delay.max(Duration::from_micros(1))),
    }
}

#[cfg(test)]
mod tests;
