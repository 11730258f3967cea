//! A semaphore of N slots on a prefix.
//!
//! Acquiring, watching and releasing are decided in [`crate::holder`].
//!
//! The construction is that of Consul's own clients, so that both can compete. Each contender locks
//! a key `<prefix>/<session>`, which is deleted with its session. The holders' list
//! `<prefix>/.lock` is only changed by compare-and-set. The next contender that enters removes
//! holders whose contender key is gone.

use crate::client::Client;
use crate::driver::Driver;
use crate::error::Error;
use crate::guard::HoldGuard;
use crate::holder::{Acquisition, Goal, Moment, SessionUse, SlotGoal, WaitLimit};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;

/// A held slot.
pub type SemaphoreGuard = HoldGuard;

/// A semaphore whose slots can be acquired. No request is sent before that.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    goal: SlotGoal,
    options: SessionOptions,
    watch_retries: Option<u32>,
}

impl Semaphore {
    /// Creates a semaphore of `limit` slots under `prefix`. All contenders must use the same limit.
    pub fn new(client: &Client, prefix: impl Into<String>, limit: usize) -> Self {
        let mut prefix = prefix.into();
        // A trailing slash makes no difference.
        prefix.truncate(prefix.trim_end_matches('/').len());
        // A contender's key proves that it is alive, so it must be deleted with the session.
        let options = SessionOptions { delete_keys: true, ..SessionOptions::named("Lockmesh semaphore") };
        let goal = SlotGoal { prefix, limit, value: Bytes::new() };
        Self { client: client.clone(), goal, options, watch_retries: None }
    }

    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sets the value of the contender's own key, for example its name.
    #[must_use]
    pub fn value(self, value: impl Into<Bytes>) -> Self {
        Self { goal: SlotGoal { value: value.into(), ..self.goal }, ..self }
    }

    /// Sets the options of each contender's session. Its keys are always deleted at its end,
    /// regardless of these options.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { options: SessionOptions { delete_keys: true, ..options }, ..self }
    }

    /// As [`crate::Lock::watch_retries`].
    #[must_use]
    pub fn watch_retries(self, retries: Option<u32>) -> Self {
        Self { watch_retries: retries, ..self }
    }

    /// Acquires a slot, without a time limit. Dropping the future gives up and leaves nothing held.
    ///
    /// # Errors
    /// A session cannot be created, a request is rejected, the prefix is not a semaphore, or its
    /// limit differs. Transient errors are retried once there is a session.
    pub async fn acquire(&self) -> Result<SemaphoreGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(WaitLimit::Endless).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires a slot if one is free now; else `None`.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`], and transient errors.
    pub async fn try_acquire(&self) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(WaitLimit::Once).await
    }

    /// Acquires a slot within `limit`, or up to 200 ms later; `None` if that is not possible: see
    /// [`crate::Lock::acquire_within`].
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(WaitLimit::Until(self.client.clock().now() + limit)).await
    }

    /// Gives back the slot of a dead process that held it under `session`: removes the session from
    /// the list of holders, deletes its own key, and ends it. Returns `false` if the session was
    /// not on the list. Otherwise as [`crate::Lock::give_back`].
    ///
    /// # Errors
    /// As [`crate::Lock::give_back`].
    pub async fn give_back(&self, session: &str, overdue_at: Moment) -> Result<bool, Error> {
        let driver = Driver::start(&self.client, self.options.clone(), SessionUse::OneHold);
        driver.give_back(Goal::Slot(self.goal.clone()), (session.to_owned(), overdue_at)).await
    }

    /// Deletes the list of holders unless a holder is alive; returns `false` if one is.
    ///
    /// # Errors
    /// The errors of the requests. A prefix that is not a semaphore is left unchanged.
    pub async fn remove(&self) -> Result<bool, Error> {
        let entries = self.client.kv().list(&self.goal.folder(), &Read::default()).await?.value;
        let Some(mut slots) = self.goal.list(&entries)? else { return Ok(true) };
        slots.prune(&entries);
        if slots.taken() > 0 {
            return Ok(false);
        }
        // Only in the version that was read: a contender that enters in between keeps its slot.
        self.client.kv().delete_cas(&self.goal.list_key(), slots.modify_index).await
    }

    async fn attempt(&self, wait_limit: WaitLimit) -> Result<Option<SemaphoreGuard>, Error> {
        self.options.check()?;
        let driver = Driver::start(&self.client, self.options.clone(), SessionUse::OneHold);
        let goal = Goal::Slot(self.goal.clone());
        let acquired =
            driver.acquire(Acquisition { goal, wait_limit, watch_retries: self.watch_retries }).await?;
        Ok(acquired.map(|(hold, grant)| SemaphoreGuard::new(hold, grant)))
    }
}

#[cfg(test)]
mod tests;
