//! Queries. Every answer has an index, beyond which there may be newer data.
//!
//! Index 0 means that no write has happened. Queries change nothing.

use super::State;
use super::acl::{acl_index, query_acl};
use super::catalog::Catalog;
use super::deadlock;
use super::entry::lock_of;
use super::keys::Keys;
use super::tree::under;
use super::view::names;
use lockmesh_protocol::change::Table;
use lockmesh_protocol::id::{Key, LogIndex, NodeName, ServiceId};
use lockmesh_protocol::query::{Grant, Instance, LockInfo, Query, Rows};
use lockmesh_protocol::record::{Check, LockMode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The checks of a node by the folded id of their service, each ordered by id; `None` for those of
/// the node itself.
type ChecksByService = BTreeMap<Option<ServiceId>, Vec<Arc<Check>>>;

impl Catalog {
    pub(super) fn rows_of(&self, query: &Query) -> Rows {
        match query {
            Query::Nodes => Rows::Nodes(self.nodes.values().cloned().collect()),
            Query::Node(name) => self.node_rows(&name.folded()),
            Query::NodeChecks(node) => {
                Rows::Checks(self.checks_of(&node.folded()).map(|(_, check)| check.clone()).collect())
            }
            Query::ServiceChecks(name) => Rows::Checks(self.service_checks(name).cloned().collect()),
            Query::ChecksInState(status) => {
                self.check_rows(|check| status.is_none_or(|status| check.status == status))
            }
            Query::Services => Rows::Services(self.service_names()),
            Query::ServiceInstances(name) => Rows::Instances(self.instances(name)),
            _ => unreachable!("every other query is answered where it comes in"),
        }
    }

    fn check_rows(&self, wanted: impl Fn(&Check) -> bool) -> Rows {
        Rows::Checks(self.checks.values().filter(|check| wanted(check)).cloned().collect())
    }

    fn node_rows(&self, folded: &NodeName) -> Rows {
        Rows::Node(self.nodes.get(folded).map(|node| {
            let services = self.services_of(folded).map(|(_, service)| service.clone()).collect();
            (node.clone(), services)
        }))
    }

    fn service_names(&self) -> Vec<(String, Vec<String>)> {
        let mut names: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
        for service in self.services.values() {
            names.entry(&service.name).or_default().extend(&service.tags);
        }
        let named = names.into_iter();
        named.map(|(name, tags)| (name.to_owned(), tags.into_iter().cloned().collect())).collect()
    }

    fn instances(&self, name: &str) -> Vec<Instance> {
        let mut instances = Vec::new();
        // The instances are ordered by node, so the checks of each are read once.
        let mut of_node: Option<(&NodeName, ChecksByService)> = None;
        for (key, service) in self.instances_of(name) {
            let checks = match of_node.take().filter(|(node, _)| **node == key.node) {
                Some((_, checks)) => checks,
                None => self.checks_by_service(&key.node),
            };
            let of = |service: Option<ServiceId>| checks.get(&service).into_iter().flatten().cloned();
            instances.push(Instance {
                node: self.nodes[&key.node].clone(),
                service: service.clone(),
                checks: of(None).chain(of(Some(key.id.clone()))).collect(),
            });
            of_node = Some((&key.node, checks));
        }
        instances
    }

    fn checks_by_service(&self, folded: &NodeName) -> ChecksByService {
        let mut checks = ChecksByService::new();
        for (_, check) in self.checks_of(folded) {
            let service = check.service_id.as_ref().map(ServiceId::folded);
            checks.entry(service).or_default().push(check.clone());
        }
        checks
    }
}

impl Keys {
    fn newest_grant(&self, key: &Key) -> Grant {
        let lock = lock_of(self.entries.get(key.as_str()));
        Grant { fence: lock.fence, is_held: lock.session.is_some() }
    }
}

impl State {
    /// Answers a query with its index and its rows.
    pub fn query(&self, query: &Query) -> (LogIndex, Rows) {
        (self.index_of(query), self.rows_of(query))
    }

    /// The index of a query's answer, computed without reading its rows.
    pub fn index_of(&self, query: &Query) -> LogIndex {
        match query {
            Query::Entry(key) => self.key_index(key),
            Query::Grants(keys) => keys.iter().map(|key| self.key_index(key)).max().unwrap_or_default(),
            Query::Entries(prefix) | Query::Keys { prefix, .. } | Query::Locks(prefix) => {
                self.prefix_index(prefix.as_str())
            }
            // A loss is the end of a session.
            Query::Session(_)
            | Query::Sessions
            | Query::NodeSessions(_)
            | Query::Bindings(_)
            | Query::Losses => self.table_index(Table::Sessions),
            Query::Txn(_) | Query::GossipKey | Query::Waits(_) | Query::Deadlocks | Query::OperatorHosts => {
                LogIndex(0)
            }
            Query::QueuePosition { .. } | Query::RequestOutcome { .. } | Query::HeldEntry { .. } => {
                self.query_locks(query).0
            }
            Query::Nodes | Query::Agents => self.table_index(Table::Nodes),
            Query::Coordinates => self.table_index(Table::Coordinates).max(self.table_index(Table::Nodes)),
            Query::Node(name) => self.node_index(&name.folded()),
            Query::NodeChecks(_) | Query::ServiceChecks(_) | Query::ChecksInState(_) => {
                self.table_index(Table::Checks)
            }
            Query::Services => self.table_index(Table::Services),
            Query::ServiceInstances(name) => self.catalog.service_index(name),
            Query::PreparedQueries | Query::PreparedQuery(_) | Query::ResolvePreparedQuery(_) => {
                self.table_index(Table::PreparedQueries)
            }
            Query::AclSettings
            | Query::Rights
            | Query::OwnToken
            | Query::Tokens(_)
            | Query::Policies(_)
            | Query::Roles(_)
            | Query::AuthMethods(_)
            | Query::BindingRules(_) => acl_index(self, query),
        }
    }

    /// Answers a query of a session's hold, or of its request.
    fn query_locks(&self, query: &Query) -> (LogIndex, Rows) {
        match *query {
            Query::QueuePosition { session, queue_position, enqueued_at_index, .. }
            | Query::RequestOutcome { session, queue_position, enqueued_at_index, .. } => {
                let session = (session, self.sessions.rows.contains_key(&session));
                self.keys.queue_outcome(query.queues(), session, queue_position, enqueued_at_index)
            }
            Query::HeldEntry { ref key, session } => {
                let (index, rows) = self.keys.held_entry(key, session);
                (index.unwrap_or_else(|| self.table_index(Table::Entries)), rows)
            }
            _ => unreachable!("no other query is of a hold"),
        }
    }

    fn rows_of(&self, query: &Query) -> Rows {
        match query {
            Query::Entry(key) => {
                Rows::Entries(self.keys.entries.get(key.as_str()).cloned().into_iter().collect())
            }
            Query::Entries(prefix) => {
                Rows::Entries(self.keys.entries_under(prefix.as_str()).cloned().collect())
            }
            Query::Keys { prefix, separator } => {
                let prefix = prefix.as_str();
                let keys = self.keys.entries.under(prefix).map(|(key, _)| key);
                names(keys, prefix, separator, usize::MAX).expect("nothing is longer")
            }
            Query::Session(id) => Rows::Sessions(self.sessions.rows.get(id).cloned().into_iter().collect()),
            Query::Sessions => Rows::Sessions(self.sessions.rows.values().cloned().collect()),
            Query::NodeSessions(node) => {
                let ids = self.sessions.by_node.get(&node.folded()).into_iter().flatten();
                Rows::Sessions(ids.map(|id| self.sessions.rows[id].clone()).collect())
            }
            Query::Bindings(node) => {
                let bindings = self.sessions.bindings.get(&node.folded()).into_iter().flatten();
                Rows::Bindings(bindings.map(|(id, binding)| (*id, *binding)).collect())
            }
            Query::Txn(ops) => Rows::Txn(self.read_txn(ops)),
            Query::Locks(prefix) => Rows::Locks(self.locks(prefix.as_str())),
            Query::Grants(keys) => Rows::Grants(keys.iter().map(|key| self.keys.newest_grant(key)).collect()),
            Query::Waits(prefix) => deadlock::waits(self, prefix.as_str()),
            Query::Deadlocks => deadlock::found(self),
            Query::OperatorHosts => self.operator_host_rows(),
            Query::Losses => Rows::Losses(self.losses.rows.values().rev().cloned().collect()),
            Query::QueuePosition { .. } | Query::RequestOutcome { .. } | Query::HeldEntry { .. } => {
                self.query_locks(query).1
            }
            Query::Agents => Rows::Agents(self.members.agents.values().cloned().collect()),
            Query::GossipKey => Rows::GossipKey(self.gossip_key),
            Query::Coordinates => Rows::Coordinates(self.coordinates()),
            Query::PreparedQueries => {
                Rows::PreparedQueries(self.prepared_queries.rows.values().cloned().collect())
            }
            Query::PreparedQuery(id) => {
                Rows::PreparedQueries(self.prepared_query(*id).cloned().into_iter().collect())
            }
            Query::ResolvePreparedQuery(text) => {
                Rows::PreparedQueries(self.resolved_query(text).cloned().into_iter().collect())
            }
            Query::AclSettings
            | Query::Rights
            | Query::OwnToken
            | Query::Tokens(_)
            | Query::Policies(_)
            | Query::Roles(_)
            | Query::AuthMethods(_)
            | Query::BindingRules(_) => query_acl(self, query),
            _ => self.catalog.rows_of(query),
        }
    }

    /// Every key under a prefix that is held or closed, ascending.
    fn locks(&self, prefix: &str) -> Vec<LockInfo> {
        let held = under(&self.keys.holders, prefix).map(|(key, _)| key);
        let delays = under(&self.keys.delays, prefix).chain(under(&self.keys.shared_delays, prefix));
        let keys: BTreeSet<&Key> = held.chain(delays.map(|(key, _)| key)).collect();
        keys.into_iter().map(|key| self.lock(key)).collect()
    }

    fn lock(&self, key: &Key) -> LockInfo {
        let entry = self.keys.entries.get(key.as_str());
        let lock = lock_of(entry);
        LockInfo {
            key: key.clone(),
            session: lock.session.and_then(|id| self.sessions.rows.get(&id).cloned()),
            fence: lock.fence,
            granted_at: lock.granted_at,
            lock_index: lock.index,
            modify_index: entry.map_or(LogIndex(0), |entry| entry.modify_index),
            delay: self.keys.delay(key, LockMode::Exclusive).copied(),
            waiters: self.keys.queues.get(key).map_or(0, |queue| queue.len() as u64),
        }
    }
}
