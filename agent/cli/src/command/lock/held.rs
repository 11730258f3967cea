//! The loop of `lock`, `semaphore` and `elect`: runs a command while a lock or a slot is held.
//!
//! **Invariant:** the command ends before the deadline of its hold: see
//! [`supervision`](crate::supervision).

use super::child::{Child, CommandInput, HeldTerms, Program, Signals, Standby};
use crate::command::error::CliError;
use crate::command::supervise::channel::HoldToEnd;
use crate::supervision::{End, Input, OnJeopardy, Outcome};
use lockmesh_client::holder::Moment;
use lockmesh_client::{Client, Error, GuardState, HoldGuard, Lock, LockGuard, Loss, Semaphore};
use lockmesh_protocol::duration::format as duration_text;
use rustix::process::Signal;
use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// The most that the end of this process waits for releases in the background.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The most that a command takes to end after its `--timeout`, besides the answer to the last
/// request.
pub const TIMED_OUT_LIMIT: Duration = Duration::from_millis(250);

/// A lock or a slot to acquire.
#[derive(Debug)]
pub enum Wanted {
    /// A lock.
    Lock(Lock),
    /// A slot of a semaphore.
    Slot(Semaphore),
}

/// A lock or a slot that is held, and the command that runs meanwhile.
#[derive(Debug)]
pub struct Held {
    guard: HoldGuard,
    /// The fencing token of each lock, by its key.
    fences: Vec<(String, u64)>,
    child: Option<Child>,
}

impl From<LockGuard> for Held {
    fn from(guard: LockGuard) -> Self {
        let fences = guard.fences().map(|(key, fence)| (key.to_owned(), fence)).collect();
        Self { guard: guard.into(), fences, child: None }
    }
}

impl From<HoldGuard> for Held {
    fn from(guard: HoldGuard) -> Self {
        Self { guard, fences: Vec::new(), child: None }
    }
}

/// A command to run while something is held.
#[derive(Debug)]
pub struct Command {
    /// The supervisor that waits for it.
    pub standby: Standby,
    /// Its standard input.
    pub stdin: CommandInput,
    /// The reaction to a late renewal.
    pub on_jeopardy: OnJeopardy,
    /// Set if the hold ends with the command itself, even if its descendants run on.
    pub releases_on_exit: bool,
    /// The lock-delay of the session.
    pub lock_delay: Duration,
    /// The way to end the hold, without its session.
    pub end: HoldToEnd,
}

/// The limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// No limit.
    Endless,
    /// About this time.
    Within(Duration),
    /// One attempt.
    Once,
}

/// The end of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited, or a forwarded signal killed it.
    Itself(End),
    /// The lock was lost, and the command was ended.
    Lost {
        /// Set if a signal asked the command to end as well.
        is_interrupted: bool,
    },
}

/// The outcome of an acquire.
#[derive(Debug)]
pub enum Acquired {
    /// It is held.
    Held(Box<Held>),
    /// It was not granted in time.
    TimedOut,
    /// A signal ended the wait.
    Interrupted,
}

impl Wanted {
    /// Acquires it, unless the time runs out or a signal ends the wait.
    ///
    /// # Errors
    /// Nothing is held. A grant that was not delivered is released in the background, or expires
    /// with its session: [`Self::settle`] waits for that.
    pub async fn acquire(&self, wait_limit: WaitLimit, signals: &mut Signals) -> Result<Acquired, Error> {
        let acquired = async {
            match self {
                Self::Lock(lock) => Ok(take_lock(lock, wait_limit).await?.map(Held::from)),
                Self::Slot(semaphore) => Ok(take_slot(semaphore, wait_limit).await?.map(Held::from)),
            }
        };
        tokio::select! {
            held = acquired => Ok(held?.map_or(Acquired::TimedOut, |held| Acquired::Held(Box::new(held)))),
            _ = signals.end() => Ok(Acquired::Interrupted),
        }
    }

    /// The client that it uses.
    pub fn client(&self) -> &Client {
        match self {
            Self::Lock(lock) => lock.client(),
            Self::Slot(semaphore) => semaphore.client(),
        }
    }

    /// Waits for a short time until releases in the background are done, before the process ends.
    pub async fn settle(&self) {
        settle_within(RELEASE_TIMEOUT, self.client()).await;
    }

    /// Removes the key of the hold; `false` if another session holds it.
    ///
    /// # Errors
    /// The key may remain. It is free, or held by another session.
    pub async fn remove(&self) -> Result<bool, Error> {
        match self {
            Self::Lock(lock) => lock.remove().await,
            Self::Slot(semaphore) => semaphore.remove().await,
        }
    }
}

/// Waits for this time at most until releases in the background are done.
pub async fn settle_within(limit: Duration, client: &Client) {
    // A release that takes longer is replaced by the end of the session, which the agent retries.
    let _ = timeout(limit, client.settled()).await;
}

async fn take_lock(lock: &Lock, wait_limit: WaitLimit) -> Result<Option<LockGuard>, Error> {
    match wait_limit {
        WaitLimit::Endless => lock.acquire().await.map(Some),
        WaitLimit::Within(limit) => lock.acquire_within(limit).await,
        WaitLimit::Once => lock.try_acquire().await,
    }
}

async fn take_slot(semaphore: &Semaphore, wait_limit: WaitLimit) -> Result<Option<HoldGuard>, Error> {
    match wait_limit {
        WaitLimit::Endless => semaphore.acquire().await.map(Some),
        WaitLimit::Within(limit) => semaphore.acquire_within(limit).await,
        WaitLimit::Once => semaphore.try_acquire().await,
    }
}

impl Held {
    /// The fencing token.
    pub fn fence(&self) -> Option<u64> {
        self.guard.fence()
    }

    /// The fencing tokens, for people.
    pub fn described(&self) -> String {
        let known = |fence: Option<u64>| fence.map_or("unknown".into(), |fence| fence.to_string());
        match &self.fences[..] {
            [] | [_] => format!("holding it, fence {}", known(self.fence())),
            fences => format!("holding all, fences {}", lines(fences).join(" ")),
        }
    }

    /// The session.
    pub fn session(&self) -> &str {
        self.guard.session()
    }

    /// Waits until it is lost, or no longer certain to be held.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Releases it; `false` if it was lost before. The supervisor of its command ends then.
    ///
    /// # Errors
    /// The release failed, or its outcome is unknown: the supervisor of its command goes on with
    /// it, or the lock ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        let released = self.guard.release().await?;
        hold_ended(self.child);
        Ok(released)
    }

    /// Ends what is left of a lost hold, within a short time. The supervisor of its command goes on
    /// with it otherwise.
    pub async fn settle(self, client: &Client) {
        let Self { guard, child, .. } = self;
        guard.give_up();
        if timeout(RELEASE_TIMEOUT, client.settled()).await.is_ok() {
            hold_ended(child);
        }
    }

    /// The command's variables about it.
    fn environment(&self) -> Vec<(String, String)> {
        let fence = self.fence().map(|fence| ("LOCKMESH_FENCE".into(), fence.to_string()));
        let fences = lines(&self.fences).join("\n");
        let fences = (!fences.is_empty()).then(|| ("LOCKMESH_FENCES".into(), fences));
        [("CONSUL_LOCK_HELD".into(), "true".into())].into_iter().chain(fence).chain(fences).collect()
    }

    fn start(&self, command: Command, deadline: Moment) -> io::Result<Child> {
        let hold = HeldTerms {
            deadline,
            lock_delay: command.lock_delay,
            covers_descendants: !command.releases_on_exit,
            on_jeopardy: command.on_jeopardy,
            end: HoldToEnd { session: self.session().to_owned(), ..command.end },
        };
        let (stdin, environment) = (command.stdin, self.environment());
        command.standby.start(&Program { stdin, environment, hold: Some(hold) })
    }

    /// Runs a command, and forwards signals to it, until there is a failure.
    ///
    /// # Errors
    /// The command cannot be started, or has ended after the failure. The hold is not released: the
    /// caller does that.
    pub async fn run(
        &mut self,
        command: Command,
        signals: &mut Signals,
        failure: impl Future<Output = CliError>,
    ) -> Result<Ended, CliError> {
        let mut state = self.guard.state();
        let (GuardState::Safe { deadline } | GuardState::Jeopardy { deadline }) = state else {
            return Ok(Ended::Lost { is_interrupted: false });
        };
        let cannot = cannot_start(&command.standby.words);
        let child = self.start(command, deadline).map_err(&cannot)?;
        let child = self.child.insert(child);
        let (mut failure, mut failed) = (pin!(failure), None);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = child.ended() => break outcome,
                next = self.guard.next_state(&state) => {
                    state = next;
                    child.handle(Input::Hold(state.clone()));
                }
                error = failure.as_mut(), if failed.is_none() => {
                    child.handle(Input::Stop(Signal::TERM.as_raw()));
                    report(&format!("{error}; ending the command"));
                    failed = Some(error);
                }
                signal = signals.next() => child.handle(match signal {
                    Signal::TSTP => Input::Suspend,
                    signal => Input::Forward(signal.as_raw()),
                }),
            }
        };
        match (failed, outcome) {
            (Some(failed), _) => Err(failed),
            (None, Outcome { loss: Some(_), is_interrupted, .. }) => Ok(Ended::Lost { is_interrupted }),
            (None, Outcome { end: Ok(end), .. }) => Ok(Ended::Itself(end)),
            (None, Outcome { end: Err(error), .. }) => Err(cannot(io::Error::from_raw_os_error(error))),
        }
    }
}

/// Starts the supervisor of a command that runs once a lock is held.
///
/// # Errors
/// It cannot be started.
pub fn stand_by(words: Vec<OsString>) -> Result<Standby, CliError> {
    let cannot = cannot_start(&words);
    Standby::new(words).map_err(cannot)
}

fn cannot_start(words: &[OsString]) -> impl Fn(io::Error) -> CliError + use<> {
    let name = words.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    move |error| CliError::NotStarted { name: name.clone(), error }
}

/// A line KEY=FENCE for each lock.
fn lines(fences: &[(String, u64)]) -> Vec<String> {
    fences.iter().map(|(key, fence)| format!("{key}={fence}")).collect()
}

fn hold_ended(child: Option<Child>) {
    if let Some(mut child) = child {
        child.handle(Input::HoldEnded);
    }
}

/// Waits for a release, at most for the TTL of its session: by then the hold has ended in any case,
/// and an agent that is frozen must not keep this process.
///
/// # Errors
/// The release failed, or the agent did not reply in time: the lock ends with its session.
pub async fn within_ttl<T, E: Into<CliError>>(
    ttl: Duration,
    release: impl Future<Output = Result<T, E>>,
) -> Result<T, CliError> {
    match timeout(ttl, release).await {
        Ok(released) => released.map_err(Into::into),
        Err(_) => {
            let ttl = duration_text(ttl);
            Err(CliError::Unreachable(format!("the agent did not reply within the session's TTL of {ttl}")))
        }
    }
}

/// Prints a message on stderr.
pub fn report(text: &str) {
    crate::stdio::report(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::Address;
    use std::net::TcpListener;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn release_times_out_after_ttl() {
        // The kernel accepts connections for it; nothing is ever answered.
        let frozen = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = frozen.local_addr().expect("it is bound").port();
        let client = Client::new(Address::Tcp { host: "127.0.0.1".into(), port });
        let ttl = Duration::from_secs(10);
        let begun = Instant::now();
        let error = within_ttl(ttl, Lock::new(&client, "job").remove()).await.expect_err("there is no reply");
        assert_eq!(begun.elapsed(), ttl);
        assert_eq!(error.to_string(), "the agent did not reply within the session's TTL of 10s");
        assert!(within_ttl(ttl, async { Ok::<_, Error>(true) }).await.expect("there is a reply"));
    }
}
