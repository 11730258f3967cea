//! A server as a process of its own: the `server` role of the one binary.

use crate::agent::AgentError;
use crate::config::load::Sources;
use crate::node::{self, NodeIdentity};
use crate::reload::Reloadable;
use crate::signals::{Event, Signals};
use lockmesh_net::{Identity, IdentityFiles};
use lockmesh_server::config::{ServerConfig, TlsConfig};
use lockmesh_server::{Server, ServerOptions};

/// Runs a server until the process is told to stop. What it was told came from `sources`, and is read there again on
/// SIGHUP.
pub async fn run(config: ServerConfig, sources: Sources) -> Result<(), AgentError> {
    let (mut signals, _) = Signals::new()?;
    let node = NodeIdentity::resolve(&config.node, &config.data_dir)?;
    let identity = Identity::load(&files(&config.tls))?;
    let mut reloadable = Reloadable::new(sources, config.clone(), identity.clone());
    let server = start(config, &node, identity)?;
    loop {
        let event = tokio::select! {
            event = signals.next() => event,
            () = server.ended() => {
                server.stop().await;
                return Err(AgentError::Server("it cannot go on; the last lines of its log say why".into()));
            }
        };
        let Event::Reload(order) = event else { break };
        order.carried_out(reloadable.reload(|identity| server.replace_identity(identity)));
    }
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
        birth: node::random_uuid()?,
        seed,
        socket: None,
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
