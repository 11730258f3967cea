//! What the holder of a lock is given.
//!
//! A guard learns of a loss from four sides: the lease of its session and that of its node, whose
//! deadlines it counts itself; the agent's answer to a renewal; and a consistent blocking query on the key, which sees a deletion,
//! a release and another holder.

use crate::client::Client;
use crate::driver::Hold;
use crate::entry::Acquired;
use crate::error::Error;
use crate::holder::{Grant, GuardState, LockGoal};
use crate::loss::Loss;
use bytes::Bytes;
use std::time::Duration;

/// A lock that is held. Dropping it releases the lock in the background; better is
/// [`LockGuard::release`].
#[derive(Debug)]
pub struct LockGuard {
    client: Client,
    goal: LockGoal,
    hold: Hold,
    grant: Grant,
}

impl LockGuard {
    pub(super) fn new(client: Client, goal: LockGoal, hold: Hold, grant: Grant) -> Self {
        Self { client, goal, hold, grant }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.goal.key
    }

    /// The session that holds it.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// The grant's fencing token: greater than that of every earlier grant in the cluster. `None`
    /// from an agent that does not know fences.
    pub fn fence(&self) -> Option<u64> {
        self.grant.fence
    }

    /// Whether the lock is surely still held: see [`LockGuard::remaining`].
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// How long the hold is surely good from now on, unless somebody ends it on purpose or a health
    /// check does; zero once it is lost. Grows again with each renewal.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// How the hold stands now.
    pub fn state(&self) -> GuardState {
        self.hold.state()
    }

    /// Waits until the hold stands otherwise than `known`, and tells how: a deadline that moved on is
    /// no change. Start with [`LockGuard::state`], then give back what this told last.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.hold.changed(known).await
    }

    /// Waits until the hold is lost, and tells why. At once, when it is lost already. One that is
    /// suspended counts as lost here, with [`Loss::NodeDeadline`], for somebody else may hold the
    /// lock: who can stand still and wait for better news uses [`LockGuard::changed`].
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Changes the value of the key while it is held.
    ///
    /// # Errors
    /// [`Error::SessionLost`] when the lock is not held any longer, or whatever the request says.
    pub async fn update(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        if !self.is_held() {
            return Err(Error::SessionLost(self.lost().await));
        }
        let LockGoal { key, flags, .. } = &self.goal;
        match self.client.kv().acquire(key, &self.grant.session, value.clone(), *flags).await? {
            Acquired::Granted { .. } => {
                // The release writes a value too, and must not bring an older one back.
                self.hold.written(value);
                Ok(())
            }
            Acquired::Refused { .. } => Err(Error::SessionLost(Loss::Released)),
        }
    }

    /// Gives the lock back and, if the session was only for it, ends the session. `false` when the
    /// lock was lost before. Transient errors are ridden out until the hold's deadline.
    ///
    /// # Errors
    /// When the release did not get through, or is not known to have; the lock then ends with its
    /// session.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release().await
    }
}
