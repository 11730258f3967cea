//! A key with its value and its lock, and the outcome of an acquire.

use crate::shape;
use bytes::Bytes;
use std::time::Duration;

/// A key with its value and its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key's name.
    pub key: String,
    /// The key's value.
    pub value: Bytes,
    /// An opaque number for clients.
    pub flags: u64,
    /// The session that holds the lock.
    pub session: Option<String>,
    /// The number of grants of the lock since this entry was created.
    pub lock_index: u64,
    /// The Raft index of the entry's creation.
    pub create_index: u64,
    /// The Raft index of the last change; conditional writes compare it.
    pub modify_index: u64,
    /// The fencing token of the current grant; `None` if no session holds the lock, or from an
    /// agent without fences.
    pub fence: Option<u64>,
}

impl From<shape::kv::Entry> for Entry {
    fn from(entry: shape::kv::Entry) -> Self {
        Self {
            key: entry.key,
            value: entry.value.map(|blob| blob.0).unwrap_or_default(),
            flags: entry.flags,
            // Without a holder, the field is absent or empty.
            session: Some(entry.session).filter(|session| !session.is_empty()),
            lock_index: entry.lock_index,
            create_index: entry.create_index,
            modify_index: entry.modify_index,
            fence: entry.fence,
        }
    }
}

/// The outcome of an attempt to acquire a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The session holds the lock now, or held it already.
    Granted {
        /// The fencing token of the grant; `None` from an agent without fences.
        fence: Option<u64>,
    },
    /// Another session holds the lock, or a lock-delay blocks it.
    Refused {
        /// The remaining lock-delay, if that is the reason and the agent reports it.
        delay: Option<Duration>,
    },
}

/// The outcome of an attempt to acquire several locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquiredAll {
    /// The session holds all of them now, or held them already.
    Granted {
        /// The fencing token of each lock, in the order of the request.
        fences: Vec<u64>,
    },
    /// Another session holds one of them, or a lock-delay blocks it.
    Refused {
        /// The longest remaining lock-delay, if that is the reason.
        delay: Option<Duration>,
    },
}
