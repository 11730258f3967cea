//! The guard of a held lock: a [`HoldGuard`] that also knows the key.

use crate::client::Client;
use crate::entry::Acquired;
use crate::error::Error;
use crate::guard::HoldGuard;
use crate::holder::LockGoal;
use crate::loss::Loss;
use bytes::Bytes;
use std::ops::Deref;

/// A held lock. Dropping it releases the lock in the background; prefer [`LockGuard::release`].
#[derive(Debug)]
pub struct LockGuard {
    client: Client,
    goal: LockGoal,
    guard: HoldGuard,
}

impl Deref for LockGuard {
    type Target = HoldGuard;

    fn deref(&self) -> &HoldGuard {
        &self.guard
    }
}

impl From<LockGuard> for HoldGuard {
    fn from(guard: LockGuard) -> Self {
        guard.guard
    }
}

impl LockGuard {
    pub(super) fn new(client: Client, goal: LockGoal, guard: HoldGuard) -> Self {
        Self { client, goal, guard }
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.goal.key
    }

    /// Changes the value of the key while it is held.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if the lock is no longer held, [`Error::Conflict`] if it is shared;
    /// otherwise the errors of the request.
    pub async fn update(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        if !self.is_held() {
            return Err(Error::SessionLost(self.lost().await));
        }
        let LockGoal { key, flags, is_shared, .. } = &self.goal;
        if *is_shared {
            // A plain acquire would end the shared mode.
            let reason = "is held in shared mode, which writes no value".into();
            return Err(Error::Conflict { key: key.clone(), reason });
        }
        match self.client.kv().acquire(key, self.session(), value.clone(), *flags).await? {
            Acquired::Granted { .. } => {
                // The release writes a value too, and must not restore an older one.
                self.guard.hold.written(value);
                Ok(())
            }
            Acquired::Refused { .. } => Err(Error::SessionLost(Loss::Released)),
        }
    }

    /// Releases the lock: see [`HoldGuard::release`].
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the lock then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.guard.release().await
    }
}
