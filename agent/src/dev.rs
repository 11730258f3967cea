//! `lockmesh dev`: a server and an agent in one process, joined by real QUIC with mutual TLS on loopback.

use crate::agent::{Agent, AgentError, AgentOptions};
use crate::config::{AgentConfig, DevOptions, HttpConfig, NodeConfig, UpstreamConfig};
use crate::node::NodeIdentity;
use crate::reload::{self, Outcome};
use crate::signals::Signals;
use lockmesh_net::{Development, Identity, Role};
use lockmesh_server::config::{RpcConfig, ServerConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Runs both until the process is told to stop. Once they serve, one line on stdout says where.
pub async fn run(options: DevOptions) -> Result<(), AgentError> {
    let (signals, asking) = Signals::new()?;
    let folder = DataFolder::open(options.data_dir.as_deref())?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    let certificates = Development::prepare(&folder.path.join("tls"), &node.name)?;
    let mut identities = Identities::load(certificates)?;

    let config = server_config(&options.node, &folder.path);
    let server = crate::server::start(config, &node, identities.server.clone())?;
    let agent = Agent::start(AgentOptions {
        config: agent_config(&options, &folder.path, server.address()),
        node,
        identity: identities.agent.clone(),
        server: Some(server.address()),
        reload: asking,
    });
    let agent = match agent {
        Ok(agent) => agent,
        Err(error) => {
            server.stop().await;
            return Err(error);
        }
    };
    let reload = || identities.reload(&server, &agent);
    signals.serve(agent.ready(), || announce(&agent, &folder), reload).await;
    agent.stop().await;
    server.stop().await;
    Ok(())
}

/// Who server and agent are. Their certificates are the only thing that they read again: there is no configuration.
struct Identities {
    certificates: Development,
    server: Identity,
    agent: Identity,
}

impl Identities {
    fn load(certificates: Development) -> Result<Self, AgentError> {
        let (server, agent) = (certificates.identity(Role::Server)?, certificates.identity(Role::Agent)?);
        Ok(Self { certificates, server, agent })
    }

    fn reload(&mut self, server: &lockmesh_server::Server, agent: &Agent) -> Outcome {
        let fresh_server = reload::fresh_identity(&self.server, &self.certificates.files(Role::Server))?;
        let fresh_agent = reload::fresh_identity(&self.agent, &self.certificates.files(Role::Agent))?;
        let mut changes = Vec::new();
        if let Some(identity) = fresh_server {
            server.replace_identity(&identity);
            changes.push(reload::told(&identity));
            self.server = identity;
        }
        if let Some(identity) = fresh_agent {
            agent.replace_identity(&identity);
            changes.push(reload::told(&identity));
            self.agent = identity;
        }
        Ok(reload::or_nothing(changes))
    }
}

fn announce(agent: &Agent, folder: &DataFolder) {
    let tcp = agent.tcp_addresses().iter().map(|address| format!(" http={address}"));
    let socket = agent.socket().map(|path| format!(" socket={}", path.display()));
    let line: String = tcp.chain(socket).collect();
    // A reader that has gone away does not stop the service.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("ready{line}\n").as_bytes());
    let kept = if folder.temporary.is_some() { "until this process ends" } else { "for the next start" };
    tracing::info!("data is in {}, kept {kept}", folder.path.display());
}

/// Where the data is; a temporary folder goes away with this value.
#[derive(Debug)]
struct DataFolder {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl DataFolder {
    fn open(wanted: Option<&Path>) -> Result<Self, AgentError> {
        let Some(path) = wanted else {
            let temporary = tempfile::Builder::new().prefix("lockmesh-dev-").tempdir();
            let temporary =
                temporary.map_err(|error| AgentError::system("cannot make a temporary folder", error))?;
            return Ok(Self { path: temporary.path().into(), temporary: Some(temporary) });
        };
        std::fs::create_dir_all(path)
            .map_err(|error| AgentError::system(format!("cannot make {}", path.display()), error))?;
        Ok(Self { path: path.into(), temporary: None })
    }
}

fn server_config(node: &NodeConfig, folder: &Path) -> ServerConfig {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    ServerConfig {
        data_dir: folder.join("server"),
        node: node.clone(),
        rpc: RpcConfig { listen: any_port, advertise: String::new() },
        ..ServerConfig::default()
    }
}

fn agent_config(options: &DevOptions, folder: &Path, server: SocketAddr) -> AgentConfig {
    AgentConfig {
        data_dir: folder.join("agent"),
        advertise: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        node: options.node.clone(),
        http: HttpConfig {
            tcp: Some(options.http),
            allow_non_loopback: options.allow_non_loopback,
            socket: options.socket.clone().unwrap_or_else(|| folder.join("agent.sock")),
            session_ttl_min: options.session_ttl_min,
            ..HttpConfig::default()
        },
        upstream: UpstreamConfig { servers: vec![server.to_string()], ..UpstreamConfig::default() },
        ..AgentConfig::default()
    }
}
