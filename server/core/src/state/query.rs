//! What can be asked: every answer with the index beyond which there may be news.
//!
//! Index 0 means that nothing was ever written. Nothing here changes anything.

use super::State;
use super::tree::under;
use lockmesh_protocol::change::Table;
use lockmesh_protocol::id::{Fence, Key, LogIndex, NodeName, SessionId, WallTime};
use lockmesh_protocol::query::{Instance, Lock, Query, Rows};
use lockmesh_protocol::record::{Check, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl State {
    /// Answers a query with its index and its rows.
    pub fn query(&self, query: &Query) -> (LogIndex, Rows) {
        match query {
            Query::Entry(key) => self.query_entry(key),
            Query::Entries(prefix) => {
                let prefix = prefix.as_str();
                (self.prefix_index(prefix), Rows::Entries(self.entries_under(prefix).cloned().collect()))
            }
            Query::Keys { prefix, separator } => {
                (self.prefix_index(prefix.as_str()), Rows::Keys(self.names(prefix.as_str(), separator)))
            }
            Query::Session(id) => self.sessions_answer(self.sessions.get(id).cloned().into_iter().collect()),
            Query::Sessions => self.sessions_answer(self.sessions.values().cloned().collect()),
            Query::NodeSessions(node) => {
                let ids = self.derived.by_node.get(&node.folded()).into_iter().flatten();
                self.sessions_answer(ids.map(|id| self.sessions[id].clone()).collect())
            }
            Query::Txn(ops) => (LogIndex(0), Rows::Txn(self.read_txn(ops))),
            Query::Locks(prefix) => {
                (self.prefix_index(prefix.as_str()), Rows::Locks(self.locks(prefix.as_str())))
            }
            Query::Losses => {
                let newest = self.losses.last_key_value().map_or(LogIndex(0), |(_, loss)| loss.index);
                (newest, Rows::Losses(self.losses.values().rev().cloned().collect()))
            }
            Query::Place { key, session, ticket, mark } => self.query_place(key, session, *ticket, *mark),
            Query::Agents => {
                (self.table_index(Table::Nodes), Rows::Agents(self.agents.values().cloned().collect()))
            }
            _ => self.query_catalog(query),
        }
    }

    fn query_catalog(&self, query: &Query) -> (LogIndex, Rows) {
        match query {
            Query::Nodes => {
                (self.table_index(Table::Nodes), Rows::Nodes(self.nodes.values().cloned().collect()))
            }
            Query::Node(name) => self.query_node(name),
            Query::NodeChecks(node) => {
                let checks = self.checks_of(&node.folded()).map(|(_, check)| check.clone()).collect();
                (self.table_index(Table::Checks), Rows::Checks(checks))
            }
            Query::ServiceChecks(name) => self.checks_answer(|check| is_same_name(&check.service_name, name)),
            Query::ChecksInState(status) => {
                self.checks_answer(|check| status.is_none_or(|status| check.status == status))
            }
            Query::Services => (self.table_index(Table::Services), Rows::Services(self.service_names())),
            Query::ServiceInstances(name) => {
                let tables = [Table::Services, Table::Checks, Table::Nodes];
                let index = tables.map(|table| self.table_index(table)).into_iter().max().unwrap_or_default();
                (index, Rows::Instances(self.instances(name)))
            }
            _ => unreachable!("every other query is answered where it comes in"),
        }
    }

    fn query_entry(&self, key: &Key) -> (LogIndex, Rows) {
        match self.entries.get(key.as_str()) {
            Some(entry) => (entry.modify_index, Rows::Entries(vec![entry.clone()])),
            None => (self.keys_index(), Rows::Entries(Vec::new())),
        }
    }

    fn sessions_answer(&self, sessions: Vec<Arc<lockmesh_protocol::record::Session>>) -> (LogIndex, Rows) {
        (self.table_index(Table::Sessions), Rows::Sessions(sessions))
    }

    fn checks_answer(&self, wanted: impl Fn(&Check) -> bool) -> (LogIndex, Rows) {
        let checks = self.checks.values().filter(|check| wanted(check)).cloned().collect();
        (self.table_index(Table::Checks), Rows::Checks(checks))
    }

    fn query_node(&self, name: &NodeName) -> (LogIndex, Rows) {
        let folded = name.folded();
        let node = self.nodes.get(&folded).map(|node| {
            let services = self.services_of(&folded).map(|(_, service)| service.clone()).collect();
            (node.clone(), services)
        });
        (self.node_index(&folded), Rows::Node(node))
    }

    /// The names under a prefix, each cut after the first separator behind the prefix.
    fn names(&self, prefix: &str, separator: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for entry in self.entries_under(prefix) {
            let name = cut(entry.key.as_str(), prefix.len(), separator);
            // All names that are cut to the same follow each other.
            if names.last().is_none_or(|last| last != name) {
                names.push(name.into());
            }
        }
        names
    }

    /// Every key that is held or closed under a prefix, ascending.
    fn locks(&self, prefix: &str) -> Vec<Lock> {
        let held = under(&self.derived.holders, prefix).map(|(key, _)| key);
        let closed = under(&self.delays, prefix).map(|(key, _)| key);
        let keys: BTreeSet<&Key> = held.chain(closed).collect();
        keys.into_iter().map(|key| self.lock(key)).collect()
    }

    fn lock(&self, key: &Key) -> Lock {
        let entry = self.entries.get(key.as_str());
        let holder = entry.and_then(|entry| entry.session.as_ref());
        Lock {
            key: key.clone(),
            session: holder.and_then(|id: &SessionId| self.sessions.get(id).cloned()),
            fence: entry.map_or(Fence(0), |entry| entry.fence),
            granted_at: entry.map_or(WallTime(0), |entry| entry.granted_at),
            lock_index: entry.map_or(0, |entry| entry.lock_index),
            modify_index: entry.map_or(LogIndex(0), |entry| entry.modify_index),
            delay: self.delays.get(key).copied(),
            waiters: self.queues.get(key).map_or(0, |queue| queue.len() as u64),
        }
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
        let services = self.services.iter().filter(|(_, service)| is_same_name(&service.name, name));
        services
            .map(|(place, service)| Instance {
                node: self.nodes[&place.node].clone(),
                service: service.clone(),
                checks: self.checks_of_instance(&place.node, service),
            })
            .collect()
    }

    fn checks_of_instance(&self, folded: &NodeName, service: &Service) -> Vec<Arc<Check>> {
        let checks = self.checks_of(folded).map(|(_, check)| check);
        let id = service.id.as_str();
        checks
            .filter(|check| check.service_id.is_empty() || is_same_name(&check.service_id, id))
            .cloned()
            .collect()
    }
}

fn is_same_name(left: &str, right: &str) -> bool {
    left == right || left.to_lowercase() == right.to_lowercase()
}

fn cut<'a>(key: &'a str, prefix_length: usize, separator: &str) -> &'a str {
    if separator.is_empty() {
        return key;
    }
    match key[prefix_length..].find(separator) {
        Some(place) => &key[..prefix_length + place + separator.len()],
        None => key,
    }
}
