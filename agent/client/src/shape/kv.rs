//! Entries of the key-value store.

use super::{Blob, null_as_default};
use serde::{Deserialize, Serialize};

/// A key with its value and its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Entry {
    /// The number of grants of the lock since this entry was created.
    pub lock_index: u64,
    /// The key's name.
    pub key: String,
    /// An opaque number for clients.
    pub flags: u64,
    /// The value; `None` if empty.
    pub value: Option<Blob>,
    /// The session that holds the lock; empty without one.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub session: String,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
    /// The fencing token of the current grant; `None` if no session holds the lock. Consul has no
    /// such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}
