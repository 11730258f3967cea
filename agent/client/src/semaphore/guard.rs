//! What the holder of a slot is given. It learns of a loss as the guard of a lock does: from its session's lease, from
//! the answers to renewals, and from a consistent blocking query on the semaphore's prefix.

use super::{Contender, Semaphore, WATCH};
use crate::backoff::Backoff;
use crate::client::Read;
use crate::error::Error;
use crate::hold::Hold;
use crate::keeper::SessionKeeper;
use crate::loss::Loss;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// How long to wait between tries where the caller counts them.
const COUNTED_RETRY: Duration = Duration::from_secs(1);

/// A slot that is held. Dropping it gives the slot back in the background; better is [`SemaphoreGuard::release`].
#[derive(Debug)]
pub struct SemaphoreGuard {
    semaphore: Semaphore,
    fence: Option<u64>,
    /// `None` once it was released.
    hold: Option<Hold>,
}

impl SemaphoreGuard {
    pub(super) fn begin(semaphore: Semaphore, contender: Contender) -> Self {
        let Contender { keeper, fence } = contender;
        let hold = Hold::begin(keeper.clone(), monitor(semaphore.clone(), keeper));
        Self { semaphore, fence, hold: Some(hold) }
    }

    /// The session that holds the slot.
    pub fn session(&self) -> &str {
        self.hold().keeper().id()
    }

    /// The fencing token of this contender's own key. No other contender has or had the same one; holders need not
    /// have entered in its order.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Whether the slot is surely still held.
    pub fn is_held(&self) -> bool {
        self.hold().is_held()
    }

    /// How long the slot is surely held from now on: see [`crate::LockGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// Waits until the slot is lost, and tells why. At once, when it is lost already.
    pub async fn lost(&self) -> Loss {
        self.hold().lost().await
    }

    /// Gives the slot back and ends the session; `false` when the slot was lost before.
    ///
    /// # Errors
    /// When neither got through; the slot then ends with its session.
    pub async fn release(mut self) -> Result<bool, Error> {
        let hold = self.hold.take().expect("only a release or a drop takes the hold, and both end the guard");
        release(self.semaphore.clone(), hold).await
    }

    fn hold(&self) -> &Hold {
        self.hold.as_ref().expect("only a release or a drop takes the hold, and both end the guard")
    }
}

impl Drop for SemaphoreGuard {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            let semaphore = self.semaphore.clone();
            self.semaphore.client.tidy(async move {
                if let Err(error) = release(semaphore, hold).await {
                    debug!(%error, "a dropped slot could not be given back; it ends with its session");
                }
            });
        }
    }
}

async fn release(semaphore: Semaphore, hold: Hold) -> Result<bool, Error> {
    let keeper = hold.keeper().clone();
    let held = hold.is_held();
    // From here on the watch would take the release for a loss.
    drop(hold);
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let left = loop {
        match semaphore.leave(&keeper).await {
            Err(error) if error.is_transient() && keeper.is_alive() => {
                debug!(prefix = semaphore.prefix, %error, "cannot give the slot back now; trying again");
                sleep(backoff.failed()).await;
            }
            outcome => break outcome,
        }
    };
    // A session that ended takes its slot with it.
    match keeper.close().await {
        Ok(()) => Ok(held),
        Err(_) => left,
    }
}

/// Watches the prefix, and ends when the slot is lost.
async fn monitor(semaphore: Semaphore, keeper: SessionKeeper) -> Loss {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let (mut index, mut failures) = (0, 0);
    loop {
        let read = Read::consistent().newer_than(index, WATCH);
        let seen = semaphore.client.kv().list(&semaphore.folder(), &read).await;
        let judged = seen.and_then(|seen| {
            let mut slots = semaphore.slots(&seen.value)?;
            slots.iter_mut().for_each(|slots| slots.prune(&seen.value));
            Ok((slots, seen.index))
        });
        match judged {
            Ok((slots, seen_index)) => {
                match slots {
                    None => return Loss::Deleted,
                    Some(slots) if !slots.holds(keeper.id()) => return Loss::Unlisted,
                    Some(_) => {}
                }
                backoff.succeeded();
                (index, failures) = (seen_index, 0);
                if index == 0 {
                    sleep(COUNTED_RETRY).await;
                }
            }
            Err(error) => {
                failures += 1;
                let given_up = semaphore.watch_retries.is_some_and(|retries| failures > retries);
                if given_up || !error.is_transient() {
                    return Loss::Unwatched(error.to_string());
                }
                debug!(prefix = semaphore.prefix, %error, "cannot watch the slot now; trying again");
                sleep(if semaphore.watch_retries.is_some() { COUNTED_RETRY } else { backoff.failed() }).await;
            }
        }
    }
}
