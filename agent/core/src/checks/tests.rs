//! Checks in virtual time, with a catalog that replies at once or not at all.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The checks of an agent, and the servers' catalog of this node.
struct Stand {
    checks: Checks,
    catalog: BTreeMap<CheckId, Check>,
    is_down: bool,
    now: Time,
    notices: Vec<Notice>,
    /// The number of calls to the catalog.
    calls: usize,
}

impl Stand {
    fn new() -> Self {
        Self::with(CheckLimits::default(), BTreeMap::new())
    }

    fn with(limits: CheckLimits, catalog: BTreeMap<CheckId, Check>) -> Self {
        let now = Time(7_000_000);
        let checks = Checks::new("node-one".into(), limits, 1, now);
        let mut stand = Self { checks, catalog, is_down: false, now, notices: Vec::new(), calls: 0 };
        stand.tick();
        stand
    }

    /// Fires what is due, and executes its orders.
    fn tick(&mut self) {
        let mut outbox = Outbox::default();
        self.checks.handle(self.now, Input::Tick, &mut outbox);
        while let Some(order) = outbox.order.take() {
            let input = self.execute(order);
            self.checks.handle(self.now, input, &mut outbox);
        }
        self.notices.append(&mut outbox.notices);
    }

    fn execute(&mut self, order: Order) -> Input {
        self.calls += 1;
        let down = || Unavailable::Unknown("no leader".into());
        match order {
            Order::Read if self.is_down => Input::Read(Err(down())),
            _ if self.is_down => Input::Written(Err(down())),
            Order::Register(checks) => {
                self.catalog.extend(checks.into_iter().map(|check| (check.id.clone(), check)));
                Input::Written(Ok(Reply::Done))
            }
            Order::Deregister(id) => {
                self.catalog.remove(&id);
                Input::Written(Ok(Reply::Done))
            }
            Order::Read => Input::Read(Ok(self.catalog.values().cloned().map(Arc::new).collect())),
        }
    }

    /// Lets this time pass.
    fn pass(&mut self, length: Duration) {
        let end = self.now + length;
        for ticks in 0.. {
            let Some(at) = self.checks.wakes_at().filter(|at| *at <= end) else { break };
            assert!(ticks < 10_000, "a timer does not advance");
            self.now = self.now.max(at);
            self.tick();
        }
        self.now = end;
    }

    fn register(&mut self, id: &str, ttl: Duration) -> Result<u64, CheckError> {
        let version = self.checks.register(self.now, new(id, ttl));
        self.tick();
        version
    }

    fn report(&mut self, id: &str, status: CheckStatus, output: &str) -> Result<u64, CheckError> {
        let version = self.checks.report(self.now, &id.into(), status, output);
        self.tick();
        version
    }

    /// Returns the status and the output of a check in the catalog.
    fn known(&self, id: &str) -> Option<(CheckStatus, &str)> {
        self.catalog.get(&CheckId::from(id)).map(|check| (check.status, check.output.as_str()))
    }
}

fn new(id: &str, ttl: Duration) -> NewCheck {
    NewCheck {
        id: id.into(),
        name: id.into(),
        notes: String::new(),
        status: CheckStatus::Passing,
        kind: CheckKind::Ttl(ttl),
        max_output_bytes: None,
    }
}

#[test]
fn a_check_without_reports_turns_critical_once() {
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
fn a_change_of_output_alone_is_written_later() {
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
    assert!(stand.checks.written() >= version);
}

#[test]
fn failed_writes_are_retried_after_pauses_that_reports_do_not_shorten() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 100).expect("there is room");
    let version = stand.checks.written();
    (stand.is_down, stand.calls) = (true, 0);
    for _ in 0..300 {
        stand.report("app", CheckStatus::Warning, "").expect("it is registered");
        stand.pass(SECOND / 10);
    }
    assert!((8..20).contains(&stand.calls), "{} calls", stand.calls);
    let logged = |notice: &&Notice| matches!(notice, Notice::SyncFailed { is_new: true, .. });
    assert_eq!(stand.notices.iter().filter(logged).count(), 1);
    assert_eq!(stand.checks.written(), version);
    stand.is_down = false;
    stand.pass(SECOND * 5);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "")));
    assert_eq!(stand.notices.last(), Some(&Notice::SyncRecovered));
}

#[test]
fn a_catalog_that_differs_is_corrected_within_a_minute() {
    let mut stand = Stand::new();
    for id in ["lost", "changed"] {
        stand.register(id, SECOND * 3_600).expect("there is room");
    }
    stand.catalog.remove(&CheckId::from("lost"));
    stand.catalog.get_mut(&CheckId::from("changed")).expect("it is there").status = CheckStatus::Critical;
    stand.pass(SECOND * 60);
    for id in ["lost", "changed"] {
        assert_eq!(stand.known(id).map(|(status, _)| status), Some(CheckStatus::Passing), "{id}");
    }
}

#[test]
fn the_checks_of_an_earlier_process_are_adopted_once() {
    let mut earlier = Stand::new();
    earlier.register("app", SECOND * 10).expect("there is room");
    earlier.checks.maintain(earlier.now, Some("disk"), &mut Outbox::default());
    earlier.tick();
    let foreign =
        Check { kind: "ttl".into(), ..Check::of("node-one".into(), "foreign".into(), CheckStatus::Passing) };
    earlier.catalog.insert("foreign".into(), foreign);

    let mut next = Stand::with(CheckLimits::default(), earlier.catalog);
    let ids =
        |stand: &Stand| stand.checks.list().iter().map(|check| check.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&next), [NODE_MAINTENANCE, "app"]);
    assert_eq!(next.calls, 1, "the catalog is up to date");
    let mut late = next.catalog[&CheckId::from("app")].clone();
    late.id = "late".into();
    next.catalog.insert("late".into(), late);
    next.pass(SECOND * 9);
    assert_eq!(next.known("app").map(|(status, _)| status), Some(CheckStatus::Passing));
    next.pass(SECOND * 2);
    assert_eq!(next.known("app"), Some((CheckStatus::Critical, "TTL expired")));
    let refused = next.report(NODE_MAINTENANCE, CheckStatus::Passing, "");
    assert_eq!(refused, Err(CheckError::NoTtl(NODE_MAINTENANCE.into())));
    // Removed here while the catalog is down: it is not adopted again.
    next.is_down = true;
    next.checks.deregister(&"app".into()).expect("it is registered");
    next.checks.maintain(next.now, None, &mut Outbox::default());
    next.pass(SECOND * 90);
    next.is_down = false;
    next.pass(SECOND * 90);
    assert_eq!(next.known("late").map(|(status, _)| status), Some(CheckStatus::Passing), "it came later");
    assert_eq!((ids(&next), next.known("app"), next.known(NODE_MAINTENANCE)), (vec![], None, None));
    assert_eq!(next.known("foreign"), Some((CheckStatus::Passing, "")), "another client maintains it");
}

#[test]
fn changes_during_a_write_are_written_after_it() {
    let mut stand = Stand::new();
    let mut outbox = Outbox::default();
    let begin = |stand: &mut Stand, outbox: &mut Outbox| {
        stand.checks.handle(stand.now, Input::Tick, outbox);
        outbox.order.take()
    };
    stand.checks.register(stand.now, new("app", SECOND * 10)).expect("there is room");
    let written = begin(&mut stand, &mut outbox).expect("it is due");
    stand.checks.report(stand.now, &"app".into(), CheckStatus::Critical, "").expect("it is registered");
    assert_eq!(begin(&mut stand, &mut outbox), None, "one call at a time");
    let reply = stand.execute(written);
    stand.checks.handle(stand.now, reply, &mut outbox);
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")));
    stand.pass(Duration::ZERO);
    assert_eq!(stand.known("app"), Some((CheckStatus::Critical, "")));

    stand.checks.deregister(&"app".into()).expect("it is registered");
    let removed = begin(&mut stand, &mut outbox).expect("it is due");
    stand.checks.register(stand.now, new("app", SECOND * 10)).expect("there is room");
    let reply = stand.execute(removed);
    stand.checks.handle(stand.now, reply, &mut outbox);
    stand.pass(Duration::ZERO);
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")), "it is registered again");
}

#[test]
fn a_refused_write_is_a_failure() {
    let (mut stand, mut outbox) = (Stand::new(), Outbox::default());
    stand.checks.register(stand.now, new("app", SECOND * 10)).expect("there is room");
    stand.checks.handle(stand.now, Input::Tick, &mut outbox);
    let refused = Reply::Refused(lockmesh_protocol::reply::Refusal::MissingNode);
    stand.checks.handle(stand.now, Input::Written(Ok(refused)), &mut outbox);
    assert!(matches!(outbox.notices[..], [Notice::SyncFailed { is_new: true, .. }]), "{:?}", outbox.notices);
    stand.pass(SECOND);
    assert_eq!(stand.known("app"), Some((CheckStatus::Passing, "")));
}

#[test]
fn outputs_and_the_number_of_checks_are_limited() {
    let limits = CheckLimits { max_checks: 1, max_output_bytes: 7, ..CheckLimits::default() };
    let mut stand = Stand::with(limits, BTreeMap::new());
    stand.register("a", SECOND * 10).expect("there is room");
    stand.register("a", SECOND * 10).expect("it needs no additional room");
    assert_eq!(stand.register("b", SECOND * 10), Err(CheckError::TooMany(1)));
    stand.report("a", CheckStatus::Warning, &"é".repeat(8)).expect("it is registered");
    let truncated = "ééé ... (captured 6 of 16 bytes)";
    assert_eq!(stand.known("a"), Some((CheckStatus::Warning, truncated)));
    assert_eq!(stand.report("b", CheckStatus::Passing, ""), Err(CheckError::Unknown("b".into())));
}

#[test]
fn a_check_that_is_registered_again_keeps_its_status() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 10).expect("there is room");
    stand.report("app", CheckStatus::Warning, "slow").expect("it is registered");
    stand.register("app", SECOND * 20).expect("it is there");
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")));
    stand.pass(SECOND * 19);
    assert_eq!(stand.known("app"), Some((CheckStatus::Warning, "slow")), "its TTL restarted");
    stand.pass(SECOND * 2);
    assert_eq!(stand.known("app").map(|(status, _)| status), Some(CheckStatus::Critical));
}

#[test]
fn a_node_in_maintenance_keeps_its_first_reason() {
    let mut stand = Stand::new();
    for (reason, is_there) in [(Some(""), true), (Some("disk"), true), (None, false), (None, false)] {
        let mut outbox = Outbox::default();
        stand.checks.maintain(stand.now, reason, &mut outbox);
        stand.notices.append(&mut outbox.notices);
        stand.tick();
        let known = stand.catalog.get(&CheckId::from(NODE_MAINTENANCE));
        assert_eq!(
            known.map(|check| (check.status, check.notes.as_str())),
            is_there.then_some((CheckStatus::Critical, NO_REASON))
        );
    }
    stand.notices.retain(|notice| *notice != Notice::Written);
    assert_eq!(stand.notices, [Notice::MaintenanceBegan(NO_REASON.into()), Notice::MaintenanceEnded]);
}
