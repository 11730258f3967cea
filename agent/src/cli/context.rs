//! What every command that talks to the agent is given: where the agent is and how to speak to it.
//!
//! Decided once, from flags, then `LOCKMESH_*`, then `CONSUL_*`, then defaults; no command looks at the
//! environment for these again.

use std::path::PathBuf;

/// Where the local agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`, plain HTTP.
    Tcp(String),
}

/// What a command is given besides its own arguments.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where the agent is.
    pub address: Address,
    /// The token to send, where one was given. Agents take any token today.
    pub token: Option<String>,
}
