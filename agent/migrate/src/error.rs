//! Errors of a migration. A text names what failed, the cause, and what to do.

use std::fmt::Display;

/// The failure of a migration of keys.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The options are invalid; nothing was tried.
    #[error("{0}")]
    Usage(String),
    /// The migration failed, or a side rejected a request.
    #[error("{0}")]
    Failed(String),
    /// Consul cannot be reached at present; the pass may be repeated.
    #[error("{0}")]
    Unreachable(String),
    /// A signal ended the migration.
    #[error("interrupted; run the same command again, which continues")]
    Interrupted,
    /// An error of the client that needs no other words.
    #[error(transparent)]
    Client(#[from] lockmesh_client::Error),
}

impl MigrateError {
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::Usage(text.to_string())
    }

    pub(crate) fn failed(text: impl Display) -> Self {
        Self::Failed(text.to_string())
    }
}
