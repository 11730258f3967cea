//! Startup errors of an agent.

use crate::acl::TokenFileError;
use crate::http::ListenError;
use crate::pin::PinError;
use lockmesh_agent_core::registry::RegistryError;
use lockmesh_net::config::ConfigError;
use lockmesh_protocol::peer::WrongCertificate;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why an agent could not be started. No part of it runs.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A value of the configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The servers would reject the certificate.
    #[error(transparent)]
    Certificate(#[from] WrongCertificate),
    /// The agent's cluster cannot be determined.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The agent's tokens cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The services and checks of an earlier process cannot be read.
    #[error("cannot read the services and checks in {0}: {1}")]
    Registry(PathBuf, io::Error),
    /// A service or a check of the configuration cannot be registered.
    #[error("cannot register the services and checks of the configuration: {0}")]
    Configured(#[from] RegistryError),
    /// The API's listeners cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system has no random numbers.
    #[error("cannot draw a random number for this process: {0}")]
    Random(io::Error),
    /// The socket for servers cannot be opened.
    #[error(
        "cannot listen on {address} (UDP) for servers: {error}; choose another `listen`, port 0 for any free one"
    )]
    Socket {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The socket for other agents cannot be opened.
    #[error(
        "cannot listen on {address} (UDP) for the mesh of agents: {error}; choose another `gossip.listen`, port 0 for \
         any free one"
    )]
    Gossip {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
}
