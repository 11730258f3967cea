//! The other servers: their identities, and the message queues to them.
//!
//! ```text
//! driver ── one turn's messages ──> a bounded queue per server ──> its task ──> one stream
//!        <── Unreachable: messages in flight to a server may be lost ──
//! ```
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the roster: authentication, and a queue to each server |
//! | `queue.rs` | the messages waiting for one server |
//! | `link.rs` | the task that keeps a stream to one server |
//! | `hello.rs` | the beginning of a stream |
//! | `search.rs` | the task that looks for servers that moved, while there is no leader |
//!
//! Each direction has its own stream, kept by the sender. **Invariants:** a server's message counts
//! only if its certificate names the node that the roster has under its id; messages from a removed
//! id are never accepted again.

mod hello;
mod link;
mod queue;
mod search;

pub use hello::Hello;
pub(crate) use hello::{HelloFrame, PeerFrame, VERSION};

use crate::event_queue::EventSender;
use link::PeerLink;
use lockmesh_core::Input;
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::log::{LogPosition, PeerMemory};
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_net::{Endpoint, Peer, QuicOptions};
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::record::Server;
use queue::PeerQueue;
use search::Search;
use std::collections::BTreeMap;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// The options for dialing other servers: a connection that is silent for this long is dead.
pub(crate) fn dial_options() -> QuicOptions {
    QuicOptions {
        idle_time: Duration::from_millis(1500),
        keep_alive: Some(Duration::from_millis(400)),
        ..QuicOptions::default()
    }
}

/// The longest version text kept of another server.
const MAX_VERSION_CHARS: usize = 64;

/// The quorum's other servers as known to this one.
#[derive(Debug)]
pub struct Peers {
    /// Itself, for its tasks.
    this: Weak<Self>,
    me: OnceLock<Me>,
    rows: RwLock<RosterRows>,
    positions: Mutex<Positions>,
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    runtime: Handle,
    departures: watch::Sender<()>,
    /// `true` while this server has a working leader.
    led: watch::Sender<bool>,
    searching: OnceLock<AbortHandle>,
}

/// This server's log position, and the known positions of the others.
#[derive(Debug, Default)]
struct Positions {
    own: LogPosition,
    memory: PeerMemory,
}

/// This server's identity in its quorum.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) id: ServerId,
    pub(crate) cluster_id: String,
    pub(crate) address: String,
}

#[derive(Debug, Default)]
struct RosterRows {
    servers: BTreeMap<ServerId, RosterRow>,
    /// The highest id assigned so far, as far as this server knows.
    last: ServerId,
}

#[derive(Debug)]
struct RosterRow {
    /// Folded.
    node: NodeName,
    /// The address in the roster; empty for a server that is not in it yet.
    listed: String,
    queue: Arc<PeerQueue>,
    task: AbortHandle,
}

/// The reason that another server is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This server is not a member yet; the other one is to retry.
    NotYet,
    /// The other server was removed from the quorum.
    Removed,
    /// The other server is of another cluster, means another server, or was set back.
    Mismatched(String),
    /// The certificate of the other server is not that of the server's node.
    Denied(String),
}

impl Peers {
    /// Creates an empty roster. Must be called on a runtime.
    pub(crate) fn new(endpoint: Arc<Endpoint>, sender: EventSender) -> Arc<Self> {
        let (me, rows) = (OnceLock::new(), RwLock::default());
        let (positions, runtime) = (Mutex::default(), Handle::current());
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            me,
            rows,
            positions,
            endpoint,
            sender,
            runtime,
            departures: watch::Sender::new(()),
            led: watch::Sender::new(false),
            searching: OnceLock::new(),
        })
    }

    /// Sets this server's identity when it becomes a member.
    ///
    /// # Panics
    /// The second time.
    pub(crate) fn begin(&self, me: Me) {
        self.me.set(me).expect("a server becomes a member once");
    }

    /// Replaces the servers, and the highest assigned id. Does nothing before this server is a
    /// member.
    pub(crate) fn update<'a>(&self, servers: impl Iterator<Item = &'a Server>, last: ServerId) {
        let Some(me) = self.me.get() else { return };
        let mut rows = self.write();
        // Never lower: a removed id above it would pass as a newcomer's.
        rows.last = rows.last.max(last);
        let mut gone = std::mem::take(&mut rows.servers);
        for server in servers.filter(|server| server.id != me.id) {
            let node = server.node.folded();
            let known = gone.remove(&server.id);
            let renamed = known.as_ref().filter(|row| row.node != node);
            // Another node under the same id: its stream now belongs to another server.
            renamed.inspect(|row| row.task.abort());
            let known = known.filter(|row| row.node == node);
            let mut row = known.unwrap_or_else(|| self.row(me, server.id, node, &server.address));
            // Only if the roster's address changed: a hello may have reported a newer one since.
            if row.listed != server.address {
                row.listed.clone_from(&server.address);
                row.queue.move_to(&server.address);
            }
            rows.servers.insert(server.id, row);
        }
        let mut some_left = false;
        for (id, row) in gone {
            // One that is not in the roster yet connected before this server learned of it.
            if row.listed.is_empty() && id > rows.last {
                rows.servers.insert(id, row);
            } else {
                row.task.abort();
                some_left = true;
            }
        }
        drop(rows);
        if some_left {
            self.departures.send_replace(());
        }
    }

    /// Returns a receiver that wakes when a server has left the quorum.
    pub(crate) fn departures(&self) -> watch::Receiver<()> {
        self.departures.subscribe()
    }

    /// Queues messages and wakes each task once; adds to `lost` the receivers of lost messages.
    pub(crate) fn send(&self, messages: &mut Vec<(ServerId, PeerMessage)>, lost: &mut Vec<ServerId>) {
        let rows = self.read();
        let mut woken: Vec<ServerId> = Vec::new();
        for (to, message) in messages.drain(..) {
            let taken = rows.servers.get(&to).is_some_and(|row| row.queue.push(message));
            let told = if taken { &mut woken } else { &mut *lost };
            if !told.contains(&to) {
                told.push(to);
            }
        }
        for row in woken.iter().filter_map(|to| rows.servers.get(to)) {
            row.queue.wake();
        }
    }

    /// Records this server's log position and the known positions of the others, before its
    /// messages are sent.
    pub(crate) fn note(&self, own: LogPosition, memory: &PeerMemory) {
        let mut positions = self.positions();
        positions.own = own;
        if positions.memory != *memory {
            positions.memory.clone_from(memory);
        }
    }

    /// Returns the known log position of another server.
    pub(super) fn remembers(&self, server: ServerId) -> Option<LogPosition> {
        self.positions().memory.of(server)
    }

    /// Compares the positions that two servers hold and remember of each other. `known` must have
    /// been read before the other one wrote its hello: later acknowledgements are no part of it.
    pub(super) fn compare(&self, hello: &Hello, known: Option<LogPosition>) -> Result<(), SetBack> {
        let Hello { from, to, position, remembers, .. } = hello;
        // The other one remembers a later position than this server holds: the driver must stop it
        // from voting and answering.
        if let Some(set_back) = SetBack::find(*to, self.positions().own, *from, *remembers) {
            // Never rejected for lack of room; the driver may have stopped.
            let _ = self.sender.post(Input::SetBack(*from, set_back.known));
            return Err(set_back);
        }
        // In the other direction the other server has lost entries, and is rejected here.
        SetBack::find(*from, *position, *to, known).map_or(Ok(()), Err)
    }

    /// Reports the version of a connected server to the driver.
    pub(super) fn note_version(&self, hello: &Hello) {
        let version = hello.version.chars().take(MAX_VERSION_CHARS).collect();
        // Never rejected for lack of room; the driver may have stopped.
        let _ = self.sender.post(Event::Version(hello.from, version));
    }

    /// Authenticates another server; returns the hello that answers it.
    pub(crate) fn admit(&self, hello: &Hello, peer: &Peer) -> Result<Hello, Refused> {
        let me = self.me.get().ok_or(Refused::NotYet)?;
        let mismatched = |reason: String| Err(Refused::Mismatched(reason));
        // First, since ids of different clusters are not comparable.
        if hello.cluster_id != me.cluster_id {
            return mismatched(format!(
                "it belongs to the cluster {}, this server to {}: to make it join this one, stop it and empty its \
                 data folder",
                hello.cluster_id, me.cluster_id
            ));
        }
        // An address may belong to another server by now; messages for that one must not be counted
        // here.
        if hello.to != me.id {
            return mismatched(format!("it expects server {}, but this is server {}", hello.to, me.id));
        }
        // A copied data folder, or two servers with one configuration.
        if hello.from == me.id {
            return mismatched(format!("it has the same id as this server, {}", me.id));
        }
        let node = peer.node.folded();
        let mut rows = self.write();
        // An id above all known ones: this server may lag behind the log that names the newcomer.
        // Once its row is known, it must be the same node.
        if !rows.servers.contains_key(&hello.from) && hello.from > rows.last {
            let row = self.row(me, hello.from, node.clone(), &hello.address);
            rows.servers.insert(hello.from, RosterRow { listed: String::new(), ..row });
        }
        match rows.servers.get(&hello.from) {
            None => Err(Refused::Removed),
            Some(row) if row.node != node => Err(Refused::Denied(format!(
                "its certificate names the node {}, but server {} is the node {}",
                peer.node, hello.from, row.node
            ))),
            Some(row) => {
                // Before it is admitted: none of its messages may count if its disk was set back.
                if let Err(set_back) = self.compare(hello, self.remembers(hello.from)) {
                    return mismatched(set_back.to_string());
                }
                row.queue.move_to(&hello.address);
                // The server is up, so calling it at once is worthwhile: the next election may
                // depend on it.
                row.queue.note_connected();
                self.note_version(hello);
                Ok(self.hello(me, hello.from))
            }
        }
    }

    /// Returns `true` if an admitted server still belongs to the quorum.
    pub(crate) fn is_member(&self, server: ServerId) -> bool {
        self.read().servers.contains_key(&server)
    }

    /// Returns the address of another server.
    pub(crate) fn address(&self, server: ServerId) -> Option<String> {
        self.read().servers.get(&server).map(|row| row.queue.address().borrow().clone())
    }

    /// Returns the addresses at which the other servers are called now.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.read().servers.values().map(|row| row.queue.address().borrow().clone()).collect()
    }

    /// Records whether this server has a working leader.
    pub(crate) fn note_led(&self, is_led: bool) {
        self.led.send_if_modified(|known| std::mem::replace(known, is_led) != is_led);
    }

    /// Starts the search for servers that moved, which calls the addresses of `quorum.join` while
    /// there is no working leader.
    pub(crate) fn search_at(&self, join: Vec<String>) {
        let search = Search::new(Weak::clone(&self.this), Arc::clone(&self.endpoint), join);
        self.searching
            .set(self.runtime.spawn(search.run(self.led.subscribe())).abort_handle())
            .expect("one search");
    }

    /// Calls a server at the address where it was found from now on; returns its previous address,
    /// or `None` if nothing changed. `node` is the name in its certificate.
    pub(super) fn found(&self, server: ServerId, node: &NodeName, address: &str) -> Option<String> {
        let rows = self.read();
        // An address proves nothing: the certificate and the id must be those of the roster.
        let row = rows.servers.get(&server).filter(|row| row.node == node.folded())?;
        let previous = row.queue.address().borrow().clone();
        // A stream that works stays: its address is right.
        if row.queue.is_up() || previous == address {
            return None;
        }
        row.queue.move_to(address);
        Some(previous)
    }

    /// Returns this server's identity once it is a member.
    pub(super) fn me(&self) -> Option<&Me> {
        self.me.get()
    }

    /// Returns the sender to the driver.
    pub(crate) fn sender(&self) -> &EventSender {
        &self.sender
    }

    /// Starts a task that calls other servers.
    pub(crate) fn spawn<F>(&self, task: impl FnOnce(Arc<Endpoint>) -> F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.runtime.spawn(task(Arc::clone(&self.endpoint)))
    }

    /// Ends all tasks. The roster stays: a server that received a removal while this one stops
    /// would never serve again.
    pub(crate) fn close(&self) {
        self.searching.get().inspect(|search| search.abort());
        self.read().servers.values().for_each(|row| row.task.abort());
    }

    fn hello(&self, me: &Me, to: ServerId) -> Hello {
        let positions = self.positions();
        // Both under one lock, so that no acknowledgement comes between the two.
        let (position, remembers) = (positions.own, positions.memory.of(to));
        drop(positions);
        let Me { id: from, cluster_id, address } = me.clone();
        Hello { from, to, cluster_id, address, version: VERSION.into(), position, remembers }
    }

    /// Returns the current hello to another server.
    pub(super) fn hello_to(&self, server: ServerId) -> Option<Hello> {
        Some(self.hello(self.me.get()?, server))
    }

    fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, me: &Me, server: ServerId, node: NodeName, address: &str) -> RosterRow {
        let queue = Arc::new(PeerQueue::new(address.into()));
        let link = PeerLink {
            peers: Weak::clone(&self.this),
            me: me.id,
            server,
            node: node.clone(),
            queue: Arc::clone(&queue),
            endpoint: Arc::clone(&self.endpoint),
            sender: self.sender.clone(),
        };
        let task = self.runtime.spawn(link.keep()).abort_handle();
        RosterRow { node, listed: address.into(), queue, task }
    }

    fn read(&self) -> RwLockReadGuard<'_, RosterRows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RosterRows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
