//! A lock on a key, or on several, and its guard.
//!
//! | module | contents |
//! |---|---|
//! | [`guard`] | the guard of a held lock |
//!
//! Acquiring, watching and releasing are decided in [`crate::holder`].
//!
//! Compatible with the locks of Consul's own clients: the same flags, the same requests. Three
//! differences are intentional. A contender waits in the lock's queue, if the agent has one. During
//! a lock-delay without a queue, a contender waits exactly as long as the agent reports, plus
//! jitter. A guard survives every transient error until its own deadline.

mod guard;

pub use guard::LockGuard;

use crate::client::Client;
use crate::error::Error;
use crate::guard::HoldGuard;
use crate::holder::{Acquisition, Goal, LockGoal, Moment, WaitLimit};
use crate::keeper::{SessionKeeper, SessionSource};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;

/// The flags that mark a key as a lock for Consul's clients.
pub const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A lock, or several, that can be acquired. No request is sent before that.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    goals: Vec<LockGoal>,
    source: SessionSource,
    watch_retries: Option<u32>,
}

impl Lock {
    /// Creates a lock on `key`, with a new session for each acquisition.
    pub fn new(client: &Client, key: impl Into<String>) -> Self {
        Self::many(client, [key])
    }

    /// Creates a lock on 1 to 64 different keys. They are acquired all or none, with one position
    /// in all their queues, so the order of the keys does not matter: no deadlock is possible. The
    /// guard ends when any of the locks is lost. Consul's agents have only single locks.
    pub fn many(client: &Client, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let goal = |key| LockGoal { key, value: Bytes::new(), flags: LOCK_FLAGS, is_shared: false };
        Self {
            client: client.clone(),
            goals: keys.into_iter().map(|key| goal(key.into())).collect(),
            source: SessionSource::Own(SessionOptions::named("Lockmesh lock")),
            watch_retries: None,
        }
    }

    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sets the value of the key while it is held, for example the holder's name.
    #[must_use]
    pub fn value(self, value: impl Into<Bytes>) -> Self {
        let value = value.into();
        self.with(|goal| goal.value = value.clone())
    }

    /// Sets other flags than those of Consul's clients, for a key that is already used with other
    /// flags.
    #[must_use]
    pub fn flags(self, flags: u64) -> Self {
        self.with(|goal| goal.flags = flags)
    }

    /// Acquires the lock in shared mode, beside any number of others that do: readers, for example,
    /// while a writer acquires it without this. A writer that waits stops later readers. The key
    /// keeps its value, and all holders of a period have one fencing token.
    #[must_use]
    pub fn shared(self) -> Self {
        self.with(|goal| goal.is_shared = true)
    }

    /// Sets the options of the lock's own session.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { source: SessionSource::Own(options), ..self }
    }

    /// Uses this session for the lock; the session outlives the guard.
    #[must_use]
    pub fn shared_session(self, keeper: &SessionKeeper) -> Self {
        Self { source: SessionSource::Shared(keeper.clone()), ..self }
    }

    /// Gives the hold up after the watch has failed and this number of retries, one second apart,
    /// has failed too. With `None`, the default, the hold lasts until the session's deadline.
    #[must_use]
    pub fn watch_retries(self, retries: Option<u32>) -> Self {
        Self { watch_retries: retries, ..self }
    }

    /// Acquires the lock, without a time limit, in first-in, first-out order. Dropping the future
    /// gives up and leaves nothing held.
    ///
    /// # Errors
    /// A session cannot be created, the request is rejected, or the key is not a lock. Transient
    /// errors are retried once there is a session.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(WaitLimit::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free now; `None` if it is not.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and transient errors.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.attempt(WaitLimit::Once).await
    }

    /// Acquires the lock within `limit`, or up to 200 ms later; `None` if that is not possible,
    /// whatever the reason. A session or a grant that arrives later is released in the background:
    /// see [`Client::settled`].
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.attempt(WaitLimit::Until(self.client.clock().now() + limit)).await
    }

    /// Releases the lock on behalf of a dead process that held it under `session`, then ends the
    /// session, so that there is no lock-delay. If that is after `overdue_at`, when the last
    /// renewal expired, the reason is recorded as `given-up`. The release writes the value and
    /// flags of this lock. Returns `false` if the session no longer held it. Transient errors are
    /// retried until the session has ended in any case: for 10 minutes, or two TTLs of this lock's
    /// session options if that is longer. If the future is dropped, this continues in the
    /// background.
    ///
    /// Call it only when nothing that relies on the lock runs any more.
    ///
    /// # Errors
    /// The release failed or its outcome is unknown; the lock then ends with its session.
    pub async fn give_back(&self, session: &str, overdue_at: Moment) -> Result<bool, Error> {
        let driver = self.source.driver_of_another(&self.client);
        driver.give_back(self.goal(), (session.to_owned(), overdue_at)).await
    }

    /// Deletes the lock's key unless the lock is held; returns `false` if it is. Of several keys,
    /// it deletes each that is not held.
    ///
    /// # Errors
    /// The errors of the requests. A key that is not a lock is left unchanged.
    pub async fn remove(&self) -> Result<bool, Error> {
        let mut is_removed = true;
        for goal in &self.goals {
            is_removed &= self.remove_one(goal).await?;
        }
        Ok(is_removed)
    }

    async fn remove_one(&self, goal: &LockGoal) -> Result<bool, Error> {
        let Some(entry) = self.client.kv().get(&goal.key, &Read::default()).await?.value else {
            return Ok(true);
        };
        goal.check(&entry)?;
        if entry.session.is_some() {
            return Ok(false);
        }
        // Only in the version that was read: a client that acquires the lock in between keeps it.
        self.client.kv().delete_cas(&goal.key, entry.modify_index).await
    }

    fn with(mut self, change: impl FnMut(&mut LockGoal)) -> Self {
        self.goals.iter_mut().for_each(change);
        self
    }

    fn goal(&self) -> Goal {
        match &self.goals[..] {
            [goal] => Goal::Lock(goal.clone()),
            goals => Goal::Locks(goals.to_vec()),
        }
    }

    async fn attempt(&self, wait_limit: WaitLimit) -> Result<Option<LockGuard>, Error> {
        let driver = self.source.driver(&self.client)?;
        let goal = self.goal();
        let acquired =
            driver.acquire(Acquisition { goal, wait_limit, watch_retries: self.watch_retries }).await?;
        let guard = |guard| LockGuard::new(self.client.clone(), self.goals.clone(), guard);
        Ok(acquired.map(|(hold, grant)| guard(HoldGuard::new(hold, grant))))
    }
}

#[cfg(test)]
mod tests;
