//! The replicated lock state machine: a pure value that every server computes alike.
//!
//! [`State::apply`] takes one log entry, answers it, and appends a [`Change`] for every row that it
//! sets. Each rule has a file of its own; read them in this order:
//!
//! | module | holds |
//! |---|---|
//! | `pages` | entries and tombstones in the order of their keys, shared with whoever looks at them |
//! | `rows` | the rows themselves: set by a change, listed as changes, and what follows from them |
//! | `step` | one command at work: the only way to change a row, and how a failed command leaves no trace |
//! | `entry` | the one rule by which a key is written; plain and conditional writes; deletes |
//! | `tree` | the delete of all keys under a prefix, one change however many they are |
//! | `tombstone` | what is remembered of deleted keys, so that no index goes back |
//! | `lock` | acquire and release, fencing tokens |
//! | `queue` | who waits for a lock, and how whoever frees it grants it to the next |
//! | `session` | how sessions begin, and which ends are asked for |
//! | `invalidation` | what the end of a session does to its keys, the lock-delay, the loss history |
//! | `catalog`, `node`, `service`, `check` | what sessions hang on |
//! | `agent`, `member` | the registration of agents; how their nodes stand, and verdicts on them |
//! | `cell` | the cell of the mesh that each agent is given |
//! | `txn`, `txn_kv`, `txn_catalog` | several operations, all or none |
//! | `replies` | exactly once |
//! | `roster` | the servers of the quorum |
//! | `gossip` | which agents are in the mesh, and its keys |
//! | `restore` | a backup takes the place of everything |
//! | `query` | what can be asked |
//! | `view` | answers of very many rows, which others build |
//! | `invariants` | what must be true after every command, as sentences and as code |
//!
//! **Invariants:** nothing here knows a clock: a TTL, a lock-delay or a wait is data, and its end
//! is a command. Nothing depends on hash order. A state rebuilt from its rows equals the state that
//! wrote them.

mod agent;
mod catalog;
mod cell;
mod check;
mod entry;
mod gossip;
mod invalidation;
mod invariants;
mod lock;
mod member;
mod node;
mod pages;
mod query;
mod queue;
mod removed;
mod replies;
mod restore;
mod roster;
mod rows;
mod service;
mod session;
mod step;
mod tombstone;
mod tree;
mod txn;
mod txn_catalog;
mod txn_kv;
mod view;

use crate::proposal::Proposal;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{AgentNumber, Fence, Key, LogIndex, SessionId, Term};
use lockmesh_protocol::record::{Agent, LockDelay, Session, Waiter};
use lockmesh_protocol::reply::Applied;
use std::sync::Arc;

pub use cell::CELL_AGENTS_MAX;
pub use invalidation::{LOSS_KEYS_KEPT, LOSSES_KEPT, MAX_LOCK_DELAY};
pub use queue::{MAX_WAIT, WAITERS_MAX};
pub use removed::Removed;
pub use replies::REPLIES_KEPT;
pub use restore::RESTORE_PARTS_MAX;
pub use roster::SERVERS_MAX;
pub use rows::{MemberCounts, State};
pub use view::{Listing, LongRead, View, too_long};

impl State {
    /// The state of a cluster that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the log entry at `index` of `term`, appends every row that it sets to `changes`, and
    /// answers.
    ///
    /// Indexes in changes and in the answer are those that clients see: the log's plus
    /// [`State::index_base`].
    pub fn apply(
        &mut self,
        index: LogIndex,
        term: Term,
        proposal: &Proposal,
        changes: &mut Vec<Change>,
    ) -> Arc<Applied> {
        self.apply_keeping(index, term, proposal, changes, &mut Removed::default())
    }

    /// The same, and gives away the rows that it removes many at once, so that they can be freed
    /// elsewhere.
    pub fn apply_keeping(
        &mut self,
        index: LogIndex,
        term: Term,
        proposal: &Proposal,
        changes: &mut Vec<Change>,
        removed: &mut Removed,
    ) -> Arc<Applied> {
        step::Step::new(self, index, term, proposal.at, (changes, removed)).answer(proposal)
    }

    /// The cluster's id; empty before its first command.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// What is added to a log index to make the index that clients see.
    pub fn index_base(&self) -> u64 {
        self.index_base
    }

    /// The fencing token given last.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The last index that changed a table; 0 where nothing did.
    pub fn table_index(&self, table: Table) -> LogIndex {
        self.table_indexes[table as usize]
    }

    /// One session.
    pub fn session(&self, id: SessionId) -> Option<&Arc<Session>> {
        self.sessions.get(&id)
    }

    /// All sessions, in order of their ids.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Arc<Session>> {
        self.sessions.values()
    }

    /// Who holds a key.
    pub fn holder(&self, key: &Key) -> Option<&SessionId> {
        self.derived.holders.get(key)
    }

    /// How many keys there are.
    pub fn key_count(&self) -> usize {
        self.entries.len()
    }

    /// How many keys are held.
    pub fn held_count(&self) -> usize {
        self.derived.holders.len()
    }

    /// How many wait for a lock, in all queues.
    pub fn waiter_count(&self) -> usize {
        self.derived.waiter_count
    }

    /// All keys that a lock-delay closes.
    pub fn delays(&self) -> impl Iterator<Item = (&Key, &LockDelay)> {
        self.delays.iter()
    }

    /// The delay that closes a key.
    pub fn lock_delay(&self, key: &Key) -> Option<&LockDelay> {
        self.delays.get(key)
    }

    /// Everybody who waits for a lock, in the order of the keys, then of the queue positions.
    pub fn waiters(&self) -> impl Iterator<Item = (&Key, LogIndex, &Arc<Waiter>)> {
        let queues = self.queues.iter();
        queues.flat_map(|(key, queue)| {
            queue.iter().map(move |(queue_position, waiter)| (key, *queue_position, waiter))
        })
    }

    /// Who has a position in a key's queue.
    pub fn waiter(&self, key: &Key, queue_position: LogIndex) -> Option<&Arc<Waiter>> {
        self.queues.get(key)?.get(&queue_position)
    }

    /// All tombstones with the index of the delete.
    pub fn tombstones(&self) -> impl Iterator<Item = (&Key, LogIndex)> {
        self.tombstones.iter().map(|(key, index)| (key, *index))
    }

    /// One agent.
    pub fn agent(&self, number: AgentNumber) -> Option<&Arc<Agent>> {
        self.agents.get(&number)
    }

    /// All agents, in order of their numbers.
    pub fn agents(&self) -> impl ExactSizeIterator<Item = &Arc<Agent>> {
        self.agents.values()
    }

    /// Those from this number on.
    pub(crate) fn agents_since(&self, first: AgentNumber) -> impl Iterator<Item = &Arc<Agent>> {
        self.agents.range(first..).map(|(_, agent)| agent)
    }

    /// All, from one on that was drawn, and then around.
    pub(crate) fn agents_from(&self, drawn: u64) -> impl Iterator<Item = &Arc<Agent>> {
        let first = AgentNumber((drawn % (u64::from(self.last_agent.0) + 1)) as u32);
        self.agents.range(first..).chain(self.agents.range(..first)).map(|(_, agent)| agent)
    }
}
