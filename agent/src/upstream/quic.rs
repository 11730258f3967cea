//! QUIC connections to servers: each is made once, and used until it ends or is closed.
//!
//! A connection has a stream for each [`Lane`]. Renewals have priority, so that other data, even
//! megabytes on a slow line, does not delay them; and a long list delays no other answer. The
//! streams of renewals and lists are opened with their first calls.

use super::counters::UpstreamCounters;
use crate::own_address::OwnAddress;
use lockmesh_agent_core::quorum_client::{ConnectionEnd, ConnectionId, Input};
use lockmesh_net::client::try_each;
use lockmesh_net::frame::{FrameQueue, TooLong};
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, Endpoint, LinkError, Purpose, Role};
use lockmesh_protocol::dialect::Dialect;
use lockmesh_protocol::rpc::{Call, CallId, Lane, ReplyFrame};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which the amount of received data is reported.
const RECEIVED_INTERVAL: Duration = Duration::from_millis(500);

/// The interval at which the address of this host is checked.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The number of queued bytes at which no more calls are accepted.
const BYTES_IN_LINE: usize = 4 << 20;

/// The reason for closing a connection whose server finished a stream.
const FINISHED: &str = "it finished the stream";

/// A connection, or an attempt to make one.
#[derive(Debug)]
pub(super) struct QuicConnection {
    id: ConnectionId,
    server: String,
    calls: LaneQueue,
    renewals: LaneQueue,
    lists: LaneQueue,
    /// The calls for lists that are not answered.
    listing: Mutex<HashSet<CallId>>,
    given_up: Notify,
    /// The server's protocol dialect, once connected.
    dialect: OnceLock<Dialect>,
}

/// The send queue of one stream.
#[derive(Debug, Default)]
struct LaneQueue {
    queue: Mutex<SendQueue>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct SendQueue {
    frames: FrameQueue,
    /// `true` once the queue was reported as full.
    is_full: bool,
}

impl QuicConnection {
    pub(super) fn new(id: ConnectionId, server: String) -> Arc<Self> {
        Arc::new(Self {
            id,
            server,
            calls: LaneQueue::default(),
            renewals: LaneQueue::default(),
            lists: LaneQueue::default(),
            listing: Mutex::default(),
            given_up: Notify::new(),
            dialect: OnceLock::new(),
        })
    }

    /// Returns its id.
    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    /// Queues a call. Returns `true` if the queue is full, so that no more calls should be sent
    /// until room is reported again.
    ///
    /// # Errors
    /// The call fits no frame; it was not queued.
    pub(super) fn send(&self, call: &Call) -> Result<bool, TooLong> {
        let lane = match call {
            Call::Begin(id, request) | Call::BeginAs(id, _, request) => {
                let lane = request.lane();
                // Remembered for a cancel, which must take the same stream as its call.
                if lane == Lane::Lists {
                    lock(&self.listing).insert(*id);
                }
                lane
            }
            Call::Cancel(id) if lock(&self.listing).remove(id) => Lane::Lists,
            // Cancelling a renewal is useless: the server has answered it, or will not.
            Call::Cancel(_) => Lane::Calls,
        };
        let lane = self.queue(lane);
        // Before the handshake nothing is known of the peer, and no call is sent.
        let call = call.in_dialect(self.dialect.get().copied().unwrap_or(Dialect::ALL[0]));
        let mut queue = lock(&lane.queue);
        queue.frames.push(call.as_ref())?;
        queue.is_full = queue.frames.byte_count() >= BYTES_IN_LINE;
        let is_full = queue.is_full;
        // The task that wakes up needs the lock at once.
        drop(queue);
        lane.ready.notify_one();
        Ok(is_full)
    }

    fn queue(&self, lane: Lane) -> &LaneQueue {
        match lane {
            Lane::Calls => &self.calls,
            Lane::Renewals => &self.renewals,
            Lane::Lists => &self.lists,
        }
    }

    /// Closes it: no more inputs are reported.
    pub(super) fn end(&self) {
        self.given_up.notify_one();
    }

    /// Connects, uses the connection until it ends, and returns the reason; `None` when it was
    /// closed by [`Self::end`]. Events are reported through the callback.
    pub(super) async fn run(
        &self,
        endpoint: &Endpoint,
        own_address: &OwnAddress,
        counters: &UpstreamCounters,
        report: impl Fn(Input) + Sync,
    ) -> Option<ConnectionEnd> {
        let connected = tokio::select! {
            connected = self.connect(endpoint) => connected,
            () = self.given_up.notified() => return None,
        };
        let ended = match connected {
            Ok(connection) => self.use_up(&connection, own_address, counters, &report).await?,
            Err(error) => error,
        };
        // Kept apart: a rejected certificate needs an operator, a loss only another attempt.
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

    /// Uses a connection until it ends, and returns the reason; `None` when it was closed by
    /// [`Self::end`].
    async fn use_up(
        &self,
        connection: &Connection,
        own_address: &OwnAddress,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Option<LinkError> {
        let ended = tokio::select! {
            ended = self.serve(connection, own_address, counters, report) => Some(ended),
            () = self.given_up.notified() => None,
        };
        // Before this end closes it, which would hide the reason.
        let refusal = connection.identity_refusal();
        match &ended {
            // The server receives the reason: one of the two is defective, or of another build.
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
        own_address: &OwnAddress,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
        self.dialect.get_or_init(|| connection.dialect());
        // Before the registration, which contains the address.
        check_address(own_address, connection, report).await;
        report(Input::Connected(self.id));
        tokio::select! {
            ended = self.send_frames(&self.calls, &mut sender, counters, report) => ended,
            ended = self.receive_first(connection, &mut receiver, counters, report) => ended,
            ended = self.serve_lane(Lane::Renewals, connection, counters, report) => ended,
            ended = self.serve_lane(Lane::Lists, connection, counters, report) => ended,
            () = self.report_traffic(connection, report) => Ok("its stream was no longer read"),
            () = watch_address(own_address, connection, report) => Ok("its address was no longer checked"),
        }
    }

    /// Serves the stream of a lane once the lane has calls.
    async fn serve_lane(
        &self,
        lane: Lane,
        connection: &Connection,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        let queue = self.queue(lane);
        queue.filled().await;
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
        if lane == Lane::Renewals {
            sender.prioritize();
        }
        tokio::select! {
            ended = self.send_frames(queue, &mut sender, counters, report) => ended,
            ended = self.receive_frames(lane, &mut receiver, counters, report) => ended,
        }
    }

    async fn send_frames(
        &self,
        lane: &LaneQueue,
        sender: &mut FrameSender,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        loop {
            lane.filled().await;
            // Lets callers that are about to run add their calls, so that these share a frame.
            tokio::task::yield_now().await;
            let (frames, was_full) = {
                let mut queue = lock(&lane.queue);
                (queue.frames.take(), std::mem::take(&mut queue.is_full))
            };
            // The queue is empty: the client may send calls again.
            if was_full {
                report(Input::Backlog(self.id, false));
            }
            counters.call_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
            sender.send(frames).await?;
        }
    }

    /// Logs the server's identity with the first frame of a connection.
    async fn receive_first(
        &self,
        connection: &Connection,
        receiver: &mut FrameReceiver,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        let Some(ReplyFrame(answers)) = receiver.receive().await? else { return Ok(FINISHED) };
        // Before it answers it may still reject this agent's certificate.
        let (address, peer) = (connection.remote_address(), connection.peer());
        tracing::info!(%address, %peer, "connected to a server");
        counters.reply_frames.fetch_add(1, Ordering::Relaxed);
        report(Input::Answers(self.id, answers));
        self.receive_frames(Lane::Calls, receiver, counters, report).await
    }

    async fn receive_frames(
        &self,
        lane: Lane,
        receiver: &mut FrameReceiver,
        counters: &UpstreamCounters,
        report: &(impl Fn(Input) + Sync),
    ) -> Result<&'static str, LinkError> {
        while let Some(ReplyFrame(answers)) = receiver.receive().await? {
            counters.reply_frames.fetch_add(1, Ordering::Relaxed);
            if lane == Lane::Lists {
                let mut listing = lock(&self.listing);
                for (id, _) in &answers {
                    // An answered call needs no cancel, and its id would stay.
                    listing.remove(id);
                }
            }
            report(Input::Answers(self.id, answers));
        }
        Ok(FINISHED)
    }

    /// Reports the received data. A parked call may wait for long, so only this distinguishes a
    /// stopped or partitioned server from one without news.
    async fn report_traffic(&self, connection: &Connection, report: &(impl Fn(Input) + Sync)) {
        loop {
            tokio::time::sleep(RECEIVED_INTERVAL).await;
            report(Input::Received(self.id, connection.datagrams_received()));
        }
    }
}

/// Checks the address of this host from time to time: an interface may get another one.
async fn watch_address(own_address: &OwnAddress, connection: &Connection, report: &(impl Fn(Input) + Sync)) {
    loop {
        tokio::time::sleep(ADDRESS_INTERVAL).await;
        check_address(own_address, connection, report).await;
    }
}

async fn check_address(own_address: &OwnAddress, connection: &Connection, report: &(impl Fn(Input) + Sync)) {
    if let Some(address) = own_address.refresh(connection.remote_address()).await {
        report(Input::OwnAddress(address));
    }
}

impl LaneQueue {
    /// Waits until the queue has data.
    async fn filled(&self) {
        // A wake-up may be left over from calls sent with earlier frames.
        while lock(&self.queue).frames.is_empty() {
            self.ready.notified().await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one step, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
