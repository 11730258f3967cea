//! The key that a command is about, and an entry as it is printed.

use super::super::error::CliError;
use lockmesh_client::{Entry, shape};

/// The key that was named. A leading slash, which no key can have, is forgiven.
pub(super) fn key_of(key: Option<String>) -> Result<String, CliError> {
    match key.as_deref() {
        None | Some("") => Err(CliError::in_consuls_words("Error! Missing KEY argument")),
        Some(key) => Ok(key.strip_prefix('/').unwrap_or(key).to_string()),
    }
}

/// An entry as the agent's API shows it, for `--json`.
pub(in crate::command) fn shape_of(entry: &Entry) -> shape::kv::Entry {
    shape::kv::Entry {
        lock_index: entry.lock_index,
        key: entry.key.clone(),
        flags: entry.flags,
        value: shape::Blob::unless_empty(entry.value.clone()),
        session: entry.session.clone().unwrap_or_default(),
        create_index: entry.create_index,
        modify_index: entry.modify_index,
        fence: entry.fence,
    }
}
