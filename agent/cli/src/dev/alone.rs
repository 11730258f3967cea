//! `lockmesh dev`: a server and an agent in one process.

use super::options::DevOptions;
use super::setup::{DevFolder, agent_config, announce, upstream};
use crate::error::RunError;
use crate::reload;
use crate::signals::Signals;
use lockmesh_agent::agent::{Agent, AgentOptions};
use lockmesh_agent::node::NodeIdentity;
use lockmesh_agent::reload::Outcome;
use lockmesh_net::config::NodeConfig;
use lockmesh_net::{Development, Identity, Role};
use lockmesh_server::bootstrap::cluster_of;
use lockmesh_server::config::{QuorumConfig, RpcConfig, ServerConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Runs both until a signal stops the process.
pub(super) async fn run(options: DevOptions) -> Result<(), RunError> {
    let (signals, asking) = Signals::new()?;
    let folder = DevFolder::open(&options)?;
    // A server that begins here would be another cluster beside the data that is there.
    super::member::refuse_fleet(&folder.path)?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    let certificates = Development::prepare(&folder.path.join("tls"), &node.name)?;
    let mut identities = Identities::load(certificates)?;

    let config = ServerConfig { acl: options.acl.clone(), ..server_config(&options.node, &folder.path) };
    let data_dir = config.data_dir.clone();
    let server = crate::server::start(config, &node, identities.server.clone())?;
    // A server that founds its cluster alone has done so when its start returns.
    let cluster_id = cluster_of(&data_dir).ok().flatten().unwrap_or_default();
    let address = server.address();
    let upstream = upstream(vec![address.to_string()], &cluster_id);
    let config = agent_config(&options, &folder.path, upstream);
    let identity = identities.agent.clone();
    let own = AgentOptions { config, node, identity, server: Some(address), reload: asking };
    let agent = match Agent::start(own) {
        Ok(agent) => agent,
        Err(error) => {
            // It runs already, and is to leave its folder in order.
            server.stop().await;
            return Err(error.into());
        }
    };
    let reload = || identities.reload(&server, &agent);
    let say_ready = || {
        announce(agent.tcp_addresses(), agent.socket().map(PathBuf::as_path), &monitoring(&server));
        tracing::info!("data is in {}, kept {}", folder.path.display(), folder.kept());
    };
    // The node that leaves is the only one: all of this ends with it.
    signals.serve(agent.ready(), say_ready, reload, async || agent.leave().await).await;
    // The agent first: requests under way still need the server.
    agent.stop().await;
    server.stop().await;
    Ok(())
}

/// The address of the server's metrics.
fn monitoring(server: &lockmesh_server::Server) -> String {
    let line =
        |address| format!("  metrics and health of the server: http://{address}/metrics, /health/ready\n");
    server.http_address().map(line).unwrap_or_default()
}

/// The identities of server and agent. A reload reads only their certificates again: there is no
/// configuration.
struct Identities {
    certificates: Development,
    server: Identity,
    agent: Identity,
}

impl Identities {
    fn load(certificates: Development) -> Result<Self, RunError> {
        let (server, agent) = (certificates.identity(Role::Server)?, certificates.identity(Role::Agent)?);
        Ok(Self { certificates, server, agent })
    }

    fn reload(&mut self, server: &lockmesh_server::Server, agent: &Agent) -> Outcome {
        // Both are read before one is taken: a broken file leaves both as they were.
        let fresh_server = reload::fresh_identity(&self.server, &self.certificates.files(Role::Server))?;
        let fresh_agent = reload::fresh_identity(&self.agent, &self.certificates.files(Role::Agent))?;
        let mut changes = Vec::new();
        if let Some(identity) = fresh_server {
            server.replace_identity(&identity);
            changes.push(reload::certificate_change(&identity));
            self.server = identity;
        }
        if let Some(identity) = fresh_agent {
            agent.replace_identity(&identity);
            changes.push(reload::certificate_change(&identity));
            self.agent = identity;
        }
        Ok(reload::or_nothing(changes))
    }
}

fn server_config(node: &NodeConfig, folder: &Path) -> ServerConfig {
    // The agent in this process learns the port from the running server.
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    ServerConfig {
        data_dir: folder.join("server"),
        node: node.clone(),
        rpc: RpcConfig { listen: any_port, advertise: String::new() },
        quorum: QuorumConfig { bootstrap_expect: 1, ..QuorumConfig::default() },
        ..ServerConfig::default()
    }
}
