//! What both ways to run `lockmesh dev` have in common: the data folder, the agent's configuration,
//! the line that says where it serves.

use super::options::DevOptions;
use crate::data_folder;
use crate::error::RunError;
use lockmesh_agent::agent::Agent;
use lockmesh_agent::config::{AgentConfig, HttpConfig, UpstreamConfig};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where the data is; a temporary folder goes away with this value.
#[derive(Debug)]
pub(super) struct DevFolder {
    pub(super) path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl DevFolder {
    pub(super) fn open(options: &DevOptions) -> Result<Self, RunError> {
        let Some(path) = &options.data_dir else {
            let temporary = tempfile::Builder::new().prefix("lockmesh-dev-").tempdir();
            let temporary =
                temporary.map_err(|error| RunError::system("cannot make a temporary folder", error))?;
            return Ok(Self { path: temporary.path().into(), temporary: Some(temporary) });
        };
        data_folder::prepare_for_dev(path, &socket(options, path))?;
        Ok(Self { path: path.into(), temporary: None })
    }

    /// How long the data is kept, in words.
    pub(super) fn kept(&self) -> &'static str {
        if self.temporary.is_some() { "until this process ends" } else { "for the next start" }
    }
}

pub(super) fn socket(options: &DevOptions, folder: &Path) -> PathBuf {
    options.socket.clone().unwrap_or_else(|| folder.join("agent.sock"))
}

pub(super) fn agent_config(options: &DevOptions, folder: &Path, servers: Vec<String>) -> AgentConfig {
    AgentConfig {
        data_dir: folder.join("agent"),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        node: options.node.clone(),
        http: HttpConfig {
            tcp: Some(options.http),
            allow_non_loopback: options.allow_non_loopback,
            socket: socket(options, folder),
            session_ttl_min: options.session_ttl_min,
            ..HttpConfig::default()
        },
        upstream: UpstreamConfig { servers, ..UpstreamConfig::default() },
        ..AgentConfig::default()
    }
}

/// The line that says where the agent is, and more lines for people.
pub(super) fn announce(agent: &Agent, more: &str) {
    let tcp = agent.tcp_addresses().iter().map(|address| format!(" http={address}"));
    let socket = agent.socket().map(|path| format!(" socket={}", path.display()));
    let line: String = tcp.chain(socket).collect();
    // A reader that has gone away does not stop the service.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("ready{line}\n{more}").as_bytes());
}
