//! The options of `lockmesh dev`.

use lockmesh_agent::config::HttpConfig;
use lockmesh_net::config::{LogFormat, NodeConfig};
use lockmesh_server::config::AclConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options of `lockmesh dev`; all other settings are defaults or free ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevOptions {
    /// The listen address for HTTP.
    pub http: SocketAddr,
    /// `true` if `http` may be reachable from other hosts.
    pub allow_non_loopback: bool,
    /// The path of the Unix socket; `None` for a path in the data folder.
    pub socket: Option<PathBuf>,
    /// The data folder; `None` for a temporary folder that is deleted at the end.
    pub data_dir: Option<PathBuf>,
    /// The identity of this node.
    pub node: NodeConfig,
    /// The metadata of this node.
    pub node_meta: BTreeMap<String, String>,
    /// The shortest TTL that a session may ask for.
    pub session_ttl_min: Duration,
    /// The number of servers with their own processes; `None` for one server in this process.
    pub servers: Option<u8>,
    /// The number of agents with their own processes, as have their servers; `None` for one agent
    /// in this process.
    pub nodes: Option<u8>,
    /// The access control lists with which the cluster begins.
    pub acl: AclConfig,
    /// The log format of this process and of those that it starts.
    pub log_format: LogFormat,
}

impl Default for DevOptions {
    fn default() -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8500)),
            allow_non_loopback: false,
            socket: None,
            data_dir: None,
            node: NodeConfig::default(),
            node_meta: BTreeMap::new(),
            session_ttl_min: HttpConfig::default().session_ttl_min,
            servers: None,
            nodes: None,
            acl: AclConfig::default(),
            log_format: LogFormat::default(),
        }
    }
}
