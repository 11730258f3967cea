//! Calls to a server over a dedicated connection, on real sockets.

use lockmesh_net::client::try_each;
use lockmesh_net::{CallClient, Close, Development, Endpoint, Identity, LinkError, QuicOptions, Role};
use lockmesh_protocol::rpc::{Call, CallFrame, Request, Response};
use std::sync::Mutex;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// A server's identity, which can dial too.
fn identity() -> (tempfile::TempDir, Identity) {
    let folder = tempfile::tempdir().expect("a folder");
    let certificates = Development::prepare(folder.path(), &"s1".into()).expect("they can be made");
    let identity = certificates.identity(Role::Server).expect("a server's certificate");
    (folder, identity)
}

/// Answers `Status` with `Done`, `calls_per_connection` times on each connection, and then finishes
/// the stream.
async fn serve(endpoint: Endpoint, calls_per_connection: usize) {
    while let Some(connecting) = endpoint.accept().await {
        let connection = connecting.handshake().await.expect("the dialler belongs to the cluster");
        let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
        for _ in 0..calls_per_connection {
            let Ok(Some(CallFrame(calls))) = receiver.receive().await else { break };
            let [Call::Begin(call, Request::Status)] = calls.as_slice() else {
                panic!("not what was asked: {calls:?}")
            };
            sender.send_one(&(*call, Response::Done)).await.expect("the dialler listens");
        }
        let _ = receiver.receive::<CallFrame>().await;
        connection.close(Close::Done, "");
    }
}

/// Accepts one stream and never replies.
async fn keep_silent(endpoint: Endpoint) {
    let arrival = endpoint.accept().await.expect("it is open");
    let connection = arrival.handshake().await.expect("the dialler belongs to the cluster");
    let _stream = connection.accept().await.expect("a stream");
    std::future::pending::<()>().await;
}

/// Returns a dialler and the port of a running server.
fn start<S>(serve: impl FnOnce(Endpoint) -> S) -> (tempfile::TempDir, Endpoint, u16)
where
    S: Future<Output = ()> + Send + 'static,
{
    let (folder, identity) = identity();
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a free port");
    let port = server.local_address().expect("it is bound").port();
    tokio::spawn(serve(server));
    (folder, Endpoint::dial_only(&identity, &QuicOptions::default()).expect("a socket"), port)
}

#[tokio::test]
async fn call_by_address_or_hostname() {
    let (_folder, dialler, port) = start(|server| serve(server, 1));
    for host in ["127.0.0.1", "localhost"] {
        let connected = CallClient::connect_to(&dialler, &format!("{host}:{port}")).await;
        let answer = connected.expect("it listens").call(Request::Status, LIMIT).await;
        assert_eq!(answer, Ok(Response::Done), "{host}");
    }
}

#[tokio::test]
async fn calls_succeed_until_server_closes() {
    let (_folder, dialler, port) = start(|server| serve(server, 2));
    let mut client =
        CallClient::connect_to(&dialler, &format!("127.0.0.1:{port}")).await.expect("it listens");
    assert_eq!(client.peer().node.as_str(), "s1");
    for _ in 0..2 {
        assert_eq!(client.call(Request::Status, LIMIT).await, Ok(Response::Done));
    }
    assert!(matches!(client.call(Request::Status, LIMIT).await, Err(LinkError::Lost(_))));
}

#[tokio::test]
async fn unanswered_call_times_out() {
    let (_folder, dialler, port) = start(keep_silent);
    let mut client =
        CallClient::connect_to(&dialler, &format!("127.0.0.1:{port}")).await.expect("it listens");
    let error = client.call(Request::Status, Duration::ZERO).await.expect_err("it is silent");
    assert_eq!(error, LinkError::Lost("no reply in time".into()));
}

#[tokio::test]
async fn tries_all_addresses_and_names_last() {
    let tried = Mutex::new(Vec::new());
    let refuse = async |place| {
        tried.lock().expect("one task").push(place);
        Err::<(), _>(LinkError::Stranger("another cluster".into()))
    };
    let error = try_each("localhost:8300", LIMIT, refuse).await.expect_err("all refuse");
    let tried = tried.into_inner().expect("one task");
    let last = tried.last().expect("localhost has an address");
    assert_eq!(error, LinkError::Stranger(format!("another cluster ({last})")));

    let error = try_each("10.0.0.1:8300", Duration::ZERO, |_| std::future::pending::<Result<(), _>>()).await;
    assert_eq!(error, Err(LinkError::Lost("no reply in time".into())), "the address is not repeated");
    let nobody = |_| std::future::ready(Ok(()));
    let error = try_each("no..host:8300", LIMIT, nobody).await.expect_err("no name");
    assert!(error.to_string().starts_with("cannot look up no..host:8300: "), "{error}");
}
