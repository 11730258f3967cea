//! `lockmesh dev`: a server and an agent in one process, joined by real QUIC with mutual TLS on loopback.

use crate::agent::{Agent, AgentError, AgentOptions, StopSignals};
use crate::config::{AgentConfig, DevOptions, HttpConfig, NodeConfig, UpstreamConfig};
use crate::node::NodeIdentity;
use lockmesh_net::{Development, Role};
use lockmesh_server::config::{RpcConfig, ServerConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Runs both until the process is told to stop. Once they serve, one line on stdout says where.
pub async fn run(options: DevOptions) -> Result<(), AgentError> {
    let folder = DataFolder::open(options.data_dir.as_deref())?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    let certificates = Development::prepare(&folder.path.join("tls"), &node.name)?;
    let mut stop = StopSignals::new()?;

    let config = server_config(&options.node, &folder.path);
    let server = crate::server::start(config, &node, certificates.identity(Role::Server)?)?;
    let agent = Agent::start(AgentOptions {
        config: agent_config(&options, &folder.path, server.address()),
        node,
        identity: certificates.identity(Role::Agent)?,
        server: Some(server.address()),
    });
    let agent = match agent {
        Ok(agent) => agent,
        Err(error) => {
            server.stop().await;
            return Err(error);
        }
    };
    tokio::select! {
        () = agent.ready() => {
            announce(&agent, &folder);
            stop.received().await;
        }
        () = stop.received() => {}
    }
    agent.stop().await;
    server.stop().await;
    Ok(())
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
