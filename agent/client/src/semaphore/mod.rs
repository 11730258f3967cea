//! A semaphore of N slots on a prefix, and the guard that watches over a slot.
//!
//! | module | is |
//! |---|---|
//! | [`guard`] | what a holder is given |
//!
//! How a slot is acquired, watched and given back is decided in [`crate::holder`].
//!
//! The same construction as that of Consul's own clients, so that both can compete: each contender
//! locks a key `<prefix>/<session>` that dies with its session, and the holders' list
//! `<prefix>/.lock` is changed by compare-and-set only. Whoever enters first strikes holders off
//! whose contender key is gone.

mod guard;

pub use guard::SemaphoreGuard;

use crate::client::Client;
use crate::driver::Driver;
use crate::error::Error;
use crate::holder::{Goal, SessionUse, SlotGoal, WaitLimit, Wanted};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;

/// A semaphore whose slots can be acquired. Nothing is sent before one is.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    goal: SlotGoal,
    options: SessionOptions,
    watch_retries: Option<u32>,
}

impl Semaphore {
    /// A semaphore of `limit` slots under `prefix`. All contenders must name the same limit.
    pub fn new(client: &Client, prefix: impl Into<String>, limit: usize) -> Self {
        let mut prefix = prefix.into();
        // With a slash at its end or without, it is the same semaphore.
        prefix.truncate(prefix.trim_end_matches('/').len());
        // A contender's key says that it lives, so it must go with the session.
        let options = SessionOptions { delete_keys: true, ..SessionOptions::named("Lockmesh semaphore") };
        let goal = SlotGoal { prefix, limit, value: Bytes::new() };
        Self { client: client.clone(), goal, options, watch_retries: None }
    }

    /// The client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the contender's own key shall hold, such as who it is.
    #[must_use]
    pub fn value(self, value: impl Into<Bytes>) -> Self {
        Self { goal: SlotGoal { value: value.into(), ..self.goal }, ..self }
    }

    /// What each contender's session shall be like. Its keys are deleted at its end, whatever is
    /// said here.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { options: SessionOptions { delete_keys: true, ..options }, ..self }
    }

    /// As [`crate::Lock::watch_retries`].
    #[must_use]
    pub fn watch_retries(self, retries: Option<u32>) -> Self {
        Self { watch_retries: retries, ..self }
    }

    /// Acquires a slot, however long it takes. Dropping the future gives up and leaves nothing
    /// held.
    ///
    /// # Errors
    /// A session cannot be created, a request is refused, the prefix is something else than a
    /// semaphore or one of another limit. Transient errors are ridden out once there is a session.
    pub async fn acquire(&self) -> Result<SemaphoreGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(WaitLimit::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires a slot if one is free now.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`], and transient ones too.
    pub async fn try_acquire(&self) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(WaitLimit::Once).await
    }

    /// Acquires a slot if that is possible within about `limit`.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(WaitLimit::Until(self.client.clock().now() + limit)).await
    }

    /// Deletes the list of holders unless one of them is alive; `false` when one is.
    ///
    /// # Errors
    /// Whatever the requests say; a prefix that is something else than a semaphore is not touched.
    pub async fn remove(&self) -> Result<bool, Error> {
        let entries = self.client.kv().list(&self.goal.folder(), &Read::default()).await?.value;
        let Some(mut slots) = self.goal.slots(&entries)? else { return Ok(true) };
        slots.prune(&entries);
        if slots.taken() > 0 {
            return Ok(false);
        }
        // Only as it was seen: whoever enters in between keeps the slot.
        self.client.kv().delete_cas(&self.goal.list_key(), slots.modify_index).await
    }

    async fn attempt(&self, wait_limit: WaitLimit) -> Result<Option<SemaphoreGuard>, Error> {
        self.options.check()?;
        let driver = Driver::start(&self.client, self.options.clone(), SessionUse::OneHold);
        let goal = Goal::Slot(self.goal.clone());
        let acquired = driver.acquire(Wanted { goal, wait_limit, watch_retries: self.watch_retries }).await?;
        Ok(acquired.map(|(hold, grant)| SemaphoreGuard::new(hold, grant)))
    }
}

#[cfg(test)]
mod tests;
