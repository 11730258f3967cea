//! One key with its value and its lock, and what became of an attempt to take it.

use crate::shape;
use bytes::Bytes;
use std::time::Duration;

/// One key with its value and its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// A number that belongs to the client.
    pub flags: u64,
    /// Who holds the lock.
    pub session: Option<String>,
    /// How often the lock was granted in this entry's life.
    pub lock_index: u64,
    /// The index that created it.
    pub create_index: u64,
    /// The index that changed it last; what a conditional write wants.
    pub modify_index: u64,
}

impl From<shape::kv::Entry> for Entry {
    fn from(entry: shape::kv::Entry) -> Self {
        Self {
            key: entry.key,
            value: entry.value.map(|blob| blob.0).unwrap_or_default(),
            flags: entry.flags,
            session: Some(entry.session).filter(|session| !session.is_empty()),
            lock_index: entry.lock_index,
            create_index: entry.create_index,
            modify_index: entry.modify_index,
        }
    }
}

/// What became of an attempt to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The session holds it now, or did already.
    Granted {
        /// The fencing token of the grant; `None` from an agent that does not know fences.
        fence: Option<u64>,
    },
    /// Somebody else holds it, or a lock-delay keeps it closed.
    Refused {
        /// How long the key stays closed, where that is the reason and the agent says so.
        delay: Option<Duration>,
    },
}
