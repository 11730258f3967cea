//! The rows of the state: set by a change, listed as changes, and the indexes derived from them.
//!
//! [`State::load`] is the only code that alters a row. It must never fail and never decide
//! anything.

use super::cell::Cells;
use super::invalidation::category;
use super::pages::Pages;
use crate::fault_injection::FaultPoint;
use bytes::Bytes;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{
    AgentNumber, CheckId, Fence, Key, LogIndex, NodeName, ServerId, ServiceId, SessionId,
};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::{
    Agent, Autopilot, Check, Entry, LockDelay, Loss, MemberStatus, Node, Server, Service, Session, Waiter,
};
use lockmesh_protocol::reply::Applied;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;

/// Every table whose last change is tracked, ordered by number.
pub(super) const TABLES: [Table; 7] = [
    Table::Entries,
    Table::Tombstones,
    Table::Sessions,
    Table::Nodes,
    Table::Services,
    Table::Checks,
    Table::NodeDeletions,
];

/// A check's key: its node and its id, both folded, because lookups ignore case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckKey {
    pub(super) node: NodeName,
    pub(super) id: CheckId,
}

/// A service's key: its node and its id, both folded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceKey {
    pub(super) node: NodeName,
    pub(super) id: ServiceId,
}

/// The number of members in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    /// See [`MemberStatus::Alive`].
    pub alive: usize,
    /// See [`MemberStatus::Restarting`].
    pub restarting: usize,
    /// See [`MemberStatus::Left`].
    pub left: usize,
    /// See [`MemberStatus::Failed`].
    pub failed: usize,
}

impl MemberCounts {
    pub(super) fn of(&mut self, status: MemberStatus) -> &mut usize {
        match status {
            MemberStatus::Alive => &mut self.alive,
            MemberStatus::Restarting => &mut self.restarting,
            MemberStatus::Left => &mut self.left,
            MemberStatus::Failed => &mut self.failed,
        }
    }
}

/// The replicated state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(super) entries: Pages<Arc<Entry>>,
    pub(super) sessions: BTreeMap<SessionId, Arc<Session>>,
    /// By folded name.
    pub(super) nodes: BTreeMap<NodeName, Arc<Node>>,
    /// The last index that changed a node or its services, by folded name.
    pub(super) node_indexes: BTreeMap<NodeName, LogIndex>,
    pub(super) services: BTreeMap<ServiceKey, Arc<Service>>,
    pub(super) checks: BTreeMap<CheckKey, Arc<Check>>,
    pub(super) tombstones: Pages<LogIndex>,
    pub(super) delays: BTreeMap<Key, LockDelay>,
    /// The waiters of each lock by queue position, granted in that order. No queue is empty.
    pub(super) queues: BTreeMap<Key, BTreeMap<LogIndex, Arc<Waiter>>>,
    pub(super) agents: BTreeMap<AgentNumber, Arc<Agent>>,
    pub(super) replies: BTreeMap<AgentNumber, KeptReplies>,
    pub(super) losses: BTreeMap<u64, Arc<Loss>>,
    /// By table number.
    pub(super) table_indexes: [LogIndex; TABLES.len()],
    pub(super) fence: Fence,
    /// The cluster's format version; 0 before its first command.
    pub(super) format: u8,
    /// The newest index of a reaped tombstone.
    pub(super) forgotten_tombstones: LogIndex,
    pub(super) last_agent: AgentNumber,
    pub(super) index_base: u64,
    pub(super) cluster_id: String,
    /// The key from which the secrets of leases are derived.
    pub(super) lease_key: LeaseKey,
    /// The number of the current gossip key.
    pub(super) gossip_key: u32,
    pub(super) servers: BTreeMap<ServerId, Arc<Server>>,
    pub(super) last_server: ServerId,
    pub(super) autopilot: Autopilot,
    /// The index of its last configuration.
    pub(super) autopilot_index: LogIndex,
    /// The gathered parts of restores, by restore and number.
    pub(super) restore_parts: BTreeMap<(u64, u32), Bytes>,
    pub(super) derived: Derived,
    /// The fault points of tests.
    pub(crate) fault_point: FaultPoint,
}

/// The replies that an agent may still request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptReplies {
    /// Everything below this sequence is forgotten.
    pub(super) lowest: u64,
    /// The replies, by sequence.
    pub(super) kept: BTreeMap<u64, Arc<Applied>>,
}

/// Indexes derived from the rows, so that lookups need no search. No set or map in here is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Derived {
    /// The keys that each session holds.
    pub(super) held: BTreeMap<SessionId, BTreeSet<Key>>,
    /// The holder of each held key.
    pub(super) holders: BTreeMap<Key, SessionId>,
    /// The queues that each session is in, with its queue position in each.
    pub(super) waiting: BTreeMap<SessionId, BTreeMap<Key, LogIndex>>,
    /// The number of waiters in all queues.
    pub(super) waiter_count: usize,
    /// The sessions of each node.
    pub(super) by_node: BTreeMap<NodeName, BTreeSet<SessionId>>,
    /// The sessions that depend on each check.
    pub(super) by_check: BTreeMap<CheckKey, BTreeSet<SessionId>>,
    /// The folded name of the node with each UUID.
    pub(super) node_ids: BTreeMap<String, NodeName>,
    /// The agent of the node with each UUID.
    pub(super) agent_ids: BTreeMap<String, AgentNumber>,
    /// The numbers of the losses of each category: without keys, and by cause.
    pub(super) losses: BTreeMap<u8, BTreeSet<u64>>,
    /// The agents that registered for each node, by the node's folded name; the one with the newest
    /// lease is its agent.
    pub(super) members: BTreeMap<NodeName, BTreeSet<(LogIndex, AgentNumber)>>,
    /// The number of agents in each status.
    pub(super) member_counts: MemberCounts,
    /// The number of agents in each cell of the mesh.
    pub(super) cells: Cells,
}

impl CheckKey {
    /// The key of the check `id` of `node`, ignoring case.
    pub(super) fn new(node: &NodeName, id: &CheckId) -> Self {
        Self { node: node.folded(), id: CheckId::from(id.as_str().to_lowercase()) }
    }
}

impl ServiceKey {
    /// The key of the service `id` of `node`, ignoring case.
    pub(super) fn new(node: &NodeName, id: &ServiceId) -> Self {
        Self { node: node.folded(), id: ServiceId::from(id.as_str().to_lowercase()) }
    }
}

impl State {
    /// Sets one row: a state is rebuilt from a checkpoint change by change.
    pub fn load(&mut self, change: Change) {
        match change {
            Change::Entry(key, entry) => self.load_entry(key, entry),
            Change::Session(id, session) => self.load_session(id, session),
            Change::Node(name, node) => self.load_node(name, node),
            Change::NodeIndex(name, index) => put(&mut self.node_indexes, name, index),
            Change::Service(node, id, service) => put(&mut self.services, ServiceKey { node, id }, service),
            Change::Check(node, id, check) => put(&mut self.checks, CheckKey { node, id }, check),
            Change::Tombstone(key, index) => self.load_tombstone(key, index),
            Change::LockDelay(key, delay) => put(&mut self.delays, key, delay),
            Change::Waiter(key, queue_position, waiter) => self.load_waiter(key, queue_position, waiter),
            Change::Agent(number, agent) => self.load_agent(number, agent),
            Change::Reply(agent, sequence, reply) => {
                self.change_replies(agent, |replies| put(&mut replies.kept, sequence, reply));
            }
            Change::LowestSequence(agent, lowest) => {
                self.change_replies(agent, |replies| replies.lowest = lowest);
            }
            Change::Loss(number, loss) => self.load_loss(number, loss),
            Change::TableIndex(table, index) => self.table_indexes[table as usize] = index,
            Change::Fence(fence) => self.fence = fence,
            Change::LastAgent(number) => self.last_agent = number,
            Change::IndexBase(base) => self.index_base = base,
            Change::ClusterId(id) => self.cluster_id = id,
            Change::LeaseKey(key) => self.lease_key = key,
            Change::GossipKey(number) => self.gossip_key = number,
            Change::Server(id, server) => put(&mut self.servers, id, server),
            Change::LastServer(id) => self.last_server = id,
            Change::Autopilot(autopilot, index) => {
                (self.autopilot, self.autopilot_index) = (autopilot, index);
            }
            Change::RestorePart(id, number, rows) => put(&mut self.restore_parts, (id, number), rows),
            Change::Cleared => *self = Self::default(),
            Change::TreeDeleted(prefix) => drop(self.take_tree(&prefix)),
            Change::Format(format) => self.format = format,
            Change::ForgottenTombstones(index) => self.forgotten_tombstones = index,
        }
    }

    /// Every row as the change that sets it. Loaded into a new state, they give an equal state.
    pub fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let nodes = self.nodes.iter().map(|(name, row)| Change::Node(name.clone(), Some(row.clone())));
        let node_indexes = self.node_indexes.iter();
        let services = self.services.iter();
        let checks = self.checks.iter();
        let sessions = self.sessions.iter();
        let entries = self.entries.iter();
        let restore_parts = self.restore_parts.iter();
        self.single_rows()
            .chain(nodes)
            .chain(node_indexes.map(|(name, index)| Change::NodeIndex(name.clone(), Some(*index))))
            .chain(
                services.map(|(at, row)| Change::Service(at.node.clone(), at.id.clone(), Some(row.clone()))),
            )
            .chain(checks.map(|(at, row)| Change::Check(at.node.clone(), at.id.clone(), Some(row.clone()))))
            .chain(sessions.map(|(id, row)| Change::Session(*id, Some(row.clone()))))
            .chain(entries.map(|(key, row)| Change::Entry(key.clone(), Some(row.clone()))))
            .chain(self.tombstones.iter().map(|(key, index)| Change::Tombstone(key.clone(), Some(*index))))
            .chain(self.delays.iter().map(|(key, delay)| Change::LockDelay(key.clone(), Some(*delay))))
            .chain(self.waiters().map(|(key, queue_position, row)| {
                Change::Waiter(key.clone(), queue_position, Some(row.clone()))
            }))
            .chain(self.agents.iter().map(|(number, row)| Change::Agent(*number, Some(row.clone()))))
            .chain(self.replies.iter().flat_map(|(agent, replies)| replies.rows(*agent)))
            .chain(self.losses.iter().map(|(number, row)| Change::Loss(*number, Some(row.clone()))))
            .chain(
                restore_parts
                    .map(|((id, number), rows)| Change::RestorePart(*id, *number, Some(rows.clone()))),
            )
    }

    /// Returns whether a change would create an existing row of a kind that is created once and
    /// never changed: sessions, replies and losses. The store relies on it.
    pub(super) fn makes_again(&self, change: &Change) -> bool {
        match change {
            Change::Session(id, Some(_)) => self.sessions.contains_key(id),
            Change::Reply(agent, sequence, Some(_)) => {
                self.replies.get(agent).is_some_and(|replies| replies.kept.contains_key(sequence))
            }
            Change::Loss(number, Some(_)) => self.losses.contains_key(number),
            _ => false,
        }
    }

    /// Returns the change of one row that would undo `change`, which must not be applied yet.
    pub(super) fn inverse(&self, change: &Change) -> Change {
        match change {
            Change::Entry(key, _) => Change::Entry(key.clone(), self.entries.get(key.as_str()).cloned()),
            Change::Session(id, _) => Change::Session(*id, self.sessions.get(id).cloned()),
            Change::Node(name, _) => Change::Node(name.clone(), self.nodes.get(name).cloned()),
            Change::NodeIndex(name, _) => {
                Change::NodeIndex(name.clone(), self.node_indexes.get(name).copied())
            }
            Change::Service(node, id, _) => {
                let row = self.services.get(&ServiceKey { node: node.clone(), id: id.clone() });
                Change::Service(node.clone(), id.clone(), row.cloned())
            }
            Change::Check(node, id, _) => {
                let row = self.checks.get(&CheckKey { node: node.clone(), id: id.clone() });
                Change::Check(node.clone(), id.clone(), row.cloned())
            }
            Change::Tombstone(key, _) => {
                Change::Tombstone(key.clone(), self.tombstones.get(key.as_str()).copied())
            }
            Change::LockDelay(key, _) => Change::LockDelay(key.clone(), self.delays.get(key).copied()),
            Change::Waiter(key, queue_position, _) => {
                Change::Waiter(key.clone(), *queue_position, self.waiter(key, *queue_position).cloned())
            }
            Change::Agent(number, _) => Change::Agent(*number, self.agents.get(number).cloned()),
            Change::Loss(number, _) => Change::Loss(*number, self.losses.get(number).cloned()),
            Change::TableIndex(table, _) => Change::TableIndex(*table, self.table_index(*table)),
            Change::Fence(_) => Change::Fence(self.fence),
            Change::LastAgent(_) => Change::LastAgent(self.last_agent),
            Change::ForgottenTombstones(_) => Change::ForgottenTombstones(self.forgotten_tombstones),
            Change::Reply(..)
            | Change::LowestSequence(..)
            | Change::IndexBase(_)
            | Change::ClusterId(_)
            | Change::LeaseKey(_)
            | Change::GossipKey(_)
            | Change::Server(..)
            | Change::LastServer(_)
            | Change::Autopilot(..)
            | Change::RestorePart(..)
            | Change::TreeDeleted(_)
            | Change::Format(_)
            | Change::Cleared => unreachable!("no command that may fail half-way changes {change:?}"),
        }
    }

    fn single_rows(&self) -> impl Iterator<Item = Change> + '_ {
        let cluster_id = (!self.cluster_id.is_empty()).then(|| Change::ClusterId(self.cluster_id.clone()));
        let index_base = (self.index_base != 0).then_some(Change::IndexBase(self.index_base));
        let fence = (self.fence.0 != 0).then_some(Change::Fence(self.fence));
        let last_agent = (self.last_agent.0 != 0).then_some(Change::LastAgent(self.last_agent));
        let tables = TABLES.into_iter().zip(self.table_indexes);
        let tables = tables.filter(|(_, index)| index.0 != 0);
        let last_server = (self.last_server.0 != 0).then_some(Change::LastServer(self.last_server));
        let autopilot = (self.autopilot_index.0 != 0)
            .then(|| Change::Autopilot(self.autopilot.clone(), self.autopilot_index));
        let servers = self.servers.iter().map(|(id, row)| Change::Server(*id, Some(row.clone())));
        let format = (self.format != 0).then_some(Change::Format(self.format));
        let forgotten = (self.forgotten_tombstones.0 != 0)
            .then_some(Change::ForgottenTombstones(self.forgotten_tombstones));
        let lease_key = (self.lease_key != LeaseKey::default()).then_some(Change::LeaseKey(self.lease_key));
        let gossip_key = (self.gossip_key != 0).then_some(Change::GossipKey(self.gossip_key));
        let of_cluster = [cluster_id, lease_key, gossip_key, format, index_base];
        of_cluster
            .into_iter()
            .chain([fence, last_agent, last_server, autopilot, forgotten])
            .flatten()
            .chain(servers)
            .chain(tables.map(|(table, index)| Change::TableIndex(table, index)))
    }

    fn load_entry(&mut self, key: Key, entry: Option<Arc<Entry>>) {
        let holder = entry.as_ref().and_then(|entry| entry.lock.session);
        let before = match entry {
            Some(entry) => self.entries.insert(key.clone(), entry),
            None => self.entries.remove(key.as_str()),
        };
        let holder_before = before.as_ref().and_then(|entry| entry.lock.session);
        if holder_before == holder {
            return;
        }
        if let Some(session) = holder_before {
            take_out(&mut self.derived.held, &session, &key);
        }
        match holder {
            Some(session) => self.note_holder(key, session),
            None => drop(self.derived.holders.remove(&key)),
        }
    }

    /// Adds a holder to the derived indexes.
    pub(super) fn note_holder(&mut self, key: Key, session: SessionId) {
        self.derived.held.entry(session).or_default().insert(key.clone());
        self.derived.holders.insert(key, session);
    }

    fn load_tombstone(&mut self, key: Key, index: Option<LogIndex>) {
        match index {
            Some(index) => self.tombstones.insert(key, index),
            None => self.tombstones.remove(key.as_str()),
        };
    }

    fn load_session(&mut self, id: SessionId, session: Option<Arc<Session>>) {
        if let Some(before) = self.sessions.remove(&id) {
            take_out(&mut self.derived.by_node, &before.spec.node.folded(), &id);
            for check in before.spec.all_checks() {
                take_out(&mut self.derived.by_check, &CheckKey::new(&before.spec.node, check), &id);
            }
        }
        if let Some(session) = session {
            for check in session.spec.all_checks() {
                let check_key = CheckKey::new(&session.spec.node, check);
                self.derived.by_check.entry(check_key).or_default().insert(id);
            }
            self.derived.by_node.entry(session.spec.node.folded()).or_default().insert(id);
            self.sessions.insert(id, session);
        }
    }

    fn load_waiter(&mut self, key: Key, queue_position: LogIndex, waiter: Option<Arc<Waiter>>) {
        if let Some(before) = self.waiter(&key, queue_position).cloned() {
            remove_inner(&mut self.queues, &key, &queue_position);
            remove_inner(&mut self.derived.waiting, &before.session, &key);
            self.derived.waiter_count -= 1;
        }
        if let Some(waiter) = waiter {
            self.derived.waiting.entry(waiter.session).or_default().insert(key.clone(), queue_position);
            self.queues.entry(key).or_default().insert(queue_position, waiter);
            self.derived.waiter_count += 1;
        }
    }

    fn load_node(&mut self, name: NodeName, node: Option<Arc<Node>>) {
        if let Some(before) = self.nodes.remove(&name)
            // Its UUID may belong to another name by now.
            && self.derived.node_ids.get(&before.id) == Some(&name)
        {
            self.derived.node_ids.remove(&before.id);
        }
        if let Some(node) = node {
            if !node.id.is_empty() {
                self.derived.node_ids.insert(node.id.clone(), name.clone());
            }
            self.nodes.insert(name, node);
        }
    }

    fn load_agent(&mut self, number: AgentNumber, agent: Option<Arc<Agent>>) {
        if let Some(before) = self.agents.remove(&number) {
            self.derived.agent_ids.remove(&before.node_id);
            take_out(&mut self.derived.members, &before.node.folded(), &(before.lease_began, number));
            *self.derived.member_counts.of(before.status) -= 1;
            self.derived.cells.remove(&before);
        }
        if let Some(agent) = agent {
            self.derived.agent_ids.insert(agent.node_id.clone(), number);
            let of_node = self.derived.members.entry(agent.node.folded()).or_default();
            of_node.insert((agent.lease_began, number));
            *self.derived.member_counts.of(agent.status) += 1;
            self.derived.cells.insert(&agent);
            self.agents.insert(number, agent);
        }
    }

    fn change_replies(&mut self, agent: AgentNumber, change: impl FnOnce(&mut KeptReplies)) {
        let replies = self.replies.entry(agent).or_default();
        change(replies);
        // Empty maps are removed, or a state rebuilt from its rows would differ.
        if replies.lowest == 0 && replies.kept.is_empty() {
            self.replies.remove(&agent);
        }
    }
}

impl KeptReplies {
    fn rows(&self, agent: AgentNumber) -> impl Iterator<Item = Change> + '_ {
        let lowest = (self.lowest != 0).then_some(Change::LowestSequence(agent, self.lowest));
        let kept = self.kept.iter();
        lowest
            .into_iter()
            .chain(kept.map(move |(sequence, row)| Change::Reply(agent, *sequence, Some(row.clone()))))
    }
}

impl State {
    fn load_loss(&mut self, number: u64, loss: Option<Arc<Loss>>) {
        if let Some(before) = self.losses.get(&number) {
            take_out(&mut self.derived.losses, &category(before), &number);
        }
        if let Some(loss) = &loss {
            self.derived.losses.entry(category(loss)).or_default().insert(number);
        }
        put(&mut self.losses, number, loss);
    }
}

fn put<K: Ord, V>(rows: &mut BTreeMap<K, V>, key: K, row: Option<V>) {
    match row {
        Some(row) => rows.insert(key, row),
        None => rows.remove(&key),
    };
}

fn remove_inner<K: Ord, L: Ord, V>(maps: &mut BTreeMap<K, BTreeMap<L, V>>, key: &K, inner: &L) {
    let Some(map) = maps.get_mut(key) else { return };
    map.remove(inner);
    if map.is_empty() {
        maps.remove(key);
    }
}

pub(super) fn take_out<K: Ord + Clone, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let btree_map::Entry::Occupied(mut set) = sets.entry(key.clone()) {
        set.get_mut().remove(value);
        if set.get().is_empty() {
            set.remove();
        }
    }
}
