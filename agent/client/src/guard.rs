//! The guard of a hold: a lock or a slot of a semaphore.
//!
//! A guard detects a loss in four ways: the deadline of its session's lease; the deadline of its
//! node's lease; the agent's reply to a renewal; and a consistent blocking query on the key of the
//! lock, or on the semaphore's prefix, which detects a deletion, a release and another holder.

use crate::driver::Hold;
use crate::error::Error;
use crate::holder::{Grant, GuardState};
use crate::loss::Loss;
use std::time::Duration;

/// A held lock or slot. Dropping it releases the hold in the background; prefer
/// [`HoldGuard::release`].
#[derive(Debug)]
pub struct HoldGuard {
    pub(crate) hold: Hold,
    grant: Grant,
}

impl HoldGuard {
    pub(crate) fn new(hold: Hold, grant: Grant) -> Self {
        Self { hold, grant }
    }

    /// Returns the session that holds it.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// Returns the fencing token of the grant; `None` from an agent without fences. That of a lock
    /// is greater than that of every earlier grant in the cluster. That of a slot is unique among
    /// all contenders, past and present, and does not imply an order in which slots were acquired.
    /// Of several locks, it is that of the first.
    pub fn fence(&self) -> Option<u64> {
        self.grant.fences.first().copied()
    }

    /// Returns the fencing token of each lock.
    pub(crate) fn fences(&self) -> &[u64] {
        &self.grant.fences
    }

    /// Returns `true` if it is guaranteed to be held: see [`HoldGuard::remaining`].
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Returns the time for which it is guaranteed to be held, unless an operator or a health check
    /// ends it; zero once it is lost. Each renewal extends it.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Returns the state of the hold.
    pub fn state(&self) -> GuardState {
        self.hold.state()
    }

    /// Waits until the state differs from `known`, and returns the new one. An extended deadline is
    /// not a change. Start with [`HoldGuard::state`], then pass the last result.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.hold.changed(known).await
    }

    /// As `changed`, but an extended deadline is a change too.
    pub async fn next_state(&self, known: &GuardState) -> GuardState {
        self.hold.next_state(known).await
    }

    /// Waits until it is lost, and returns the reason; returns at once if it is already lost. A
    /// suspended hold counts as lost here, with [`Loss::NodeDeadline`], because another client may
    /// have it. Callers that can pause should use [`HoldGuard::changed`].
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Runs a future while it is held, and returns its output. The future is dropped when the hold
    /// is lost, as with [`HoldGuard::lost`]: it stops at its next `await`, so blocking code in it
    /// runs on.
    ///
    /// # Errors
    /// It was lost before the future was ready.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        tokio::select! {
            // The loss first: no step of the work begins once it is known.
            biased;
            reason = self.lost() => Err(reason),
            output = work => Ok(output),
        }
    }

    /// Releases it and, if the session served only this hold, ends the session. Returns `false` if
    /// it was lost before. Transient errors are retried until the hold's deadline.
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the hold then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release().await
    }

    /// Releases it in the background, for a caller that has stopped because the deadline passed or
    /// was near. The loss is recorded as given up, even if a renewal was acknowledged since.
    pub fn give_up(self) {
        self.hold.give_up();
    }
}
