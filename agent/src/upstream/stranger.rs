//! One question to a server that need not belong to this agent's quorum, over a connection of its own.

use lockmesh_net::frame::FrameQueue;
use lockmesh_net::{Close, Endpoint, LinkError, Purpose, Role};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Asks the first that answers of those that `address`, a `host:port`, stands for; or says why none does.
pub(super) async fn ask(endpoint: &Endpoint, address: &str, request: &Request) -> Result<Response, String> {
    let found = match timeout(TIMEOUT, lookup_host(address)).await {
        Ok(found) => found.map_err(|error| format!("cannot look up {address}: {error}"))?,
        Err(_) => return Err(format!("cannot look up {address}: nobody answers")),
    };
    let mut reason = format!("{address} stands for no address");
    for place in found {
        match timeout(TIMEOUT, ask_at(endpoint, place, request.clone())).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => reason = error.to_string(),
            Err(_) => reason = "it does not answer".into(),
        }
    }
    Err(reason)
}

async fn ask_at(endpoint: &Endpoint, place: SocketAddr, request: Request) -> Result<Response, LinkError> {
    const CALL: CallId = CallId(1);
    let connection = endpoint.connect(place, Role::Server).await?;
    let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
    let mut queue = FrameQueue::default();
    queue.push(&Call::Begin(CALL, request)).map_err(|error| LinkError::Malformed(error.to_string()))?;
    sender.send(queue.take()).await?;
    let replies = receiver.receive::<ReplyFrame>().await?;
    connection.close(Close::Done, "");
    let answer = replies.and_then(|ReplyFrame(replies)| replies.into_iter().find(|(call, _)| *call == CALL));
    answer.map(|(_, response)| response).ok_or_else(|| LinkError::Lost("it did not answer".into()))
}
