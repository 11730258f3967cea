//! What `lockmesh dev` can be told.

use lockmesh_agent::config::HttpConfig;
use lockmesh_net::config::{LogFormat, NodeConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What `lockmesh dev` can be told; everything else is a default or picked free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevOptions {
    /// Where to listen for HTTP.
    pub http: SocketAddr,
    /// Whether `http` may be reachable from other hosts.
    pub allow_non_loopback: bool,
    /// Where to put the Unix socket; none for a place inside the data folder.
    pub socket: Option<PathBuf>,
    /// Where to keep the data; none for a temporary folder that goes away with the process.
    pub data_dir: Option<PathBuf>,
    /// Who this machine is.
    pub node: NodeConfig,
    /// The shortest TTL that a session may ask for.
    pub session_ttl_min: Duration,
    /// How many servers shall run as processes of their own; none for one in the same process.
    pub servers: Option<u8>,
    /// How many agents shall run as processes of their own, with servers that do too; none for one
    /// in this process.
    pub nodes: Option<u8>,
    /// How log lines look, those of processes that this one starts too.
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
            session_ttl_min: HttpConfig::default().session_ttl_min,
            servers: None,
            nodes: None,
            log_format: LogFormat::default(),
        }
    }
}
