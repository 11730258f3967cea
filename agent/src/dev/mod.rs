//! `lockmesh dev`: a whole Lockmesh in one command, joined by real QUIC with mutual TLS on loopback.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | what both ways have in common: the folder, the agent |
//! | `alone.rs` | one server and the agent in this process |
//! | `fleet.rs` | several servers as processes of their own, the agent in this one |
//! | `member.rs` | one server's folder: its configuration, certificate and port |
//! | `child.rs` | one server's process |

mod alone;
mod child;
mod fleet;
mod member;

use crate::agent::{Agent, AgentError};
use crate::config::{AgentConfig, DevOptions, HttpConfig, UpstreamConfig};
use crate::data_folder;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Runs all of it until the process is told to stop. Once it serves, a line on stdout that begins with `ready` says
/// where.
pub async fn run(options: DevOptions) -> Result<(), AgentError> {
    match options.servers {
        None => alone::run(options).await,
        Some(count) => fleet::run(options, count).await,
    }
}

/// Where the data is; a temporary folder goes away with this value.
#[derive(Debug)]
struct DevFolder {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl DevFolder {
    fn open(options: &DevOptions) -> Result<Self, AgentError> {
        let Some(path) = &options.data_dir else {
            let temporary = tempfile::Builder::new().prefix("lockmesh-dev-").tempdir();
            let temporary =
                temporary.map_err(|error| AgentError::system("cannot make a temporary folder", error))?;
            return Ok(Self { path: temporary.path().into(), temporary: Some(temporary) });
        };
        data_folder::prepare_for_dev(path, &socket(options, path))?;
        Ok(Self { path: path.into(), temporary: None })
    }

    /// How long the data is kept, in words.
    fn kept(&self) -> &'static str {
        if self.temporary.is_some() { "until this process ends" } else { "for the next start" }
    }
}

fn socket(options: &DevOptions, folder: &Path) -> PathBuf {
    options.socket.clone().unwrap_or_else(|| folder.join("agent.sock"))
}

fn agent_config(options: &DevOptions, folder: &Path, servers: Vec<String>) -> AgentConfig {
    AgentConfig {
        data_dir: folder.join("agent"),
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
fn announce(agent: &Agent, more: &str) {
    let tcp = agent.tcp_addresses().iter().map(|address| format!(" http={address}"));
    let socket = agent.socket().map(|path| format!(" socket={}", path.display()));
    let line: String = tcp.chain(socket).collect();
    // A reader that has gone away does not stop the service.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("ready{line}\n{more}").as_bytes());
}
