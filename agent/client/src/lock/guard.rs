//! The guard of a held lock.
//!
//! A guard detects a loss in four ways: the deadline of its session's lease; the deadline of its
//! node's lease; the agent's reply to a renewal; and a consistent blocking query on the key, which
//! detects a deletion, a release and another holder.

use crate::client::Client;
use crate::driver::Hold;
use crate::entry::Acquired;
use crate::error::Error;
use crate::holder::{Grant, GuardState, LockGoal};
use crate::loss::Loss;
use bytes::Bytes;
use std::time::Duration;

/// A held lock. Dropping it releases the lock in the background; prefer [`LockGuard::release`].
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

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.goal.key
    }

    /// Returns the session that holds the lock.
    pub fn session(&self) -> &str {
        &self.grant.session
    }

    /// Returns the fencing token of the grant: greater than that of every earlier grant in the
    /// cluster. `None` from an agent without fences.
    pub fn fence(&self) -> Option<u64> {
        self.grant.fence
    }

    /// Returns `true` if the lock is guaranteed to be held: see [`LockGuard::remaining`].
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Returns the time for which the lock is guaranteed to be held, unless an operator or a health
    /// check ends it; zero once it is lost. Each renewal extends it.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Returns the state of the hold.
    pub fn state(&self) -> GuardState {
        self.hold.state()
    }

    /// Waits until the state differs from `known`, and returns the new one. An extended deadline is
    /// not a change. Start with [`LockGuard::state`], then pass the last result.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.hold.changed(known).await
    }

    /// As `changed`, but an extended deadline is a change too.
    pub async fn next_state(&self, known: &GuardState) -> GuardState {
        self.hold.next_state(known).await
    }

    /// Waits until the lock is lost, and returns the reason; returns at once if it is already lost.
    /// A suspended lock counts as lost here, with [`Loss::NodeDeadline`], because another client
    /// may hold it. Callers that can pause should use [`LockGuard::changed`].
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Changes the value of the key while it is held.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if the lock is no longer held; otherwise the errors of the request.
    pub async fn update(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        if !self.is_held() {
            return Err(Error::SessionLost(self.lost().await));
        }
        let LockGoal { key, flags, .. } = &self.goal;
        match self.client.kv().acquire(key, &self.grant.session, value.clone(), *flags).await? {
            Acquired::Granted { .. } => {
                // The release writes a value too, and must not restore an older one.
                self.hold.written(value);
                Ok(())
            }
            Acquired::Refused { .. } => Err(Error::SessionLost(Loss::Released)),
        }
    }

    /// Releases the lock and, if the session served only this lock, ends the session. Returns
    /// `false` if the lock was lost before. Transient errors are retried until the hold's deadline.
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the lock then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release().await
    }
}
