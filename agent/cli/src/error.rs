//! Why a role of the program cannot start, or does not go on.

use crate::data_folder::HoldError;
use lockmesh_agent::error::AgentError;
use lockmesh_agent::node::NodeError;
use std::io;

/// Why a process that runs an agent, a server or both could not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The agent cannot start.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// It cannot be said who this machine is.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] lockmesh_net::CertificateError),
    /// Another process uses the data folder.
    #[error(transparent)]
    Held(#[from] HoldError),
    /// The data folder can be neither made nor closed to other users.
    #[error(transparent)]
    Folder(#[from] lockmesh_net::files::FileError),
    /// The system refuses something.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
    /// The folder of `lockmesh dev`, or a process of it, cannot be used.
    #[error("{0}")]
    Dev(String),
    /// The server cannot work.
    #[error("{0}")]
    Server(String),
}

impl RunError {
    /// What the system refused.
    pub fn system(doing: impl Into<String>, error: io::Error) -> Self {
        Self::System { doing: doing.into(), error }
    }
}
