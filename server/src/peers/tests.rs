//! Authentication of servers, and delivery of their messages.

use super::{Hello, Me, Peers, Refused, dial_options};
use crate::event_queue::{DriverEvent, EventReceiver, event_queue};
use crate::rpc::counters::RpcCounters;
use crate::rpc::{RpcOptions, RpcService};
use lockmesh_core::Input;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::log::{LogPosition, PeerMemory};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_net::{Development, Endpoint, Peer, QuicOptions, Role};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::record::{NewServer, Server};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A server with connections to others and nothing else.
struct Place {
    peers: Arc<Peers>,
    receiver: EventReceiver,
    endpoint: Arc<Endpoint>,
    address: SocketAddr,
    service: JoinHandle<()>,
}

fn place(folder: &TempDir, number: u64, address: &str) -> Place {
    let node = format!("s{number}");
    let certificates = Development::prepare(folder.path(), &node.as_str().into()).expect("certificates");
    let identity = certificates.identity(Role::Server).expect("a server's certificate");
    let (sender, receiver) = event_queue(100);
    let dialling = Arc::new(Endpoint::dial_only(&identity, &dial_options()).expect("a socket"));
    let address = address.parse().expect("an address");
    let endpoint = Endpoint::listen(address, &identity, &QuicOptions::default()).expect("a socket");
    let (endpoint, peers) = (Arc::new(endpoint), Peers::new(dialling, sender.clone()));
    let service = RpcService::new(sender, RpcOptions::default(), Arc::new(RpcCounters::default()));
    let service = tokio::spawn(service.with_peers(Arc::clone(&peers)).run(Arc::clone(&endpoint)));
    let address = endpoint.local_address().expect("it is bound");
    Place { peers, receiver, endpoint, address, service }
}

impl Place {
    fn begin(&self, number: u64) {
        let address = self.address.to_string();
        self.peers.begin(Me { id: ServerId(number), cluster_id: "c".into(), address });
    }

    /// Waits until such an event arrives for the driver.
    fn until(&self, what: &str, wanted: impl Fn(&DriverEvent) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut events = Vec::new();
        while !events.iter().any(&wanted) {
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            self.receiver.take(&mut events, 100, deadline);
        }
    }

    async fn stop(self) {
        self.peers.close();
        self.endpoint.close("").await;
        self.service.await.expect("it ends with the endpoint");
        let Self { endpoint, address, .. } = self;
        drop(endpoint);
        while UdpSocket::bind(address).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn server(number: u64, address: &str) -> Server {
    let (node, instance_id) = (format!("S{number}").as_str().into(), format!("instance {number}"));
    NewServer { node, node_id: String::new(), address: address.into(), instance_id, format: format::NEWEST }
        .with_id(ServerId(number))
}

fn message(from: u64, to: u64) -> (ServerId, PeerMessage) {
    (ServerId(to), PeerMessage::new(MessageKind::Heartbeat, ServerId(from), ServerId(to)))
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_follows_roster_and_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = place(&folder, 1, "127.0.0.1:0");
    let peer = |node: &str| Peer { role: Role::Server, node: node.into() };
    let hello = |from, to, cluster_id: &str| Hello {
        from: ServerId(from),
        to: ServerId(to),
        cluster_id: cluster_id.into(),
        address: "127.0.0.1:9".into(),
        version: "1.2.3".into(),
        position: LogPosition::default(),
        remembers: None,
    };
    let admit = |hello: Hello, node: &str| match place.peers.admit(&hello, &peer(node)) {
        Ok(answer) => format!("{} to {}", answer.from, answer.to),
        Err(Refused::NotYet) => "not yet".into(),
        Err(Refused::Removed) => "removed".into(),
        Err(Refused::Mismatched(reason)) => reason,
        Err(Refused::Denied(reason)) => format!("denied: {reason}"),
    };
    assert_eq!(admit(hello(2, 1, "c"), "s2"), "not yet");
    place.begin(1);
    let servers = [server(1, "127.0.0.1:1"), server(2, "127.0.0.1:2"), server(4, "127.0.0.1:4")];
    place.peers.update(servers.iter(), ServerId(5));
    assert_eq!(admit(hello(2, 1, "c"), "s2"), "1 to 2");
    assert_eq!(place.peers.address(ServerId(2)).as_deref(), Some("127.0.0.1:9"), "it moved");
    let met = |event: &DriverEvent| matches!(event, DriverEvent::Frontend(Event::Version(ServerId(2), version)) if version == "1.2.3");
    place.until("the version of the server that was met", met);
    assert!(admit(hello(2, 1, "other"), "s2").starts_with("it belongs to the cluster other"));
    assert!(admit(hello(2, 3, "c"), "s2").contains("it expects server 3"));
    assert!(admit(hello(1, 1, "c"), "s1").contains("the same id as this server"));
    assert!(admit(hello(2, 1, "c"), "s4").contains("denied: its certificate names the node s4"));
    for removed in [3, 5] {
        assert_eq!(admit(hello(removed, 1, "c"), "s3"), "removed");
    }
    assert_eq!(admit(hello(6, 1, "c"), "s6"), "1 to 6", "unknown to this server so far");
    assert!(admit(hello(6, 1, "c"), "s7").contains("denied: its certificate names the node s7"));
    place.peers.update(servers[..2].iter(), ServerId(5));
    assert!(place.peers.is_member(ServerId(6)) && !place.peers.is_member(ServerId(4)));
    place.peers.update(servers.iter(), ServerId(6));
    assert!(!place.peers.is_member(ServerId(6)), "removed before this server learned of it");
    place.peers.close();
    assert!(place.peers.is_member(ServerId(2)));
    assert_eq!(
        admit(hello(2, 1, "c"), "s2"),
        "1 to 2",
        "a stopping server removes no other one from the quorum"
    );
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_server_found_by_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = place(&folder, 1, "127.0.0.1:0");
    place.begin(1);
    place.peers.update([server(2, "127.0.0.1:2")].iter(), ServerId(2));
    let found = |server: u64, node: &str| place.peers.found(ServerId(server), &node.into(), "127.0.0.1:9");
    assert_eq!(found(3, "s3"), None, "unknown to the roster");
    assert_eq!(found(2, "s3"), None, "another server's certificate");
    assert_eq!(place.peers.addresses(), ["127.0.0.1:2"]);
    assert_eq!(found(2, "s2").as_deref(), Some("127.0.0.1:2"), "its previous address");
    assert_eq!(found(2, "s2"), None, "it is called there already");
    assert_eq!(place.peers.addresses(), ["127.0.0.1:9"]);
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_back_server_rejected_and_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = place(&folder, 1, "127.0.0.1:0");
    let at = |term, index| LogPosition { term: Term(term), last_index: LogIndex(index) };
    let (_, acknowledgement) = message(2, 1);
    let kind = MessageKind::AppendResponse;
    let acknowledgement = PeerMessage { kind, term: Term(5), index: LogIndex(650), ..acknowledgement };
    let mut memory = PeerMemory::default();
    memory.note(acknowledgement.from, acknowledgement.certain_position().expect("it contains a position"));
    place.peers.note(at(5, 700), &memory);
    place.begin(1);
    place.peers.update([server(2, "127.0.0.1:2")].iter(), ServerId(2));
    let admit = |position, remembers| {
        let (from, to) = (ServerId(2), ServerId(1));
        let (cluster_id, address) = ("c".into(), "127.0.0.1:9".into());
        let hello = Hello { from, to, cluster_id, address, version: String::new(), position, remembers };
        let peer = Peer { role: Role::Server, node: "s2".into() };
        match place.peers.admit(&hello, &peer) {
            Ok(answer) => Ok((answer.position, answer.remembers)),
            Err(Refused::NotYet | Refused::Removed) => Err("not yet".into()),
            Err(Refused::Denied(reason) | Refused::Mismatched(reason)) => Err(reason),
        }
    };
    assert_eq!(admit(at(5, 650), Some(at(5, 700))), Ok((at(5, 700), Some(at(5, 650)))));
    assert_eq!(admit(at(6, 10), None), Ok((at(5, 700), Some(at(5, 650)))), "a later leader took it back");
    let refused = admit(at(5, 649), None).expect_err("it acknowledged one more");
    assert!(
        refused.contains("the disk of server 2 was set back") && refused.contains("empty its data folder")
    );
    let refused = admit(at(6, 10), Some(at(5, 701))).expect_err("this server acknowledged one more");
    assert!(refused.contains("the disk of server 1 was set back"), "{refused}");
    let told = |event: &DriverEvent| matches!(event, DriverEvent::Frontend(Event::Core(Input::SetBack(ServerId(2), known))) if known.last_index.0 == 701);
    place.until("the own driver's news", told);
    place.stop().await;
}

/// Sends the same message repeatedly: messages sent while the other server is down are lost.
async fn send_repeatedly(peers: Arc<Peers>) {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    loop {
        pause.tick().await;
        peers.send(&mut vec![message(1, 2)], &mut Vec::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_after_peer_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = place(&folder, 1, "127.0.0.1:0");
    let mut other = place(&folder, 2, "127.0.0.1:0");
    let address = other.address.to_string();
    one.begin(1);
    let servers = [server(1, &one.address.to_string()), server(2, &address)];
    one.peers.update(servers.iter(), ServerId(2));
    let saying = tokio::spawn(send_repeatedly(Arc::clone(&one.peers)));
    for _ in 0..2 {
        other.begin(2);
        other.peers.update(servers.iter(), ServerId(2));
        let (_, heard) = message(1, 2);
        let is_it = move |event: &DriverEvent| matches!(event, DriverEvent::Frontend(Event::Core(Input::Peer(ServerId(1), message))) if *message == heard);
        let listening = tokio::task::spawn_blocking(move || {
            other.until("the message", is_it);
            other
        });
        listening.await.expect("it arrives").stop().await;
        one.until("the loss", |event| {
            matches!(event, DriverEvent::Frontend(Event::Core(Input::Unreachable(ServerId(2)))))
        });
        other = place(&folder, 2, &address);
    }
    saying.abort();
    other.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_server_loses_open_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (place(&folder, 1, "127.0.0.1:0"), place(&folder, 2, "127.0.0.1:0"));
    let servers = [server(1, &one.address.to_string()), server(2, &other.address.to_string())];
    for (place, number) in [(&one, 1), (&other, 2)] {
        place.begin(number);
        place.peers.update(servers.iter(), ServerId(2));
    }
    let saying = tokio::spawn(send_repeatedly(Arc::clone(&one.peers)));
    let other = tokio::task::spawn_blocking(move || {
        other.until("the first message", |event| {
            matches!(event, DriverEvent::Frontend(Event::Core(Input::Peer(ServerId(1), _))))
        });
        other
    });
    let other = other.await.expect("it arrives");
    let (mut heard, mut lost) = (Vec::new(), Vec::new());
    // Before the other server had begun it may have been unreachable too: only later losses count.
    one.receiver.take_now(&mut lost, 100);
    lost.clear();
    other.peers.update(servers[1..].iter(), ServerId(2));
    let deadline = Instant::now() + Duration::from_secs(60);
    // Another message from now on, so that none of them was in flight before.
    let late = |event: &DriverEvent| matches!(event, DriverEvent::Frontend(Event::Core(Input::Peer(_, message))) if message.index == LogIndex(7));
    let is_lost = |event: &DriverEvent| {
        matches!(event, DriverEvent::Frontend(Event::Core(Input::Unreachable(ServerId(2)))))
    };
    while !lost.iter().any(is_lost) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (to, message) = message(1, 2);
        one.peers.send(&mut vec![(to, PeerMessage { index: LogIndex(7), ..message })], &mut Vec::new());
        other.receiver.take_now(&mut heard, 100);
        assert!(!heard.iter().any(late), "messages still arrive");
        one.receiver.take_now(&mut lost, 100);
        assert!(Instant::now() < deadline, "no loss was reported");
    }
    saying.abort();
    other.stop().await;
    one.stop().await;
}
