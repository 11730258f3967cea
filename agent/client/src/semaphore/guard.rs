//! What the holder of a slot is given. It learns of a loss as the guard of a lock does: from its
//! session's and its node's lease, from the answers to renewals, and from a consistent blocking query on the
//! semaphore's prefix.

use crate::driver::Hold;
use crate::error::Error;
use crate::holder::{Grant, GuardState};
use crate::loss::Loss;
use std::time::Duration;

/// A slot that is held. Dropping it gives the slot back in the background; better is
/// [`SemaphoreGuard::release`].
#[derive(Debug)]
pub struct SemaphoreGuard {
    hold: Hold,
    grant: Grant,
}

impl SemaphoreGuard {
    pub(super) fn new(hold: Hold, grant: Grant) -> Self {
        Self { hold, grant }
    }

    /// The session that holds the slot.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// The fencing token of this contender's own key. No other contender has or had the same one;
    /// holders need not have entered in its order.
    pub fn fence(&self) -> Option<u64> {
        self.grant.fence
    }

    /// Whether the slot is surely still held.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// How long the slot is surely held from now on: see [`crate::LockGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// How the hold stands now.
    pub fn state(&self) -> GuardState {
        self.hold.state()
    }

    /// Waits until the hold stands otherwise than `known`, and tells how: a deadline that moved on is
    /// no change. Start with [`SemaphoreGuard::state`], then give back what this told last.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.hold.changed(known).await
    }

    /// Waits until the slot is lost, or suspended, and tells why: see [`crate::LockGuard::lost`].
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Gives the slot back and ends the session; `false` when the slot was lost before.
    ///
    /// # Errors
    /// When neither got through; the slot then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release().await
    }
}
