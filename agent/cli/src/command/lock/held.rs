//! The loop of `lock`, `semaphore` and `elect`: runs a program while a lock or a slot is held.
//!
//! **Invariant:** the program outlives the hold by at most its grace to end.

use super::child::{Child, End, GRACE, Program, Signals, stop_ourselves};
use crate::command::error::CliError;
use lockmesh_client::{Client, Error, GuardState, Lock, LockGuard, Loss, Semaphore, SemaphoreGuard};
use lockmesh_protocol::duration::format as duration_text;
use rustix::process::Signal;
use std::io::Write;
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

/// A lock or a slot that is held.
#[derive(Debug)]
pub enum Held {
    /// A lock.
    Lock(LockGuard),
    /// A slot of a semaphore.
    Slot(SemaphoreGuard),
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

/// The reaction to a late renewal, after which the lock may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnJeopardy {
    /// None.
    Ignore,
    /// The program is sent SIGTERM.
    Terminate,
}

/// The end of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited, or a forwarded signal killed it.
    Itself(End),
    /// The lock was lost, and the program was ended.
    Lost(Loss),
}

/// The outcome of an acquire.
#[derive(Debug)]
pub enum Acquired {
    /// It is held.
    Held(Held),
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
                Self::Lock(lock) => Ok(take_lock(lock, wait_limit).await?.map(Held::Lock)),
                Self::Slot(semaphore) => Ok(take_slot(semaphore, wait_limit).await?.map(Held::Slot)),
            }
        };
        tokio::select! {
            held = acquired => Ok(held?.map_or(Acquired::TimedOut, Acquired::Held)),
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

async fn take_slot(semaphore: &Semaphore, wait_limit: WaitLimit) -> Result<Option<SemaphoreGuard>, Error> {
    match wait_limit {
        WaitLimit::Endless => semaphore.acquire().await.map(Some),
        WaitLimit::Within(limit) => semaphore.acquire_within(limit).await,
        WaitLimit::Once => semaphore.try_acquire().await,
    }
}

impl Held {
    /// The fencing token.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.fence(),
            Self::Slot(guard) => guard.fence(),
        }
    }

    /// `true` while it is certain that it is held.
    pub fn is_held(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_held(),
            Self::Slot(guard) => guard.is_held(),
        }
    }

    /// The state of the guard.
    pub fn state(&self) -> GuardState {
        match self {
            Self::Lock(guard) => guard.state(),
            Self::Slot(guard) => guard.state(),
        }
    }

    /// Waits until the state differs from `known`.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        match self {
            Self::Lock(guard) => guard.changed(known).await,
            Self::Slot(guard) => guard.changed(known).await,
        }
    }

    /// Waits until it is lost, or no longer certain to be held.
    pub async fn lost(&self) -> Loss {
        match self {
            Self::Lock(guard) => guard.lost().await,
            Self::Slot(guard) => guard.lost().await,
        }
    }

    /// Releases it; `false` if it was lost before.
    ///
    /// # Errors
    /// The release failed, or its outcome is unknown: the lock ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Slot(guard) => guard.release().await,
        }
    }

    /// The program's variables about it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let fence = self.fence().map(|fence| ("LOCKMESH_FENCE", fence.to_string()));
        [("CONSUL_LOCK_HELD", "true".to_owned())].into_iter().chain(fence).collect()
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

/// Runs a program while something is held, and forwards signals to it.
///
/// # Errors
/// The program cannot be started. The lock is still held: the caller releases it.
pub async fn run(
    held: &Held,
    program: &Program,
    on_jeopardy: OnJeopardy,
    signals: &mut Signals,
) -> Result<Ended, CliError> {
    run_unless(held, program, on_jeopardy, signals, std::future::pending()).await
}

/// The same, until there is a failure.
///
/// # Errors
/// The program cannot be started, or has ended after the failure. The lock is still held: the
/// caller releases it.
pub async fn run_unless(
    held: &Held,
    program: &Program,
    on_jeopardy: OnJeopardy,
    signals: &mut Signals,
    failure: impl Future<Output = CliError>,
) -> Result<Ended, CliError> {
    let mut failure = pin!(failure);
    let name = program.words.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let cannot = |error| CliError::NotStarted { name: name.clone().into_owned(), error };
    let mut child = Child::start(program).map_err(cannot)?;
    let (mut state, mut was_asked) = (held.state(), false);
    tokio::select! {
        started = child.started() => started.map_err(cannot)?,
        reason = held.lost() => {
            end(&mut child, &reason, was_asked).await;
            return Ok(Ended::Lost(reason));
        }
    }
    loop {
        tokio::select! {
            // The program ended under its lock, even if the lock is lost at the same moment.
            biased;
            end = child.ended() => return Ok(Ended::Itself(end)),
            reason = held.lost() => {
                end(&mut child, &reason, was_asked).await;
                return Ok(Ended::Lost(reason));
            }
            failed = failure.as_mut() => {
                report(&format!("{failed}; ending the command"));
                child.stop(GRACE).await;
                return Err(failed);
            }
            next = held.changed(&state) => {
                state = next;
                was_asked |= react(&state, on_jeopardy, &child);
            }
            signal = signals.next() => pass_on(signal, held, &child),
        }
    }
}

/// Ends a program whose lock is lost.
async fn end(child: &mut Child, reason: &Loss, was_asked: bool) {
    // The lock may be granted to another session from now on, without a lock-delay in between.
    let is_urgent = match reason {
        Loss::NodeDeadline => true,
        Loss::Deadline => was_asked,
        _ => false,
    };
    if is_urgent {
        report(&format!("lock ownership can no longer be guaranteed ({reason}); killing the command"));
        child.kill().await;
    } else {
        report(&format!("lock lost: {reason}; ending the command"));
        child.stop(GRACE).await;
    }
}

/// Reacts to a change of the lock's state; `true` if the program was sent SIGTERM.
fn react(state: &GuardState, on_jeopardy: OnJeopardy, child: &Child) -> bool {
    match (state, on_jeopardy) {
        (GuardState::Jeopardy { .. }, OnJeopardy::Terminate) => {
            report("a renewal is late and the lock may be lost soon; sending SIGTERM to the command");
            child.signal(Signal::TERM);
            // A stopped process receives it only when it continues.
            child.signal(Signal::CONT);
            true
        }
        _ => false,
    }
}

/// Forwards a signal. A program must not run while this process, which guards its lock, is stopped.
fn pass_on(signal: Signal, held: &Held, child: &Child) {
    if signal != Signal::TSTP {
        return child.signal(signal);
    }
    child.signal(Signal::STOP);
    stop_ourselves();
    // This process continues, perhaps much later. A program without its lock is ended instead.
    if held.is_held() {
        child.signal(Signal::CONT);
    }
}

/// Prints a message on stderr.
pub fn report(text: &str) {
    // Without stderr there is no place to report an error.
    let _ = writeln!(std::io::stderr(), "lockmesh: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::Address;
    use std::net::TcpListener;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_frozen_agent_keeps_a_release_no_longer_than_the_hold_could_last() {
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
