//! The context of every stream of the service: the driver's event queue, the limits, the counters.

use super::counters::{RpcCounters, one_more};
use super::long;
use crate::event_queue::{CALLS_PER_CONNECTION, Caller, EventSender};
use crate::peers::Peers;
use lockmesh_core::frontend::Event;
use lockmesh_net::admission::{Admission, NodeConnections};
use lockmesh_net::{Close, Connection};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The maximum number of connections of one agent: it keeps two, and those of its earlier life end
/// by a timeout.
const CONNECTIONS_OF_NODE: usize = 8;

/// The limits of the service.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Connections of agents.
    pub connections: usize,
    /// Handshakes at the same time.
    pub handshakes: usize,
    /// Unanswered calls of one connection.
    pub calls_per_connection: usize,
    /// The timeout of a handshake.
    pub handshake_time: Duration,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            connections: 20_000,
            handshakes: 512,
            calls_per_connection: CALLS_PER_CONNECTION,
            handshake_time: Duration::from_secs(3),
        }
    }
}

/// Serves agents, and other servers, until the endpoint is closed.
#[derive(Clone, Debug)]
pub struct RpcService {
    pub(super) sender: EventSender,
    pub(super) options: Arc<RpcOptions>,
    pub(super) counters: Arc<RpcCounters>,
    pub(super) last_caller: Arc<AtomicU64>,
    pub(super) peers: Option<Arc<Peers>>,
    /// The permits for long answers that are built at once.
    pub(super) long_reads: Arc<Semaphore>,
    pub(super) admission: Admission,
    pub(super) agents: Arc<Mutex<NodeConnections<Connection>>>,
}

impl RpcService {
    /// Creates the service in front of this event queue.
    pub fn new(sender: EventSender, options: RpcOptions, counters: Arc<RpcCounters>) -> Self {
        let long_reads = Arc::new(long::permits());
        let agents = NodeConnections::new(options.connections, CONNECTIONS_OF_NODE);
        Self {
            admission: Admission::new(options.handshakes),
            agents: Arc::new(Mutex::new(agents)),
            sender,
            options: Arc::new(options),
            counters,
            last_caller: Arc::default(),
            peers: None,
            long_reads,
        }
    }

    /// Returns the admission of its handshakes, which has to learn the addresses of the cluster.
    pub(crate) fn admission(&self) -> Admission {
        self.admission.clone()
    }

    /// Admits Raft streams of the servers that `peers` knows; none are admitted without it.
    #[must_use]
    pub fn with_peers(self, peers: Arc<Peers>) -> Self {
        Self { peers: Some(peers), ..self }
    }

    pub(super) fn deny(&self, connection: &Connection, reason: &str) -> String {
        let (peer, remote) = (connection.peer(), connection.remote_address());
        self.counters.denied.count_and_warn(|| format!("rejected {peer} at {remote}: {reason}"));
        connection.close(Close::Denied, reason);
        reason.into()
    }

    pub(super) fn mismatch(&self, connection: &Connection, reason: &str) {
        let (peer, remote) = (connection.peer(), connection.remote_address());
        self.counters.mismatched.count_and_warn(|| format!("rejected {peer} at {remote}: {reason}"));
        connection.close(Close::Denied, reason);
    }

    pub(super) fn cut(&self, connection: &Connection, what: &str) -> String {
        let (peer, remote) = (connection.peer(), connection.remote_address());
        self.counters.malformed.count_and_warn(|| format!("disconnected {peer} at {remote}: it sent {what}"));
        connection.close(Close::Malformed, what);
        what.into()
    }

    /// Frees everything that the driver keeps for a caller. The event is never rejected for lack of
    /// room, and the driver may have stopped.
    pub(super) fn forget(&self, caller: Caller) {
        if self.sender.post(Event::Disconnected(caller)).is_err() {
            one_more(&self.counters.overloaded);
        }
    }
}
