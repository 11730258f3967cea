//! The state as rows: set by a change, listed as changes. Each table derives its own indexes.
//!
//! `State::set_row` is the only code that alters a row. It must never fail and never decide
//! anything.

use super::acl::Acl;
use super::catalog::{Catalog, CheckKey, ServiceKey};
use super::deadlock;
use super::invalidation::Losses;
use super::keys::{Keys, request_row};
use super::member::Members;
use super::prepared_query::PreparedQueries;
use super::replies::Replies;
use super::rights;
use super::session::Sessions;
use crate::fault_injection::FaultPoint;
use bytes::Bytes;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::deadlock::Deadlocks;
use lockmesh_protocol::id::{Fence, LogIndex, NodeName, ServerId};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::{Autopilot, Server};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::Arc;

/// Every table whose last change is tracked, ordered by number.
pub(super) const TABLES: [Table; 14] = [
    Table::Entries,
    Table::Tombstones,
    Table::Sessions,
    Table::Nodes,
    Table::Services,
    Table::Checks,
    Table::NodeDeletions,
    Table::Coordinates,
    Table::PreparedQueries,
    Table::Tokens,
    Table::Policies,
    Table::Roles,
    Table::AclSettings,
    Table::AuthMethods,
];

/// The replicated state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(super) keys: Keys,
    pub(super) sessions: Sessions,
    pub(super) losses: Losses,
    pub(super) prepared_queries: PreparedQueries,
    pub(super) catalog: Catalog,
    pub(super) members: Members,
    pub(super) replies: Replies,
    /// By table number.
    pub(super) table_indexes: [LogIndex; TABLES.len()],
    pub(super) fence: Fence,
    /// The cluster's format version; 0 before its first command.
    pub(super) format: u8,
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
    /// The policy for deadlocks, and those found.
    pub(super) deadlocks: Arc<Deadlocks>,
    /// The nodes whose agents may send operator requests; all if it is empty.
    pub(super) operator_hosts: Arc<BTreeSet<NodeName>>,
    pub(super) acl: Acl,
    /// The gathered parts of restores, by restore and number.
    pub(super) restore_parts: BTreeMap<(u64, u32), Bytes>,
    /// The fault points of tests.
    pub(crate) fault_point: FaultPoint,
}

impl State {
    /// Sets one row: a state is rebuilt from a checkpoint change by change.
    pub fn load(&mut self, change: Change) {
        if let Change::TableIndex(Table::Services | Table::Checks | Table::Nodes, index) = &change {
            self.catalog.indexes.raise(*index);
        }
        self.set_row(change);
    }

    /// Sets one row by a command, which moves the derived indexes itself.
    pub(super) fn set_row(&mut self, change: Change) {
        match change {
            Change::Entry(key, entry) => self.keys.load_entry(key, entry),
            Change::Session(id, session) => self.sessions.load(id, session),
            Change::Node(name, node) => self.catalog.load_node(name, node),
            Change::NodeIndex(name, index) => put(&mut self.catalog.node_indexes, name, index),
            Change::Service(node, id, service) => self.catalog.load_service(ServiceKey { node, id }, service),
            Change::Check(node, id, check) => self.catalog.load_check(CheckKey { node, id }, check),
            Change::Coordinate(name, row) => self.catalog.load_coordinate(name, row),
            Change::Tombstone(key, index) => self.keys.load_tombstone(key, index),
            Change::LockDelay(key, delay) => put(&mut self.keys.delays, key, delay),
            Change::SharedDelay(key, delay) => put(&mut self.keys.shared_delays, key, delay),
            Change::SharedHold(key, session, hold) => self.keys.load_shared_hold(key, session, hold),
            Change::LockRequest(queue_position, request) => self.keys.load_request(queue_position, request),
            Change::Waiter(key, queue_position, waiter) => self.keys.load_waiter(key, queue_position, waiter),
            Change::Agent(number, agent) => self.members.load(number, agent),
            Change::Reply(agent, sequence, reply) => self.replies.load(agent, sequence, reply),
            Change::LowestSequence(agent, lowest) => self.replies.load_lowest(agent, lowest),
            Change::Loss(number, loss) => self.losses.load(number, loss),
            Change::TableIndex(table, index) => self.table_indexes[table as usize] = index,
            Change::Fence(fence) => self.fence = fence,
            Change::LastAgent(number) => self.members.last_agent = number,
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
            Change::TreeDeleted(prefix) => drop(self.keys.take_tree(&prefix)),
            Change::Format(format) => self.format = format,
            Change::ForgottenTombstones(index) => self.keys.forgotten_tombstones = index,
            Change::PreparedQuery(id, query) => self.prepared_queries.load(id, query),
            Change::Binding(node, id, binding) => self.sessions.load_binding(node, id, binding),
            Change::Deadlocks(deadlocks) => self.deadlocks = deadlocks,
            Change::OperatorHosts(hosts) => self.operator_hosts = hosts,
            Change::AclSettings(settings) => self.acl.load_settings(settings),
            Change::Token(accessor, token) => self.acl.load_token(accessor, token),
            Change::Policy(id, policy) => self.acl.load_policy(id, policy),
            Change::Role(id, role) => self.acl.load_role(id, role),
            change @ (Change::AuthMethod(..) | Change::BindingRule(..)) => self.acl.load_binding(change),
        }
    }

    /// Every row as the change that sets it. Loaded into a new state, they give an equal state.
    pub fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let restore_parts = self.restore_parts.iter();
        single_rows(self)
            .chain(self.catalog.rows())
            .chain(self.sessions.rows())
            .chain(self.keys.rows())
            .chain(self.members.rows())
            .chain(self.replies.rows())
            .chain(self.losses.rows())
            .chain(self.prepared_queries.rows())
            .chain(self.acl.rows())
            .chain(
                restore_parts
                    .map(|((id, number), rows)| Change::RestorePart(*id, *number, Some(rows.clone()))),
            )
    }

    /// Returns whether a change would create an existing row of a kind that is created once and
    /// never changed: sessions, replies and losses. The store relies on it.
    pub(super) fn makes_again(&self, change: &Change) -> bool {
        match change {
            Change::Session(id, Some(_)) => self.sessions.rows.contains_key(id),
            Change::Reply(agent, sequence, Some(_)) => {
                self.replies.of(*agent).is_some_and(|replies| replies.kept.contains_key(sequence))
            }
            Change::Loss(number, Some(_)) => self.losses.rows.contains_key(number),
            _ => false,
        }
    }

    /// Returns the change of one row that would undo `change`, which must not be applied yet.
    pub(super) fn inverse(&self, change: &Change) -> Change {
        match change {
            Change::Entry(key, _) => Change::Entry(key.clone(), self.keys.entries.get(key.as_str()).cloned()),
            Change::Session(id, _) => Change::Session(*id, self.sessions.rows.get(id).cloned()),
            Change::Node(..)
            | Change::NodeIndex(..)
            | Change::Service(..)
            | Change::Check(..)
            | Change::Coordinate(..) => self.catalog.inverse(change),
            Change::Tombstone(key, _) => {
                Change::Tombstone(key.clone(), self.keys.tombstones.get(key.as_str()).copied())
            }
            Change::LockDelay(key, _) => Change::LockDelay(key.clone(), self.keys.delays.get(key).copied()),
            Change::SharedDelay(key, _) => {
                Change::SharedDelay(key.clone(), self.keys.shared_delays.get(key).copied())
            }
            Change::SharedHold(key, session, _) => {
                let hold = self.keys.shared.get(key).and_then(|holders| holders.get(session));
                Change::SharedHold(key.clone(), *session, hold.copied())
            }
            Change::Waiter(_, queue_position, _) | Change::LockRequest(queue_position, _) => {
                match (self.keys.requests.get(queue_position), change) {
                    (Some(request), _) => request_row(*queue_position, request),
                    (None, Change::Waiter(key, ..)) => Change::Waiter(key.clone(), *queue_position, None),
                    (None, _) => Change::LockRequest(*queue_position, None),
                }
            }
            Change::Agent(number, _) => Change::Agent(*number, self.members.agents.get(number).cloned()),
            Change::Loss(number, _) => Change::Loss(*number, self.losses.rows.get(number).cloned()),
            Change::PreparedQuery(id, _) => Change::PreparedQuery(*id, self.prepared_query(*id).cloned()),
            Change::Binding(node, id, _) => {
                let binding = self.sessions.bindings.get(node).and_then(|bindings| bindings.get(id));
                Change::Binding(node.clone(), *id, binding.copied())
            }
            Change::TableIndex(table, _) => Change::TableIndex(*table, self.table_index(*table)),
            Change::Fence(_) => Change::Fence(self.fence),
            Change::Deadlocks(_) => Change::Deadlocks(self.deadlocks.clone()),
            Change::OperatorHosts(_) => Change::OperatorHosts(self.operator_hosts.clone()),
            Change::LastAgent(_) => Change::LastAgent(self.members.last_agent),
            Change::ForgottenTombstones(_) => Change::ForgottenTombstones(self.keys.forgotten_tombstones),
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
            | Change::AclSettings(_)
            | Change::Token(..)
            | Change::Policy(..)
            | Change::Role(..)
            | Change::AuthMethod(..)
            | Change::BindingRule(..)
            | Change::Format(_)
            | Change::Cleared => unreachable!("no command that may fail half-way changes {change:?}"),
        }
    }
}

pub(super) fn put<K: Ord, V>(rows: &mut BTreeMap<K, V>, key: K, row: Option<V>) {
    match row {
        Some(row) => rows.insert(key, row),
        None => rows.remove(&key),
    };
}

pub(super) fn remove_inner<K: Ord, L: Ord, V>(maps: &mut BTreeMap<K, BTreeMap<L, V>>, key: &K, inner: &L) {
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

/// The rows of single values, as the changes that set them.
fn single_rows(state: &State) -> impl Iterator<Item = Change> + '_ {
    let cluster_id = (!state.cluster_id.is_empty()).then(|| Change::ClusterId(state.cluster_id.clone()));
    let index_base = (state.index_base != 0).then_some(Change::IndexBase(state.index_base));
    let fence = (state.fence.0 != 0).then_some(Change::Fence(state.fence));
    let last_agent = (state.members.last_agent.0 != 0).then_some(Change::LastAgent(state.members.last_agent));
    let tables = TABLES.into_iter().zip(state.table_indexes);
    let tables = tables.filter(|(_, index)| index.0 != 0);
    let last_server = (state.last_server.0 != 0).then_some(Change::LastServer(state.last_server));
    let autopilot = (state.autopilot_index.0 != 0)
        .then(|| Change::Autopilot(state.autopilot.clone(), state.autopilot_index));
    let deadlocks = deadlock::row(&state.deadlocks);
    let operator_hosts = rights::row(&state.operator_hosts);
    let servers = state.servers.iter().map(|(id, row)| Change::Server(*id, Some(row.clone())));
    let format = (state.format != 0).then_some(Change::Format(state.format));
    let forgotten = (state.keys.forgotten_tombstones.0 != 0)
        .then_some(Change::ForgottenTombstones(state.keys.forgotten_tombstones));
    let lease_key = (state.lease_key != LeaseKey::default()).then_some(Change::LeaseKey(state.lease_key));
    let gossip_key = (state.gossip_key != 0).then_some(Change::GossipKey(state.gossip_key));
    let of_cluster = [cluster_id, lease_key, gossip_key, format, index_base];
    of_cluster
        .into_iter()
        .chain([fence, last_agent, last_server, autopilot, deadlocks, operator_hosts, forgotten])
        .flatten()
        .chain(servers)
        .chain(tables.map(|(table, index)| Change::TableIndex(table, index)))
}
