//! Asks another server, one question after the other, over a connection of its own.

use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Connection, Endpoint, Peer, Purpose, Role};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response};
use std::net::SocketAddr;
use std::time::Duration;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection on which questions are asked. After an error it is of no more use.
#[derive(Debug)]
pub(crate) struct Asker {
    connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    last_call: u64,
}

impl Asker {
    /// Connects to the server at an address.
    pub(crate) async fn connect(endpoint: &Endpoint, address: SocketAddr) -> Result<Self, String> {
        let connect = async {
            let connection = endpoint.connect(address, Role::Server).await?;
            let (sender, receiver) = connection.open(Purpose::Calls).await?;
            Ok::<_, lockmesh_net::LinkError>(Self { connection, sender, receiver, last_call: 0 })
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err("it does not answer".into()),
        }
    }

    /// Connects to the first that answers of those that a name stands for.
    pub(crate) async fn connect_to(endpoint: &Endpoint, address: &str) -> Result<Self, String> {
        let mut reason = String::new();
        for address in resolve(address).await? {
            match Self::connect(endpoint, address).await {
                Ok(asker) => return Ok(asker),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Who is asked, as its certificate says.
    pub(crate) fn peer(&self) -> &Peer {
        self.connection.peer()
    }

    /// Asks and waits for the answer, at most so long.
    pub(crate) async fn ask(&mut self, request: Request, timeout: Duration) -> Result<Response, String> {
        match tokio::time::timeout(timeout, self.answer(request)).await {
            Ok(answer) => answer,
            Err(_) => Err("it does not answer".into()),
        }
    }

    async fn answer(&mut self, request: Request) -> Result<Response, String> {
        self.last_call += 1;
        let asked = CallId(self.last_call);
        let mut queue = FrameQueue::default();
        queue.push(&Call::Begin(asked, request)).map_err(|error| error.to_string())?;
        self.sender.send(queue.take()).await.map_err(|error| error.to_string())?;
        let frame = self.receiver.receive().await.map_err(|error| error.to_string())?;
        let ReplyFrame(answers) = frame.ok_or("it finished the stream")?;
        let answer = answers.into_iter().find(|(call, _)| *call == asked);
        answer.map(|(_, response)| response).ok_or_else(|| "it answered something else".into())
    }
}

/// The addresses that a `host:port` stands for now; never none.
pub(crate) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let looked_up = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host(address));
    let found: Vec<_> = match looked_up.await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(format!("cannot look up {address}: {error}")),
        Err(_) => return Err(format!("nobody answers what {address} stands for")),
    };
    if found.is_empty() { Err(format!("{address} stands for no address")) } else { Ok(found) }
}
