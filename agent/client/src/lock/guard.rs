//! What the holder of a lock is given.
//!
//! A guard learns of a loss from three sides: the lease of its session, which it counts itself; the agent's answer to
//! a renewal; and a consistent blocking query on the key, which sees a deletion, a release and another holder.

use super::{Lock, WATCH};
use crate::backoff::Backoff;
use crate::client::Read;
use crate::error::Error;
use crate::hold::Hold;
use crate::keeper::SessionKeeper;
use crate::kv::{Acquired, Entry};
use crate::loss::Loss;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// How long to wait between tries where the caller counts them.
const COUNTED_RETRY: Duration = Duration::from_secs(1);

/// A lock that is held. Dropping it releases the lock in the background; better is [`LockGuard::release`].
#[derive(Debug)]
pub struct LockGuard {
    lock: Lock,
    fence: Option<u64>,
    /// `None` once it was released.
    hold: Option<Hold>,
}

impl LockGuard {
    pub(super) fn begin(lock: Lock, keeper: SessionKeeper, fence: Option<u64>) -> Self {
        let hold = Hold::begin(keeper.clone(), monitor(lock.clone(), keeper));
        Self { lock, fence, hold: Some(hold) }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.lock.key
    }

    /// The session that holds it.
    pub fn session(&self) -> &str {
        self.hold().keeper().id()
    }

    /// The grant's fencing token: greater than that of every earlier grant in the cluster. `None` from an agent that
    /// does not know fences.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Whether the lock is surely still held: see [`LockGuard::remaining`].
    pub fn is_held(&self) -> bool {
        self.hold().is_held()
    }

    /// How long the hold is surely good from now on, unless somebody ends it on purpose or a health check does; zero
    /// once it is lost. Grows again with each renewal.
    pub fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    /// Waits until the hold is lost, and tells why. At once, when it is lost already.
    pub async fn lost(&self) -> Loss {
        self.hold().lost().await
    }

    /// Changes the value of the key while it is held.
    ///
    /// # Errors
    /// [`Error::SessionLost`] when the lock is not held any longer, or whatever the request says.
    pub async fn update(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        let session = self.session().to_owned();
        if !self.is_held() {
            return Err(Error::SessionLost(self.lost().await));
        }
        match self.lock.client.kv().acquire(&self.lock.key, &session, value.clone(), self.lock.flags).await? {
            Acquired::Granted { .. } => {
                self.lock.value = value;
                Ok(())
            }
            Acquired::Refused { .. } => Err(Error::SessionLost(Loss::Released)),
        }
    }

    /// Gives the lock back and, if the session was only for it, ends the session. `false` when the lock was lost
    /// before. Transient errors are ridden out until the hold's deadline.
    ///
    /// # Errors
    /// When the release did not get through; the lock then ends with its session.
    pub async fn release(mut self) -> Result<bool, Error> {
        let hold = self.hold.take().expect("only a release or a drop takes the hold, and both end the guard");
        release(self.lock.clone(), hold).await
    }

    fn hold(&self) -> &Hold {
        self.hold.as_ref().expect("only a release or a drop takes the hold, and both end the guard")
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            let lock = self.lock.clone();
            self.lock.client.tidy(async move {
                if let Err(error) = release(lock, hold).await {
                    debug!(%error, "a dropped lock could not be released; it ends with its session");
                }
            });
        }
    }
}

async fn release(lock: Lock, hold: Hold) -> Result<bool, Error> {
    let keeper = hold.keeper().clone();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let (mut lost, mut unheard) = (!hold.is_held(), false);
    // From here on the watch would take the release for a loss.
    drop(hold);
    let released = loop {
        if lost {
            break Ok(false);
        }
        match lock.client.kv().release(&lock.key, keeper.id(), lock.value.clone(), lock.flags).await {
            Err(error) if error.is_transient() && keeper.is_alive() => {
                debug!(key = lock.key, %error, "cannot release the lock now; trying again");
                unheard |= !error.certainly_not_done();
                sleep(backoff.failed()).await;
                lost = !keeper.is_alive();
            }
            // Nothing to release any more, after a release whose answer was not heard: that one did it.
            Ok(false) if unheard => break Ok(true),
            outcome => break outcome,
        }
    };
    if !lock.source.is_own() {
        return released;
    }
    let closed = keeper.close().await;
    // A session that ended takes the lock with it, so an unheard release has done its work all the same.
    if closed.is_ok() { Ok(released.unwrap_or(false)) } else { released }
}

/// Watches the key, and ends when the hold is lost.
async fn monitor(lock: Lock, keeper: SessionKeeper) -> Loss {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
    let (mut index, mut failures) = (0, 0);
    loop {
        let read = Read::consistent().newer_than(index, WATCH);
        match lock.client.kv().get(&lock.key, &read).await {
            Ok(answer) => {
                if let Some(loss) = judge(answer.value.as_ref(), keeper.id()) {
                    return cause(&keeper, loss).await;
                }
                backoff.succeeded();
                (index, failures) = (answer.index, 0);
                if index == 0 {
                    sleep(COUNTED_RETRY).await;
                }
            }
            Err(error) => {
                failures += 1;
                let given_up = lock.watch_retries.is_some_and(|retries| failures > retries);
                if given_up || !error.is_transient() {
                    return Loss::Unwatched(error.to_string());
                }
                debug!(key = lock.key, %error, "cannot watch the lock now; trying again");
                sleep(if lock.watch_retries.is_some() { COUNTED_RETRY } else { backoff.failed() }).await;
            }
        }
    }
}

/// What a look at the key says about a session's hold; `None` when all is well.
fn judge(entry: Option<&Entry>, session: &str) -> Option<Loss> {
    match entry.map(|entry| entry.session.as_deref()) {
        None => Some(Loss::Deleted),
        Some(None) => Some(Loss::Released),
        Some(Some(holder)) if holder != session => Some(Loss::Taken(holder.to_owned())),
        Some(Some(_)) => None,
    }
}

/// A session's end shows in its keys first; says so where that is the reason.
async fn cause(keeper: &SessionKeeper, loss: Loss) -> Loss {
    match keeper.client().sessions().info(keeper.id(), &Read::default()).await {
        Ok(answer) if answer.value.is_none() => Loss::SessionGone,
        _ => loss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_key_is_judged() {
        let held_by = |session: Option<&str>| Entry { session: session.map(Into::into), ..Entry::default() };
        assert_eq!(judge(Some(&held_by(Some("me"))), "me"), None);
        assert_eq!(judge(Some(&held_by(Some("you"))), "me"), Some(Loss::Taken("you".into())));
        assert_eq!(judge(Some(&held_by(None)), "me"), Some(Loss::Released));
        assert_eq!(judge(None, "me"), Some(Loss::Deleted));
    }
}
