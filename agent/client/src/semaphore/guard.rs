//! The guard of a held slot. Like a lock's guard, it detects a loss from its session's and its
//! node's lease, from the replies to renewals, and from a consistent blocking query on the
//! semaphore's prefix.

use crate::driver::Hold;
use crate::error::Error;
use crate::holder::{Grant, GuardState};
use crate::loss::Loss;
use std::time::Duration;

/// A held slot. Dropping it releases the slot in the background; prefer
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

    /// Returns the session that holds the slot.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// Returns the fencing token of this contender's own key. It is unique among all contenders,
    /// past and present. It does not imply an order in which slots were acquired.
    pub fn fence(&self) -> Option<u64> {
        self.grant.fence
    }

    /// Returns `true` if the slot is guaranteed to be held.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Returns the time for which the slot is guaranteed to be held: see
    /// [`crate::LockGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Returns the state of the hold.
    pub fn state(&self) -> GuardState {
        self.hold.state()
    }

    /// Waits until the state differs from `known`, and returns the new one. An extended deadline is
    /// not a change. Start with [`SemaphoreGuard::state`], then pass the last result.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.hold.changed(known).await
    }

    /// As `changed`, but an extended deadline is a change too.
    pub async fn next_state(&self, known: &GuardState) -> GuardState {
        self.hold.next_state(known).await
    }

    /// Waits until the slot is lost or suspended, and returns the reason: see
    /// [`crate::LockGuard::lost`].
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Releases the slot and ends the session; returns `false` if the slot was lost before.
    ///
    /// # Errors
    /// Both requests failed; the slot then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release().await
    }
}
