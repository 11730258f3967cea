//! Errors of agents and servers that cannot start or continue.

use crate::data_folder::HoldError;
use lockmesh_agent::error::AgentError;
use lockmesh_agent::node::NodeError;
use std::io;

/// The reason why an agent or a server could not start, or stopped without a request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The agent cannot start.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The identity of this host cannot be determined.
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
    /// The system rejected an action.
    #[error("{doing}: {error}")]
    System {
        /// The failed action.
        doing: String,
        /// The error of the system.
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
    /// An action that the system rejected.
    pub fn system(doing: impl Into<String>, error: io::Error) -> Self {
        Self::System { doing: doing.into(), error }
    }
}
