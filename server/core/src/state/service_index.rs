//! The rows and the index of each service name, so that a blocking query on one service neither
//! reads nor waits for the others.
//!
//! A service's index is that of the last command that added, changed or removed one of its
//! instances, a check of an instance, or the node of an instance with its node-level checks. A
//! service without instances has the index of the extinction: the last command that removed the
//! last instance of any service.
//!
//! **The indexes are derived and not stored.** A server that loads its state does not know former
//! removals. Each index is then at least the newest index of the catalog at that time (the floor),
//! which wakes each blocking query once. Therefore two servers may have different indexes for a
//! service, but neither index is newer than the catalog: see [`State::least_index`].

use super::State;
use super::catalog::{Catalog, CheckKey, ServiceKey};
use super::rows::take_out;
use super::step::Step;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{LogIndex, NodeName};
use lockmesh_protocol::record::{Check, PROXY_OF, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a blocking query on one service depends on, by the service's folded name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceTopic {
    /// Its instances, with their nodes and checks: what its index counts.
    Instances(String),
    /// Its checks alone.
    Checks(String),
}

/// The rows of each service, by its folded name. No set is empty. A proxy is also an instance of
/// [`Service::proxies_of`] the service that it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceNames {
    instances: BTreeMap<String, BTreeSet<ServiceKey>>,
    checks: BTreeMap<String, BTreeSet<CheckKey>>,
}

/// The index of each service. It is no part of the replicated state: all values are equal.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceIndexes {
    /// By folded name, for services with instances that changed since the state was loaded.
    changed: BTreeMap<String, LogIndex>,
    /// The index of the last command that removed the last instance of a service.
    extinction: LogIndex,
    /// The minimum index of each service.
    floor: LogIndex,
}

impl PartialEq for ServiceIndexes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ServiceIndexes {}

impl ServiceIndexes {
    /// Raises the index of each service to at least this one.
    pub(super) fn raise(&mut self, to: LogIndex) {
        self.floor = self.floor.max(to);
    }
}

impl ServiceNames {
    /// Returns the names of these rows.
    pub(super) fn of(catalog: &Catalog) -> Self {
        let mut names = Self::default();
        catalog.services.iter().for_each(|(key, service)| names.add_instance(key, service));
        catalog.checks.iter().for_each(|(key, check)| names.add_check(key, check));
        names
    }

    fn add_instance(&mut self, key: &ServiceKey, service: &Service) {
        for name in folded_names(service) {
            self.instances.entry(name).or_default().insert(key.clone());
        }
    }

    fn add_check(&mut self, key: &CheckKey, check: &Check) {
        if !check.service_name.is_empty() {
            self.checks.entry(folded_name(&check.service_name)).or_default().insert(key.clone());
        }
    }
}

impl Catalog {
    pub(super) fn load_service(&mut self, key: ServiceKey, service: Option<Arc<Service>>) {
        if let Some(before) = self.services.remove(&key) {
            self.replaced.add(before.meta.values().chain(&before.tags));
            folded_names(&before).for_each(|name| take_out(&mut self.names.instances, &name, &key));
        }
        if let Some(service) = service {
            self.names.add_instance(&key, &service);
            self.services.insert(key, service);
        }
    }

    pub(super) fn load_check(&mut self, key: CheckKey, check: Option<Arc<Check>>) {
        if let Some(before) = self.checks.remove(&key) {
            self.replaced.add([&before.output, &before.notes, &before.definition]);
            take_out(&mut self.names.checks, &folded_name(&before.service_name), &key);
        }
        if let Some(check) = check {
            self.names.add_check(&key, &check);
            self.checks.insert(key, check);
        }
    }

    /// The instances of a service, ordered by folded node and id.
    pub(super) fn instances_of(&self, name: &str) -> impl Iterator<Item = (&ServiceKey, &Arc<Service>)> {
        let keys = self.names.instances.get(&folded_name(name)).into_iter().flatten();
        keys.map(|key| (key, &self.services[key]))
    }

    /// The checks with this service's name, ordered by folded node and id.
    pub(super) fn service_checks(&self, name: &str) -> impl Iterator<Item = &Arc<Check>> {
        let keys = self.names.checks.get(&folded_name(name)).into_iter().flatten();
        keys.map(|key| &self.checks[key])
    }

    /// The index of a service.
    pub(super) fn service_index(&self, name: &str) -> LogIndex {
        let name = folded_name(name);
        let ServiceIndexes { changed, extinction, floor } = &self.indexes;
        let own = match self.names.instances.contains_key(&name) {
            true => changed.get(&name).copied().unwrap_or_default(),
            false => *extinction,
        };
        own.max(*floor)
    }

    fn folded_names_on(&self, node: &NodeName) -> impl Iterator<Item = String> {
        self.services_of(node).flat_map(|(_, service)| folded_names(service))
    }

    /// The names of the service that a check of a node belongs to; all names on the node for a
    /// node-level check.
    fn folded_names_of_check(&self, node: &NodeName, check: &Check) -> Vec<String> {
        match &check.service_id {
            None => self.folded_names_on(node).collect(),
            Some(id) => {
                self.service(node, id).into_iter().flat_map(|service| folded_names(service)).collect()
            }
        }
    }
}

impl State {
    /// The newest index of all services.
    pub(super) fn catalog_index(&self) -> LogIndex {
        let tables = [Table::Services, Table::Checks, Table::Nodes];
        tables.map(|table| self.table_index(table)).into_iter().max().unwrap_or_default()
    }
}

/// Records the services that a change touches, before it is made.
pub(super) fn note_services(step: &mut Step<'_>, change: &Change) {
    let catalog = &step.state.catalog;
    match change {
        Change::Service(node, id, after) => {
            let before = catalog.services.get(&ServiceKey { node: node.clone(), id: id.clone() });
            let rows = before.into_iter().chain(after);
            step.services.extend(rows.flat_map(|service| folded_names(service)).map(ServiceTopic::Instances));
        }
        Change::Check(node, id, after) => {
            let before = catalog.checks.get(&CheckKey { node: node.clone(), id: id.clone() });
            for check in before.into_iter().chain(after) {
                let names = catalog.folded_names_of_check(node, check).into_iter();
                step.services.extend(names.map(ServiceTopic::Instances));
                step.services.insert(ServiceTopic::Checks(folded_name(&check.service_name)));
            }
        }
        Change::Node(node, _) => {
            step.services.extend(catalog.folded_names_on(node).map(ServiceTopic::Instances));
        }
        _ => {}
    }
}

/// Moves the index of every service that this command touched.
pub(super) fn move_service_indexes(step: &mut Step<'_>) {
    let catalog = &mut step.state.catalog;
    for topic in std::mem::take(&mut step.services) {
        if let ServiceTopic::Instances(name) = &topic {
            if catalog.names.instances.contains_key(name) {
                catalog.indexes.changed.insert(name.clone(), step.index);
            } else {
                catalog.indexes.changed.remove(name);
                catalog.indexes.extinction = step.index;
            }
        }
        step.touched_services.insert(topic);
    }
}

/// Returns the folded names under which a service is found.
fn folded_names(service: &Service) -> impl Iterator<Item = String> {
    let destination = service.meta.get(PROXY_OF).map(|destination| Service::proxies_of(destination));
    [Some(service.name.clone()), destination].into_iter().flatten().map(|name| folded_name(&name))
}

/// Returns the form of a service's name that is equal for all names of the same service.
pub(crate) fn folded_name(name: &str) -> String {
    name.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::Proposal;
    use crate::state::{Outputs, Removed};
    use lockmesh_protocol::command::{Command, Deregistration, Registration};
    use lockmesh_protocol::id::{CheckId, ServiceId, Term, WallTime};
    use lockmesh_protocol::query::{Query, Rows};
    use lockmesh_protocol::record::{CheckStatus, Node};

    #[derive(Default)]
    struct Run {
        state: State,
        index: u64,
        touched: BTreeSet<ServiceTopic>,
    }

    impl Run {
        /// Applies a command; returns its index.
        fn apply(&mut self, command: Command) -> LogIndex {
            self.index += 1;
            let (index, at) = (LogIndex(self.index), WallTime(1));
            let proposal = Proposal::new(None, at, command);
            self.touched.clear();
            let (changes, removed) = (&mut Vec::new(), &mut Removed::default());
            let outputs = Outputs { changes, removed, services: &mut self.touched };
            self.state.apply_keeping(index, Term(1), &proposal, outputs);
            assert_eq!(self.state.check(), Ok(()));
            index
        }

        fn register(&mut self, node: &str, service: Option<(&str, &str)>, checks: Vec<Check>) -> LogIndex {
            let name = NodeName::from(node);
            let service = service.map(|(id, service)| Service {
                port: 80,
                ..Service::of(name.clone(), ServiceId::from(id), service)
            });
            let node = Node::of(name, String::new(), "10.0.0.1");
            self.apply(Command::Register(Registration { node, skip_node_update: true, service, checks }))
        }

        fn deregister(&mut self, node: &str, service: Option<&str>, check: Option<&str>) -> LogIndex {
            let (service, check) = (service.map(ServiceId::from), check.map(CheckId::from));
            self.apply(Command::Deregister(Deregistration { node: node.into(), service, check }))
        }

        fn index(&self, name: &str) -> LogIndex {
            self.state.index_of(&Query::ServiceInstances(name.into()))
        }

        /// Returns a state that was loaded from the rows of this one.
        fn restarted(&self) -> Self {
            let mut state = State::new();
            self.state.rows().for_each(|row| state.load(row));
            assert_eq!(state, self.state);
            Self { state, index: self.index, touched: BTreeSet::new() }
        }
    }

    fn check(id: &str, service: Option<&str>, status: CheckStatus) -> Check {
        let check = Check::of("".into(), CheckId::from(id), status);
        Check { service_id: service.map(ServiceId::from), ..check }
    }

    /// Contract: 109.
    #[test]
    fn instances_and_checks_are_sorted() {
        let mut run = Run::default();
        let passing = |id, service| check(id, service, CheckStatus::Passing);
        for node in ["zb", "za"] {
            for id in ["s2", "s1", "S0"] {
                let checks = vec![passing("a", Some(id)), passing("z", None), passing("b", None)];
                run.register(node, Some((id, "web")), checks);
            }
        }
        run.register("za", Some(("other", "other")), Vec::new());
        let (_, Rows::Instances(rows)) = run.state.query(&Query::ServiceInstances("WEB".into())) else {
            panic!("it returns instances")
        };
        let places: Vec<_> = rows.iter().map(|row| format!("{}/{}", row.node.name, row.service.id)).collect();
        assert_eq!(places, ["za/S0", "za/s1", "za/s2", "zb/S0", "zb/s1", "zb/s2"]);
        let checks: Vec<_> = rows[0].checks.iter().map(|check| check.id.as_str()).collect();
        assert_eq!(checks, ["b", "z", "a"], "the check belongs to the last instance of each node");
        let checks: Vec<_> = rows[2].checks.iter().map(|check| check.id.as_str()).collect();
        assert_eq!(checks, ["b", "z"]);
        let (_, Rows::Checks(rows)) = run.state.query(&Query::ServiceChecks("Web".into())) else {
            panic!("it returns checks")
        };
        assert_eq!(rows.iter().map(|row| row.node.as_str()).collect::<Vec<_>>(), ["za", "zb"]);
    }

    /// Contract: 114.
    #[test]
    fn index_follows_own_service_only() {
        let mut run = Run::default();
        let web = run.register("n1", Some(("web", "web")), Vec::new());
        let other = run.register("n2", Some(("other", "other")), Vec::new());
        assert_eq!((run.index("WEB"), run.index("other")), (web, other));
        assert_eq!(run.touched, BTreeSet::from([ServiceTopic::Instances("other".into())]));
        run.register("n2", None, vec![check("alive", None, CheckStatus::Warning)]);
        run.register("n2", Some(("other", "other")), vec![check("up", Some("other"), CheckStatus::Critical)]);
        assert_eq!(run.index("web"), web);

        let own = run.register("n1", None, vec![check("up", Some("web"), CheckStatus::Passing)]);
        assert_eq!(run.index("web"), own);
        assert!(run.touched.contains(&ServiceTopic::Checks("web".into())));
        run.register("n1", None, vec![check("up", Some("web"), CheckStatus::Passing)]);
        assert_eq!(run.index("web"), own, "an unchanged check moves no index");
        let gone = run.deregister("n1", None, Some("up"));
        assert_eq!(run.index("web"), gone);
        assert!(run.touched.contains(&ServiceTopic::Checks("web".into())));
        run.register("n1", Some(("db", "db")), Vec::new());
        assert_eq!(run.index("web"), gone, "another service of the node");
        let of_node = run.register("n1", None, vec![check("alive", None, CheckStatus::Passing)]);
        assert_eq!((run.index("web"), run.index("db")), (of_node, of_node));
        assert!(!run.touched.contains(&ServiceTopic::Checks("web".into())));
        assert!(run.index("other") < of_node);
        let node = Node::of("n1".into(), String::new(), "10.0.0.9");
        let moved = Registration { node, skip_node_update: false, service: None, checks: Vec::new() };
        let moved = run.apply(Command::Register(moved));
        assert_eq!((run.index("web"), run.index("db")), (moved, moved));
        assert!(run.index("other") < moved);
    }

    /// Contract: 115.
    #[test]
    fn last_instance_leaves_removal_index() {
        let mut run = Run::default();
        run.register("n1", Some(("a", "web")), Vec::new());
        run.register("n2", Some(("b", "web")), Vec::new());
        assert_eq!(run.index("nothing"), LogIndex(0));
        let first = run.deregister("n1", Some("a"), None);
        assert_eq!((run.index("web"), run.index("nothing")), (first, LogIndex(0)));
        let last = run.deregister("n2", None, None);
        assert_eq!((run.index("web"), run.index("nothing")), (last, last));
        assert_eq!(run.touched, BTreeSet::from([ServiceTopic::Instances("web".into())]));
        run.register("n3", Some(("c", "other")), Vec::new());
        assert_eq!(run.index("web"), last);
        let renamed = run.register("n3", Some(("c", "new")), Vec::new());
        assert_eq!((run.index("other"), run.index("new")), (renamed, renamed));
        assert_eq!(run.state.catalog.indexes.changed.len(), 1, "only existing services are kept");
    }

    #[test]
    fn proxy_found_by_destination_service() {
        let mut run = Run::default();
        let proxy_of = |run: &mut Run, destination: &str| {
            let service = Service {
                meta: [(PROXY_OF.into(), destination.into())].into(),
                ..Service::of("n1".into(), "p".into(), "envoy")
            };
            let node = Node::of("n1".into(), String::new(), "10.0.0.1");
            run.apply(Command::Register(Registration {
                node,
                skip_node_update: true,
                service: Some(service),
                checks: Vec::new(),
            }))
        };
        let found = |run: &Run, name: &str| run.state.catalog.instances_of(name).count();
        let (of_web, of_db) = (Service::proxies_of("Web"), Service::proxies_of("db"));
        let first = proxy_of(&mut run, "web");
        assert_eq!((found(&run, &of_web), run.index(&of_web), run.index("envoy")), (1, first, first));
        let check = run.register("n1", None, vec![check("up", Some("p"), CheckStatus::Passing)]);
        assert_eq!((run.index(&of_web), run.restarted().index(&of_web)), (check, check));
        let moved = proxy_of(&mut run, "db");
        assert_eq!((found(&run, &of_web), found(&run, &of_db), found(&run, "envoy")), (0, 1, 1));
        assert_eq!((run.index(&of_web), run.index(&of_db)), (moved, moved));
        let gone = run.deregister("n1", Some("p"), None);
        assert_eq!((found(&run, &of_db), run.index(&of_db)), (0, gone));
    }

    #[test]
    fn failed_command_keeps_indexes() {
        let mut run = Run::default();
        let web = run.register("n1", Some(("web", "web")), Vec::new());
        run.register("n1", Some(("web", "other")), vec![check("up", Some("none"), CheckStatus::Passing)]);
        assert_eq!((run.index("web"), run.index("other")), (web, LogIndex(0)));
        assert!(run.touched.is_empty());
        assert_eq!(run.state.catalog.indexes.floor, LogIndex(0));
    }

    #[test]
    fn loaded_state_keeps_index_monotonic() {
        let mut run = Run::default();
        let web = run.register("n1", Some(("web", "web")), Vec::new());
        run.register("n2", Some(("gone", "gone")), Vec::new());
        let newest = run.deregister("n2", Some("gone"), None);
        let mut loaded = run.restarted();
        assert_eq!((loaded.index("web"), loaded.index("gone")), (newest, newest));
        let query = Query::ServiceInstances("web".into());
        // A reader that knows the loaded server's index waits at the other one, which keeps it.
        assert_eq!((run.index("web"), run.state.news(&query, newest)), (web, None));
        assert_eq!(run.state.least_index(&query, newest), newest);
        assert_eq!(run.state.least_index(&query, newest.next()), LogIndex(0), "of another state");
        for server in [&mut run, &mut loaded] {
            server.register("n2", Some(("other", "other")), Vec::new());
            assert_eq!(server.state.news(&query, newest), None);
            let changed = server.register("n1", None, vec![check("alive", None, CheckStatus::Passing)]);
            assert_eq!(server.state.news(&query, newest), Some(changed));
        }
    }

    /// The cost of reading one service does not depend on the number of the others.
    #[test]
    fn service_lookup_independent_of_count() {
        let mut catalog = Catalog::default();
        let mut run = Run::default();
        run.register("n1", Some(("web", "web")), Vec::new());
        let (_, web) = run.state.catalog.instances_of("web").next().expect("it is registered");
        for number in 0..10_000 {
            let id = ServiceId::from(format!("s{number}"));
            let service = Service { id: id.clone(), name: id.to_string(), ..Service::clone(web) };
            catalog.load_service(ServiceKey { node: "n1".into(), id }, Some(Arc::new(service)));
        }
        assert_eq!(catalog.names.instances.len(), 10_000);
        assert!(catalog.names.instances.values().all(|keys| keys.len() == 1));
        assert_eq!(catalog.instances_of("S77").count(), 1);
        assert_eq!(catalog.instances_of("web").count(), 0);
    }
}
