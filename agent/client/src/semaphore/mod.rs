//! A semaphore of N slots on a prefix, and the guard that watches over a slot.
//!
//! | module | is |
//! |---|---|
//! | [`holders`] | the list of holders: its JSON, who is alive, who may enter; pure |
//! | [`guard`] | what a holder is given |
//!
//! The same construction as that of Consul's own clients, so that both can compete: each contender locks a key
//! `<prefix>/<session>` that dies with its session, and the holders' list `<prefix>/.lock` is changed by
//! compare-and-set only. Whoever enters first strikes holders off whose contender key is gone.

mod guard;
mod holders;

pub use guard::SemaphoreGuard;

use crate::backoff::{Backoff, jitter};
use crate::client::{Client, Read};
use crate::clock::Moment;
use crate::error::Error;
use crate::keeper::{SessionKeeper, SessionOptions};
use crate::kv::{Acquired, Entry};
use bytes::Bytes;
use holders::Slots;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;

/// The flags by which Consul's clients know the keys of a semaphore.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// How long one blocking query waits for a change of the slots.
const WATCH: Duration = Duration::from_secs(60);

/// How far contenders are spread after one of them was faster.
const SPREAD: Duration = Duration::from_millis(50);

/// A semaphore whose slots can be acquired. Nothing is sent before one is.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    prefix: String,
    limit: usize,
    value: Bytes,
    options: SessionOptions,
    watch_retries: Option<u32>,
}

/// Somebody who wants a slot: a session with a key of its own.
#[derive(Clone, Debug)]
struct Contender {
    keeper: SessionKeeper,
    fence: Option<u64>,
}

/// What one turn of trying gave.
enum Turn {
    /// A slot is ours.
    Entered(Contender),
    /// Every slot is taken; news come behind this index.
    Full(u64),
    /// Somebody else changed the list at the same moment.
    Overtaken,
}

impl Semaphore {
    /// A semaphore of `limit` slots under `prefix`. All contenders must name the same limit.
    pub fn new(client: &Client, prefix: impl Into<String>, limit: usize) -> Self {
        let mut prefix = prefix.into();
        prefix.truncate(prefix.trim_end_matches('/').len());
        let options = SessionOptions { delete_keys: true, ..SessionOptions::named("Lockmesh semaphore") };
        Self { client: client.clone(), prefix, limit, value: Bytes::new(), options, watch_retries: None }
    }

    /// The client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the contender's own key shall hold, such as who it is.
    #[must_use]
    pub fn value(self, value: impl Into<Bytes>) -> Self {
        Self { value: value.into(), ..self }
    }

    /// What each contender's session shall be like. Its keys are deleted at its end, whatever is said here.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { options: SessionOptions { delete_keys: true, ..options }, ..self }
    }

    /// As [`crate::Lock::watch_retries`].
    #[must_use]
    pub fn watch_retries(self, retries: Option<u32>) -> Self {
        Self { watch_retries: retries, ..self }
    }

    /// Acquires a slot, however long it takes. Dropping the future gives up and leaves nothing held.
    ///
    /// # Errors
    /// A session cannot be created, a request is refused, the prefix is something else than a semaphore or one of
    /// another limit. Transient errors are ridden out once there is a session.
    pub async fn acquire(&self) -> Result<SemaphoreGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(None, false).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires a slot if one is free now.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`], and transient ones too.
    pub async fn try_acquire(&self) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(None, true).await
    }

    /// Acquires a slot if that is possible within about `limit`.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<SemaphoreGuard>, Error> {
        self.attempt(Some(self.client.clock().now() + limit), false).await
    }

    /// Deletes the list of holders unless one of them is alive; `false` when one is.
    ///
    /// # Errors
    /// Whatever the requests say; a prefix that is something else than a semaphore is not touched.
    pub async fn remove(&self) -> Result<bool, Error> {
        let entries = self.client.kv().list(&self.folder(), &Read::default()).await?.value;
        let Some(mut slots) = self.slots(&entries)? else { return Ok(true) };
        slots.prune(&entries);
        if slots.taken() > 0 {
            return Ok(false);
        }
        self.client.kv().delete_cas(&self.list_key(), slots.modify_index).await
    }

    async fn attempt(&self, until: Option<Moment>, once: bool) -> Result<Option<SemaphoreGuard>, Error> {
        let clock = self.client.clock();
        let mut contender = Some(self.contend().await?);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut read = Read::default();
        loop {
            let turn = self.turn(&mut contender, &read).await;
            let left = until.map_or(Duration::MAX, |moment| moment.since(clock.now()));
            read = Read::default();
            let overtaken = matches!(turn, Ok(Turn::Overtaken));
            let pause = match turn {
                Ok(Turn::Entered(contender)) => {
                    return Ok(Some(SemaphoreGuard::begin(self.clone(), contender)));
                }
                Ok(Turn::Full(index)) => {
                    backoff.succeeded();
                    read = read.newer_than(index, left.min(WATCH));
                    if index == 0 { Duration::from_secs(1) } else { Duration::ZERO }
                }
                Ok(Turn::Overtaken) => jitter(SPREAD),
                Err(error) if error.is_transient() && !once => {
                    debug!(prefix = self.prefix, %error, "cannot try for a slot now; trying again");
                    backoff.failed()
                }
                Err(error) => {
                    self.withdraw(contender).await;
                    return Err(error);
                }
            };
            // Somebody else's change is no reason to give up a single try: a slot may be free still.
            if left.is_zero() || (once && !overtaken) {
                self.withdraw(contender).await;
                return Ok(None);
            }
            sleep(pause.min(left)).await;
        }
    }

    /// Becomes a contender: a session, and a key that lives as long as it does.
    async fn contend(&self) -> Result<Contender, Error> {
        let keeper = SessionKeeper::create(&self.client, &self.options).await?;
        let key = self.contender_key(keeper.id());
        match self.client.kv().acquire(&key, keeper.id(), self.value.clone(), SEMAPHORE_FLAGS).await? {
            Acquired::Granted { fence } => Ok(Contender { keeper, fence }),
            Acquired::Refused { .. } => {
                Err(Error::Conflict { key, reason: "another session holds the contender's own key".into() })
            }
        }
    }

    async fn turn(&self, contender: &mut Option<Contender>, read: &Read) -> Result<Turn, Error> {
        let current = match contender.take() {
            Some(current) if current.keeper.is_alive() => current,
            // Its session ended while it waited. That costs nothing: it held nothing.
            _ => self.contend().await?,
        };
        let current = contender.insert(current);
        let session = current.keeper.id();
        let seen = self.client.kv().list(&self.folder(), read).await?;
        let mut slots = self.slots(&seen.value)?.unwrap_or_else(|| Slots::empty(self.limit));
        slots.prune(&seen.value);
        // Entered already by a request whose answer was not heard.
        if slots.holds(session) {
            return Ok(Turn::Entered(current.clone()));
        }
        if !slots.enter(session) {
            return Ok(Turn::Full(seen.index));
        }
        let index = slots.modify_index;
        let entered = self.client.kv().cas(&self.list_key(), slots.to_json(), SEMAPHORE_FLAGS, index).await?;
        Ok(if entered { Turn::Entered(current.clone()) } else { Turn::Overtaken })
    }

    /// The list of holders among the entries under the prefix; `None` where there is none yet.
    fn slots(&self, entries: &[Entry]) -> Result<Option<Slots>, Error> {
        let key = self.list_key();
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { return Ok(None) };
        let conflict = |reason| Error::Conflict { key: key.clone(), reason };
        if entry.flags != SEMAPHORE_FLAGS {
            let reason =
                format!("its flags are {:#x}, those of a semaphore are {SEMAPHORE_FLAGS:#x}", entry.flags);
            return Err(conflict(reason));
        }
        Slots::parse(entry, self.limit).map(Some).map_err(conflict)
    }

    /// Takes a contender out, as well as that can be done: its session's TTL does the same, later.
    async fn withdraw(&self, contender: Option<Contender>) {
        let Some(contender) = contender else { return };
        let left = self.leave(&contender.keeper).await;
        let closed = contender.keeper.close().await;
        debug!(prefix = self.prefix, ?left, ?closed, "gave up waiting for a slot");
    }

    /// Takes a session off the list and deletes its contender key; `false` when it was not on the list.
    async fn leave(&self, keeper: &SessionKeeper) -> Result<bool, Error> {
        let kv = self.client.kv();
        let left = loop {
            let entry = kv.get(&self.list_key(), &Read::default()).await?.value;
            let Some(mut slots) = self.slots(entry.as_slice())? else { break false };
            if !slots.leave(keeper.id()) {
                break false;
            }
            if kv.cas(&self.list_key(), slots.to_json(), SEMAPHORE_FLAGS, slots.modify_index).await? {
                break true;
            }
            sleep(jitter(SPREAD)).await;
        };
        kv.delete(&self.contender_key(keeper.id())).await?;
        Ok(left)
    }

    fn folder(&self) -> String {
        format!("{}/", self.prefix)
    }

    fn list_key(&self) -> String {
        format!("{}/.lock", self.prefix)
    }

    fn contender_key(&self, session: &str) -> String {
        format!("{}/{session}", self.prefix)
    }
}

#[cfg(test)]
mod tests;
