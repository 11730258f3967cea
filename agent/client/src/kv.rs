//! Keys, their values and their locks.
//!
//! These are the plain requests. A hold that watches over itself is a [`crate::Lock`].

use crate::client::{Answer, Client, Target, accept};
use crate::connection::Verb;
use crate::duration::parse_duration;
use crate::entry::{Acquired, Entry};
use crate::error::Error;
use crate::read::Read;
use crate::shape;
use bytes::Bytes;
use std::time::Duration;

/// Requests about keys. See [`Client::kv`].
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    client: &'a Client,
}

impl Client {
    /// Requests about keys.
    pub fn kv(&self) -> Kv<'_> {
        Kv { client: self }
    }
}

impl Kv<'_> {
    /// One entry; `None` when there is no such key.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn get(&self, key: &str, read: &Read) -> Result<Answer<Option<Entry>>, Error> {
        let entries: Answer<Option<Vec<shape::kv::Entry>>> =
            self.client.read_some(at(key).read(read)).await?;
        Ok(entries.map(|entries| entries.into_iter().flatten().next().map(Entry::from)))
    }

    /// All entries whose key starts with `prefix`, ascending.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    /// [`Error::Refused`] with 413 asks for less at a time.
    pub async fn list(&self, prefix: &str, read: &Read) -> Result<Answer<Vec<Entry>>, Error> {
        let target = at(prefix).flag("recurse").read(read);
        let entries: Answer<Option<Vec<shape::kv::Entry>>> = self.client.read_some(target).await?;
        Ok(entries.map(|entries| entries.into_iter().flatten().map(Entry::from).collect()))
    }

    /// The names that start with `prefix`, each cut after the first `separator` that follows it; an
    /// empty separator cuts nothing.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    /// [`Error::Refused`] with 413 asks for less at a time.
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

    /// Writes a value; `false` never happens without a condition.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the value may have been written. To write it again is
    /// safe where nobody else writes this key.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>, flags: u64) -> Result<bool, Error> {
        self.client.verdict(Verb::Put, flagged(key, flags), value.into()).await
    }

    /// Writes a value if the entry's modify index is `index`, where 0 stands for "there is no such
    /// key".
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the value may have been written: read the entry before
    /// trying again, since a repeat of what was done answers `false`.
    pub async fn cas(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        flags: u64,
        index: u64,
    ) -> Result<bool, Error> {
        self.client.verdict(Verb::Put, flagged(key, flags).number("cas", index), value.into()).await
    }

    /// Takes the key's lock for a session and writes the value; also how a holder changes the
    /// value.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the session may hold the lock now: ask again, which is
    /// granted to a holder too, or release it.
    pub async fn acquire(
        &self,
        key: &str,
        session: &str,
        value: impl Into<Bytes>,
        flags: u64,
    ) -> Result<Acquired, Error> {
        self.taken(flagged(key, flags).with("acquire", session), value.into()).await
    }

    /// Takes the key's lock, or waits for up to `wait` in its queue, where whoever came first is
    /// first. To drop the future gives up its position. An agent that knows no queues answers at
    /// once.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the session may hold the lock now, or wait for it yet:
    /// ask again, or release it, which gives up both.
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

    async fn taken(&self, target: Target, value: Bytes) -> Result<Acquired, Error> {
        let reply = self.client.write(Verb::Put, target, value).await?;
        if self.client.parse(&reply)? {
            // Both headers are Lockmesh's own: a Consul agent sends neither.
            let fence = reply.header("x-lockmesh-fence").and_then(|text| text.parse().ok());
            return Ok(Acquired::Granted { fence });
        }
        let delay = reply.header("x-lockmesh-lock-delay").and_then(|text| parse_duration(text).ok());
        Ok(Acquired::Refused { delay })
    }

    /// Gives the key's lock back and writes the value; `false` when the session does not hold it.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the lock may be free already. To release it again is
    /// safe, and answers `false` where the first attempt did it.
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

    /// Deletes a key, locked or not.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the key may be gone. To delete it again is safe where
    /// nobody else writes this key.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        accept(self.client.send(Verb::Delete, at(key), Bytes::new()).await?).map(|_| ())
    }

    /// Deletes a key if its modify index is `index`; `true` also when there is no such key.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the key may be gone. To try again is safe: it answers
    /// `true` where there is no key, and spares one that was written anew.
    pub async fn delete_cas(&self, key: &str, index: u64) -> Result<bool, Error> {
        self.client.verdict(Verb::Delete, at(key).number("cas", index), Bytes::new()).await
    }

    /// Deletes every key that starts with `prefix`; an empty one deletes everything.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the keys may be gone, and then all of them. To delete
    /// them again is safe where nobody else writes there.
    pub async fn delete_tree(&self, prefix: &str) -> Result<(), Error> {
        accept(self.client.send(Verb::Delete, at(prefix).flag("recurse"), Bytes::new()).await?).map(|_| ())
    }
}

fn at(key: &str) -> Target {
    Target::new("/v1/kv/").name(key)
}

fn flagged(key: &str, flags: u64) -> Target {
    if flags == 0 { at(key) } else { at(key).number("flags", flags) }
}
