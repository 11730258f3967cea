//! Entries of the key-value store.

use super::{Blob, null_as_default};
use serde::{Deserialize, Serialize};

/// One key with its value and its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Entry {
    /// How often the lock was granted in this entry's life.
    pub lock_index: u64,
    /// Its name.
    pub key: String,
    /// A number that belongs to the client.
    pub flags: u64,
    /// Its value; `None` for an empty one.
    pub value: Option<Blob>,
    /// Who holds the lock; empty for nobody.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub session: String,
    /// The index that created it.
    pub create_index: u64,
    /// The index that changed it last.
    pub modify_index: u64,
}
