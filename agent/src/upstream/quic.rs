//! Connections to servers by QUIC: each made once, used until it ends or is given up.
//!
//! Renewals of the node's lease have a stream of their own, which is opened with the first one and
//! goes first: whatever else waits to be sent, megabytes on a slow line, holds none of them up.

use super::counters::UpstreamCounters;
use lockmesh_agent_core::quorum_client::{ConnectionEnd, ConnectionId, Input};
use lockmesh_net::client::try_each;
use lockmesh_net::frame::{FrameQueue, TooLong};
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, Dialect, Endpoint, LinkError, Purpose, Role};
use lockmesh_protocol::rpc::{Call, ReplyFrame, Request};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is told how much has arrived.
const RECEIVED_INTERVAL: Duration = Duration::from_millis(500);

/// No more calls are wanted while so many bytes wait to be sent.
const BYTES_IN_LINE: usize = 4 << 20;

/// Why a connection is of no more use whose server says nothing more on a stream.
const FINISHED: &str = "it finished the stream";

/// A connection, or an attempt at one.
#[derive(Debug)]
pub(super) struct QuicConnection {
    id: ConnectionId,
    server: String,
    calls: Lane,
    renewals: Lane,
    given_up: Notify,
    /// What the server understands, once there is a connection.
    dialect: OnceLock<Dialect>,
}

/// What waits to be sent on one stream.
#[derive(Debug, Default)]
struct Lane {
    queue: Mutex<SendQueue>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct SendQueue {
    frames: FrameQueue,
    /// Whether it was said that no more calls are wanted.
    is_full: bool,
}

impl QuicConnection {
    pub(super) fn new(id: ConnectionId, server: String) -> Arc<Self> {
        let (calls, renewals) = (Lane::default(), Lane::default());
        Arc::new(Self { id, server, calls, renewals, given_up: Notify::new(), dialect: OnceLock::new() })
    }

    /// Its id.
    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Takes a call that is to be sent. Whether so much waits to be sent now that no more should be
    /// given, until it is told that there is room again.
    ///
    /// # Errors
    /// The call fits no frame; it was not taken.
    pub(super) fn send(&self, call: &Call) -> Result<bool, TooLong> {
        // To cancel a renewal is of no use: the server has answered it, or will not.
        let lane = match call {
            Call::Begin(_, Request::RenewLease(_)) => &self.renewals,
            _ => &self.calls,
        };
        let known_to_first = match self.dialect.get() {
            Some(Dialect::First) => Some(call.clone().for_first_dialect()),
            _ => None,
        };
        let mut queue = lane.lock();
        queue.frames.push(known_to_first.as_ref().unwrap_or(call))?;
        queue.is_full = queue.frames.byte_count() >= BYTES_IN_LINE;
        let is_full = queue.is_full;
        // The task that wakes up needs the lock at once.
        drop(queue);
        lane.ready.notify_one();
        Ok(is_full)
    }

    /// Ends it: nothing more is told of it.
    pub(super) fn end(&self) {
        self.given_up.notify_one();
    }

    /// Connects, and uses the connection until it ends, and says how; `None` when it was given up.
    /// What happens meanwhile is told at once.
    pub(super) async fn run(
        &self,
        endpoint: &Endpoint,
        counters: &UpstreamCounters,
        tell: impl Fn(Input) + Sync,
    ) -> Option<ConnectionEnd> {
        let connected = tokio::select! {
            connected = self.connect(endpoint) => connected,
            () = self.given_up.notified() => return None,
        };
        let ended = match connected {
            Ok(connection) => self.use_up(&connection, counters, &tell).await?,
            Err(error) => error,
        };
        // Kept apart: a certificate that is not believed wants an operator, a loss only another
        // attempt.
        Some(match ended {
            LinkError::Stranger(reason) => ConnectionEnd::NotAdmitted(reason),
            error => ConnectionEnd::Lost(error.to_string()),
        })
    }

    /// Tries every address of the server once.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, LinkError> {
        let connecting =
            try_each(&self.server, CONNECT_TIMEOUT, |address| endpoint.connect(address, Role::Server));
        connecting.await.map_err(|error| {
            let text = format!("cannot connect to the server {}: {error}", self.server);
            if matches!(error, LinkError::Stranger(_)) {
                LinkError::Stranger(text)
            } else {
                LinkError::Lost(text)
            }
        })
    }

    /// Uses a connection until it ends, and says why it did; `None` when it was given up.
    async fn use_up(
        &self,
        connection: &Connection,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Option<LinkError> {
        let ended = tokio::select! {
            ended = self.serve(connection, counters, tell) => Some(ended),
            () = self.given_up.notified() => None,
        };
        // Before this end closes it, which would be all that is known of its end.
        let refusal = connection.identity_refusal();
        match &ended {
            // The server is told why: one of the two is broken, or of another build.
            Some(Err(error @ LinkError::Malformed(_))) => {
                connection.close(Close::Malformed, &error.to_string());
            }
            _ => connection.close(Close::Done, ""),
        }
        let reason = match ended? {
            Ok(reason) => reason.into(),
            Err(error) => error.to_string(),
        };
        let address = connection.remote_address();
        Some(match refusal {
            Some(refusal) => LinkError::Stranger(format!("the server {address} refuses it: {refusal}")),
            None => LinkError::Lost(format!("lost the server {address}: {reason}")),
        })
    }

    async fn serve(
        &self,
        connection: &Connection,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
        self.dialect.get_or_init(|| connection.dialect());
        tell(Input::Connected(self.id));
        tokio::select! {
            ended = self.send_frames(&self.calls, &mut sender, counters, tell) => ended,
            ended = self.receive_first(connection, &mut receiver, counters, tell) => ended,
            ended = self.serve_renewals(connection, counters, tell) => ended,
            () = self.tell_traffic(connection, tell) => Ok("it was listened to no longer"),
        }
    }

    /// The stream of renewals, to a server that is sent any.
    async fn serve_renewals(
        &self,
        connection: &Connection,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        self.renewals.filled().await;
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
        sender.prioritize();
        tokio::select! {
            ended = self.send_frames(&self.renewals, &mut sender, counters, tell) => ended,
            ended = self.receive_frames(&mut receiver, counters, tell) => ended,
        }
    }

    async fn send_frames(
        &self,
        lane: &Lane,
        sender: &mut FrameSender,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        loop {
            lane.filled().await;
            // Callers that are about to run may have something to say as well: let them, so that it
            // shares a frame.
            tokio::task::yield_now().await;
            let (frames, was_full) = {
                let mut queue = lane.lock();
                (queue.frames.take(), std::mem::take(&mut queue.is_full))
            };
            // All of it was taken: the client may go on giving calls.
            if was_full {
                tell(Input::Backlog(self.id, false));
            }
            counters.call_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
            sender.send(frames).await?;
        }
    }

    /// Says who answers, with the first frame of a connection.
    async fn receive_first(
        &self,
        connection: &Connection,
        receiver: &mut FrameReceiver,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        let Some(ReplyFrame(answers)) = receiver.receive().await? else { return Ok(FINISHED) };
        // Before it answers it may yet find that it does not believe this agent's certificate.
        let (address, peer) = (connection.remote_address(), connection.peer());
        tracing::info!(%address, %peer, "connected to a server");
        counters.reply_frames.fetch_add(1, Ordering::Relaxed);
        tell(Input::Answers(self.id, answers));
        self.receive_frames(receiver, counters, tell).await
    }

    async fn receive_frames(
        &self,
        receiver: &mut FrameReceiver,
        counters: &UpstreamCounters,
        tell: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        while let Some(ReplyFrame(answers)) = receiver.receive().await? {
            counters.reply_frames.fetch_add(1, Ordering::Relaxed);
            tell(Input::Answers(self.id, answers));
        }
        Ok(FINISHED)
    }

    /// Whoever waits for news may wait for long, so that only this tells a server that is stopped
    /// or cut off from one that has no news.
    async fn tell_traffic(&self, connection: &Connection, tell: &(impl Fn(Input) + Sync)) {
        loop {
            tokio::time::sleep(RECEIVED_INTERVAL).await;
            tell(Input::Received(self.id, connection.datagrams_received()));
        }
    }
}

impl Lane {
    /// Waits until there is something to be sent.
    async fn filled(&self) {
        // A wake-up may be left over from calls that went out with the frames before.
        while self.lock().frames.is_empty() {
            self.ready.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, SendQueue> {
        // Each change is one step, so a panic elsewhere left nothing half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
