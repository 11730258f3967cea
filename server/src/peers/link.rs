//! The task that keeps a stream to one other server: it dials until aborted, sends a hello, then
//! sends queued messages.

use super::Peers;
use super::hello::HelloFrame;
use super::queue::PeerQueue;
use crate::event_queue::EventSender;
use lockmesh_core::Input;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_net::client::try_each;
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, Endpoint, LinkError, Purpose, Role, random};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::log_on_change::LogOnChange;
use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The timeout of one attempt, up to the answer to the hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The backoff between two attempts: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// A connection that ends sooner than this counts as failed.
const STABLE_WINDOW: Duration = Duration::from_secs(1);
/// The bytes of messages that are encoded before they are sent.
const BYTES_AT_ONCE: usize = 1 << 20;

/// The inputs of the task.
pub(super) struct PeerLink {
    pub(super) peers: Weak<Peers>,
    /// This server.
    pub(super) me: ServerId,
    /// The other one.
    pub(super) server: ServerId,
    /// The other server's node, folded.
    pub(super) node: NodeName,
    pub(super) queue: Arc<PeerQueue>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) sender: EventSender,
}

type Stream = (Connection, FrameSender, FrameReceiver);

impl PeerLink {
    /// Keeps the stream until the task is aborted.
    pub(super) async fn keep(self) {
        let mut backoff = Backoff::new(BACKOFF, random::seed());
        let mut log = LogOnChange::default();
        let mut address = self.queue.address();
        let server = self.server;
        loop {
            let dialled = address.borrow_and_update().clone();
            let began = Instant::now();
            let connected = tokio::select! {
                connected = try_each(&dialled, CONNECT_TIMEOUT, |address| self.send_hello(address)) => connected,
                // The peer has just come back: messages sent to it before are lost, so this
                // reconnects.
                () = self.queue.reconnect_hint(&mut address) => continue,
            };
            let reason = match connected {
                Ok(stream) => self.serve(stream, &dialled, &mut address, &mut log).await,
                Err(error) => error.to_string(),
            };
            self.queue.down();
            self.notify_driver(server);
            if log.is_new(&reason) {
                tracing::warn!(server = server.0, node = %self.node, address = dialled, %reason, "cannot connect to server; retrying");
            }
            // A server that accepts connections and drops them at once is not called without a
            // pause.
            if began.elapsed() >= STABLE_WINDOW {
                backoff.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_pause()) => {}
                () = self.queue.reconnect_hint(&mut address) => {}
            }
        }
    }

    /// Sends the queued messages until the stream ends; returns the reason.
    async fn serve(
        &self,
        (connection, sender, receiver): Stream,
        dialled: &str,
        address: &mut watch::Receiver<String>,
        log: &mut LogOnChange,
    ) -> String {
        if !log.has_problem() {
            self.log_connected(dialled);
        }
        // Only now: a message sent before the hello would reach a server that may reject this one.
        self.queue.up();
        let reason = tokio::select! {
            reason = self.send(sender) => reason,
            reason = wait_for_end(receiver) => reason,
            _ = address.changed() => "the address changed".into(),
            never = self.end_problem(log, dialled) => match never {},
        };
        // Before closing here, which loses the other side's reason.
        self.notice_removal(&connection);
        connection.close(Close::Done, "");
        reason
    }

    /// Ends a logged problem once the connection is stable: one that is lost at once is part of it.
    async fn end_problem(&self, log: &mut LogOnChange, address: &str) -> Infallible {
        tokio::time::sleep(STABLE_WINDOW).await;
        if log.reset() {
            self.log_connected(address);
        }
        pending().await
    }

    fn log_connected(&self, address: &str) {
        tracing::info!(server = self.server.0, node = %self.node, address, "connected to server");
    }

    /// Messages in flight may be lost. The event is never rejected for lack of room, and the driver
    /// may have stopped.
    fn notify_driver(&self, server: ServerId) {
        let _ = self.sender.post(Input::Unreachable(server));
    }

    /// The other server may have closed the connection because this one was removed. The event is
    /// never rejected for lack of room.
    fn notice_removal(&self, connection: &Connection) {
        if connection.is_closed_by_removal() {
            let _ = self.sender.post(Event::Removed);
        }
    }

    async fn send_hello(&self, address: SocketAddr) -> Result<Stream, LinkError> {
        let connection = self.endpoint.connect(address, Role::Server).await?;
        let stranger = |reason: String| {
            connection.close(Close::Denied, &reason);
            Err(LinkError::Stranger(reason))
        };
        // An address can belong to another node by now; its certificate proves it.
        if connection.peer().node.folded() != self.node {
            return stranger(format!("found {} instead", connection.peer()));
        }
        let (mut sender, mut receiver) = connection.open(Purpose::Raft).await?;
        let closing = || LinkError::Lost("this server is closing".into());
        let peers = self.peers.upgrade().ok_or_else(closing)?;
        // Read before the hello: acknowledgements after the peer's answer are no part of it.
        let remembered = peers.remembers(self.server);
        let hello = peers.hello_to(self.server).ok_or_else(closing)?;
        sender.send_one(&hello).await?;
        let answer = receiver.receive::<HelloFrame>().await;
        let answer = answer.inspect_err(|_| self.notice_removal(&connection))?;
        let Some(HelloFrame(answer)) = answer else {
            return Err(LinkError::Lost("the server closed the stream".into()));
        };
        match answer.first() {
            // Ids of different clusters are not comparable.
            Some(answer) if answer.cluster_id != hello.cluster_id => {
                let (theirs, ours) = (&answer.cluster_id, &hello.cluster_id);
                return stranger(format!("the server belongs to the cluster {theirs}, this one to {ours}"));
            }
            Some(answer) if (answer.from, answer.to) == (self.server, self.me) => {
                // Before a message is sent: a server that lost acknowledged entries must not count.
                if let Err(set_back) = peers.compare(answer, remembered) {
                    return stranger(set_back.to_string());
                }
                peers.note_version(answer);
            }
            _ => return stranger("another server answered".into()),
        }
        Ok((connection, sender, receiver))
    }

    /// Sends queued messages repeatedly; returns the reason for the end.
    async fn send(&self, mut sender: FrameSender) -> String {
        let mut queue = FrameQueue::default();
        let mut messages = Vec::new();
        loop {
            self.queue.receive_all(&mut messages).await;
            for message in messages.drain(..) {
                self.encode(&mut queue, &message);
                if queue.byte_count() >= BYTES_AT_ONCE
                    && let Err(error) = sender.send(queue.take()).await
                {
                    return error.to_string();
                }
            }
            if let Err(error) = sender.send(queue.take()).await {
                return error.to_string();
            }
        }
    }

    fn encode(&self, queue: &mut FrameQueue, message: &PeerMessage) {
        // Reported as lost, so that the engine does not wait for an answer to it.
        if let Err(error) = queue.push(message) {
            tracing::error!(server = self.server.0, node = %self.node, %error, "message exceeds the frame limit");
            self.notify_driver(self.server);
        }
    }
}

/// Waits for the end of the stream: the other server sends nothing after its hello.
async fn wait_for_end(mut receiver: FrameReceiver) -> String {
    match receiver.receive::<HelloFrame>().await {
        Ok(None) => "the server closed the stream".into(),
        Ok(Some(_)) => "the server sent a second hello".into(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hello::{Hello, HelloFrame};
    use super::super::queue::PeerQueue;
    use super::super::{Me, Peers};
    use super::PeerLink;
    use crate::event_queue::event_queue;
    use lockmesh_core::raft::log::LogPosition;
    use lockmesh_net::{Development, Endpoint, QuicOptions, Role};
    use lockmesh_protocol::id::ServerId;
    use std::sync::Arc;

    /// Answers one hello as this server of this cluster, and keeps the connection until its end.
    async fn answer(endpoint: &Endpoint, from: u64, cluster_id: &str) {
        let connection = endpoint.accept().await.expect("it is open").handshake().await.expect("a server");
        let (_, mut sender, mut receiver) = connection.accept().await.expect("a stream");
        let HelloFrame(hello) = receiver.receive().await.expect("a hello").expect("a frame");
        let answer = Hello {
            from: ServerId(from),
            to: hello[0].from,
            cluster_id: cluster_id.into(),
            address: String::new(),
            version: String::new(),
            position: LogPosition::default(),
            remembers: None,
        };
        sender.send_one(&answer).await.expect("it listens");
        // The caller closes it, whether it accepts the answer or not.
        let _ = receiver.receive::<HelloFrame>().await;
    }

    #[tokio::test]
    async fn wrong_server_or_cluster_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let certificates = Development::prepare(folder.path(), &"s2".into()).expect("certificates");
        let identity = certificates.identity(Role::Server).expect("a server's certificate");
        let any = "127.0.0.1:0".parse().expect("an address");
        let listening = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a socket");
        let address = listening.local_address().expect("it is bound");
        let endpoint = Arc::new(Endpoint::dial_only(&identity, &QuicOptions::default()).expect("a socket"));
        let (sender, _receiver) = event_queue(16);
        let peers = Peers::new(Arc::clone(&endpoint), sender.clone());
        peers.begin(Me { id: ServerId(1), cluster_id: "c".into(), address: "127.0.0.1:9".into() });
        let link = |node: &str| PeerLink {
            peers: Arc::downgrade(&peers),
            me: ServerId(1),
            server: ServerId(2),
            node: node.into(),
            queue: Arc::new(PeerQueue::new(address.to_string())),
            endpoint: Arc::clone(&endpoint),
            sender: sender.clone(),
        };
        for (from, cluster_id, refusal) in [
            (2, "c", None),
            (2, "d", Some("the server belongs to the cluster d, this one to c")),
            (3, "c", Some("another server answered")),
        ] {
            let link = link("s2");
            let hello = async { link.send_hello(address).await.map(drop).map_err(|error| error.to_string()) };
            let (outcome, ()) = tokio::join!(hello, answer(&listening, from, cluster_id));
            match refusal {
                None => assert_eq!(outcome, Ok(())),
                Some(words) => assert!(outcome.as_ref().is_err_and(|why| why.contains(words)), "{outcome:?}"),
            }
        }
    }
}
