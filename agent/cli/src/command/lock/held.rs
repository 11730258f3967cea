//! Running a program while something is held: the one loop behind `lock`, `semaphore` and `elect`.
//!
//! The program never outlives the hold by more than the grace that it is given to end.

use super::child::{Child, End, GRACE, Program, Signals, stop_ourselves};
use crate::command::error::CliError;
use lockmesh_client::{Error, GuardState, Lock, LockGuard, Loss, Semaphore, SemaphoreGuard};
use rustix::process::Signal;
use std::io::Write;
use std::time::Duration;
use tokio::time::timeout;

/// How long the end of this process may be held up by giving back what was given up.
const SETTLE: Duration = Duration::from_secs(2);

/// Something that can be held.
#[derive(Debug)]
pub enum Wanted {
    /// A lock.
    Lock(Lock),
    /// A slot of a semaphore.
    Slot(Semaphore),
}

/// Something that is held.
#[derive(Debug)]
pub enum Held {
    /// A lock.
    Lock(LockGuard),
    /// A slot of a semaphore.
    Slot(SemaphoreGuard),
}

/// How long to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// As long as it takes.
    Endless,
    /// About this long.
    Within(Duration),
    /// One try.
    Once,
}

/// What is done with the program while a renewal is overdue, and it may be lost soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnJeopardy {
    /// Nothing.
    Ignore,
    /// It is asked to end.
    Terminate,
}

/// How the program's time ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or by a signal that was passed on.
    Itself(End),
    /// The hold was lost, and the program was ended.
    Lost(Loss),
}

impl Wanted {
    /// Acquires it; `None` when it was not to be had in time, or a signal asked us to end.
    ///
    /// # Errors
    /// Nothing is held. What may have been granted all the same is given back in the background, or
    /// ends with its session: [`Self::settle`] waits for that.
    pub async fn acquire(&self, wait_limit: WaitLimit, signals: &mut Signals) -> Result<Option<Held>, Error> {
        let acquired = async {
            match self {
                Self::Lock(lock) => Ok(take_lock(lock, wait_limit).await?.map(Held::Lock)),
                Self::Slot(semaphore) => Ok(take_slot(semaphore, wait_limit).await?.map(Held::Slot)),
            }
        };
        tokio::select! {
            held = acquired => held,
            _ = signals.end() => Ok(None),
        }
    }

    /// Waits, but not for long, until what was given up is given back: the process is about to end.
    pub async fn settle(&self) {
        let client = match self {
            Self::Lock(lock) => lock.client(),
            Self::Slot(semaphore) => semaphore.client(),
        };
        // What takes longer ends with the session.
        let _ = timeout(SETTLE, client.settled()).await;
    }

    /// Takes away what the hold needed, unless somebody else holds it; `false` when somebody does.
    ///
    /// # Errors
    /// The key may stay. It stands in nobody's way: it is free, or somebody else's.
    pub async fn remove(&self) -> Result<bool, Error> {
        match self {
            Self::Lock(lock) => lock.remove().await,
            Self::Slot(semaphore) => semaphore.remove().await,
        }
    }
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

    /// Whether it is surely still held.
    pub fn is_held(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_held(),
            Self::Slot(guard) => guard.is_held(),
        }
    }

    /// How it stands.
    pub fn state(&self) -> GuardState {
        match self {
            Self::Lock(guard) => guard.state(),
            Self::Slot(guard) => guard.state(),
        }
    }

    /// Waits until it stands otherwise.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        match self {
            Self::Lock(guard) => guard.changed(known).await,
            Self::Slot(guard) => guard.changed(known).await,
        }
    }

    /// Waits until it is lost, or not surely held any more.
    pub async fn lost(&self) -> Loss {
        match self {
            Self::Lock(guard) => guard.lost().await,
            Self::Slot(guard) => guard.lost().await,
        }
    }

    /// Gives it back; `false` when it was lost before.
    ///
    /// # Errors
    /// It did not get through, or is not known to have: what is held ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Slot(guard) => guard.release().await,
        }
    }

    /// What the program is told of it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let fence = self.fence().map(|fence| ("LOCKMESH_FENCE", fence.to_string()));
        [("CONSUL_LOCK_HELD", "true".to_owned())].into_iter().chain(fence).collect()
    }
}

/// Runs a program while something is held, and passes signals on to it.
///
/// # Errors
/// The program cannot be started. Nothing was run, and the hold is held still: the caller gives it
/// back.
pub async fn run(
    held: &Held,
    program: &Program,
    on_jeopardy: OnJeopardy,
    signals: &mut Signals,
) -> Result<Ended, CliError> {
    let name = program.words.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let cannot = |error| CliError::failed(format!("cannot start {name}: {error}; nothing was run"));
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
            // A program that has ended did so under its lock, even if that is lost just now.
            biased;
            end = child.ended() => return Ok(Ended::Itself(end)),
            reason = held.lost() => {
                end(&mut child, &reason, was_asked).await;
                return Ok(Ended::Lost(reason));
            }
            next = held.changed(&state) => {
                state = next;
                was_asked |= meet(&state, on_jeopardy, &child);
            }
            signal = signals.next() => pass_on(signal, held, &child),
        }
    }
}

/// Ends a program whose lock is lost.
async fn end(child: &mut Child, reason: &Loss, was_asked: bool) {
    // Whoever waits may be given the lock from now on, and a lock-delay need not stand in between.
    let is_urgent = match reason {
        Loss::NodeDeadline => true,
        Loss::Deadline => was_asked,
        _ => false,
    };
    if is_urgent {
        say(&format!("the lock is not surely held any more: {reason}; killing the program"));
        child.kill().await;
    } else {
        say(&format!("the lock is lost: {reason}; ending the program"));
        child.stop(GRACE).await;
    }
}

/// Does what shall be done when the lock stands otherwise; whether the program was asked to end.
fn meet(state: &GuardState, on_jeopardy: OnJeopardy, child: &Child) -> bool {
    match (state, on_jeopardy) {
        (GuardState::Jeopardy { .. }, OnJeopardy::Terminate) => {
            say("a renewal is overdue, and the lock may be lost soon: asking the program to end");
            child.signal(Signal::TERM);
            // A stopped process hears of it only when it goes on.
            child.signal(Signal::CONT);
            true
        }
        _ => false,
    }
}

/// Passes a signal on. A program must not go on while we, who watch over its lock, are stopped.
fn pass_on(signal: Signal, held: &Held, child: &Child) {
    if signal != Signal::TSTP {
        return child.signal(signal);
    }
    child.signal(Signal::STOP);
    stop_ourselves();
    // Going on again, perhaps much later. One that has lost its lock meanwhile is ended instead.
    if held.is_held() {
        child.signal(Signal::CONT);
    }
}

/// Tells the person at the keyboard.
pub fn say(text: &str) {
    // Nobody is left to tell when even this cannot be printed.
    let _ = writeln!(std::io::stderr(), "lockmesh: {text}");
}
