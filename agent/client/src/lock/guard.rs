//! The guard of a held lock, or of several: a [`HoldGuard`] that also knows the keys.

use crate::client::Client;
use crate::entry::Acquired;
use crate::error::Error;
use crate::guard::HoldGuard;
use crate::holder::LockGoal;
use crate::loss::Loss;
use bytes::Bytes;
use std::ops::Deref;

/// A held lock, or several: see [`Lock::many`](crate::Lock::many). Dropping it releases the lock in
/// the background; prefer [`LockGuard::release`].
#[derive(Debug)]
pub struct LockGuard {
    client: Client,
    goals: Vec<LockGoal>,
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
    pub(super) fn new(client: Client, goals: Vec<LockGoal>, guard: HoldGuard) -> Self {
        Self { client, goals, guard }
    }

    /// Returns the key; the first one of several.
    pub fn key(&self) -> &str {
        self.goals.first().map_or("", |goal| &goal.key)
    }

    /// Returns each key with its fencing token; nothing from an agent without fences.
    pub fn fences(&self) -> impl Iterator<Item = (&str, u64)> {
        let keys = self.goals.iter().map(|goal| goal.key.as_str());
        keys.zip(self.guard.fences().iter().copied())
    }

    /// Changes the value of the key while it is held; of several, one after the other.
    ///
    /// # Errors
    /// [`Error::SessionLost`] if the lock is no longer held, [`Error::Conflict`] if it is shared;
    /// otherwise the errors of the request.
    pub async fn update(&mut self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        if !self.is_held() {
            return Err(Error::SessionLost(self.lost().await));
        }
        for LockGoal { key, flags, is_shared, .. } in &self.goals {
            if *is_shared {
                // A plain acquire would end the shared mode.
                let reason = "is held in shared mode, which writes no value".into();
                return Err(Error::Conflict { key: key.clone(), reason });
            }
            match self.client.kv().acquire(key, self.session(), value.clone(), *flags).await? {
                Acquired::Granted { .. } => {}
                Acquired::Refused { .. } => return Err(Error::SessionLost(Loss::Released)),
            }
        }
        // The release writes a value too, and must not restore an older one.
        self.guard.hold.written(value);
        Ok(())
    }

    /// Releases the lock: see [`HoldGuard::release`].
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the lock then ends with its session.
    pub async fn release(self) -> Result<bool, Error> {
        self.guard.release().await
    }
}
