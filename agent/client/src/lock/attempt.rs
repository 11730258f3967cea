//! How a lock is acquired.
//!
//! Turn by turn: look whether the key is a lock, then ask for it and wait in its queue. From an agent that knows no
//! queues whoever has to wait looks again in a blocking query, and asks when nobody holds the key. An attempt that is
//! given up, or dropped in the middle, leaves nothing held: what it may have been granted without hearing of it is
//! released.

use super::{Lock, LockGuard, WATCH};
use crate::backoff::{Backoff, jitter};
use crate::client::Read;
use crate::clock::Moment;
use crate::error::Error;
use crate::keeper::SessionKeeper;
use crate::kv::Acquired;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// How far contenders are spread at the end of a lock-delay.
const SPREAD: Duration = Duration::from_millis(200);

/// How long to wait out a lock-delay that the agent does not put into numbers.
const UNTOLD_DELAY: Duration = Duration::from_secs(1);

/// How long to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitLimit {
    /// As long as it takes.
    Endless,
    /// Until this moment.
    Until(Moment),
    /// One turn.
    Once,
}

impl WaitLimit {
    fn left(self, now: Moment) -> Duration {
        match self {
            Self::Endless => Duration::MAX,
            Self::Until(moment) => moment.since(now),
            Self::Once => Duration::ZERO,
        }
    }
}

/// What one turn gave.
enum AcquireTurn {
    /// The lock, under this fence.
    Granted(Option<u64>),
    /// Another session holds it; news come behind this index.
    Held(u64),
    /// It is free but closed, for about this long.
    Closed(Duration),
    /// The whole wait in the queue was in vain.
    Waited,
}

impl Lock {
    pub(super) async fn attempt(&self, wait_limit: WaitLimit) -> Result<Option<LockGuard>, Error> {
        let clock = self.client.clock();
        let mut pending = PendingAcquire::new(self, self.source.keeper(&self.client).await?);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut read = Read::default();
        loop {
            let wait = wait_limit.left(clock.now()).min(WATCH);
            let turn = pending.turn(&read, wait).await;
            let left = wait_limit.left(clock.now());
            read = Read::default();
            let pause = match turn {
                Ok(AcquireTurn::Granted(fence)) => return Ok(Some(pending.granted(fence))),
                Ok(AcquireTurn::Held(index)) => {
                    backoff.succeeded();
                    read = read.newer_than(index, left.min(WATCH));
                    // Without an index there is nothing to wait behind.
                    if index == 0 { UNTOLD_DELAY } else { Duration::ZERO }
                }
                Ok(AcquireTurn::Waited) => {
                    backoff.succeeded();
                    Duration::ZERO
                }
                Ok(AcquireTurn::Closed(delay)) => delay + jitter(SPREAD),
                Err(error) if pending.outlives(&error, wait_limit) => {
                    debug!(key = self.key, %error, "cannot try for the lock now; trying again");
                    backoff.failed()
                }
                Err(error) => {
                    pending.give_up().await;
                    return Err(error);
                }
            };
            if left.is_zero() {
                pending.give_up().await;
                return Ok(None);
            }
            sleep(pause.min(left)).await;
        }
    }
}

/// An acquisition under way.
struct PendingAcquire<'a> {
    lock: &'a Lock,
    /// `None` after the session was found to be gone.
    keeper: Option<SessionKeeper>,
    /// Whether the lock may have been granted without our hearing of it.
    perhaps_granted: bool,
    /// Whether the agent lets us wait in the lock's queue, as far as we know.
    has_queues: bool,
}

impl<'a> PendingAcquire<'a> {
    fn new(lock: &'a Lock, keeper: SessionKeeper) -> Self {
        Self { lock, keeper: Some(keeper), perhaps_granted: false, has_queues: true }
    }

    /// One turn, which may take as long as `read` says or else `wait`.
    async fn turn(&mut self, read: &Read, wait: Duration) -> Result<AcquireTurn, Error> {
        let lock = self.lock;
        let keeper = self.session().await?;
        let session = keeper.id();
        let (kv, clock) = (lock.client.kv(), lock.client.clock());
        let queues = self.has_queues && !wait.is_zero();
        let seen = kv.get(&lock.key, read).await?;
        if let Some(entry) = &seen.value {
            lock.check(entry)?;
            if !queues && entry.session.as_deref().is_some_and(|holder| holder != session) {
                return Ok(AcquireTurn::Held(seen.index));
            }
        }
        let was_perhaps_granted = std::mem::replace(&mut self.perhaps_granted, true);
        let begun = clock.now();
        let asked = match queues {
            true => kv.acquire_waiting(&lock.key, session, lock.value.clone(), lock.flags, wait).await,
            false => kv.acquire(&lock.key, session, lock.value.clone(), lock.flags).await,
        };
        // That this attempt did nothing says nothing of one before it.
        self.perhaps_granted =
            asked.as_ref().is_err_and(|error| was_perhaps_granted || !error.certainly_not_done());
        match asked? {
            Acquired::Granted { fence } => Ok(AcquireTurn::Granted(fence)),
            Acquired::Refused { .. } if queues && clock.now().since(begun) >= wait.mul_f64(0.9) => {
                Ok(AcquireTurn::Waited)
            }
            Acquired::Refused { delay } if queues => {
                self.has_queues = false;
                Ok(AcquireTurn::Closed(delay.unwrap_or_default()))
            }
            Acquired::Refused { delay: Some(delay) } => Ok(AcquireTurn::Closed(delay)),
            Acquired::Refused { delay: None } => {
                let now = kv.get(&lock.key, &Read::default()).await?;
                let taken = now.value.is_some_and(|entry| entry.session.is_some());
                Ok(if taken { AcquireTurn::Held(now.index) } else { AcquireTurn::Closed(UNTOLD_DELAY) })
            }
        }
    }

    /// The session to ask for; a new one where the old one is gone and was ours to make.
    async fn session(&mut self) -> Result<SessionKeeper, Error> {
        match &self.keeper {
            Some(keeper) if keeper.is_alive() => Ok(keeper.clone()),
            _ => {
                let keeper = self.lock.source.keeper(&self.lock.client).await?;
                Ok(self.keeper.insert(keeper).clone())
            }
        }
    }

    /// Whether to go on after an error.
    fn outlives(&mut self, error: &Error, wait_limit: WaitLimit) -> bool {
        if error.is_invalid_session() && self.lock.source.is_own() {
            // It held nothing, so its end costs nothing: the next turn makes another.
            (self.keeper, self.perhaps_granted) = (None, false);
            return wait_limit != WaitLimit::Once;
        }
        error.is_transient() && wait_limit != WaitLimit::Once
    }

    fn granted(mut self, fence: Option<u64>) -> LockGuard {
        let keeper = self.keeper.take().expect("a grant was made to the session that is kept here");
        LockGuard::begin(self.lock.clone(), keeper, fence)
    }

    /// Leaves nothing behind, as well as that can be done.
    async fn give_up(mut self) {
        let Some(keeper) = self.keeper.take() else { return };
        abandon(self.lock.clone(), keeper, std::mem::take(&mut self.perhaps_granted)).await;
    }
}

impl Drop for PendingAcquire<'_> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take()
            && self.perhaps_granted
        {
            self.lock.client.tidy(abandon(self.lock.clone(), keeper, true));
        }
    }
}

/// Gives back what may have been granted, then the session if it was only for this. Errors change nothing: the
/// session's TTL does the same, later.
async fn abandon(lock: Lock, keeper: SessionKeeper, perhaps_granted: bool) {
    if perhaps_granted {
        let released = lock.client.kv().release(&lock.key, keeper.id(), lock.value.clone(), lock.flags).await;
        debug!(key = lock.key, ?released, "gave back what may have been granted");
    }
    if lock.source.is_own()
        && let Err(error) = keeper.close().await
    {
        debug!(key = lock.key, %error, "the session ends with its TTL");
    }
}
