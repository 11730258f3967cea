//! Calls to a server, one after the other, over a connection of their own.
//!
//! For whoever asks now and then: servers that look for each other, and an agent that asks a server
//! outside its quorum.

use crate::frame::FrameQueue;
use crate::quic::{FrameReceiver, FrameSender};
use crate::{Connection, Endpoint, LinkError, Peer, Purpose, Role};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// How long one attempt to connect may take, and to look up a name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection for calls. After an error it is of no more use.
#[derive(Debug)]
pub struct CallClient {
    connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    last_call: u64,
}

impl CallClient {
    /// Connects to the server at an address.
    ///
    /// # Errors
    /// There is no server of this cluster, or it does not answer in time. Nothing was asked.
    pub async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Self, LinkError> {
        in_time(CONNECT_TIMEOUT, Self::open(endpoint, address)).await
    }

    /// Connects to the first that answers of the addresses that a `host:port` stands for.
    ///
    /// # Errors
    /// None answers: the reason of the last one. Nothing was asked.
    pub async fn connect_to(endpoint: &Endpoint, address: &str) -> Result<Self, LinkError> {
        try_each(address, CONNECT_TIMEOUT, |address| Self::open(endpoint, address)).await
    }

    async fn open(endpoint: &Endpoint, address: SocketAddr) -> Result<Self, LinkError> {
        Self::on(endpoint.connect(address, Role::Server).await?).await
    }

    /// Opens a stream for calls on a connection that stands.
    ///
    /// # Errors
    /// The connection has ended. Nothing was asked.
    pub async fn on(connection: Connection) -> Result<Self, LinkError> {
        let (sender, receiver) = connection.open(Purpose::Calls).await?;
        Ok(Self { connection, sender, receiver, last_call: 0 })
    }

    /// Who answers, as its certificate says.
    pub fn peer(&self) -> &Peer {
        self.connection.peer()
    }

    /// Sends a request and waits for the response, at most so long.
    ///
    /// # Errors
    /// No response came: whether the request was carried out is unknown.
    pub async fn call(&mut self, request: Request, limit: Duration) -> Result<Response, LinkError> {
        in_time(limit, self.answer(request)).await
    }

    async fn answer(&mut self, request: Request) -> Result<Response, LinkError> {
        self.last_call += 1;
        let call = CallId(self.last_call);
        let mut queue = FrameQueue::default();
        queue.push(&Call::Begin(call, request)).map_err(|error| LinkError::Lost(error.to_string()))?;
        self.sender.send(queue.take()).await?;
        let finished = || LinkError::Lost("it finished the stream".into());
        let ReplyFrame(answers) = self.receiver.receive().await?.ok_or_else(finished)?;
        let answer = answers.into_iter().find(|(answered, _)| *answered == call);
        answer
            .map(|(_, response)| response)
            .ok_or_else(|| LinkError::Malformed("another call's answer".into()))
    }
}

/// Tries the addresses that a `host:port` stands for one after the other, each for `limit` at most,
/// until one attempt works.
///
/// # Errors
/// None worked: the reason of the last one.
pub async fn try_each<T, F>(
    address: &str,
    limit: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, LinkError>
where
    F: Future<Output = Result<T, LinkError>>,
{
    let mut reason = LinkError::Lost(format!("{address} stands for no address"));
    for resolved in resolve(address).await? {
        match in_time(limit, attempt(resolved)).await {
            Ok(done) => return Ok(done),
            Err(error) if resolved.to_string() == address => reason = error,
            Err(error) => reason = error.at(resolved),
        }
    }
    Err(reason)
}

/// The addresses that a `host:port` stands for now; never none.
///
/// # Errors
/// The name cannot be looked up now, or stands for nothing.
pub async fn resolve(address: &str) -> Result<Vec<SocketAddr>, LinkError> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let found: Vec<_> = match timeout(CONNECT_TIMEOUT, lookup_host(address)).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(LinkError::Lost(format!("cannot look up {address}: {error}"))),
        Err(_) => return Err(LinkError::Lost(format!("cannot look up {address}: no answer"))),
    };
    if found.is_empty() {
        Err(LinkError::Lost(format!("{address} stands for no address")))
    } else {
        Ok(found)
    }
}

async fn in_time<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, attempt).await.unwrap_or_else(|_| Err(LinkError::Lost("it does not answer".into())))
}
