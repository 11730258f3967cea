//! Sequential calls to a server, over a dedicated connection.
//!
//! For occasional calls: servers during discovery, and agents that call a server outside their
//! quorum.

use crate::quic::{FrameReceiver, FrameSender};
use crate::{Connection, Endpoint, LinkError, Peer, Purpose, Role};
use lockmesh_protocol::host_port::HostPort;
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// The timeout of one connection attempt, and of one name lookup.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection for calls. It is unusable after an error.
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
    /// There is no server of this cluster, or it does not reply in time. No request was sent.
    pub async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Self, LinkError> {
        in_time(CONNECT_TIMEOUT, Self::open(endpoint, address)).await
    }

    /// Connects to the first address of a `host:port` that replies.
    ///
    /// # Errors
    /// No address replies: the reason of the last one. No request was sent.
    pub async fn connect_to(endpoint: &Endpoint, address: &str) -> Result<Self, LinkError> {
        try_each(address, CONNECT_TIMEOUT, |address| Self::open(endpoint, address)).await
    }

    async fn open(endpoint: &Endpoint, address: SocketAddr) -> Result<Self, LinkError> {
        Self::on(endpoint.connect(address, Role::Server).await?).await
    }

    /// Opens a stream for calls on an existing connection.
    ///
    /// # Errors
    /// The connection has ended. No request was sent.
    pub async fn on(connection: Connection) -> Result<Self, LinkError> {
        let (sender, receiver) = connection.open(Purpose::Calls).await?;
        Ok(Self { connection, sender, receiver, last_call: 0 })
    }

    /// Returns the peer, as named by its certificate.
    pub fn peer(&self) -> &Peer {
        self.connection.peer()
    }

    /// Sends a request and waits for the response, for at most `limit`.
    ///
    /// # Errors
    /// No response arrived: the outcome of the request is unknown.
    pub async fn call(&mut self, request: Request, limit: Duration) -> Result<Response, LinkError> {
        in_time(limit, self.answer(request)).await
    }

    async fn answer(&mut self, request: Request) -> Result<Response, LinkError> {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.sender.send_one(&Call::Begin(call, request)).await?;
        let finished = || LinkError::Lost("the peer closed the stream".into());
        let ReplyFrame(answers) = self.receiver.receive().await?.ok_or_else(finished)?;
        let answer = answers.into_iter().find(|(answered, _)| *answered == call);
        let (_, response) = answer.ok_or_else(|| LinkError::Malformed("another call's answer".into()))?;
        Ok(response)
    }
}

/// Tries the addresses of a `host:port` in turn, each for at most `limit`, until an attempt
/// succeeds.
///
/// # Errors
/// All attempts failed: the reason of the last one.
pub async fn try_each<T, F>(
    address: &str,
    limit: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, LinkError>
where
    F: Future<Output = Result<T, LinkError>>,
{
    // Never returned, because `resolve` returns at least one address.
    let mut reason = LinkError::Lost(format!("{address} did not resolve"));
    for resolved in resolve(address).await? {
        match in_time(limit, attempt(resolved)).await {
            Ok(done) => return Ok(done),
            // A literal address is in the message of the caller already.
            Err(error) if resolved.to_string() == address => reason = error,
            Err(error) => reason = error.at(resolved),
        }
    }
    Err(reason)
}

/// Resolves a `host:port` to its current addresses, at least one.
///
/// # Errors
/// The text is no address, the name cannot be resolved now, or it has no addresses.
pub async fn resolve(address: &str) -> Result<Vec<SocketAddr>, LinkError> {
    let parsed: Result<HostPort, _> = address.parse();
    let parsed = parsed.map_err(|error| LinkError::Lost(format!("{address:?} is {error}")))?;
    if let Some(address) = parsed.literal() {
        return Ok(vec![address]);
    }
    // Host and port apart: the resolver knows the zone of an IPv6 address only without brackets.
    let lookup = lookup_host((parsed.host(), parsed.port()));
    let found: Vec<_> = match timeout(CONNECT_TIMEOUT, lookup).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(LinkError::Lost(format!("cannot look up {address}: {error}"))),
        Err(_) => return Err(LinkError::Lost(format!("cannot look up {address}: timed out"))),
    };
    if found.is_empty() { Err(LinkError::Lost(format!("{address} did not resolve"))) } else { Ok(found) }
}

async fn in_time<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, attempt).await.unwrap_or_else(|_| Err(LinkError::Lost("no reply in time".into())))
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[tokio::test]
    async fn resolves_names_zones_rejects_text() {
        let local = resolve("localhost:8300").await.expect("every host has the name");
        assert!(local.iter().all(|address| address.ip().is_loopback() && address.port() == 8300));
        let zone = resolve("[fe80::1%3]:8300").await.expect("a number needs no lookup");
        assert_eq!(zone[0].to_string(), "[fe80::1%3]:8300");
        // The loopback interface has this name on every Linux host, and number 1.
        let zone = resolve("[fe80::1%lo]:8300").await.expect("the interface exists");
        assert_eq!(zone[0].to_string(), "[fe80::1%1]:8300");
        let refused = resolve("s1").await.expect_err("there is no port").to_string();
        assert!(refused.contains("not a host:port"), "{refused}");
    }
}
