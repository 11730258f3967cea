//! The limits of one hostile agent, on real sockets.

use super::counters::RpcCounters;
use super::{RpcOptions, RpcService};
use crate::event_queue::event_queue;
use lockmesh_net::certificate::Authority;
use lockmesh_net::{Connection, Endpoint, Identity, IdentityFiles, Peer, QuicOptions, Role};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A service without a driver, and the authority of its peers.
struct Story {
    folder: tempfile::TempDir,
    authority: Authority,
    address: SocketAddr,
    counters: Arc<RpcCounters>,
    /// The endpoints of the peers.
    dialling: Vec<Endpoint>,
}

impl Story {
    fn new(connections: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Duration::from_secs(86_400)).unwrap();
        authority.save(&folder.path().join("ca.pem"), &folder.path().join("ca-key.pem")).unwrap();
        let counters = Arc::<RpcCounters>::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut story = Self { folder, authority, address, counters, dialling: Vec::new() };
        let identity = story.identity(Role::Server, "s1");
        let endpoint = Endpoint::listen(address, &identity, &QuicOptions::default()).unwrap();
        story.address = endpoint.local_address().unwrap();
        let options = RpcOptions { connections, ..RpcOptions::default() };
        let service = RpcService::new(event_queue(10).0, options, Arc::clone(&story.counters));
        tokio::spawn(service.run(Arc::new(endpoint)));
        story
    }

    fn identity(&self, role: Role, node: &str) -> Identity {
        let path = |name: &str| self.folder.path().join(name);
        let files = IdentityFiles {
            authorities: path("ca.pem"),
            certificate: path("member.pem"),
            key: path("member-key.pem"),
        };
        let member = Peer { role, node: node.into() };
        let issued = self.authority.issue(&member, &[], Duration::from_secs(3_600)).unwrap();
        issued.save(&files.certificate, &files.key).unwrap();
        Identity::load(&files).unwrap()
    }

    /// Opens connections one after the other, each on a socket of its own.
    async fn connect(&mut self, count: usize, role: Role, node: &str) -> Vec<Connection> {
        let identity = self.identity(role, node);
        let mut connections = Vec::new();
        for _ in 0..count {
            let dialling = Endpoint::dial_only(&identity, &QuicOptions::default()).unwrap();
            connections.push(dialling.connect(self.address, Role::Server).await.unwrap());
            self.dialling.push(dialling);
        }
        connections
    }
}

#[tokio::test]
async fn agent_keeps_newest_8_connections() {
    let mut story = Story::new(100);
    let servers = story.connect(10, Role::Server, "s2").await;
    let hostile = story.connect(20, Role::Agent, "a1").await;
    for connection in &hostile[..12] {
        let reason = connection.closed().await;
        assert!(reason.contains("this node has too many connections"), "{reason}");
    }
    let others = story.connect(1, Role::Agent, "a2").await;
    let open = [&hostile[12..], &servers, &others].concat();
    assert!(open.iter().all(|connection| !connection.is_closed()));
    assert_eq!((story.counters.displaced.count(), story.counters.full.count()), (12, 0));
}

#[tokio::test]
async fn full_server_still_admits_servers() {
    let mut story = Story::new(1);
    let first = story.connect(1, Role::Agent, "a1").await;
    let second = story.connect(1, Role::Agent, "a2").await;
    assert!(second[0].closed().await.contains("connection limit reached (1)"));
    let server = story.connect(1, Role::Server, "s2").await;
    // A connection in place of its node's own.
    let again = story.connect(1, Role::Agent, "a1").await;
    first[0].closed().await;
    assert!(!server[0].is_closed() && !again[0].is_closed());
    assert_eq!((story.counters.displaced.count(), story.counters.full.count()), (1, 1));
}
