//! Parked blocking queries (watches): each waits until a change touches its subject.
//!
//! A parked reader costs an entry in a few maps, never a thread. It is checked once at the end of a
//! turn whose changes touched it, regardless of their number. Changes without parked readers cost
//! nothing.

use super::event::{CallRef, Caller};
use crate::state::{ServiceTopic, folded_name};
use lockmesh_protocol::acl;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::CallId;
use lockmesh_protocol::time::Time;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A blocking query that waits for its index to exceed `known`.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) from: CallRef,
    /// The caller's node, in lower case.
    pub(super) node: NodeName,
    pub(super) client: acl::Caller,
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    pub(super) known: LogIndex,
    /// The time of the reply if nothing changes.
    pub(super) deadline: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct WatchId(u64);

/// A subject that a query depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Topic {
    Key(Key),
    Prefix(Key),
    QueuePosition(LogIndex),
    /// The hold of a session on a lock.
    Hold(Key, SessionId),
    Session(SessionId),
    Sessions,
    Nodes,
    /// All services; the rows of one are a [`ServiceTopic`].
    Services,
    /// All checks.
    Checks,
    /// The checks of a node, by folded name.
    ChecksOf(NodeName),
    Coordinates,
    Service(ServiceTopic),
    PreparedQueries,
    AclSettings,
    /// Tokens, policies and roles.
    AclRows,
    /// The bound sessions of a node, by folded name.
    BindingsOf(NodeName),
    Everything,
}

impl Topic {
    /// Returns `true` if both are names of the same kind and this one starts with the other.
    fn is_under(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key(name), Self::Key(prefix)) | (Self::Prefix(name), Self::Prefix(prefix)) => {
                name.as_str().starts_with(prefix.as_str())
            }
            _ => false,
        }
    }
}

/// All parked readers, by topic, by caller and by deadline.
#[derive(Debug, Default)]
pub(super) struct Watches {
    parked: BTreeMap<WatchId, Parked>,
    topics: BTreeMap<Topic, BTreeSet<WatchId>>,
    /// The number of distinct watched prefixes per length, so that a change looks up only these
    /// lengths.
    prefix_lengths: BTreeMap<usize, usize>,
    callers: BTreeMap<CallRef, WatchId>,
    /// The number of readers of each node.
    nodes: BTreeMap<NodeName, usize>,
    deadlines: BTreeSet<(Time, WatchId)>,
    touched: BTreeSet<WatchId>,
    last_id: u64,
}

impl Watches {
    pub(super) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Returns the number of a node's readers.
    pub(super) fn len_of(&self, node: &NodeName) -> usize {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    /// Parks a reader.
    pub(super) fn park(&mut self, parked: Parked) {
        self.last_id += 1;
        let id = WatchId(self.last_id);
        for topic in topics(&parked.query) {
            if let Topic::Prefix(prefix) = &topic
                && !self.topics.contains_key(&topic)
            {
                *self.prefix_lengths.entry(prefix.as_str().len()).or_default() += 1;
            }
            self.topics.entry(topic).or_default().insert(id);
        }
        self.callers.insert(parked.from, id);
        *self.nodes.entry(parked.node.clone()).or_default() += 1;
        self.deadlines.insert((parked.deadline, id));
        self.parked.insert(id, parked);
    }

    /// Marks the readers that a change touches.
    pub(super) fn touch(&mut self, change: &Change) {
        // Most turns of a busy leader have changes but no readers.
        if self.parked.is_empty() {
            return;
        }
        match change {
            Change::Entry(key, _) => self.touch_key(key),
            Change::TreeDeleted(prefix) => self.touch_tree(prefix),
            // Listings of locks show delays; the key itself is not changed by one.
            Change::LockDelay(key, _) | Change::SharedDelay(key, _) => self.touch_prefixes(key),
            Change::Waiter(_, queue_position, _) | Change::LockRequest(queue_position, _) => {
                // No other query depends on it: not even a transaction reads queues.
                return self.touch_topic(&Topic::QueuePosition(*queue_position));
            }
            // Nor on a shared hold, while its holder is not the oldest.
            Change::SharedHold(key, session, _) => {
                return self.touch_topic(&Topic::Hold(key.clone(), *session));
            }
            Change::Session(id, _) => {
                self.touch_topic(&Topic::Session(*id));
                self.touch_topic(&Topic::Sessions);
            }
            Change::Node(..) => self.touch_topic(&Topic::Nodes),
            Change::Service(..) => self.touch_topic(&Topic::Services),
            Change::Check(node, ..) => {
                self.touch_topic(&Topic::Checks);
                self.touch_topic(&Topic::ChecksOf(node.clone()));
            }
            Change::Coordinate(..) => return self.touch_topic(&Topic::Coordinates),
            Change::PreparedQuery(..) => return self.touch_topic(&Topic::PreparedQueries),
            Change::AclSettings(_) => self.touch_topic(&Topic::AclSettings),
            Change::Token(..)
            | Change::Policy(..)
            | Change::Role(..)
            | Change::AuthMethod(..)
            | Change::BindingRule(..) => {
                return self.touch_topic(&Topic::AclRows);
            }
            Change::Binding(node, ..) => return self.touch_topic(&Topic::BindingsOf(node.clone())),
            Change::Cleared => self.touch_all(),
            // Other changes move no query's index and wake no reader.
            _ => return,
        }
        self.touch_topic(&Topic::Everything);
    }

    /// Marks the readers of a service.
    pub(super) fn touch_service(&mut self, topic: ServiceTopic) {
        if !self.parked.is_empty() {
            self.touch_topic(&Topic::Service(topic));
        }
    }

    /// Takes all readers that were touched since the last call.
    pub(super) fn take_touched(&mut self) -> Vec<Parked> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes the readers whose wait is over.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Parked> {
        let mut due = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            due.extend(self.remove(id));
        }
        due
    }

    /// Cancels the reader of a call.
    pub(super) fn cancel(&mut self, call: CallRef) {
        if let Some(id) = self.callers.get(&call).copied() {
            self.remove(id);
        }
    }

    /// Cancels all readers of a connection.
    pub(super) fn cancel_all(&mut self, caller: Caller) {
        let call = |id| CallRef { caller, call: CallId(id) };
        let ids: Vec<_> = self.callers.range(call(0)..=call(u64::MAX)).map(|(_, id)| *id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// Takes all readers that need a leader's reply, when this server stops leading.
    pub(super) fn take_leaders_readers(&mut self) -> Vec<Parked> {
        let of_leader =
            |(id, parked): (&WatchId, &Parked)| (parked.consistency != Consistency::Stale).then_some(*id);
        // Stale readers stay: any server may answer them.
        let ids: BTreeSet<_> = self.parked.iter().filter_map(of_leader).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes all readers.
    pub(super) fn take_all(&mut self) -> Vec<Parked> {
        let ids: Vec<_> = self.parked.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Touches all readers after the whole state was replaced. A reader's index is of the old
    /// state, so any reply is news to it.
    fn touch_all(&mut self) {
        self.touched.extend(self.parked.keys());
        for parked in self.parked.values_mut() {
            parked.known = LogIndex(0);
        }
    }

    fn touch_key(&mut self, key: &Key) {
        self.touch_topic(&Topic::Key(key.clone()));
        self.touch_prefixes(key);
    }

    /// Touches the readers of keys and prefixes under this prefix, and of prefixes of it.
    fn touch_tree(&mut self, prefix: &Key) {
        self.touch_prefixes(prefix);
        // Topics are sorted by kind and name, so those under the prefix are adjacent.
        for first in [Topic::Key(prefix.clone()), Topic::Prefix(prefix.clone())] {
            let range = self.topics.range(&first..);
            let under = range.take_while(|(topic, _)| topic.is_under(&first));
            self.touched.extend(under.flat_map(|(_, ids)| ids));
        }
    }

    fn touch_prefixes(&mut self, key: &Key) {
        let text = key.as_str();
        // By length, so that a change costs one lookup per length rather than one per reader.
        let lengths: Vec<usize> =
            self.prefix_lengths.range(..=text.len()).map(|(length, _)| *length).collect();
        for length in lengths {
            // `None` inside a multi-byte character: then no watched prefix ends there.
            if let Some(prefix) = text.get(..length) {
                self.touch_topic(&Topic::Prefix(prefix.into()));
            }
        }
    }

    fn touch_topic(&mut self, topic: &Topic) {
        if let Some(ids) = self.topics.get(topic) {
            self.touched.extend(ids);
        }
    }

    fn remove(&mut self, id: WatchId) -> Option<Parked> {
        let parked = self.parked.remove(&id)?;
        for topic in topics(&parked.query) {
            self.leave(&topic, id);
        }
        self.callers.remove(&parked.from);
        if let Entry::Occupied(mut of_node) = self.nodes.entry(parked.node.clone()) {
            *of_node.get_mut() -= 1;
            if *of_node.get() == 0 {
                of_node.remove();
            }
        }
        self.deadlines.remove(&(parked.deadline, id));
        Some(parked)
    }

    fn leave(&mut self, topic: &Topic, id: WatchId) {
        let Some(ids) = self.topics.get_mut(topic) else { return };
        ids.remove(&id);
        if !ids.is_empty() {
            return;
        }
        self.topics.remove(topic);
        if let Topic::Prefix(prefix) = topic {
            let length = prefix.as_str().len();
            let count = self.prefix_lengths.get_mut(&length).expect("every watched prefix is counted");
            *count -= 1;
            if *count == 0 {
                self.prefix_lengths.remove(&length);
            }
        }
    }
}

fn topics(query: &Query) -> Vec<Topic> {
    match query {
        Query::Entry(key) => vec![Topic::Key(key.clone())],
        Query::Grants(keys) => keys.iter().cloned().map(Topic::Key).collect(),
        Query::Entries(prefix) | Query::Keys { prefix, .. } => vec![Topic::Prefix(prefix.clone())],
        Query::Locks(prefix) => vec![Topic::Prefix(prefix.clone()), Topic::Sessions],
        Query::QueuePosition { queue_position, .. } | Query::RequestOutcome { queue_position, .. } => {
            vec![Topic::QueuePosition(*queue_position)]
        }
        Query::Session(id) => vec![Topic::Session(*id)],
        Query::Sessions | Query::NodeSessions(_) | Query::Losses => vec![Topic::Sessions],
        // The index of all nodes moves with services too, and that of all checks with each check.
        Query::Nodes => vec![Topic::Nodes],
        Query::Services => vec![Topic::Services],
        Query::Node(_) => vec![Topic::Nodes, Topic::Services],
        Query::NodeChecks(node) => vec![Topic::ChecksOf(node.folded())],
        Query::ServiceChecks(name) => vec![Topic::Service(ServiceTopic::Checks(folded_name(name)))],
        Query::ChecksInState(_) => vec![Topic::Checks],
        Query::ServiceInstances(name) => vec![Topic::Service(ServiceTopic::Instances(folded_name(name)))],
        Query::Coordinates => vec![Topic::Nodes, Topic::Coordinates],
        Query::Bindings(node) => vec![Topic::BindingsOf(node.folded())],
        Query::PreparedQueries | Query::PreparedQuery(_) | Query::ResolvePreparedQuery(_) => {
            vec![Topic::PreparedQueries]
        }
        Query::AclSettings => vec![Topic::AclSettings],
        Query::Tokens(_)
        | Query::Policies(_)
        | Query::Roles(_)
        | Query::AuthMethods(_)
        | Query::BindingRules(_) => vec![Topic::AclRows],
        Query::Rights | Query::OwnToken => vec![Topic::AclRows, Topic::AclSettings],
        Query::HeldEntry { key, session } => {
            vec![Topic::Key(key.clone()), Topic::Hold(key.clone(), *session)]
        }
        Query::Txn(_)
        | Query::Agents
        | Query::GossipKey
        | Query::Waits(_)
        | Query::Deadlocks
        | Query::OperatorHosts => {
            vec![Topic::Everything]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::QueryId;
    use lockmesh_protocol::record::LockDelay;
    use std::time::Duration;

    const CALLER: Caller = Caller(1);

    fn call(id: u64) -> CallRef {
        CallRef { caller: CALLER, call: CallId(id) }
    }

    fn park(watches: &mut Watches, call: u64, query: Query) {
        let deadline = Time(0) + Duration::from_secs(call);
        let (from, known) = (self::call(call), LogIndex(1));
        let node = "a1".into();
        let (client, consistency) = (acl::Caller::Agent, Consistency::Default);
        watches.park(Parked { from, node, client, query, consistency, known, deadline });
    }

    fn woken(watches: &mut Watches, change: &Change) -> Vec<u64> {
        watches.touch(change);
        watches.take_touched().into_iter().map(|parked| parked.from.call.0).collect()
    }

    fn gone(key: &str) -> Change {
        Change::Entry(key.into(), None)
    }

    #[test]
    fn key_wakes_key_and_prefix_readers() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Entry("a/b".into()));
        park(&mut watches, 2, Query::Entry("a/c".into()));
        park(&mut watches, 3, Query::Entries("a/".into()));
        park(&mut watches, 4, Query::Keys { prefix: "".into(), separator: "/".into() });
        park(&mut watches, 5, Query::Entries("a/b/".into()));
        assert_eq!(woken(&mut watches, &gone("a/b")), [1, 3, 4]);
        assert_eq!(watches.len(), 2);
        assert_eq!(woken(&mut watches, &gone("a/b")), Vec::<u64>::new());
        assert_eq!(woken(&mut watches, &gone("a/b/c")), [5]);
    }

    #[test]
    fn tree_delete_wakes_overlapping_readers() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Entry("a/b".into()));
        park(&mut watches, 2, Query::Entry("b".into()));
        park(&mut watches, 3, Query::Entries("a/b/c".into()));
        park(&mut watches, 4, Query::Entries("".into()));
        park(&mut watches, 5, Query::Entries("b".into()));
        assert_eq!(woken(&mut watches, &Change::TreeDeleted("a/".into())), [1, 3, 4]);
        assert_eq!(watches.len(), 2);
    }

    #[test]
    fn service_wakes_only_own_readers() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::ServiceInstances("Web".into()));
        for call in 2..=10_001 {
            park(&mut watches, call, Query::ServiceInstances(format!("other-{call}")));
        }
        for change in [gone("a"), Change::Session(SessionId::NIL, None)] {
            watches.touch(&change);
        }
        watches.touch(&Change::Check("n".into(), "c".into(), None));
        watches.touch(&Change::Node("n".into(), None));
        assert_eq!(watches.touched.len(), 0, "no reader is checked");
        watches.touch_service(ServiceTopic::Instances("web".into()));
        assert_eq!(watches.touched.len(), 1);
        assert_eq!(watches.take_touched()[0].from, call(1));
        assert_eq!(watches.len(), 10_000);
    }

    #[test]
    fn catalog_change_wakes_matching_readers() {
        let mut watches = Watches::default();
        let park_all = |watches: &mut Watches| {
            let of_node = Query::NodeChecks("N1".into());
            let queries = [Query::Nodes, Query::Services, of_node, Query::NodeChecks("n2".into())];
            let more = [Query::ChecksInState(None), Query::ServiceChecks("Web".into())];
            (1..).zip(queries.into_iter().chain(more)).for_each(|(call, query)| park(watches, call, query));
        };
        for (change, expected) in [
            (Change::Node("n1".into(), None), vec![1]),
            (Change::Service("n1".into(), "web".into(), None), vec![2]),
            (Change::Check("n1".into(), "c".into(), None), vec![3, 5]),
        ] {
            park_all(&mut watches);
            assert_eq!(woken(&mut watches, &change), expected, "{change:?}");
            watches.cancel_all(CALLER);
        }
        park_all(&mut watches);
        watches.touch_service(ServiceTopic::Checks("web".into()));
        assert_eq!(watches.take_touched().len(), 1);
    }

    #[test]
    fn coordinate_change_spares_node_readers() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Nodes);
        park(&mut watches, 2, Query::Coordinates);
        park(&mut watches, 3, Query::Coordinates);
        assert_eq!(woken(&mut watches, &Change::Coordinate("n".into(), None)), [2, 3]);
        park(&mut watches, 4, Query::Coordinates);
        assert_eq!(woken(&mut watches, &Change::Node("n".into(), None)), [1, 4]);
    }

    #[test]
    fn prepared_query_wakes_query_readers_only() {
        let mut watches = Watches::default();
        for (call, query) in [(1, Query::PreparedQueries), (2, Query::Sessions), (3, Query::Services)] {
            park(&mut watches, call, query);
        }
        let change = Change::PreparedQuery(QueryId::from_random([7; 16]), None);
        assert_eq!(woken(&mut watches, &change), [1]);
    }

    #[test]
    fn shared_hold_wakes_its_own_reader() {
        let mut watches = Watches::default();
        let [one, other] = [1, 2].map(|number| SessionId::from_random([number; 16]));
        for (call, session) in [(1, one), (2, other)] {
            park(&mut watches, call, Query::HeldEntry { key: "a".into(), session });
        }
        assert_eq!(woken(&mut watches, &Change::SharedHold("a".into(), other, None)), [2]);
        assert_eq!(woken(&mut watches, &gone("a")), [1]);
    }

    #[test]
    fn prefix_matches_whole_characters() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Entries("ab".into()));
        assert_eq!(woken(&mut watches, &gone("aç")), Vec::<u64>::new());
        assert_eq!(woken(&mut watches, &gone("abç")), [1]);
    }

    #[test]
    fn batched_changes_wake_reader_once() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Entries("a".into()));
        for _ in 0..3 {
            watches.touch(&gone("a1"));
        }
        watches.touch(&Change::LockDelay("a2".into(), None::<LockDelay>));
        assert_eq!(watches.take_touched().len(), 1);
    }

    #[test]
    fn a_restore_wakes_everybody() {
        let mut watches = Watches::default();
        park(&mut watches, 1, Query::Entry("a".into()));
        park(&mut watches, 2, Query::Sessions);
        watches.touch(&Change::Cleared);
        let touched = watches.take_touched();
        assert_eq!(touched.iter().map(|parked| parked.from.call.0).collect::<Vec<_>>(), [1, 2]);
        assert!(touched.iter().all(|parked| parked.known == LogIndex(0)), "the old index no longer counts");
    }

    #[test]
    fn cancel_frees_all_reader_state() {
        let mut watches = Watches::default();
        for call in 1..=100 {
            park(&mut watches, call, Query::Entries(format!("prefix-{call}/").as_str().into()));
        }
        watches.cancel(call(1));
        assert_eq!(watches.len(), 99);
        watches.cancel_all(CALLER);
        assert_eq!(watches.len(), 0);
        assert!(watches.topics.is_empty() && watches.prefix_lengths.is_empty());
        assert!(watches.callers.is_empty() && watches.deadlines.is_empty());
    }

    #[test]
    fn readers_expire_in_deadline_order() {
        let mut watches = Watches::default();
        park(&mut watches, 3, Query::Nodes);
        park(&mut watches, 1, Query::Sessions);
        let due = watches.take_due(Time(0) + Duration::from_secs(2));
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].from, call(1));
        assert_eq!(watches.len(), 1);
    }
}
