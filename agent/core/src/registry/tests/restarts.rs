//! What continues across restarts of the agent: deadlines, times and counts.

use super::*;

/// The reporter is dead, and the agent restarts more often than the TTL.
#[test]
fn restarts_extend_a_ttl_once() {
    let mut stand = Stand::new();
    let (ttl, id) = (SECOND * 20, CheckId::from("app"));
    stand.register_service(web(), vec![new("app", ttl)]);
    stand.report("app", CheckStatus::Passing, "fine").expect("it is registered");
    stand.pass(SECOND * 15);
    let began = stand.now;
    for start in 1..5 {
        stand.restart();
        assert_eq!(stand.folder.1[&id].times.deadline, Some(began + ttl), "start {start}");
        // The first start writes the deadline, and the next ones nothing.
        assert_eq!(stand.stored, u32::from(start == 1));
        assert_eq!(stand.status("app"), Some(CheckStatus::Passing));
        // A registration by the configuration is no report, and neither is a reload.
        if start == 2 {
            let service = ServiceRegistration {
                service: web(),
                checks: vec![new("app", ttl)],
                replaces_checks: true,
                sidecar: None,
            };
            let configured = Configured { services: vec![service], checks: vec![] };
            stand.change(|registry, now, outbox| registry.configure(now, configured, outbox)).expect("room");
        }
        stand.pass(SECOND * 4);
    }
    assert_eq!(stand.now, began + SECOND * 16);
    stand.pass(SECOND * 4);
    assert_eq!(stand.status("app"), Some(CheckStatus::Critical));
    stand.restart();
    stand.pass(ttl * 2);
    assert_eq!(stand.status("app"), Some(CheckStatus::Critical), "it expires once");
}

#[test]
fn report_clears_restored_deadline_once() {
    let mut stand = Stand::new();
    let deadline = |stand: &Stand| stand.folder.1[&CheckId::from("app")].times.deadline;
    stand.register("app", SECOND * 20).expect("there is room");
    stand.restart();
    stand.pass(SECOND * 10);
    stand.stored = 0;
    for _ in 0..5 {
        stand.report("app", CheckStatus::Passing, "fine").expect("it is registered");
        stand.pass(SECOND);
    }
    assert_eq!((stand.stored, deadline(&stand)), (1, None));
    stand.restart();
    let began = stand.now;
    assert_eq!(deadline(&stand), Some(began + SECOND * 20), "the reporter lived");
    // A registration by the application is a sign of life, too.
    stand.pass(SECOND * 10);
    stand.register("app", SECOND * 20).expect("it is registered");
    assert_eq!(deadline(&stand), None);
    stand.pass(SECOND * 19);
    assert_eq!(stand.status("app"), Some(CheckStatus::Passing));
}

#[test]
fn restarts_delay_no_deregistration() {
    let mut stand = Stand::new();
    let reaped = |check: NewCheck| NewCheck { deregister_after: Some(SECOND * 90), ..check };
    stand.outcomes.insert("down".into(), CheckStatus::Critical);
    stand.register_service(web(), vec![reaped(probe("down"))]);
    let db = Service { id: "db".into(), name: "db".into(), ..web() };
    stand.register_service(db, vec![reaped(new("idle", SECOND * 20))]);
    stand.pass(SECOND * 20);
    for _ in 0..6 {
        assert_eq!(stand.services.len(), 2);
        stand.restart();
        stand.pass(SECOND * 15);
    }
    assert_eq!(stand.services.len(), 0, "critical for 90 to 100 s");
}

/// It was critical for long when the agent stopped, and recovered since.
#[test]
fn recovered_service_is_not_deregistered() {
    let mut stand = Stand::new();
    stand.outcomes.insert("down".into(), CheckStatus::Critical);
    let down = NewCheck { deregister_after: Some(SECOND * 60), ..probe("down") };
    stand.register_service(web(), vec![down]);
    stand.pass(SECOND * 15);
    stand.outcomes.clear();
    stand.now = stand.now + SECOND * 3_600;
    stand.restart();
    stand.pass(SECOND * 100);
    assert_eq!((stand.services.len(), stand.status("down")), (1, Some(CheckStatus::Passing)));
}

/// The second of three failures is never reached by one process.
#[test]
fn failures_count_across_restarts() {
    let mut stand = Stand::new();
    let thresholds = Thresholds { failures_before_critical: 3, ..Thresholds::default() };
    stand.register_check(NewCheck { thresholds, ..probe("run") }).expect("there is room");
    stand.pass(SECOND * 60);
    assert_eq!(stand.status("run"), Some(CheckStatus::Passing));
    stand.stored = 0;
    stand.pass(SECOND * 60);
    assert_eq!(stand.stored, 0, "a result that repeats writes nothing");
    stand.outcomes.insert("run".into(), CheckStatus::Critical);
    for expected in [CheckStatus::Passing, CheckStatus::Passing, CheckStatus::Critical] {
        stand.restart();
        stand.ran.clear();
        while stand.ran.is_empty() {
            stand.pass(SECOND / 20);
        }
        assert_eq!(stand.status("run"), Some(expected));
    }
}

#[test]
fn report_outlasts_undone_registration() {
    let mut stand = Stand::new();
    stand.register("app", SECOND * 30).expect("there is room");
    stand.report("app", CheckStatus::Passing, "").expect("it is registered");
    let folder = stand.folder.clone();
    for is_reported in [true, false] {
        stand.pass(SECOND * 20);
        let undo = stand.change(|registry, now, outbox| {
            let new = new("app", SECOND * 15);
            Undo::of(registry, now, |registry| registry.register_check(now, new, Source::Api, outbox)).1
        });
        stand.pass(SECOND);
        if is_reported {
            stand.report("app", CheckStatus::Passing, "").expect("it is registered");
        }
        stand.change(|registry, now, outbox| undo.take_back(registry, now, outbox));
        assert_eq!(stand.folder, folder);
    }
    stand.pass(SECOND * 8);
    assert_eq!(stand.status("app"), Some(CheckStatus::Passing));
    // 30 s after the report: the registration was none.
    stand.pass(SECOND * 2);
    assert_eq!(stand.status("app"), Some(CheckStatus::Critical));
}

#[test]
fn undo_leaves_newer_configuration() {
    let mut stand = Stand::new();
    let (new_web, app) = (web(), new("app", SECOND * 10));
    let services =
        |service| vec![ServiceRegistration { service, checks: vec![], replaces_checks: true, sidecar: None }];
    let registered = services(new_web.clone()).remove(0);
    let undo = stand.change(|registry, now, outbox| {
        Undo::of(registry, now, |registry| registry.register_service(now, registered, Source::Api, outbox)).1
    });
    let configured = Configured { services: services(new_web), checks: vec![app] };
    stand.change(|registry, now, outbox| registry.configure(now, configured, outbox)).expect("there is room");
    stand.change(|registry, now, outbox| undo.take_back(registry, now, outbox));
    assert_eq!(stand.registry.services().len(), 1);
}
