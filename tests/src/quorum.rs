//! Real servers in one process, on loopback, with real files and certificates; a test can kill one
//! between two messages.

use crate::service::OwnRuntime;
use lockmesh_net::{Development, Identity, Role};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_server::config::{QuorumConfig, RpcConfig, ServerConfig};
use lockmesh_server::{Server, ServerOptions};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use tempfile::TempDir;

/// Servers that bootstrap a cluster together.
#[derive(Debug)]
pub struct Quorum {
    folder: TempDir,
    agent: Identity,
    servers: BTreeMap<SocketAddr, (Server, OwnRuntime)>,
}

impl Quorum {
    /// Starts `count` servers, and issues a certificate for an agent of this name.
    pub fn found(count: usize, agent: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let identity = |node: &str, role| {
            let certificates = Development::prepare(&folder.path().join("tls"), &NodeName::from(node));
            certificates.and_then(|certificates| certificates.identity(role)).expect("certificates")
        };
        let agent = identity(agent, Role::Agent);
        let sockets: Vec<_> =
            (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
        let addresses: Vec<_> =
            sockets.iter().map(|socket| socket.local_addr().expect("a bound socket")).collect();
        let quorum = QuorumConfig {
            bootstrap_expect: count as u32,
            join: addresses.iter().map(ToString::to_string).collect(),
            ..QuorumConfig::default()
        };
        let mut servers = BTreeMap::new();
        for (number, (address, socket)) in addresses.into_iter().zip(sockets).enumerate() {
            let node = format!("s{number}");
            let config = ServerConfig {
                data_dir: folder.path().join(&node),
                rpc: RpcConfig { listen: address, advertise: String::new() },
                quorum: quorum.clone(),
                ..ServerConfig::default()
            };
            let options = ServerOptions {
                config,
                identity: identity(&node, Role::Server),
                node_id: format!("00000000-0000-4000-8000-{number:012}"),
                instance_id: format!("{node}-instance"),
                node,
                seed: number as u64,
                lease_key: LeaseKey([number as u8; 32]),
                socket: Some(socket),
            };
            let runtime = OwnRuntime::new();
            let server = runtime.run(|| Server::start(options)).expect("the server starts");
            servers.insert(address, (server, runtime));
        }
        Self { folder, agent, servers }
    }

    /// Returns the agent's certificate.
    pub fn agent(&self) -> &Identity {
        &self.agent
    }

    /// Returns the folder with the files of the cluster's authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("tls")
    }

    /// Issues a certificate of the cluster's authority for a node.
    pub fn identity(&self, node: &str, role: Role) -> Identity {
        let certificates = Development::prepare(&self.folder.path().join("tls"), &NodeName::from(node));
        certificates.and_then(|certificates| certificates.identity(role)).expect("certificates")
    }

    /// Returns the addresses of the servers that were not killed.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.keys().map(ToString::to_string).collect()
    }

    /// Cuts a server off abruptly: it sends and receives nothing more.
    pub fn kill(&mut self, address: &str) {
        let address = address.parse().expect("an address");
        let (server, runtime) = self.servers.remove(&address).expect("it was not killed before");
        runtime.kill();
        // The server's own threads continue without peers until the test's process ends.
        std::mem::forget(server);
    }

    /// Stops all remaining servers.
    pub async fn end(self) {
        let stop = |(server, runtime): (Server, OwnRuntime)| {
            tokio::spawn(async move {
                server.stop().await;
                drop(runtime);
            })
        };
        for stopped in self.servers.into_values().map(stop).collect::<Vec<_>>() {
            stopped.await.expect("the server stops");
        }
        drop(self.folder);
    }
}
