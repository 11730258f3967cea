//! The node lease over real QUIC: renewals that servers acknowledge, challenges from servers to
//! agents, and peers that may not challenge.

use lockmesh_agent::listener::Listener;
use lockmesh_agent::mesh_questions::MeshQuestions;
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::{CallClient, Connection, Endpoint, Identity, Purpose, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{AgentNumber, LogIndex, NodeName};
use lockmesh_protocol::lease::{
    Challenge, HealthWindow, LeaseEnd, LeaseId, LeaseKey, LeaseSecret, NodeQuestion,
};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallFrame, CallId, ReplyFrame, Request, Response, Unavailable};
use lockmesh_tests::quorum::Quorum;
use lockmesh_tests::service::{Cluster, Service, SharedBook, registration};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const NODE: &str = "web-1";

/// Timeout of every wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The lease that the service grants.
const LEASE: LeaseId = LeaseId { agent: AgentNumber(7), began: LogIndex(1) };

/// An agent that listens, and the service where it registered.
struct Story {
    cluster: Cluster,
    _service: Service,
    address: SocketAddr,
    upstream: Upstream,
}

impl Story {
    async fn begin() -> Self {
        let cluster = Cluster::new(NODE);
        let service = Service::start(&cluster, &SharedBook::default());
        let identity = cluster.identity(Role::Agent);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a free port");
        let address = endpoint.local_address().expect("it is bound");
        let endpoint = Arc::new(endpoint);
        let options = UpstreamOptions::new(vec![service.address.to_string()], identity, registration(NODE));
        let upstream = Upstream::start_on(Arc::clone(&endpoint), options);
        tokio::spawn(Listener::new(endpoint, upstream.clone(), MeshQuestions::default()).run());
        let story = Self { cluster, _service: service, address, upstream };
        story.renewed().await;
        story
    }

    /// Waits until a renewal was acknowledged.
    async fn renewed(&self) {
        let mut lease = self.upstream.lease();
        let renewed = timeout(TIMEOUT, lease.wait_for(|lease| lease.renewed.is_some())).await;
        renewed.expect("it is acknowledged").expect("the agent runs");
    }

    async fn dial(&self, role: Role) -> (Endpoint, Connection) {
        let dialler = Endpoint::dial_only(&self.cluster.identity(role), &QuicOptions::default());
        let dialler = dialler.expect("a socket");
        let connection = dialler.connect(self.address, Role::Agent).await.expect("it listens");
        (dialler, connection)
    }
}

async fn ask(connection: &Connection, request: Request) -> Response {
    let client = CallClient::on(connection.clone()).await;
    client.expect("a stream").call(request, TIMEOUT).await.expect("it answers")
}

#[tokio::test]
async fn challenge_answered_on_outgoing_socket() {
    let story = Story::begin().await;
    let (_dialler, connection) = story.dial(Role::Server).await;
    assert_eq!((connection.peer().role, connection.peer().node.as_str()), (Role::Agent, NODE));
    let secret = LeaseKey::default().secret(LEASE);
    for nonce in [5, 6] {
        match ask(&connection, Request::Challenge(Challenge { lease: LEASE, nonce })).await {
            Response::Alive(renewal) => assert!(secret.made(&renewal) && renewal.nonce == nonce),
            other => panic!("it lives: {other:?}"),
        }
    }
    let other = LeaseId { began: LogIndex(9), ..LEASE };
    let answer = ask(&connection, Request::Challenge(Challenge { lease: other, nonce: 7 })).await;
    assert_eq!(answer, Response::LeaseEnded(other, LeaseEnd::Unknown));
}

#[tokio::test]
async fn only_challenges_and_trusted_peers_answered() {
    let story = Story::begin().await;
    let (_dialler, connection) = story.dial(Role::Server).await;
    let answer = ask(&connection, Request::Status).await;
    let is_denied = |answer: &Response| matches!(answer, Response::Unavailable(Unavailable::Denied(_)));
    assert!(is_denied(&answer), "{answer:?}");
    let _stream = connection.open(Purpose::Raft).await.expect("it stands");
    assert!(connection.closed().await.contains("no Raft"));
    // Another agent may challenge on behalf of a server, but send no other request.
    let (_dialler, connection) = story.dial(Role::Agent).await;
    let challenge = Challenge { lease: LEASE, nonce: 5 };
    let answer = ask(&connection, Request::Challenge(challenge)).await;
    assert!(matches!(answer, Response::Alive(renewal) if renewal.nonce == 5), "{answer:?}");
    let address = story.address.to_string();
    let question = NodeQuestion { challenge, node: NODE.into(), address };
    let answer = ask(&connection, Request::AskNode(question)).await;
    assert!(is_denied(&answer), "{answer:?}");
    let answer = ask(&connection, Request::TellMesh(Vec::new())).await;
    assert!(is_denied(&answer), "{answer:?}");
    let foreign = Cluster::new(NODE);
    let dialler = Endpoint::dial_only(&foreign.identity(Role::Server), &QuicOptions::default());
    let refused = dialler.expect("a socket").connect(story.address, Role::Agent).await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn excess_challenges_per_stream_rejected() {
    let story = Story::begin().await;
    let (_dialler, connection) = story.dial(Role::Server).await;
    let (mut sender, mut receiver) = connection.open(Purpose::Calls).await.expect("a stream");
    let mut queue = FrameQueue::default();
    for id in 1..=17 {
        let request = Request::Challenge(Challenge { lease: LEASE, nonce: id });
        queue.push(&Call::Begin(CallId(id), request)).expect("it is short");
    }
    sender.send(queue.take()).await.expect("it listens");
    let frame = receiver.receive::<ReplyFrame>().await.expect("no error");
    let answers = frame.expect("a frame").0;
    let alive = answers.iter().filter(|(_, answer)| matches!(answer, Response::Alive(_))).count();
    assert_eq!((answers.len(), alive), (17, 16));
}

/// Registers at the leader.
async fn registered(
    quorum: &Quorum,
    endpoint: &Endpoint,
    registration: &AgentRegistration,
) -> (LeaseId, LeaseSecret) {
    let addresses = quorum.addresses();
    for address in addresses.iter().cycle() {
        let mut client = CallClient::connect_to(endpoint, address).await.expect("it listens");
        let command = Command::RegisterAgent(registration.clone());
        let answer = client.call(Request::Propose(None, command), TIMEOUT).await;
        if let Ok(Response::Applied(Applied { reply: Reply::Agent { lease, secret, .. }, .. })) = answer {
            return (lease, secret);
        }
        tokio::task::yield_now().await;
    }
    unreachable!("the addresses go round")
}

#[tokio::test(flavor = "multi_thread")]
async fn unrenewed_agent_challenged_by_every_server() {
    let quorum = Quorum::found(3, NODE);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = Endpoint::listen(any, quorum.agent(), &QuicOptions::default()).expect("a free port");
    let port = endpoint.local_address().expect("it is bound").port();
    let registration = AgentRegistration { port, ..registration(NODE) };
    let (lease, secret) = registered(&quorum, &endpoint, &registration).await;
    let mut servers: BTreeSet<NodeName> = BTreeSet::new();
    while servers.len() < 3 {
        let arrival = timeout(TIMEOUT, endpoint.accept()).await.expect("a connection").expect("it is open");
        let connection = arrival.handshake().await.expect("a server");
        assert_eq!(connection.peer().role, Role::Server);
        let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
        let CallFrame(calls) = receiver.receive().await.expect("no error").expect("a frame");
        let [Call::Begin(call, Request::Challenge(challenge))] = calls.as_slice() else {
            panic!("unexpected calls: {calls:?}")
        };
        assert!(challenge.lease == lease && challenge.nonce != 0, "{challenge:?}");
        servers.insert(connection.peer().node.clone());
        // An agent that answers one server is not challenged by the others, so only the last
        // challenge is answered.
        if servers.len() == 3 {
            let mut queue = FrameQueue::default();
            let renewal = secret.renewal(lease, 1, challenge.nonce);
            queue.push(&(*call, Response::Alive(renewal))).expect("it is short");
            sender.send(queue.take()).await.expect("it listens");
        }
    }
    endpoint.close("the test ends").await;
    quorum.end().await;
}

#[tokio::test]
async fn indirect_probe_confirms_only_live_peer() {
    let story = Story::begin().await;
    let (_dialler, connection) = story.dial(Role::Server).await;
    let challenge = Challenge { lease: LEASE, nonce: 5 };
    let question = |node: &str, address: SocketAddr| {
        Request::AskNode(NodeQuestion { challenge, node: node.into(), address: address.to_string() })
    };
    // There is only one agent here, which challenges itself.
    for _ in 0..2 {
        let answer = ask(&connection, question(NODE, story.address)).await;
        assert!(matches!(answer, Response::Alive(renewal) if renewal.nonce == 5), "{answer:?}");
    }
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let nobody = nobody.local_addr().expect("it is bound");
    for (node, address) in [("web-2", story.address), (NODE, nobody)] {
        let answer = ask(&connection, question(node, address)).await;
        assert!(matches!(answer, Response::Unavailable(Unavailable::Unknown(_))), "{answer:?}");
    }
}

/// Answers one challenge of an agent; challenges from servers are lost.
async fn answer_agents(endpoint: &Endpoint, lease: LeaseId, secret: &LeaseSecret, sequence: u64) {
    loop {
        let arrival = timeout(TIMEOUT, endpoint.accept()).await.expect("a connection").expect("it is open");
        let Ok(connection) = arrival.handshake().await else { continue };
        if connection.peer().role == Role::Server {
            continue;
        }
        let Ok((_, mut sender, mut receiver)) = connection.accept().await else { continue };
        let Ok(Some(CallFrame(calls))) = receiver.receive().await else { continue };
        let [Call::Begin(call, Request::Challenge(challenge))] = calls.as_slice() else {
            panic!("unexpected calls: {calls:?}")
        };
        assert_eq!(challenge.lease, lease);
        let mut queue = FrameQueue::default();
        queue
            .push(&(*call, Response::Alive(secret.renewal(lease, sequence, challenge.nonce))))
            .expect("short");
        if sender.send(queue.take()).await.is_ok() {
            // Read before the connection is dropped: the agent finishes its stream.
            let _ = receiver.receive::<CallFrame>().await;
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn indirect_probe_keeps_unreachable_node() {
    let quorum = Quorum::found(3, NODE);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listen =
        |identity: &Identity| Endpoint::listen(any, identity, &QuicOptions::default()).expect("a free port");
    let port = |endpoint: &Endpoint| endpoint.local_address().expect("it is bound").port();
    // An agent with the default configuration.
    let identity = quorum.identity("web-2", Role::Agent);
    let endpoint = Arc::new(listen(&identity));
    let registration_of = |node: &str, port| AgentRegistration { port, ..registration(node) };
    let mut other = registration_of("web-2", port(&endpoint));
    other.node.id = "5a0f2b6e-3c60-4d3f-9d5c-000000000002".into();
    let options = UpstreamOptions::new(quorum.addresses(), identity, other);
    let upstream = Upstream::start_on(Arc::clone(&endpoint), options);
    tokio::spawn(Listener::new(endpoint, upstream.clone(), MeshQuestions::default()).run());
    let mut lease = upstream.lease();
    let renewed = timeout(TIMEOUT, lease.wait_for(|lease| lease.renewed.is_some())).await;
    drop(renewed.expect("it is acknowledged").expect("the agent runs"));
    // And an agent that renews nothing, and that no server reaches.
    let silent = listen(quorum.agent());
    let (lease, secret) = registered(&quorum, &silent, &registration_of(NODE, port(&silent))).await;
    let began = std::time::Instant::now();
    let mut sequence = 0;
    while began.elapsed() < HealthWindow::Default.validity() + Duration::from_secs(2) {
        sequence += 1;
        answer_agents(&silent, lease, &secret, sequence).await;
    }
    // Its lease is valid: a renewal of its own is acknowledged.
    let renewal = secret.renewal(lease, sequence + 1, 0);
    let addresses = quorum.addresses();
    for address in addresses.iter().cycle() {
        let mut client = CallClient::connect_to(&silent, address).await.expect("it listens");
        match client.call(Request::RenewLease(renewal), TIMEOUT).await {
            Ok(Response::LeaseRenewed(_)) => break,
            Ok(Response::LeaseEnded(_, why)) => panic!("it was failed: {why}"),
            _ => tokio::task::yield_now().await,
        }
    }
    upstream.close().await;
    quorum.end().await;
}
