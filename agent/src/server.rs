//! A server as a process of its own: the `server` role of the one binary.

use crate::agent::{AgentError, StopSignals};
use crate::node::{self, NodeIdentity};
use lockmesh_net::{Identity, IdentityFiles};
use lockmesh_server::config::{ServerConfig, TlsConfig};
use lockmesh_server::{Server, ServerOptions};

/// Runs a server until the process is told to stop.
pub async fn run(config: ServerConfig) -> Result<(), AgentError> {
    let node = NodeIdentity::resolve(&config.node, &config.data_dir)?;
    let identity = Identity::load(&files(&config.tls))?;
    let mut stop = StopSignals::new()?;
    let server = start(config, &node, identity)?;
    stop.received().await;
    server.stop().await;
    Ok(())
}

/// Starts a server with fresh random draws.
pub(crate) fn start(
    config: ServerConfig,
    node: &NodeIdentity,
    identity: Identity,
) -> Result<Server, AgentError> {
    let (_, seed) = uuid::Uuid::from_bytes(node::random_bytes()?).as_u64_pair();
    let options = ServerOptions {
        config,
        node: node.name.to_string(),
        node_id: node.id.clone(),
        identity,
        fresh_cluster_id: node::random_uuid()?,
        seed,
    };
    Server::start(options).map_err(|error| AgentError::Server(error.to_string()))
}

/// Where a role finds its certificate.
pub(crate) fn files(config: &TlsConfig) -> IdentityFiles {
    IdentityFiles {
        authorities: config.ca.clone(),
        certificate: config.certificate.clone(),
        key: config.key.clone(),
    }
}
