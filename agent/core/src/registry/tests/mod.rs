//! Services and checks in virtual time, with a catalog that replies at once or not at all.
//!
//! | module | contents |
//! |---|---|
//! | `followers` | what follows a service: aliases and sidecars |
//! | `restarts` | what continues across restarts |

mod followers;
mod restarts;

use super::*;
use crate::definitions::{
    CheckKind, Configured, Probe, ServiceRegistration, Sidecar, Target, Thresholds, sidecar_of,
};
use lockmesh_protocol::record::{Aggregate, SERF_HEALTH};
use std::collections::BTreeMap;

const SECOND: Duration = Duration::from_secs(1);

/// The registry of an agent, its data folder, its probes, and the servers' catalog of this node.
struct Stand {
    registry: Registry,
    services: BTreeMap<ServiceId, Service>,
    catalog: BTreeMap<CheckId, Check>,
    folder: (BTreeMap<ServiceId, StoredService>, BTreeMap<CheckId, StoredCheck>),
    /// The result of each run, by the check's id; passing by default.
    outcomes: BTreeMap<CheckId, CheckStatus>,
    /// Runs so far, with their times.
    ran: Vec<(Time, CheckId)>,
    is_down: bool,
    now: Time,
    notices: Vec<Notice>,
    /// The number of calls to the catalog.
    calls: usize,
    /// The number of checks written to the folder since the last start.
    stored: u32,
    /// The checks that were critical in the catalog, or removed from it: their sessions ended.
    ended: BTreeSet<CheckId>,
}

impl Stand {
    fn new() -> Self {
        Self::with(Limits::default(), BTreeMap::new())
    }

    fn with(limits: Limits, catalog: BTreeMap<CheckId, Check>) -> Self {
        let now = Time(7_000_000);
        let mut stand = Self {
            registry: Registry::new("node-one".into(), limits, 1, now, Stored::default()),
            services: BTreeMap::new(),
            catalog,
            folder: Default::default(),
            outcomes: BTreeMap::new(),
            ran: Vec::new(),
            is_down: false,
            now,
            notices: Vec::new(),
            calls: 0,
            stored: 0,
            ended: BTreeSet::new(),
        };
        stand.tick();
        stand
    }

    /// Starts the agent again, with the data folder that it left.
    fn restart(&mut self) {
        let (services, checks) = self.folder.clone();
        let stored = (services.into_values().collect(), checks.into_values().collect());
        let stored = Stored { services: stored.0, checks: stored.1, is_adopted: true };
        self.stored = 0;
        self.registry = Registry::new("node-one".into(), Limits::default(), 2, self.now, stored);
        self.tick();
    }

    /// Fires what is due, and executes its effects.
    fn tick(&mut self) {
        self.input(Input::Tick);
    }

    fn input(&mut self, input: Input) {
        self.act(|registry, now, outbox| registry.handle(now, input, outbox));
    }

    /// Changes the registry, and executes the effects.
    fn change<T>(&mut self, act: impl FnOnce(&mut Registry, Time, &mut Outbox) -> T) -> T {
        let result = self.act(act);
        self.tick();
        result
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Registry, Time, &mut Outbox) -> T) -> T {
        let mut outbox = Outbox::default();
        let result = act(&mut self.registry, self.now, &mut outbox);
        loop {
            self.registry.tables.assert_indexed();
            self.notices.append(&mut outbox.notices);
            for store in outbox.stores.drain(..) {
                match store {
                    Store::Service(id, Some(entry)) => drop(self.folder.0.insert(id, *entry)),
                    Store::Service(id, None) => drop(self.folder.0.remove(&id)),
                    Store::Check(id, Some(entry)) => {
                        self.stored += 1;
                        drop(self.folder.1.insert(id, *entry));
                    }
                    Store::Check(id, None) => drop(self.folder.1.remove(&id)),
                    Store::Adopted => {}
                }
            }
            let input = if let Some(order) = outbox.order.take() {
                self.execute(order)
            } else if let Some(run) = outbox.runs.pop() {
                self.ran.push((self.now, run.check.clone()));
                let status = self.outcomes.get(&run.check).copied().unwrap_or(CheckStatus::Passing);
                Input::Ran(run.id, Outcome { status, output: format!("{status:?}") })
            } else {
                return result;
            };
            self.registry.handle(self.now, input, &mut outbox);
        }
    }

    fn execute(&mut self, order: Order) -> Input {
        self.calls += 1;
        assert!(self.calls < 10_000, "an exchange that does not end");
        let down = || Unavailable::Unknown("no leader".into());
        match order {
            Order::ReadServices if self.is_down => Input::Services(Err(down())),
            Order::ReadChecks if self.is_down => Input::Checks(Err(down())),
            _ if self.is_down => Input::Written(Err(down())),
            Order::Register(service, checks) => {
                self.services.extend(service.map(|service| (service.id.folded(), service)));
                for mut check in checks {
                    if let Some(id) = &check.service_id {
                        // As the servers do: no check is written without its service.
                        let Some(service) = self.services.get(&id.folded()) else {
                            let unknown = lockmesh_protocol::reply::Refusal::MissingNode;
                            return Input::Written(Ok(Reply::Refused(unknown)));
                        };
                        check.service_name.clone_from(&service.name);
                        check.service_tags.clone_from(&service.tags);
                    }
                    if check.status == CheckStatus::Critical {
                        self.ended.insert(check.id.folded());
                    }
                    self.catalog.insert(check.id.folded(), check);
                }
                Input::Written(Ok(Reply::Done))
            }
            Order::DeregisterService(id) => {
                self.services.remove(&id);
                let is_of =
                    |check: &Check| check.service_id.as_ref().map(ServiceId::folded) == Some(id.clone());
                let gone = self.catalog.iter().filter(|(_, check)| is_of(check)).map(|(key, _)| key.clone());
                self.ended.extend(gone);
                self.catalog.retain(|_, check| !is_of(check));
                Input::Written(Ok(Reply::Done))
            }
            Order::DeregisterCheck(id) => {
                self.catalog.remove(&id);
                self.ended.insert(id);
                Input::Written(Ok(Reply::Done))
            }
            Order::ReadServices => {
                Input::Services(Ok(self.services.values().cloned().map(Arc::new).collect()))
            }
            Order::ReadChecks => Input::Checks(Ok(self.catalog.values().cloned().map(Arc::new).collect())),
        }
    }

    /// Lets this time pass.
    fn pass(&mut self, length: Duration) {
        let end = self.now + length;
        for ticks in 0.. {
            let Some(at) = self.registry.wakes_at().filter(|at| *at <= end) else { break };
            assert!(ticks < 10_000, "a timer does not advance");
            self.now = self.now.max(at);
            self.tick();
        }
        self.now = end;
    }

    fn register(&mut self, id: &str, ttl: Duration) -> Result<u64, RegistryError> {
        self.register_check(new(id, ttl))
    }

    fn register_check(&mut self, check: NewCheck) -> Result<u64, RegistryError> {
        self.change(|registry, now, outbox| registry.register_check(now, check, Source::Api, outbox))
    }

    fn register_service(&mut self, service: Service, checks: Vec<NewCheck>) {
        let registration = ServiceRegistration { service, checks, replaces_checks: false, sidecar: None };
        let registered = self.change(|registry, now, outbox| {
            registry.register_service(now, registration, Source::Api, outbox)
        });
        registered.expect("there is room");
    }

    fn deregister(&mut self, id: &str) -> bool {
        self.change(|registry, _, outbox| registry.deregister_check(&id.into(), outbox))
    }

    fn report(&mut self, id: &str, status: CheckStatus, output: &str) -> Result<u64, RegistryError> {
        self.change(|registry, now, outbox| registry.report(now, &id.into(), (status, output), outbox))
    }

    fn maintain(&mut self, reason: Option<&str>) {
        self.change(|registry, now, outbox| registry.maintain(now, reason, outbox));
    }

    /// Returns the status of a check in the catalog.
    fn status(&self, id: &str) -> Option<CheckStatus> {
        self.known(id).map(|(status, _)| status)
    }

    /// Returns the status and the output of a check in the catalog.
    fn known(&self, id: &str) -> Option<(CheckStatus, &str)> {
        self.catalog.get(&CheckId::from(id)).map(|check| (check.status, check.output.as_str()))
    }
}

fn new(id: &str, ttl: Duration) -> NewCheck {
    NewCheck::of(id.into(), CheckStatus::Passing, CheckKind::Ttl(ttl))
}

/// Returns a check that the agent runs every 10 s.
fn probe(id: &str) -> NewCheck {
    let target = Target::Tcp { address: "127.0.0.1:9".into(), tls: None };
    let kind = CheckKind::Probe(Probe { target, interval: SECOND * 10, timeout: None });
    NewCheck::of(id.into(), CheckStatus::Critical, kind)
}

fn web() -> Service {
    Service { tags: vec!["a".into()], port: 80, ..Service::of("node-one".into(), "web".into(), "web") }
}

/// Contract: 100.
#[test]
fn unreported_check_expires_once() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 10).expect("there is room");
    stand.pass(SECOND * 9);
    stand.report("app", CheckStatus::Passing, "fine").expect("it is registered");
    stand.pass(SECOND * 9);
    assert_eq!(stand.known("app").map(|(status, _)| status), Some(CheckStatus::Passing));
    stand.pass(SECOND * 50);
    let expired = "TTL expired (last output before timeout follows): fine";
    assert_eq!(stand.known("app"), Some((CheckStatus::Critical, expired)));
    let expiries = stand.notices.iter().filter(|notice| matches!(notice, Notice::Expired(_))).count();
    assert_eq!(expiries, 1);
    stand.report("app", CheckStatus::Passing, "").expect("it is registered");
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")), "a report restores it");
}

#[test]
fn output_change_alone_written_later() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 3_600).expect("there is room");
    for report in 0..100 {
        stand.report("app", CheckStatus::Passing, &format!("report {report}")).expect("it is registered");
        assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")));
        stand.pass(SECOND * 2);
    }
    stand.pass(SECOND * 101);
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "report 99")), "reports do not postpone it");
    let version = stand.report("app", CheckStatus::Warning, "slow").expect("it is registered");
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")));
    assert!(stand.registry.written() >= version);
}

#[test]
fn write_backoff_ignores_reports() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 100).expect("there is room");
    let version = stand.registry.written();
    (stand.is_down, stand.calls) = (true, 0);
    for _ in 0..300 {
        stand.report("app", CheckStatus::Warning, "").expect("it is registered");
        stand.pass(SECOND / 10);
    }
    assert!((8..20).contains(&stand.calls), "{} calls", stand.calls);
    let logged = |notice: &&Notice| matches!(notice, Notice::SyncFailed { is_new: true, .. });
    assert_eq!(stand.notices.iter().filter(logged).count(), 1);
    assert_eq!(stand.registry.written(), version);
    stand.is_down = false;
    stand.pass(SECOND * 5);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "")));
    assert_eq!(stand.notices.last(), Some(&Notice::SyncRecovered));
}

#[test]
fn leader_found_ends_write_backoff() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 200).expect("there is room");
    stand.is_down = true;
    stand.report("app", CheckStatus::Warning, "").expect("it is registered");
    stand.pass(SECOND * 40);
    // Found by mistake: one more attempt, and the pause after it is as long as before.
    stand.calls = 0;
    stand.input(Input::LeaderFound);
    stand.pass(SECOND / 5);
    assert_eq!(stand.calls, 1);
    stand.pass(SECOND * 2);
    assert_eq!(stand.calls, 1);
    stand.is_down = false;
    stand.input(Input::LeaderFound);
    stand.pass(SECOND / 5);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "")));
    assert_eq!(stand.notices.last(), Some(&Notice::SyncRecovered));
    // Without a failure there is nothing to repeat.
    stand.calls = 0;
    stand.input(Input::LeaderFound);
    stand.pass(SECOND);
    assert_eq!(stand.calls, 0);
}

#[test]
fn catalog_drift_corrected_within_120s() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("of-web", SECOND * 3_600)]);
    for id in ["lost", "changed"] {
        stand.register(id, SECOND * 3_600).expect("there is room");
    }
    let calls = stand.calls;
    stand.pass(SECOND * 120);
    assert!([2, 4].contains(&(stand.calls - calls)), "one or two comparisons that find nothing");

    stand.catalog.remove(&CheckId::from("lost"));
    stand.catalog.get_mut(&CheckId::from("changed")).expect("it is there").status = CheckStatus::Critical;
    stand.services.clear();
    stand.catalog.remove(&CheckId::from("of-web"));
    let foreign = Check::of("node-one".into(), "foreign".into(), CheckStatus::Critical);
    let health = Check::of("node-one".into(), SERF_HEALTH.into(), CheckStatus::Passing);
    stand.catalog.extend([foreign, health].map(|check| (check.id.clone(), check)));
    for id in ["db", "consul"] {
        stand.services.insert(id.into(), Service { id: id.into(), name: id.into(), ..web() });
    }
    stand.pass(SECOND * 120);
    for id in ["lost", "changed", "of-web", SERF_HEALTH] {
        assert_eq!(stand.status(id), Some(CheckStatus::Passing), "{id}");
    }
    let services: Vec<_> = stand.services.keys().map(ServiceId::as_str).collect();
    assert_eq!((services, stand.status("foreign")), (vec!["consul", "web"], None), "the agent owns its node");
}

/// A restore, or a node that was removed by hand.
#[test]
fn lost_catalog_restored_immediately() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("of-web", SECOND * 3_600)]);
    stand.pass(SECOND * 10);
    let deregistered = Service { id: "db".into(), name: "db".into(), ..web() };
    stand.services = [("db".into(), deregistered)].into();
    stand.catalog.clear();
    stand.input(Input::CatalogLost);
    stand.pass(SECOND / 2);
    assert_eq!(stand.services.keys().map(ServiceId::as_str).collect::<Vec<_>>(), ["web"]);
    assert_eq!(stand.status("of-web"), Some(CheckStatus::Passing));
    // Also if the last write failed, and waits.
    stand.is_down = true;
    stand.report("of-web", CheckStatus::Warning, "").expect("it is registered");
    stand.pass(SECOND * 40);
    stand.is_down = false;
    stand.services.clear();
    stand.catalog.clear();
    stand.input(Input::CatalogLost);
    stand.pass(SECOND);
    assert_eq!((stand.services.len(), stand.status("of-web")), (1, Some(CheckStatus::Warning)));
    let calls = stand.calls;
    stand.pass(SECOND * 50);
    assert_eq!(stand.calls, calls, "one comparison follows");
}

#[test]
fn agents_compare_a_lost_catalog_at_random_times() {
    let now = Time(7_000_000);
    let mut times: Vec<_> = (0..100)
        .map(|seed| {
            let mut registry = Registry::new("n".into(), Limits::default(), seed, now, Stored::default());
            // A second report delays nothing.
            (0..9).for_each(|_| registry.handle(now, Input::CatalogLost, &mut Outbox::default()));
            registry.wakes_at().expect("a comparison follows").since(now)
        })
        .collect();
    times.sort_unstable();
    assert!(times[99] < SECOND / 2, "services are right within 3 s of a restore");
    assert!(times[10] < times[50] && times[50] < times[90], "{times:?}");
}

/// What the comparison under way reads may be older than the loss.
#[test]
fn catalog_loss_repeats_running_comparison() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 3_600).expect("there is room");
    let mut outbox = Outbox::default();
    stand.registry.handle(stand.now, Input::CatalogLost, &mut outbox);
    stand.now = stand.registry.wakes_at().expect("a comparison follows");
    stand.registry.handle(stand.now, Input::Tick, &mut outbox);
    let read = outbox.order.take().expect("a comparison is due");
    let before = stand.execute(read);
    stand.registry.handle(stand.now, Input::CatalogLost, &mut outbox);
    let known = std::mem::take(&mut stand.catalog).into_values().map(Arc::new).collect();
    stand.registry.handle(stand.now, before, &mut outbox);
    stand.input(Input::Checks(Ok(known)));
    stand.pass(SECOND);
    assert_eq!(stand.status("app"), Some(CheckStatus::Passing));
}

#[test]
fn undo_restores_previous_state() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("kept", SECOND * 3_600), new("dropped", SECOND * 3_600)]);
    let before = (stand.registry.services(), stand.registry.checks(), stand.catalog.clone());
    let change = |stand: &mut Stand, service: Service, checks: Vec<NewCheck>| {
        let new = ServiceRegistration { service, checks, replaces_checks: true, sidecar: None };
        let (version, undo) = stand.change(|registry, now, outbox| {
            Undo::of(registry, now, |registry| registry.register_service(now, new, Source::Api, outbox))
        });
        version.expect("there is room");
        undo
    };
    let folder = stand.folder.clone();
    let renamed = Service { name: "other".into(), ..web() };
    let first = change(&mut stand, renamed, vec![new("kept", SECOND * 10), probe("added")]);
    let db = Service { id: "db".into(), name: "db".into(), ..web() };
    let second = change(&mut stand, db, vec![new("of-db", SECOND * 10)]);
    assert_eq!((stand.services.len(), stand.status("dropped")), (2, None));
    for undo in [second, first] {
        stand.change(|registry, now, outbox| undo.take_back(registry, now, outbox));
    }
    stand.pass(SECOND * 30);
    assert_eq!((stand.registry.services(), stand.registry.checks(), stand.catalog.clone()), before);
    assert_eq!(stand.folder, folder);
    // A report in between stays.
    let undo = change(&mut stand, web(), vec![new("kept", SECOND * 10)]);
    stand.report("kept", CheckStatus::Warning, "slow").expect("it is registered");
    stand.change(|registry, now, outbox| undo.take_back(registry, now, outbox));
    assert_eq!(stand.known("kept"), Some((CheckStatus::Warning, "slow")));
}

#[test]
fn foreign_tags_need_tag_override() {
    let mut stand = Stand::new();
    let free = Service { id: "free".into(), name: "free".into(), enable_tag_override: true, ..web() };
    stand.register_service(free, vec![]);
    stand.register_service(web(), vec![new("of-web", SECOND * 3_600)]);
    for service in stand.services.values_mut() {
        service.tags = vec!["b".into()];
    }
    stand.pass(SECOND * 120);
    let tags = |services: Vec<Service>| services.into_iter().map(|service| service.tags[0].clone());
    assert_eq!(tags(stand.registry.services()).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(tags(stand.services.values().cloned().collect()).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(stand.folder.0[&ServiceId::from("free")].service.tags, ["b"]);
}

#[test]
fn fresh_agent_adopts_catalog_once() {
    let mut earlier = Stand::new();
    earlier.register_service(web(), vec![new("of-web", SECOND * 10), probe("run")]);
    earlier.register("app", SECOND * 10).expect("there is room");
    earlier.maintain(Some("disk"));

    let mut next = Stand::with(Limits::default(), BTreeMap::new());
    (next.services, next.catalog) = (earlier.services, earlier.catalog);
    next.registry = Registry::new("node-one".into(), Limits::default(), 1, next.now, Stored::default());
    next.calls = 0;
    next.tick();
    let ids =
        |stand: &Stand| stand.registry.checks().iter().map(|check| check.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&next), [NODE_MAINTENANCE, "app", "of-web"], "what it would have to run is removed");
    assert_eq!((next.status("run"), next.calls), (None, 3));
    let mut late = next.catalog[&CheckId::from("app")].clone();
    late.id = "late".into();
    next.catalog.insert("late".into(), late);
    next.pass(SECOND * 9);
    assert_eq!(next.status("app"), Some(CheckStatus::Passing));
    next.pass(SECOND * 2);
    assert_eq!(next.known("app"), Some((CheckStatus::Critical, "TTL expired")));
    let refused = next.report(NODE_MAINTENANCE, CheckStatus::Passing, "");
    assert_eq!(refused, Err(RegistryError::NoTtl(NODE_MAINTENANCE.into())));
    // Removed here while the catalog is down: it is not adopted again.
    next.is_down = true;
    assert!(next.deregister("app"));
    next.maintain(None);
    next.pass(SECOND * 150);
    next.is_down = false;
    next.pass(SECOND * 150);
    assert_eq!(next.status("late"), None, "it came later, so the agent does not own it");
    assert_eq!(
        (ids(&next), next.known("app"), next.known(NODE_MAINTENANCE)),
        (vec!["of-web".into()], None, None)
    );
}

#[test]
fn changes_during_write_written_afterwards() {
    let mut stand = Stand::new();
    let begin = |stand: &mut Stand| {
        let mut outbox = Outbox::default();
        stand.registry.handle(stand.now, Input::Tick, &mut outbox);
        outbox.order
    };
    let quietly = |stand: &mut Stand, ttl: u64| {
        let check = new("app", SECOND * u32::try_from(ttl).expect("it is small"));
        let registered = stand.registry.register_check(stand.now, check, Source::Api, &mut Outbox::default());
        registered.expect("there is room");
    };
    quietly(&mut stand, 10);
    let written = begin(&mut stand).expect("it is due");
    let news = (CheckStatus::Critical, "");
    stand.registry.report(stand.now, &"app".into(), news, &mut Outbox::default()).expect("it is registered");
    assert_eq!(begin(&mut stand), None, "one call at a time");
    let reply = stand.execute(written);
    stand.input(reply);
    stand.pass(Duration::ZERO);
    assert_eq!(stand.known("app"), Some((CheckStatus::Critical, "")));

    assert!(stand.registry.deregister_check(&"app".into(), &mut Outbox::default()));
    let removed = begin(&mut stand).expect("it is due");
    quietly(&mut stand, 10);
    let reply = stand.execute(removed);
    stand.input(reply);
    stand.pass(Duration::ZERO);
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")), "it is registered again");
}

#[test]
fn service_reregistered_during_removal_survives() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("of-web", SECOND * 10), new("dropped", SECOND * 10)]);
    let mut outbox = Outbox::default();
    assert!(stand.registry.deregister_service(&"web".into(), &mut outbox));
    stand.registry.handle(stand.now, Input::Tick, &mut outbox);
    let removed = outbox.order.take().expect("it is due");
    let registration = ServiceRegistration {
        service: web(),
        checks: vec![new("of-web", SECOND * 10)],
        replaces_checks: false,
        sidecar: None,
    };
    stand
        .registry
        .register_service(stand.now, registration, Source::Api, &mut outbox)
        .expect("there is room");
    let reply = stand.execute(removed);
    stand.input(reply);
    stand.pass(Duration::ZERO);
    assert_eq!(stand.status("of-web"), Some(CheckStatus::Passing));
    assert_eq!((stand.services.len(), stand.status("dropped")), (1, None));
}

#[test]
fn rejected_write_triggers_comparison() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("of-web", SECOND * 100)]);
    stand.services.clear();
    stand.catalog.clear();
    let version = stand.report("of-web", CheckStatus::Critical, "").expect("it is registered");
    assert!(matches!(stand.notices.last(), Some(Notice::SyncFailed { is_new: true, .. })));
    assert!(stand.registry.written() < version);
    stand.pass(SECOND);
    assert_eq!(stand.status("of-web"), Some(CheckStatus::Critical));
    assert!(stand.registry.written() >= version);
}

#[test]
fn output_service_and_check_limits() {
    let limits = Limits { max_checks: 1, max_services: 1, max_output_bytes: 7, ..Limits::default() };
    let mut stand = Stand::with(limits, BTreeMap::new());
    stand.register("a", SECOND * 10).expect("there is room");
    stand.register("a", SECOND * 10).expect("it needs no additional room");
    assert_eq!(stand.register("b", SECOND * 10), Err(RegistryError::TooManyChecks(1)));
    stand.report("a", CheckStatus::Warning, &"é".repeat(8)).expect("it is registered");
    let truncated = "ééé ... (captured 6 of 16 bytes)";
    assert_eq!(stand.known("a"), Some((CheckStatus::Warning, truncated)));
    let unknown = stand.report("b", CheckStatus::Passing, "");
    assert_eq!(unknown, Err(RegistryError::NoTtl("b".into())));

    let mut try_service = |service: Service, checks: Vec<NewCheck>| {
        let registration = ServiceRegistration { service, checks, replaces_checks: false, sidecar: None };
        stand
            .change(|registry, now, outbox| registry.register_service(now, registration, Source::Api, outbox))
    };
    assert_eq!(try_service(web(), vec![probe("p")]), Err(RegistryError::TooManyChecks(1)));
    try_service(web(), vec![]).expect("there is room");
    try_service(web(), vec![]).expect("it needs no additional room");
    let db = Service { id: "db".into(), ..web() };
    assert_eq!(try_service(db, vec![]), Err(RegistryError::TooManyServices(1)));
    let of_no_service = NewCheck { service: Some("db".into()), ..new("a", SECOND) };
    assert_eq!(stand.register_check(of_no_service), Err(RegistryError::NoService("db".into())));
    assert_eq!((stand.registry.services().len(), stand.registry.checks().len()), (1, 1));
}

#[test]
fn reregistered_check_keeps_status() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 10).expect("there is room");
    stand.report("app", CheckStatus::Warning, "slow").expect("it is registered");
    stand.register("app", SECOND * 20).expect("it is there");
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")));
    stand.pass(SECOND * 19);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")), "its TTL restarted");
    stand.pass(SECOND * 2);
    assert_eq!(stand.status("app"), Some(CheckStatus::Critical));
}

#[test]
fn maintenance_keeps_first_reason() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![]);
    let default = |of: &str| maintenance_notes("", of);
    for (reason, is_there) in [(Some(""), true), (Some("disk"), true), (None, false), (None, false)] {
        stand.maintain(reason);
        stand
            .change(|registry, now, outbox| registry.maintain_service(now, &"web".into(), reason, outbox))
            .expect("it is registered");
        for (id, of) in [(NODE_MAINTENANCE, "node"), ("_service_maintenance:web", "service")] {
            let known = stand.catalog.get(&CheckId::from(id));
            assert_eq!(
                known.map(|check| (check.status, check.notes.clone())),
                is_there.then(|| (CheckStatus::Critical, default(of))),
                "{id}"
            );
        }
        let health = stand.registry.service_health(&"web".into()).expect("it is registered");
        let expected = if is_there { Aggregate::Maintenance } else { Aggregate::Passing };
        assert_eq!(health.aggregate, expected);
    }
    stand.notices.retain(|notice| !matches!(notice, Notice::Written | Notice::Registered(_)));
    assert_eq!(stand.notices, [Notice::MaintenanceBegan(default("node")), Notice::MaintenanceEnded]);
    let unknown =
        stand.change(|registry, now, outbox| registry.maintain_service(now, &"db".into(), Some(""), outbox));
    assert_eq!(unknown, Err(RegistryError::UnknownService("db".into())));
}

#[test]
fn service_update_keeps_unnamed_checks() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("one", SECOND * 100), new("two", SECOND * 100)]);
    stand.report("one", CheckStatus::Warning, "slow").expect("it is registered");
    let critical = NewCheck { status: CheckStatus::Critical, ..new("one", SECOND * 100) };
    let changed = Service { tags: vec!["b".into()], ..web() };
    stand.register_service(changed.clone(), vec![critical.clone()]);
    assert_eq!(stand.known("one"), Some((CheckStatus::Warning, "slow")));
    assert_eq!(stand.catalog[&CheckId::from("two")].service_tags, ["b"], "the catalog shows the new tags");
    let registration = ServiceRegistration {
        service: changed,
        checks: vec![critical],
        replaces_checks: true,
        sidecar: None,
    };
    stand
        .change(|registry, now, outbox| registry.register_service(now, registration, Source::Api, outbox))
        .expect("there is room");
    assert_eq!((stand.status("one"), stand.status("two")), (Some(CheckStatus::Warning), None));
}

/// Contract: 98.
#[test]
fn check_runs_spread_then_periodic() {
    let limits = Limits { max_running: 2, ..Limits::default() };
    let mut stand = Stand::with(limits, BTreeMap::new());
    for check in 0..20 {
        stand.register_check(probe(&format!("p{check:02}"))).expect("there is room");
    }
    stand.pass(SECOND * 10);
    let spread = |ran: &[(Time, CheckId)]| ran.iter().map(|(at, _)| *at).collect::<BTreeSet<_>>().len();
    assert_eq!((stand.ran.len(), spread(&stand.ran)), (20, 20));
    stand.pass(SECOND * 90);
    for check in stand.registry.checks() {
        let times: Vec<_> = stand.ran.iter().filter(|(_, ran)| *ran == check.id).map(|(at, _)| *at).collect();
        assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) == SECOND * 10), "{times:?}");
        assert_eq!(times.len(), 10, "{}", check.id);
    }
}

#[test]
fn concurrent_check_runs_are_limited() {
    let limits = Limits { max_running: 2, ..Limits::default() };
    let mut registry = Registry::new(
        "node-one".into(),
        limits,
        1,
        Time(0),
        Stored { is_adopted: true, ..Stored::default() },
    );
    let mut outbox = Outbox::default();
    let register = |registry: &mut Registry, now, id, outbox: &mut Outbox| {
        registry.register_check(now, probe(id), Source::Api, outbox).expect("there is room");
    };
    for id in ["a", "b", "c"] {
        register(&mut registry, Time(0), id, &mut outbox);
    }
    let late = Time(0) + SECOND * 20;
    registry.handle(late, Input::Tick, &mut outbox);
    assert_eq!((outbox.runs.len(), registry.counts()[2], registry.next_run()), (2, 2, None));
    let (first, second) = (outbox.runs.remove(0), outbox.runs.remove(0));
    // Registered again during its run with another definition: the result is of the old one.
    let CheckKind::Probe(old) = probe(first.check.as_str()).kind else { panic!("it is a probe") };
    let kind = CheckKind::Probe(Probe { interval: SECOND * 11, ..old });
    let changed = NewCheck { kind, ..probe(first.check.as_str()) };
    registry.register_check(late, changed, Source::Api, &mut outbox).expect("there is room");
    register(&mut registry, late, second.check.as_str(), &mut outbox);
    let failed = Outcome { status: CheckStatus::Critical, output: "refused".into() };
    registry.handle(late + SECOND * 20, Input::Ran(first.id, failed.clone()), &mut outbox);
    let output = |registry: &Registry, id: &CheckId| {
        registry.checks().into_iter().find(|check| check.id == *id).expect("it is there").output
    };
    assert_eq!(output(&registry, &first.check), "");
    assert_eq!(outbox.runs.len(), 1, "one place is free, and two checks are due");
    registry.handle(late + SECOND * 20, Input::Ran(second.id, failed.clone()), &mut outbox);
    assert_eq!(output(&registry, &second.check), "refused");
    registry.handle(late + SECOND * 20, Input::Ran(second.id, failed), &mut outbox);
    assert_eq!((outbox.runs.len(), registry.counts()[2]), (2, 2), "a result counts once");
}

#[test]
fn restored_checks_run_immediately_then_spread() {
    const CHECKS: usize = 300;
    let interval = SECOND * 10;
    let mut stand = Stand::new();
    for check in 0..CHECKS {
        stand.register_check(probe(&format!("p{check:03}"))).expect("there is room");
    }
    stand.pass(interval);
    let began = stand.now;
    stand.ran.clear();
    stand.restart();
    stand.pass(SECOND / 5);
    let ran: BTreeSet<_> = stand.ran.iter().map(|(_, check)| check).collect();
    assert_eq!(ran.len(), CHECKS, "the real status is known soon");
    // Fails right after its first run.
    stand.outcomes.insert("p250".into(), CheckStatus::Critical);
    // Registered again before the second run, which does not put it off.
    stand.register_check(probe("p251")).expect("it is registered");
    stand.pass(interval);
    assert_eq!(stand.status("p250"), Some(CheckStatus::Critical));
    stand.pass(3 * interval);
    let mut runs = BTreeMap::<_, Vec<_>>::new();
    for (at, check) in &stand.ran {
        runs.entry(check.clone()).or_default().push(*at);
    }
    for (check, times) in &runs {
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1].since(pair[0])).collect();
        assert!(gaps[0] <= interval && gaps[1..].iter().all(|gap| *gap == interval), "{check}: {gaps:?}");
    }
    // Three are expected in a tenth of a second.
    let mut starts = BTreeMap::<_, usize>::new();
    for (at, _) in stand.ran.iter().filter(|(at, _)| *at >= began + 3 * interval) {
        *starts.entry(at.0 / 100_000).or_default() += 1;
    }
    let most = starts.values().max().copied();
    assert!(most.is_some_and(|most| most <= 12) && starts.len() >= 90, "{most:?} of {}", starts.len());
}

#[test]
fn restart_keeps_status_until_first_result() {
    let mut stand = Stand::new();
    let thresholds = Thresholds { failures_before_critical: 2, ..Thresholds::default() };
    let checks = vec![NewCheck { thresholds, ..probe("run") }, new("app", SECOND * 30)];
    stand.register_service(web(), checks);
    stand.pass(SECOND * 10);
    stand.report("app", CheckStatus::Warning, "slow").expect("it is registered");
    let (services, catalog) = (stand.registry.services(), stand.catalog.clone());
    stand.pass(SECOND * 25);
    (stand.calls, stand.ran) = (0, Vec::new());
    stand.outcomes.insert("run".into(), CheckStatus::Critical);
    stand.restart();
    assert_eq!((stand.registry.services(), &stand.catalog), (services, &catalog));
    assert_eq!(stand.calls, 2, "the catalog is compared, and up to date");
    stand.pass(SECOND / 5);
    assert_eq!((stand.ran.len(), stand.status("run")), (1, Some(CheckStatus::Passing)), "one failure of two");
    stand.pass(SECOND * 10);
    assert_eq!(stand.status("run"), Some(CheckStatus::Critical));
    stand.pass(SECOND * 15);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")), "one TTL more");
    stand.pass(SECOND * 5);
    let expired = "TTL expired (last output before timeout follows): slow";
    assert_eq!(stand.known("app"), Some((CheckStatus::Critical, expired)));
}

/// Contract: 87.
#[test]
fn restart_keeps_services_maintenance_and_reports() {
    let mut stand = Stand::new();
    let app = NewCheck { status: CheckStatus::Critical, ..new("app", SECOND * 30) };
    stand.register_service(web(), vec![app]);
    stand.report("app", CheckStatus::Passing, "fine").expect("it is registered");
    stand.maintain(Some("disk"));
    stand
        .change(|registry, now, outbox| registry.maintain_service(now, &"web".into(), Some("disk"), outbox))
        .expect("it is registered");
    let kept = (stand.registry.services(), stand.registry.checks());
    assert_eq!(kept.1.len(), 3);
    stand.ended.clear();
    stand.restart();
    stand.pass(SECOND * 29);
    assert_eq!((stand.registry.services(), stand.registry.checks()), kept);
    assert_eq!((stand.known("app"), stand.ended.len()), (Some((CheckStatus::Passing, "fine")), 0));
}

/// Contract: 88.
#[test]
fn restart_ends_session_after_failed_run() {
    let mut stand = Stand::new();
    let CheckKind::Probe(every_10s) = probe("run").kind else { panic!("it is a probe") };
    let kind = CheckKind::Probe(Probe { interval: SECOND * 60, ..every_10s });
    stand.register_service(web(), vec![NewCheck { kind, ..probe("run") }]);
    stand.pass(SECOND * 60);
    for (outcome, ended) in [(CheckStatus::Passing, 0), (CheckStatus::Critical, 1)] {
        stand.outcomes.insert("run".into(), outcome);
        stand.ended.clear();
        stand.restart();
        assert!(stand.ended.is_empty(), "nothing is known before the first run");
        stand.pass(SECOND * 2);
        assert_eq!(stand.ended.len(), ended, "{outcome:?}");
    }
}

/// Contract: 130.
#[test]
fn critical_status_written_after_election() {
    let mut stand = Stand::new();
    stand.register_service(web(), vec![new("app", SECOND * 20), probe("run")]);
    stand.pass(SECOND * 10);
    stand.ended.clear();
    stand.is_down = true;
    stand.outcomes.insert("run".into(), CheckStatus::Critical);
    stand.pass(SECOND * 30);
    let is_critical = |check: Check| check.status == CheckStatus::Critical;
    assert!(stand.registry.checks().into_iter().all(is_critical), "the agent needs no leader");
    assert_eq!((stand.status("app"), stand.ended.len()), (Some(CheckStatus::Passing), 0));
    stand.is_down = false;
    stand.pass(SECOND * 5);
    assert_eq!(stand.ended, ["app", "run"].map(CheckId::from).into());
}

#[test]
fn configuration_wins_and_reload_keeps_status() {
    let mut stand = Stand::new();
    let configured = |checks: Vec<NewCheck>| {
        let service = ServiceRegistration { service: web(), checks, replaces_checks: true, sidecar: None };
        Configured { services: vec![service], checks: vec![new("node", SECOND * 100)] }
    };
    let configure = |stand: &mut Stand, configured: Configured| {
        stand
            .change(|registry, now, outbox| registry.configure(now, configured, outbox))
            .expect("there is room");
    };
    stand.register("node", SECOND * 5).expect("there is room");
    configure(&mut stand, configured(vec![new("one", SECOND * 100), new("two", SECOND * 100)]));
    stand.register("api", SECOND * 100).expect("there is room");
    stand.report("one", CheckStatus::Warning, "slow").expect("it is registered");
    stand.restart();
    configure(&mut stand, configured(vec![new("one", SECOND * 100)]));
    assert_eq!(stand.known("one"), Some((CheckStatus::Warning, "slow")));
    assert_eq!(stand.status("two"), None);
    stand.pass(SECOND * 50);
    assert_eq!(stand.status("node"), Some(CheckStatus::Passing), "the file's TTL applies");
    let stray = NewCheck { service: Some("nowhere".into()), ..new("stray", SECOND) };
    let refused = Configured { services: Vec::new(), checks: vec![stray] };
    let version = stand.registry.version();
    let refused = stand.change(|registry, now, outbox| registry.configure(now, refused, outbox));
    assert_eq!(refused, Err(RegistryError::NoService("nowhere".into())));
    assert_eq!((stand.registry.version(), stand.status("one")), (version, Some(CheckStatus::Warning)));
    configure(&mut stand, Configured::default());
    let left: Vec<_> = stand.catalog.keys().map(CheckId::as_str).collect();
    assert_eq!((left, stand.services.len(), stand.folder.1.len()), (vec!["api"], 0, 1));
}

/// Contract: 90.
#[test]
fn prolonged_critical_check_deregisters_service() {
    let mut stand = Stand::new();
    let reaped = |check: NewCheck| NewCheck { deregister_after: Some(SECOND), ..check };
    stand.outcomes.insert("down".into(), CheckStatus::Critical);
    stand.register_service(web(), vec![reaped(probe("down"))]);
    let db = Service { id: "db".into(), name: "db".into(), ..web() };
    let idle = NewCheck { status: CheckStatus::Critical, ..new("idle", SECOND * 300) };
    stand.register_service(db, vec![reaped(idle)]);
    stand.register_check(reaped(probe("of-node"))).expect("there is room");
    stand.pass(SECOND * 59);
    assert_eq!(stand.services.len(), 2);
    stand.pass(SECOND * 11);
    assert_eq!(stand.services.keys().map(ServiceId::as_str).collect::<Vec<_>>(), ["db"]);
    assert!(stand.notices.contains(&Notice::Reaped("web".into(), "down".into())));
    stand.pass(SECOND * 200);
    assert_eq!(stand.services.len(), 1, "critical from its registration is not a finding");
    stand.pass(SECOND * 100);
    assert_eq!((stand.services.len(), stand.catalog.len()), (0, 1));
}

#[test]
fn moved_check_survives_service_removal() {
    let mut stand = Stand::new();
    let db = Service { id: "db".into(), name: "db".into(), ..web() };
    stand.register_service(web(), vec![new("app", SECOND * 3_600)]);
    stand.register_service(db, vec![]);
    let mut outbox = Outbox::default();
    let moved = NewCheck { service: Some("db".into()), ..new("app", SECOND * 3_600) };
    stand.registry.register_check(stand.now, moved, Source::Api, &mut outbox).expect("there is room");
    assert!(stand.registry.deregister_service(&"web".into(), &mut outbox));
    stand.registry.handle(stand.now, Input::Tick, &mut outbox);
    let first = outbox.order.take().expect("it is due");
    assert!(matches!(first, Order::Register(None, _)), "{first:?}");
    let reply = stand.execute(first);
    stand.input(reply);
    assert_eq!(stand.status("app"), Some(CheckStatus::Passing));
    assert_eq!(stand.services.len(), 1);
}

#[test]
fn ids_are_case_insensitive() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 3_600).expect("there is room");
    stand.register("APP", SECOND * 3_600).expect("it is the same");
    assert_eq!(stand.registry.checks().len(), 1);
    stand.register_service(web(), vec![]);
    stand.register_service(
        Service { id: "WEB".into(), port: 81, ..web() },
        vec![new("of-web", SECOND * 3_600)],
    );
    assert_eq!(stand.registry.services().len(), 1);
    assert_eq!(stand.status("of-web"), Some(CheckStatus::Passing));
    let respelled = NewCheck { name: "of web".into(), ..new("OF-WEB", SECOND * 3_600) };
    let registration =
        ServiceRegistration { service: web(), checks: vec![respelled], replaces_checks: true, sidecar: None };
    stand
        .change(|registry, now, outbox| registry.register_service(now, registration, Source::Api, outbox))
        .expect("there is room");
    stand.report("of-WEB", CheckStatus::Warning, "").expect("it is registered");
    assert_eq!(stand.registry.checks().len(), 2, "it is named again, and not dropped");
    // Another client wrote the same entries in another spelling.
    let check = stand.catalog.remove(&CheckId::from("app")).expect("it is there");
    stand.catalog.insert("APP".into(), Check { id: "APP".into(), ..check });
    let health = Check::of("node-one".into(), "SERFHEALTH".into(), CheckStatus::Passing);
    stand.catalog.insert(health.id.clone(), health);
    stand.pass(SECOND * 120);
    assert_eq!(stand.status("SERFHEALTH"), Some(CheckStatus::Passing));
    assert!(!stand.notices.iter().any(|notice| matches!(notice, Notice::Foreign(_))));
}

#[test]
fn configured_check_keeps_catalog_status() {
    let mut earlier = Stand::new();
    earlier.register_check(probe("run")).expect("there is room");
    earlier.pass(SECOND * 10);
    let mut next = Stand::with(Limits::default(), BTreeMap::new());
    next.catalog = earlier.catalog;
    // An agent without its folder, and with the check in its configuration.
    next.registry = Registry::new("node-one".into(), Limits::default(), 1, next.now, Stored::default());
    let configured = Configured { services: vec![], checks: vec![probe("run")] };
    next.change(|registry, now, outbox| registry.configure(now, configured, outbox)).expect("there is room");
    assert_eq!(next.status("run"), Some(CheckStatus::Passing));
    next.outcomes.insert("run".into(), CheckStatus::Critical);
    next.pass(SECOND * 10);
    assert_eq!(next.status("run"), Some(CheckStatus::Critical));
}

#[test]
fn large_outputs_split_into_commands() {
    let limits = Limits { max_output_bytes: 1 << 20, ..Limits::default() };
    let mut stand = Stand::with(limits, BTreeMap::new());
    stand.is_down = true;
    for check in 0..8 {
        stand.register(&format!("c{check}"), SECOND * 3_600).expect("there is room");
        let output = "x".repeat(200 << 10);
        stand.report(&format!("c{check}"), CheckStatus::Warning, &output).expect("it is registered");
    }
    (stand.is_down, stand.calls) = (false, 0);
    stand.pass(SECOND * 5);
    assert_eq!(stand.catalog.len(), 8);
    assert!(stand.calls >= 4, "{} calls", stand.calls);
}

#[test]
fn redefinition_waits_for_running_check() {
    let stored = Stored { is_adopted: true, ..Stored::default() };
    let mut registry = Registry::new("node-one".into(), Limits::default(), 1, Time(0), stored);
    let mut outbox = Outbox::default();
    let register = |registry: &mut Registry, interval: Duration, now: Time| {
        let CheckKind::Probe(old) = probe("app").kind else { panic!("it is a probe") };
        let check = NewCheck { kind: CheckKind::Probe(Probe { interval, ..old }), ..probe("app") };
        registry.register_check(now, check, Source::Api, &mut Outbox::default()).expect("there is room");
    };
    register(&mut registry, SECOND * 10, Time(0));
    let late = Time(0) + SECOND * 20;
    registry.handle(late, Input::Tick, &mut outbox);
    let [run] = &outbox.runs.split_off(0)[..] else { panic!("one run is due") };
    register(&mut registry, SECOND * 11, late);
    registry.handle(late + SECOND * 20, Input::Tick, &mut outbox);
    assert_eq!((outbox.runs.len(), registry.counts()[2]), (0, 1));
    let outcome = Outcome { status: CheckStatus::Passing, output: String::new() };
    registry.handle(late + SECOND * 20, Input::Ran(run.id, outcome), &mut outbox);
    assert_eq!((outbox.runs.len(), registry.counts()[2]), (1, 1));
}
