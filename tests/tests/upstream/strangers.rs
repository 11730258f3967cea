//! Peers that a server must not trust: their messages end only their own connection, with a reason.

use bytes::Bytes;
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::{Connection, Endpoint, Purpose, QuicOptions, Role};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response, Unavailable};
use lockmesh_protocol::wire::VERSION;
use lockmesh_server::rpc::RpcOptions;
use lockmesh_tests::service::{Cluster, Mood, Service, SharedBook, session_id};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

struct Stranger {
    cluster: Cluster,
    book: SharedBook,
    service: Service,
}

impl Stranger {
    fn new(options: RpcOptions) -> Self {
        Self::with_queue_limit(16_384, options)
    }

    fn with_queue_limit(limit: usize, options: RpcOptions) -> Self {
        let (cluster, book) = (Cluster::new("web-1"), SharedBook::default());
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let service = Service::start_at(loopback, &cluster, &book, options, limit);
        Self { cluster, book, service }
    }

    async fn connect(&self, role: Role) -> (Endpoint, Connection) {
        let dialler = Endpoint::dial_only(&self.cluster.identity(role), &QuicOptions::default()).unwrap();
        let connection = dialler.connect(self.service.address, Role::Server).await.unwrap();
        (dialler, connection)
    }

    /// Sends bytes as an agent, and returns the reason why the connection ended.
    async fn send(&self, bytes: &[u8]) -> String {
        let (_dialler, connection) = self.connect(Role::Agent).await;
        let (mut sender, _receiver) = connection.open(Purpose::Calls).await.unwrap();
        sender.send(vec![Bytes::copy_from_slice(bytes)]).await.unwrap();
        connection.closed().await
    }
}

fn frame(calls: &[Call]) -> Vec<u8> {
    let mut queue = FrameQueue::default();
    calls.iter().for_each(|call| queue.push(call).unwrap());
    queue.take().concat()
}

#[tokio::test]
async fn malformed_frames_close_with_reason() {
    let stranger = Stranger::new(RpcOptions::default());
    let status = || Call::Begin(CallId(1), Request::Status);
    let oversized = u32::MAX.to_be_bytes();
    let cases: [(&[u8], &str); 6] = [
        (&oversized, "a frame of 4294967295 bytes"),
        (&[0, 0, 0, 0], "an empty message"),
        (&[0, 0, 0, 2, 99, 0], "version 99"),
        (&[0, 0, 0, 3, VERSION, 1, 77], "a malformed message"),
        (&[0, 0, 0, 3, VERSION, 0, 0], "left over"),
        (&frame(&[status(), status()]), "call 1 twice"),
    ];
    for (bytes, reason) in cases {
        let told = stranger.send(bytes).await;
        assert!(told.contains(reason), "{bytes:?}: {told}");
    }
    assert_eq!(stranger.service.counters.malformed.count(), 6);
    assert!(stranger.book.open().proposals.is_empty());
}

#[tokio::test]
async fn raft_from_agent_is_rejected() {
    let stranger = Stranger::new(RpcOptions::default());
    for (role, reason) in [(Role::Agent, "not a server's"), (Role::Server, "this server has no quorum")] {
        let (_dialler, connection) = stranger.connect(role).await;
        let _stream = connection.open(Purpose::Raft).await.unwrap();
        let told = connection.closed().await;
        assert!(told.contains(reason), "{told}");
    }
    let counters = &stranger.service.counters;
    assert_eq!((counters.denied.count(), counters.mismatched.count()), (1, 1));
}

#[tokio::test]
async fn foreign_authority_is_counted() {
    let (stranger, foreign) = (Stranger::new(RpcOptions::default()), Cluster::new("web-1"));
    let identity = foreign.identity(Role::Agent);
    let dialler = Endpoint::dial_only(&identity, &QuicOptions::default()).unwrap();
    assert!(dialler.connect(stranger.service.address, Role::Server).await.is_err());
    while stranger.service.counters.strangers.count() == 0 {
        tokio::task::yield_now().await;
    }
    stranger.connect(Role::Agent).await;
}

#[tokio::test]
async fn concurrent_handshakes_are_limited() {
    let stranger = Stranger::new(RpcOptions { handshakes: 1, ..RpcOptions::default() });
    let (_dialler, _first) = stranger.connect(Role::Agent).await;
    // Its end of the handshake is done before the server's.
    while stranger.service.counters.connections.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let (_dialler, _second) = stranger.connect(Role::Agent).await;
    assert_eq!(stranger.service.counters.crowded.count(), 0);
    let crowded = Stranger::new(RpcOptions { handshakes: 0, ..RpcOptions::default() });
    let identity = crowded.cluster.identity(Role::Agent);
    let dialler = Endpoint::dial_only(&identity, &QuicOptions::default()).unwrap();
    let error = dialler.connect(crowded.service.address, Role::Server).await.unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
    assert_eq!(crowded.service.counters.crowded.count(), 1);
}

#[tokio::test]
async fn calls_per_connection_are_limited() {
    let stranger = Stranger::new(RpcOptions { calls_per_connection: 10, ..RpcOptions::default() });
    stranger.book.open().mood = Mood::Stuck;
    let (_dialler, connection) = stranger.connect(Role::Agent).await;
    let (mut sender, mut receiver) = connection.open(Purpose::Calls).await.unwrap();
    let calls: Vec<Call> =
        (1..=11).map(|id| Call::Begin(CallId(id), Request::Renew(session_id("s")))).collect();
    sender.send(vec![frame(&calls).into()]).await.unwrap();
    let ReplyFrame(refused) = receiver.receive().await.unwrap().unwrap();
    let [(CallId(11), Response::Unavailable(Unavailable::Overloaded(_)))] = refused[..] else {
        panic!("expected only the last one to be refused: {refused:?}")
    };
    stranger.book.open().mood = Mood::Serving;
    stranger.book.changed();
    let mut served = 0;
    while served < 10 {
        served += receiver.receive::<ReplyFrame>().await.unwrap().unwrap().0.len();
    }
}

#[tokio::test]
async fn full_event_queue_sheds_calls() {
    const CALLS: u64 = 100;
    let stranger = Stranger::with_queue_limit(10, RpcOptions::default());
    stranger.book.open().mood = Mood::Stuck;
    let (_dialler, connection) = stranger.connect(Role::Agent).await;
    let (mut sender, mut receiver) = connection.open(Purpose::Calls).await.unwrap();
    let calls: Vec<Call> =
        (1..=CALLS).map(|id| Call::Begin(CallId(id), Request::Renew(session_id("s")))).collect();
    sender.send(vec![frame(&calls).into()]).await.unwrap();
    let is_shed = |response: &Response| matches!(response, Response::Unavailable(Unavailable::Overloaded(_)));
    let ReplyFrame(mut answers) = receiver.receive().await.unwrap().unwrap();
    assert!(answers.iter().all(|(_, response)| is_shed(response)), "{answers:?}");
    stranger.book.open().mood = Mood::Serving;
    stranger.book.changed();
    while answers.len() < CALLS as usize {
        answers.append(&mut receiver.receive::<ReplyFrame>().await.unwrap().unwrap().0);
    }
    let shed = answers.iter().filter(|(_, response)| is_shed(response)).count() as u64;
    assert_eq!(shed, stranger.service.counters.overloaded.load(Ordering::Relaxed));
    assert!(shed <= CALLS - 5, "half of the queue were accepted: {answers:?}");
}

#[tokio::test]
async fn command_without_id_denied() {
    let stranger = Stranger::new(RpcOptions::default());
    let (_dialler, connection) = stranger.connect(Role::Agent).await;
    let (mut sender, mut receiver) = connection.open(Purpose::Calls).await.unwrap();
    let nameless = Request::Propose(None, lockmesh_tests::service::destroy("s"));
    sender.send(vec![frame(&[Call::Begin(CallId(1), nameless)]).into()]).await.unwrap();
    let ReplyFrame(answers) = receiver.receive().await.unwrap().unwrap();
    assert!(matches!(answers[0].1, Response::Unavailable(Unavailable::Denied(_))), "{answers:?}");
    assert_eq!(stranger.service.counters.denied.count(), 1);
}
