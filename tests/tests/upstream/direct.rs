//! A raw QUIC client of a leader, which sends what no agent sends.

use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Connection, Endpoint, Purpose, QuicOptions, Role};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response, Unavailable};
use lockmesh_tests::quorum::Quorum;
use std::time::Duration;

/// Timeout of every wait in this test.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client with a connection to one server.
struct Caller {
    _dialler: Endpoint,
    _connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    last_call: u64,
}

impl Caller {
    async fn connect(quorum: &Quorum, address: &str) -> Self {
        let dialler = Endpoint::dial_only(quorum.agent(), &QuicOptions::default()).expect("a socket");
        let address = address.parse().expect("an address");
        let connection = dialler.connect(address, Role::Server).await.expect("it listens");
        let (sender, receiver) = connection.open(Purpose::Calls).await.expect("a stream");
        Self { _dialler: dialler, _connection: connection, sender, receiver, last_call: 0 }
    }

    async fn send(&mut self, call: &Call) {
        self.sender.send_one(call).await.expect("it listens");
    }

    /// Sends a request and waits for the reply. Returns the call's id too.
    async fn ask(&mut self, request: Request) -> (CallId, Response) {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.send(&Call::Begin(call, request)).await;
        let frame = tokio::time::timeout(TIMEOUT, self.receiver.receive::<ReplyFrame>()).await;
        let ReplyFrame(mut answers) = frame.expect("a reply in time").expect("no error").expect("a frame");
        assert_eq!((answers.len(), answers[0].0), (1, call));
        answers.remove(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_cancel_ends_started_view() {
    let quorum = Quorum::found(3, "web-1");
    let (addresses, consistency) = (quorum.addresses(), Consistency::Default);
    let mut addresses = addresses.iter().cycle();
    let (mut caller, call, first) = loop {
        let mut caller = Caller::connect(&quorum, addresses.next().expect("they go round")).await;
        let begun = caller.ask(Request::ReadParts { query: Query::Agents, consistency }).await;
        match begun {
            (call, Response::AnswerPart(first)) => break (caller, call, first),
            (_, Response::Unavailable(Unavailable::NotLeader { .. })) => tokio::task::yield_now().await,
            (_, other) => panic!("no part of an answer: {other:?}"),
        }
    };
    let part = Request::ReadPart { view: first.view, after: 0, consistency };
    assert!(matches!(caller.ask(part.clone()).await.1, Response::AnswerPart(_)));
    caller.send(&Call::Cancel(call)).await;
    let (_, ended) = caller.ask(part).await;
    assert!(matches!(ended, Response::Unavailable(Unavailable::Overloaded(_))), "{ended:?}");
    quorum.end().await;
}
