//! The parts common to all forms of `lockmesh dev`: the data folder, the agents' configuration, and
//! the line with the address.

use super::folder::{MemberFolder, refuse_long_socket, refuse_long_sockets};
use super::options::DevOptions;
use crate::data_folder::{self, HoldError};
use crate::error::RunError;
use crate::stdio;
use lockmesh_agent::config::{AgentConfig, HttpConfig, UpstreamConfig};
use lockmesh_net::Role;
use lockmesh_net::config::NodeConfig;
use lockmesh_protocol::host_port::Host;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The data folder; a temporary one is deleted with this value.
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
            let path = temporary.path().to_owned();
            refuse_long_paths(options, &path)?;
            return Ok(Self { path, temporary: Some(temporary) });
        };
        // Before anything is made.
        refuse_long_paths(options, path)?;
        data_folder::prepare_for_dev(path, &socket(options, path))?;
        Ok(Self { path: path.into(), temporary: None })
    }

    /// Holds the folder until the file is closed: a second command would take away the files with
    /// the process numbers of the first one's.
    pub(super) fn hold(&self) -> Result<Option<File>, RunError> {
        data_folder::hold(&self.path).map_err(|error| match error {
            HoldError::InUse(folder) => RunError::Dev(format!(
                "another `lockmesh dev` uses the folder {}: stop it, or name another one with --data-dir",
                folder.display()
            )),
            error => error.into(),
        })
    }

    /// The lifetime of the data, in words.
    pub(super) fn kept(&self) -> &'static str {
        if self.temporary.is_some() { "until this process ends" } else { "for the next start" }
    }
}

fn refuse_long_paths(options: &DevOptions, folder: &Path) -> Result<(), RunError> {
    match options.nodes {
        Some(nodes) => refuse_long_sockets(folder, nodes),
        None => refuse_long_socket(&socket(options, folder)),
    }
}

pub(super) fn socket(options: &DevOptions, folder: &Path) -> PathBuf {
    if options.nodes.is_some() {
        return MemberFolder::numbered(folder, Role::Agent, 1).socket();
    }
    options.socket.clone().unwrap_or_else(|| folder.join("agent.sock"))
}

/// The agent that runs in this process.
pub(super) fn agent_config(options: &DevOptions, folder: &Path, upstream: UpstreamConfig) -> AgentConfig {
    let http = HttpConfig {
        tcp: Some(options.http),
        allow_non_loopback: options.allow_non_loopback,
        socket: socket(options, folder),
        session_ttl_min: options.session_ttl_min,
        ..HttpConfig::default()
    };
    let agent = loopback_agent(folder.join("agent"), options.node.clone(), http, upstream);
    AgentConfig { node_meta: options.node_meta.clone(), ..agent }
}

/// The servers of this command and their cluster, of which its agents never follow another one.
pub(super) fn upstream(servers: Vec<String>, cluster_id: &str) -> UpstreamConfig {
    UpstreamConfig { servers, cluster_id: cluster_id.into(), ..UpstreamConfig::default() }
}

/// Any agent of this command.
pub(super) fn loopback_agent(
    data_dir: PathBuf,
    node: NodeConfig,
    http: HttpConfig,
    upstream: UpstreamConfig,
) -> AgentConfig {
    AgentConfig {
        data_dir,
        // Any free port, because the agents of one machine cannot share one.
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: Some(Host::Ip(Ipv4Addr::LOCALHOST.into())),
        node,
        // For development: every user of this host may try everything.
        http: HttpConfig { operator_over_tcp: true, ..http },
        upstream,
        ..AgentConfig::default()
    }
}

/// The line with an agent's address, and hints for people.
pub(super) fn announce(tcp: &[SocketAddr], socket: Option<&Path>, more: &str) {
    let tcp = tcp.iter().map(|address| format!(" http={address}"));
    let socket = socket.map(|path| format!(" socket={}", path.display()));
    let line: String = tcp.chain(socket).collect();
    // A reader that has gone away, or is stuck, does not stop the service.
    drop(stdio::print(format!("ready{line}\n{more}").into()));
}
