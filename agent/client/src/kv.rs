//! Keys, their values and their locks.
//!
//! These are plain requests. For a lock that is watched and renewed, see [`crate::Lock`].

use crate::client::{Answer, Client, Target, accept};
use crate::connection::{Outgoing, Reply, Verb};
use crate::duration::parse_duration;
use crate::entry::{Acquired, AcquiredAll, Entry};
use crate::error::Error;
use crate::items::Items;
use crate::read::Read;
use crate::shape;
use crate::shape::lockmesh::{FenceClaim, FenceVerdict, LocksOutcome, LocksRequest};
use bytes::Bytes;
use std::time::Duration;

/// Requests about keys. See [`Client::kv`].
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    client: &'a Client,
}

impl Client {
    /// Returns the requests about keys.
    pub fn kv(&self) -> Kv<'_> {
        Kv { client: self }
    }
}

/// Entries that still arrive. See [`Kv::entries`].
#[derive(Debug)]
pub struct Entries {
    items: Option<Items>,
    index: u64,
    is_filtered: bool,
}

impl Entries {
    /// Returns the next entry; `None` behind the last one.
    ///
    /// # Errors
    /// The list is incomplete: begin again. [`Error::Unanswered`] has the reason.
    pub async fn next(&mut self) -> Result<Option<Entry>, Error> {
        let Some(items) = &mut self.items else { return Ok(None) };
        Ok(items.next::<shape::kv::Entry>().await?.map(Entry::from))
    }

    /// Returns the index of the list for a blocking query: see [`Read::newer_than`]. 0 if the agent
    /// returned none.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns `true` if a Consul agent says that its ACLs hide some entries from this token.
    pub fn is_filtered(&self) -> bool {
        self.is_filtered
    }
}

/// Names that still arrive. See [`Kv::names`].
#[derive(Debug)]
pub struct Names {
    items: Option<Items>,
}

impl Names {
    /// Returns the next name; `None` behind the last one.
    ///
    /// # Errors
    /// The list is incomplete: begin again. [`Error::Unanswered`] has the reason.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        let Some(items) = &mut self.items else { return Ok(None) };
        items.next().await
    }
}

impl Kv<'_> {
    /// Returns an entry; `None` if there is no such key.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn get(&self, key: &str, read: &Read) -> Result<Answer<Option<Entry>>, Error> {
        self.entry(at(key).read(read)).await
    }

    async fn entry(&self, target: Target) -> Result<Answer<Option<Entry>>, Error> {
        let entries: Answer<Option<Vec<shape::kv::Entry>>> = self.client.read_some(target).await?;
        Ok(entries.map(|entries| entries.into_iter().flatten().next().map(Entry::from)))
    }

    /// Returns one key as a session sees it: the entry names the session as the holder if it is any
    /// of those that share the lock.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn held(&self, key: &str, session: &str, read: &Read) -> Result<Answer<Option<Entry>>, Error> {
        self.entry(at(key).with("holder", session).read(read)).await
    }

    /// Returns all entries whose key starts with `prefix`, in ascending order. For very many, use
    /// [`Kv::entries`].
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    /// [`Error::Garbled`] means that the reply is larger than 256 MiB.
    pub async fn list(&self, prefix: &str, read: &Read) -> Result<Answer<Vec<Entry>>, Error> {
        let target = at(prefix).flag("recurse").read(read);
        let entries: Answer<Option<Vec<shape::kv::Entry>>> = self.client.read_some(target).await?;
        Ok(entries.map(|entries| entries.into_iter().flatten().map(Entry::from).collect()))
    }

    /// Returns the same entries one after the other, of one moment. Only one is in memory at a
    /// time, but the servers keep what was changed meanwhile: read on without long pauses.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn entries(&self, prefix: &str, read: &Read) -> Result<Entries, Error> {
        let (items, reply) = self.open(at(prefix).flag("recurse"), read).await?;
        let index = reply.header("x-consul-index").and_then(|index| index.parse().ok()).unwrap_or_default();
        let is_filtered = reply.header("x-consul-results-filtered-by-acls") == Some("true");
        Ok(Entries { items, index, is_filtered })
    }

    /// Returns the names that start with `prefix`, one after the other, as [`Kv::entries`] does.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn names(&self, prefix: &str, read: &Read) -> Result<Names, Error> {
        let (items, _) = self.open(at(prefix).flag("keys"), read).await?;
        Ok(Names { items })
    }

    /// Opens a list: its items, `None` without any, and the head of the reply.
    async fn open(&self, target: Target, read: &Read) -> Result<(Option<Items>, Reply), Error> {
        let target = target.read(&Read { index: 0, ..*read });
        let mut download = self.client.open(Verb::Get, target, Outgoing::Whole(Bytes::new())).await?;
        let (status, headers) = (download.status, std::mem::take(&mut download.headers));
        if status == 200 {
            let items = Items::new(self.client.address().clone(), download);
            return Ok((Some(items), Reply { status, headers, body: Bytes::new() }));
        }
        let body = download.whole(self.client.address()).await?;
        let reply = Reply { status, headers, body };
        // If no key has the prefix; a 404 with a text is an error, as of an unknown route.
        match status == 404 && reply.body.is_empty() {
            true => Ok((None, reply)),
            false => accept(reply).map(|reply| (None, reply)),
        }
    }

    /// Returns the names that start with `prefix`, each cut after the first `separator` after the
    /// prefix. An empty separator cuts nothing.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    /// [`Error::Garbled`] means that the reply is larger than 256 MiB.
    pub async fn keys(
        &self,
        prefix: &str,
        separator: &str,
        read: &Read,
    ) -> Result<Answer<Vec<String>>, Error> {
        let mut target = at(prefix).flag("keys");
        if !separator.is_empty() {
            target = target.with("separator", separator);
        }
        let keys: Answer<Option<Vec<String>>> = self.client.read_some(target.read(read)).await?;
        Ok(keys.map(Option::unwrap_or_default))
    }

    /// Writes a value. Without a condition the result is never `false`.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the value may have been written. Repeating
    /// the write is safe if no other client writes this key.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>, flags: u64) -> Result<bool, Error> {
        self.client.verdict(Verb::Put, flagged(key, flags), value.into()).await
    }

    /// Writes a value if the entry's modify index is `index`. An `index` of 0 means that the key
    /// must not exist.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the value may have been written. Read the
    /// entry before retrying, because repeating a successful write returns `false`.
    pub async fn cas(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        flags: u64,
        index: u64,
    ) -> Result<bool, Error> {
        self.client.verdict(Verb::Put, flagged(key, flags).number("cas", index), value.into()).await
    }

    /// Acquires the key's lock for a session and writes the value. A holder also uses it to change
    /// the value.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the session may hold the lock now. Retry,
    /// which also succeeds for the holder, or release the lock.
    pub async fn acquire(
        &self,
        key: &str,
        session: &str,
        value: impl Into<Bytes>,
        flags: u64,
    ) -> Result<Acquired, Error> {
        self.taken(flagged(key, flags).with("acquire", session), value.into()).await
    }

    /// Acquires the key's lock, or waits for up to `wait` in its first-in, first-out queue.
    /// Dropping the future gives up the queue position. An agent without queues replies at once.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the session may hold the lock or still wait
    /// for it. Retry, or release the lock, which ends both.
    pub async fn acquire_waiting(
        &self,
        key: &str,
        session: &str,
        value: impl Into<Bytes>,
        flags: u64,
        wait: Duration,
    ) -> Result<Acquired, Error> {
        let target = flagged(key, flags).with("acquire", session).waiting(wait);
        self.taken(target, value.into()).await
    }

    /// Acquires the key's lock in shared mode, at once or by waiting for up to `wait` in its queue.
    /// The value stays as it is; the flags are those of a key that the grant creates. An exclusive
    /// holder becomes a shared one.
    ///
    /// # Errors
    /// As [`Kv::acquire_waiting`].
    pub async fn acquire_shared(
        &self,
        key: &str,
        session: &str,
        flags: u64,
        wait: Option<Duration>,
    ) -> Result<Acquired, Error> {
        let target = flagged(key, flags).with("acquire", session).with("mode", "shared");
        let target = match wait {
            Some(wait) => target.waiting(wait),
            None => target,
        };
        self.taken(target, Bytes::new()).await
    }

    /// Acquires up to 64 locks, all or none, at once or by waiting for up to `wait` with one
    /// position in all their queues. [`crate::Txn::unlock`] releases several at once.
    ///
    /// # Errors
    /// As [`Kv::acquire_waiting`]. A Consul agent rejects it.
    pub async fn acquire_all(
        &self,
        request: &LocksRequest,
        wait: Option<Duration>,
    ) -> Result<AcquiredAll, Error> {
        let target = wait.into_iter().fold(Target::new("/v1/lockmesh/acquire"), Target::waiting);
        let body = serde_json::to_vec(request).expect("text and numbers are valid JSON");
        let reply = self.client.write(Verb::Put, target, body.into()).await?;
        let outcome: LocksOutcome = self.client.parse(&reply)?;
        if !outcome.acquired {
            return Ok(AcquiredAll::Refused { delay: lock_delay(&reply) });
        }
        if outcome.fences.len() != request.locks.len() {
            return Err(self.client.garbled("not one fencing token for each lock".into()));
        }
        Ok(AcquiredAll::Granted { fences: outcome.fences.iter().map(|claim| claim.fence).collect() })
    }

    async fn taken(&self, target: Target, value: Bytes) -> Result<Acquired, Error> {
        let reply = self.client.write(Verb::Put, target, value).await?;
        if self.client.parse(&reply)? {
            // Both headers are Lockmesh extensions: a Consul agent sends neither.
            let fence = reply.header("x-lockmesh-fence").and_then(|text| text.parse().ok());
            return Ok(Acquired::Granted { fence });
        }
        Ok(Acquired::Refused { delay: lock_delay(&reply) })
    }

    /// Releases the key's lock and writes the value. Returns `false` if the session does not hold
    /// the lock.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the lock may be free already. Releasing it
    /// again is safe, and returns `false` if the first attempt succeeded.
    pub async fn release(
        &self,
        key: &str,
        session: &str,
        value: impl Into<Bytes>,
        flags: u64,
    ) -> Result<bool, Error> {
        let target = flagged(key, flags).with("release", session);
        self.client.verdict(Verb::Put, target, value.into()).await
    }

    /// Verifies up to 64 fencing tokens with the servers' leader: the verdicts, in the same order.
    /// With a wait, the reply comes once a token is not current, or when the wait is over.
    ///
    /// A verdict is true when the leader sends it, so a store that only compares tokens before it
    /// writes is not safe: the lock may pass on in between. Rejecting every token below the highest
    /// one seen is safe on its own.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`; until then no token
    /// is verified.
    pub async fn verify_fences(
        &self,
        claims: &[FenceClaim],
        wait: Option<Duration>,
    ) -> Result<Vec<FenceVerdict>, Error> {
        let target = Target::new("/v1/lockmesh/fence/verify");
        let target = wait.into_iter().fold(target, Target::waiting);
        let body = serde_json::to_vec(claims).expect("text and numbers are valid JSON");
        let reply = self.client.write(Verb::Put, target, body.into()).await?;
        self.client.parse(&reply)
    }

    /// Deletes a key, locked or not.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the key may be gone. Deleting it again is
    /// safe if no other client writes this key.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        accept(self.client.send(Verb::Delete, at(key), Bytes::new()).await?).map(|_| ())
    }

    /// Deletes a key if its modify index is `index`. Also returns `true` if there is no such key.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the key may be gone. Retrying is safe: it
    /// returns `true` if there is no key, and does not delete a key that was recreated.
    pub async fn delete_cas(&self, key: &str, index: u64) -> Result<bool, Error> {
        self.client.verdict(Verb::Delete, at(key).number("cas", index), Bytes::new()).await
    }

    /// Deletes every key that starts with `prefix`; an empty prefix deletes everything.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the keys may be gone, and if so, all of
    /// them. Deleting them again is safe if no other client writes there.
    pub async fn delete_tree(&self, prefix: &str) -> Result<(), Error> {
        accept(self.client.send(Verb::Delete, at(prefix).flag("recurse"), Bytes::new()).await?).map(|_| ())
    }
}

fn lock_delay(reply: &Reply) -> Option<Duration> {
    reply.header("x-lockmesh-lock-delay").and_then(|text| parse_duration(text).ok())
}

fn at(key: &str) -> Target {
    Target::new("/v1/kv/").name(key)
}

fn flagged(key: &str, flags: u64) -> Target {
    if flags == 0 { at(key) } else { at(key).number("flags", flags) }
}
