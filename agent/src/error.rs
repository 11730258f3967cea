//! Why an agent cannot start.

use crate::http::ListenError;
use crate::pin::PinError;
use lockmesh_net::config::ConfigError;
use lockmesh_protocol::id::NodeName;
use std::io;
use std::net::SocketAddr;

/// Why an agent could not be started. Nothing of it runs.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Not a value that works.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The servers would not believe who this agent is.
    #[error(
        "this is node {node}, but its certificate names {certified}: let `node.name` say the same, or issue a \
         certificate for this node"
    )]
    Stranger {
        /// What the configuration says, or the host.
        node: NodeName,
        /// What the certificate says.
        certified: NodeName,
    },
    /// It is not known to which cluster it belongs.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Applications cannot reach it.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system has no random numbers.
    #[error("cannot draw a number for this process: {0}")]
    Random(io::Error),
    /// Servers cannot reach it, nor it them.
    #[error(
        "cannot listen on {address} (UDP) for servers: {error}; choose another `listen`, port 0 for any free one"
    )]
    Socket {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// Other agents cannot reach it.
    #[error(
        "cannot listen on {address} (UDP) for the mesh of agents: {error}; choose another `gossip.listen`, port 0 for \
         any free one"
    )]
    Gossip {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}
