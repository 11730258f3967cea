//! Leader election: the holder of the lock leads, and the key's value identifies the leader.

use crate::backoff::{Backoff, Jitter};
use crate::client::Client;
use crate::driver::random_seed;
use crate::entry::Entry;
use crate::error::Error;
use crate::lock::{Lock, LockGuard};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use std::ops::Deref;
use std::time::Duration;
use tokio::time::sleep;

/// The wait of one blocking query for a change of leaders.
const WATCH_WAIT_TIME: Duration = Duration::from_secs(60);

/// A leadership: the guard of the lock, whose methods it has too. Dropping it resigns in the
/// background; prefer [`Leadership::resign`].
#[derive(Debug)]
pub struct Leadership(LockGuard);

/// An election with at most one leader at a time.
///
/// ```no_run
/// # async fn example(client: lockmesh_client::Client) -> Result<(), lockmesh_client::Error> {
/// let election = lockmesh_client::Election::new(&client, "service/reports/leader");
/// let leadership = election.campaign("host-17").await?;
/// println!("leading, fence {:?}", leadership.fence());
/// println!("leading no longer: {}", leadership.lost().await);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    key: String,
    lock: Lock,
}

/// The current leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The session that holds the lock.
    pub session: String,
    /// The node of that session; `None` if the session has ended since, or could not be read.
    pub node: Option<String>,
    /// The fencing token of the grant; `None` from an agent without fences.
    pub fence: Option<u64>,
    /// The value that the leader published about itself.
    pub value: Bytes,
    /// The number of grants of the lock since the key was created.
    pub lock_index: u64,
}

impl Election {
    /// Creates an election on `key`.
    pub fn new(client: &Client, key: impl Into<String>) -> Self {
        let key = key.into();
        let lock = Lock::new(client, key.clone()).session(SessionOptions::named("Lockmesh election"));
        Self { client: client.clone(), key, lock }
    }

    /// Sets the options of the candidate's session.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { lock: self.lock.session(options), ..self }
    }

    /// Sets other flags than [`crate::LOCK_FLAGS`], for an election whose other candidates use
    /// other flags.
    #[must_use]
    pub fn flags(self, flags: u64) -> Self {
        Self { lock: self.lock.flags(flags), ..self }
    }

    /// Campaigns until this candidate leads, and publishes the value then.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign(&self, value: impl Into<Bytes>) -> Result<Leadership, Error> {
        self.lock_with(value).acquire().await.map(Leadership)
    }

    /// Campaigns for about `limit`; `None` if this candidate does not lead then.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign_within(
        &self,
        value: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Option<Leadership>, Error> {
        Ok(self.lock_with(value).acquire_within(limit).await?.map(Leadership))
    }

    /// Becomes the leader if there is none.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_campaign(&self, value: impl Into<Bytes>) -> Result<Option<Leadership>, Error> {
        Ok(self.lock_with(value).try_acquire().await?.map(Leadership))
    }

    fn lock_with(&self, value: impl Into<Bytes>) -> Lock {
        self.lock.clone().value(value)
    }

    /// Returns the current leader; `None` without one.
    ///
    /// # Errors
    /// The errors of the request.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.observer().next().await
    }

    /// Returns an observer of the leadership.
    pub fn observer(&self) -> Observer {
        Observer { client: self.client.clone(), key: self.key.clone(), index: 0, last: None }
    }
}

impl Leadership {
    /// Publishes another value.
    ///
    /// # Errors
    /// As [`LockGuard::update`].
    pub async fn proclaim(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        self.0.update(value).await
    }

    /// Ends the leadership. Returns `false` if it was lost before.
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the leadership then ends with its session.
    pub async fn resign(self) -> Result<bool, Error> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl From<Leadership> for LockGuard {
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

/// An observer that returns the current leader, then each change.
#[derive(Clone, Debug)]
pub struct Observer {
    client: Client,
    key: String,
    index: u64,
    /// The last result, without its node.
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader: at once on the first call, later after each change. Rapid successive
    /// changes may be reported as one.
    ///
    /// # Errors
    /// The errors of the request; call again to continue. [`Observer::next_surely`] does so
    /// automatically.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let read = Read::default().newer_than(self.index, WATCH_WAIT_TIME);
            let answer = self.client.kv().get(&self.key, &read).await?;
            self.index = answer.index;
            let mut leader = answer.value.and_then(|entry| {
                let Entry { value, fence, lock_index, session, .. } = entry;
                Some(Leader { session: session?, node: None, fence, value, lock_index })
            });
            // A query also ends when its wait expires, or after a change that does not affect the
            // leader.
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                if let Some(leader) = &mut leader {
                    leader.node = self.node_of(&leader.session).await;
                }
                return Ok(leader);
            }
            // Without an index the query does not block, so this pause limits the rate.
            if self.index == 0 {
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn node_of(&self, session: &str) -> Option<String> {
        let session = self.client.sessions().info(session, &Read::default()).await.ok()?;
        Some(session.value?.node)
    }

    /// Turns the observer into a stream of the results of [`Observer::next_surely`]. It ends after
    /// an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader>, Error>> + Send {
        unfold(Some(self), async |observer| {
            let mut observer = observer?;
            let next = observer.next_surely().await;
            let observer = next.is_ok().then_some(observer);
            Some((next, observer))
        })
    }

    /// Like [`Observer::next`], but retries after transient errors.
    ///
    /// # Errors
    /// A refusal.
    pub async fn next_surely(&mut self) -> Result<Option<Leader>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut jitter = Jitter::new(random_seed());
        loop {
            match self.next().await {
                Err(error) if error.is_transient() => sleep(backoff.failed(&mut jitter)).await,
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Fault};
    use futures_util::StreamExt as _;
    use std::pin::pin;

    #[tokio::test(start_paused = true)]
    async fn observers_see_each_leader() {
        let fake = Fake::start();
        let election = Election::new(&fake.client(), "chair");
        let mut observer = election.observer();
        assert_eq!(observer.next().await.expect("an answer"), None);
        let mut first = election.campaign("draft").await.expect("vacant");
        first.proclaim("a").await.expect("leads");
        let leader = observer.next().await.expect("an answer").expect("a leader");
        assert_eq!((leader.value, leader.session.as_str()), (Bytes::from("a"), first.session()));
        assert_eq!((leader.fence, leader.node.is_some()), (first.fence(), true));
        assert!(election.try_campaign("b").await.expect("no error").is_none());
        let rival = election.clone();
        let rival = tokio::spawn(async move { rival.campaign("b").await.expect("in the end") });
        fake.fail("kv/chair", Fault::Status(500, "No cluster leader"), 2);
        first.resign().await.expect("resigned");
        let second = rival.await.expect("no panic");
        let mut seen = observer.next_surely().await.expect("an answer");
        while seen.as_ref().is_none_or(|leader| leader.value != "b") {
            seen = observer.next_surely().await.expect("an answer");
        }
        assert_eq!(election.leader().await.expect("an answer"), seen);
        let mut stream = pin!(observer.into_stream());
        drop(second);
        let next = stream.next().await.expect("an observer never ends");
        assert_eq!(next.expect("an answer"), None);
        fake.fail("kv/chair", Fault::Status(403, "Permission denied"), 1);
        assert!(stream.next().await.is_some_and(|next| next.is_err()));
        assert!(stream.next().await.is_none(), "a refusal ends it");
    }
}
