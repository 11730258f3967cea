//! A lock on a key, and the guard that watches over it.
//!
//! | module | is |
//! |---|---|
//! | [`guard`] | what the holder is given |
//!
//! How a lock is acquired, watched and given back is decided in [`crate::holder`].
//!
//! Compatible with the locks of Consul's own clients: the same flags, the same requests. Different
//! on purpose: who has to wait stands in the lock's queue, where the agent has one; who meets a
//! lock-delay elsewhere waits as long as the agent says and no longer, out of step with others; and
//! a guard rides out every transient error until its own deadline.

mod guard;

pub use guard::LockGuard;

use crate::client::Client;
use crate::error::Error;
use crate::holder::{Goal, LockGoal, WaitLimit, Wanted};
use crate::keeper::{SessionKeeper, Source};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;

/// The flags by which Consul's clients know a key that is a lock.
pub const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// A lock that can be acquired. Nothing is sent before it is.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Client,
    goal: LockGoal,
    source: Source,
    watch_retries: Option<u32>,
}

impl Lock {
    /// A lock on `key`, with a session of its own for each acquisition.
    pub fn new(client: &Client, key: impl Into<String>) -> Self {
        Self {
            client: client.clone(),
            goal: LockGoal { key: key.into(), value: Bytes::new(), flags: LOCK_FLAGS },
            source: Source::Own(SessionOptions::named("Lockmesh lock")),
            watch_retries: None,
        }
    }

    /// The client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the key shall hold while it is held, such as who holds it.
    #[must_use]
    pub fn value(self, value: impl Into<Bytes>) -> Self {
        Self { goal: LockGoal { value: value.into(), ..self.goal }, ..self }
    }

    /// Other flags than those of Consul's clients, for a key that is used with other flags already.
    #[must_use]
    pub fn flags(self, flags: u64) -> Self {
        Self { goal: LockGoal { flags, ..self.goal }, ..self }
    }

    /// What the session of its own shall be like.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { source: Source::Own(options), ..self }
    }

    /// Takes the lock for this session, which outlives the guard.
    #[must_use]
    pub fn shared_session(self, keeper: &SessionKeeper) -> Self {
        Self { source: Source::Shared(keeper.clone()), ..self }
    }

    /// Gives the hold up when the watch over it failed and so did this many tries more, a second
    /// apart; `None`, the default, for going on until the session's deadline.
    #[must_use]
    pub fn watch_retries(self, retries: Option<u32>) -> Self {
        Self { watch_retries: retries, ..self }
    }

    /// Acquires the lock, however long it takes; whoever came first is first. Dropping the future
    /// gives up and leaves nothing held.
    ///
    /// # Errors
    /// A session cannot be created, the request is refused, or the key is something else than a
    /// lock. Transient errors are ridden out once there is a session.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(WaitLimit::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    /// As [`Lock::acquire`], and transient ones too.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.attempt(WaitLimit::Once).await
    }

    /// Acquires the lock if that is possible within about `limit`.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.attempt(WaitLimit::Until(self.client.clock().now() + limit)).await
    }

    /// Deletes the lock's key unless somebody holds it; `false` when somebody does.
    ///
    /// # Errors
    /// Whatever the requests say; a key that is something else than a lock is not touched.
    pub async fn remove(&self) -> Result<bool, Error> {
        let Some(entry) = self.client.kv().get(&self.goal.key, &Read::default()).await?.value else {
            return Ok(true);
        };
        self.goal.check(&entry)?;
        if entry.session.is_some() {
            return Ok(false);
        }
        // Only as it was seen: whoever takes the lock in between keeps it.
        self.client.kv().delete_cas(&self.goal.key, entry.modify_index).await
    }

    async fn attempt(&self, wait_limit: WaitLimit) -> Result<Option<LockGuard>, Error> {
        let driver = self.source.driver(&self.client)?;
        let goal = Goal::Lock(self.goal.clone());
        let acquired = driver.acquire(Wanted { goal, wait_limit, watch_retries: self.watch_retries }).await?;
        Ok(acquired.map(|(hold, grant)| LockGuard::new(self.client.clone(), self.goal.clone(), hold, grant)))
    }
}

#[cfg(test)]
mod tests;
