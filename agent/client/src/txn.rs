//! Transactions: up to 128 operations that are applied atomically.

use crate::client::{Client, Target};
use crate::connection::Verb;
use crate::entry::Entry;
use crate::error::Error;
use crate::read::Read;
use crate::shape::Blob;
use crate::shape::txn::{KvOperation, Operation, TxnAnswer, TxnError};
use bytes::Bytes;

/// A builder for a transaction. See [`Client::txn`] for running it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    operations: Vec<Operation>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was applied: the entries that the operations returned, in order. A deletion
    /// returns none, a tree returns many.
    Done(Vec<Entry>),
    /// Nothing was applied: the operations that failed.
    RolledBack(Vec<TxnError>),
}

impl Txn {
    /// Creates an empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a value.
    #[must_use]
    pub fn set(self, key: &str, value: impl Into<Bytes>, flags: u64) -> Self {
        self.with(operation("set", key).value(value, flags))
    }

    /// Writes a value if the entry's modify index is `index` (0: if there is no such key).
    #[must_use]
    pub fn cas(self, key: &str, value: impl Into<Bytes>, flags: u64, index: u64) -> Self {
        self.with(operation("cas", key).value(value, flags).index(index))
    }

    /// Acquires a lock for a session.
    #[must_use]
    pub fn lock(self, key: &str, session: &str, value: impl Into<Bytes>, flags: u64) -> Self {
        self.with(operation("lock", key).value(value, flags).session(session))
    }

    /// Releases a lock.
    #[must_use]
    pub fn unlock(self, key: &str, session: &str, value: impl Into<Bytes>, flags: u64) -> Self {
        self.with(operation("unlock", key).value(value, flags).session(session))
    }

    /// Reads an entry; fails if it is absent.
    #[must_use]
    pub fn get(self, key: &str) -> Self {
        self.with(operation("get", key))
    }

    /// Reads an entry; one that is absent has the create index 0.
    #[must_use]
    pub fn get_or_empty(self, key: &str) -> Self {
        self.with(operation("get-or-empty", key))
    }

    /// Reads all entries under a prefix.
    #[must_use]
    pub fn get_tree(self, prefix: &str) -> Self {
        self.with(operation("get-tree", prefix))
    }

    /// Deletes a key.
    #[must_use]
    pub fn delete(self, key: &str) -> Self {
        self.with(operation("delete", key))
    }

    /// Deletes a key if its modify index is `index`.
    #[must_use]
    pub fn delete_cas(self, key: &str, index: u64) -> Self {
        self.with(operation("delete-cas", key).index(index))
    }

    /// Deletes all keys under a prefix.
    #[must_use]
    pub fn delete_tree(self, prefix: &str) -> Self {
        self.with(operation("delete-tree", prefix))
    }

    /// Fails unless the entry's modify index is `index`.
    #[must_use]
    pub fn check_index(self, key: &str, index: u64) -> Self {
        self.with(operation("check-index", key).index(index))
    }

    /// Fails unless the session holds the key.
    #[must_use]
    pub fn check_session(self, key: &str, session: &str) -> Self {
        self.with(operation("check-session", key).session(session))
    }

    /// Fails if there is such a key.
    #[must_use]
    pub fn check_not_exists(self, key: &str) -> Self {
        self.with(operation("check-not-exists", key))
    }

    /// Returns the body of the request, whose size the agent limits.
    ///
    /// # Errors
    /// The operations have no JSON form; nothing was sent.
    pub fn to_json(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(&self.operations).map_err(|error| Error::Settings(error.to_string()))
    }

    /// Adds any other operation in the agent's format.
    #[must_use]
    pub fn with(mut self, operation: KvOperation) -> Self {
        self.operations.push(Operation { kv: Some(operation) });
        self
    }
}

impl Client {
    /// Runs a transaction. `read` only matters if no operation writes; transactions never block.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, either everything or nothing may have been
    /// applied, but never a part: read the state before retrying. A failed operation is not an
    /// error but [`Outcome::RolledBack`].
    pub async fn txn(&self, txn: &Txn, read: &Read) -> Result<Outcome, Error> {
        let body = txn.to_json()?;
        // A transaction never blocks: an index would only extend its timeout.
        let target = Target::new("/v1/txn").read(&Read { index: 0, ..*read });
        let reply = self.send(Verb::Put, target, body.into()).await?;
        // A conflict is a regular reply: its body lists the failed operations.
        if reply.status != 409 {
            let answer: TxnAnswer = self.parse(&crate::client::accept(reply)?)?;
            let results = answer.results.unwrap_or_default();
            return Ok(Outcome::Done(
                results.into_iter().filter_map(|result| result.kv).map(Entry::from).collect(),
            ));
        }
        Ok(Outcome::RolledBack(self.parse::<TxnAnswer>(&reply)?.errors.unwrap_or_default()))
    }
}

fn operation(verb: &str, key: &str) -> KvOperation {
    KvOperation { verb: verb.into(), key: key.into(), ..KvOperation::default() }
}

impl KvOperation {
    fn value(self, value: impl Into<Bytes>, flags: u64) -> Self {
        Self { value: Blob::unless_empty(value.into()), flags, ..self }
    }

    fn index(self, index: u64) -> Self {
        Self { index, ..self }
    }

    fn session(self, session: &str) -> Self {
        Self { session: session.into(), ..self }
    }
}
