//! The replicated lock state machine: a pure value that every server computes identically.
//!
//! [`State::apply`] applies one log entry, returns its reply, and appends a [`Change`] for every
//! row that it sets. Each rule has a file of its own; read them in this order:
//!
//! | module | contents |
//! |---|---|
//! | `pages` | entries and tombstones in key order, shared with readers |
//! | `rows` | the state as tables of rows: set by a change, listed as changes |
//! | `keys` | the table of keys: entries, tombstones, lock-delays, queues; their derived indexes |
//! | `step` | one command: the only way to change a row, and the rollback of a failed command |
//! | `entry` | the single write rule for keys; plain and conditional writes; deletes |
//! | `tree` | the delete of all keys under a prefix, as one change |
//! | `tombstone` | tombstones of deleted keys, so that no index goes back |
//! | `lock` | acquire and release in both modes, fencing tokens |
//! | `queue` | the requests for locks in their order, and the grant to the next one |
//! | `session` | the table of sessions; their creation and requested ends |
//! | `invalidation` | effects of a session's end on its keys, the lock-delay; the loss history |
//! | `catalog`, `node`, `service`, `check` | the tables of the catalog that sessions depend on |
//! | `service_index` | the rows and the index of each service name |
//! | `agent`, `member` | registration of agents; their table, status and verdicts |
//! | `cell` | the assignment of agents to cells of the mesh |
//! | `txn`, `txn_kv`, `txn_catalog` | several operations, all or none |
//! | `replies` | the table of kept replies; exactly once |
//! | `roster` | the servers of the quorum |
//! | `gossip` | the members of the mesh, and its keys |
//! | `acl/` | access control lists: their tables, and the judgement of requests by them |
//! | `rights` | writes about other nodes, and the operator hosts |
//! | `prepared_query` | prepared queries: their names, their ends, look-ups |
//! | `restore` | a backup replaces all data |
//! | `error` | the reasons why commands are refused, with their texts |
//! | `query` | the queries |
//! | `view` | answers with very many rows, built elsewhere |
//! | `invariants` | the invariants after every command, as sentences and as code |
//!
//! **Invariants:** nothing here reads a clock: a TTL, a lock-delay or a wait is data, and its end
//! is a command. Nothing depends on hash order. A state rebuilt from its rows equals the original.

mod acl;
mod agent;
mod catalog;
mod cell;
mod check;
mod deadlock;
mod entry;
mod error;
mod gossip;
mod invalidation;
mod invariants;
mod keys;
mod lock;
mod member;
mod node;
mod pages;
mod prepared_query;
mod query;
mod queue;
mod removed;
mod replies;
mod restore;
mod rights;
mod roster;
mod rows;
mod service;
mod service_index;
mod session;
mod step;
mod tombstone;
mod tree;
mod txn;
mod txn_catalog;
mod txn_kv;
mod view;

use self::step::Step;
use crate::proposal::Proposal;
use core::net::{IpAddr, SocketAddr};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{AgentNumber, Fence, Key, LogIndex, SessionId, Term};
use lockmesh_protocol::record::{Agent, LockDelay, LockMode, LockRequest, Server, Session};
use lockmesh_protocol::reply::Applied;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use acl::{Acl, check_query, judge, own_rows, read_txn_as, visible};
pub use cell::CELL_AGENTS_MAX;
pub use deadlock::DeadlockCounts;
pub use invalidation::{LOSS_KEYS_KEPT, LOSSES_KEPT, MAX_LOCK_DELAY};
pub use invariants::Violation;
pub use member::MemberCounts;
pub use queue::{MAX_WAIT, WAITERS_MAX};
pub use removed::Removed;
pub use replies::REPLIES_KEPT;
pub use restore::RESTORE_PARTS_MAX;
pub use roster::SERVERS_MAX;
pub use rows::State;
pub use service_index::ServiceTopic;
pub(crate) use service_index::folded_name;
pub use session::NODE_SESSIONS_MAX;
pub use step::Outputs;
pub use view::{Listing, LongRead, View, query_view, too_long, view};

impl State {
    /// Returns the state of a cluster before its bootstrap.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the log entry at `index` of `term`, appends every row that it sets to `changes`, and
    /// returns the reply.
    ///
    /// Indexes in changes and in the reply are those that clients see: the log's plus
    /// [`State::index_base`].
    pub fn apply(
        &mut self,
        index: LogIndex,
        term: Term,
        proposal: &Proposal,
        changes: &mut Vec<Change>,
    ) -> Arc<Applied> {
        let (removed, services) = (&mut Removed::default(), &mut BTreeSet::new());
        self.apply_keeping(index, term, proposal, Outputs { changes, removed, services })
    }

    /// The same, but hands over rows that were removed in bulk, so that they can be freed
    /// elsewhere, and the services that it touched.
    pub fn apply_keeping(
        &mut self,
        index: LogIndex,
        term: Term,
        proposal: &Proposal,
        outputs: Outputs<'_>,
    ) -> Arc<Applied> {
        let mut step = Step::new(self, index, term, proposal.at, outputs);
        replies::answer(&mut step, proposal)
    }

    /// The cluster's id; empty before its first command.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The offset between a log index and the index that clients see.
    pub fn index_base(&self) -> u64 {
        self.index_base
    }

    /// The newest fencing token.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The last index that changed a table; 0 if none did.
    pub fn table_index(&self, table: Table) -> LogIndex {
        self.table_indexes[table as usize]
    }

    /// The session with this id.
    pub fn session(&self, id: SessionId) -> Option<&Arc<Session>> {
        self.sessions.rows.get(&id)
    }

    /// All sessions, ordered by id.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Arc<Session>> {
        self.sessions.rows.values()
    }

    /// The session that holds a key, or the oldest of several.
    pub fn holder(&self, key: &Key) -> Option<&SessionId> {
        self.keys.holders.get(key)
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.keys.entries.len()
    }

    /// The number of held keys.
    pub fn held_count(&self) -> usize {
        self.keys.holders.len()
    }

    /// The number of waiters in all queues.
    pub fn waiter_count(&self) -> usize {
        self.keys.requests.len()
    }

    /// All keys that a lock-delay closes, possibly for exclusive requests only.
    pub fn delays(&self) -> impl Iterator<Item = (&Key, &LockDelay)> {
        self.keys.delays.iter().chain(&self.keys.shared_delays)
    }

    /// The delay that closes a key.
    pub fn lock_delay(&self, key: &Key) -> Option<&LockDelay> {
        self.keys.delay(key, LockMode::Exclusive)
    }

    /// All waiters, ordered by key, then by queue position.
    pub fn waiters(&self) -> impl Iterator<Item = (&Key, LogIndex, &Arc<LockRequest>)> {
        self.keys.waiters()
    }

    /// The waiting requests, by queue position.
    pub fn requests(&self) -> &BTreeMap<LogIndex, Arc<LockRequest>> {
        &self.keys.requests
    }

    /// The mode in which a session holds a lock.
    pub fn mode_held(&self, key: &Key, session: SessionId) -> Option<LockMode> {
        self.keys.mode_held(key, session)
    }

    /// All tombstones with the index of the delete.
    pub fn tombstones(&self) -> impl Iterator<Item = (&Key, LogIndex)> {
        self.keys.tombstones.iter().map(|(key, index)| (key, *index))
    }

    /// The agent with this number.
    pub fn agent(&self, number: AgentNumber) -> Option<&Arc<Agent>> {
        self.members.agents.get(&number)
    }

    /// All agents, ordered by number.
    pub fn agents(&self) -> impl ExactSizeIterator<Item = &Arc<Agent>> {
        self.members.agents.values()
    }

    /// Returns the IP addresses of all agents and servers, except those that are host names.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        // Not those of the catalog, which any client can replace.
        let of_agent = |agent: &Arc<Agent>| agent.address.parse().ok();
        let of_server = |server: &Arc<Server>| server.address.parse::<SocketAddr>().ok();
        let servers = self.servers().filter_map(of_server).map(|address| address.ip());
        self.agents().filter_map(of_agent).chain(servers)
    }

    /// The agents from this number on.
    pub(crate) fn agents_since(&self, first: AgentNumber) -> impl Iterator<Item = &Arc<Agent>> {
        self.members.agents.range(first..).map(|(_, agent)| agent)
    }

    /// All agents in cyclic order, from a random start.
    pub(crate) fn agents_from(&self, drawn: u64) -> impl Iterator<Item = &Arc<Agent>> {
        let first = AgentNumber((drawn % (u64::from(self.members.last_agent.0) + 1)) as u32);
        self.members.agents.range(first..).chain(self.members.agents.range(..first)).map(|(_, agent)| agent)
    }
}
