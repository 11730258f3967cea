//! Fifty storms over the whole quorum, each from its seed: no guarantee is broken, the cluster
//! recovers in the end, and the same seed gives the same run.

use lockmesh_protocol::lease::HealthWindow;
use lockmesh_tests::sim::fleet::crash::crash;
use lockmesh_tests::sim::fleet::join::join;
use lockmesh_tests::sim::fleet::peace::{Trouble, peace};
use lockmesh_tests::sim::fleet::{MeshTrouble, Options};
use lockmesh_tests::sim::{Detail, FaultInjection, Focus, Marks, run, run_focused, trace};

fn storms(seeds: std::ops::Range<u64>) -> Marks {
    let mut marks = Marks::default();
    for seed in seeds {
        let outcome = run(seed, FaultInjection::None, Detail::Nothing);
        assert!(outcome.violations.is_empty(), "{:?}\nto see it: cargo sim {seed}", outcome.violations);
        marks.add(&outcome.marks);
    }
    marks
}

#[test]
fn twenty_five_storms_break_no_promise() {
    storms(0..25);
}

#[test]
fn twenty_five_more_storms_break_no_promise() {
    storms(25..50);
}

/// The catalog has the status of every check of an agent in the end.
#[test]
fn storms_with_health_checks_break_no_promise() {
    for seed in 0..15 {
        let outcome = run_focused(seed, Focus::Checks, FaultInjection::None, Detail::Nothing);
        assert!(
            outcome.violations.is_empty(),
            "{:?}\nto see it: cargo sim --checks {seed}",
            outcome.violations
        );
    }
}

/// A lone server whose disk accepted neither its vote nor its entries leads the same term again
/// after a crash.
#[test]
fn a_term_that_nobody_heard_of_may_be_led_again() {
    storms(1063..1064);
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 43..48 {
        let [(_, first), (_, second)] =
            [(); 2].map(|()| trace(seed, Focus::Everything, FaultInjection::None));
        assert!(first == second, "cargo sim --twice {seed} shows where they diverge");
    }
}

#[test]
fn a_host_that_dies_is_failed_and_its_lock_passes_on_within_its_window() {
    for window in [HealthWindow::Fast, HealthWindow::Default] {
        let report = crash(Options { seed: 1, agents: 32, window, mesh: MeshTrouble::None }, 3)
            .expect("no invariant is broken");
        assert_eq!(report.wrongly_failed, 0);
        let (middle, most) = report.next_holder;
        let bound = if window == HealthWindow::Fast { 3.0 } else { 7.0 };
        assert!(report.verdict.0 <= middle && most < bound, "{report:?}");
    }
}

#[test]
fn a_mesh_that_is_wholly_lost_or_wholly_hostile_costs_time_and_nothing_else() {
    for mesh in [MeshTrouble::Lost, MeshTrouble::Hostile] {
        let options = Options { seed: 1, agents: 16, window: HealthWindow::Fast, mesh };
        let report = crash(options, 2).expect("no invariant is broken");
        assert_eq!(report.wrongly_failed, 0);
        // A host without a mesh is first detected by its overdue renewal, and then its window
        // counts.
        assert!(report.next_holder.1 < 3.0, "{report:?}");
    }
}

/// Runs one node-hour of each condition.
fn peaceful(troubles: &[Trouble]) {
    for trouble in troubles {
        let options =
            Options { seed: 1, agents: 100, window: HealthWindow::Default, mesh: MeshTrouble::None };
        let report = peace(options, *trouble, 1.0, |_| {}).expect("no invariant is broken");
        assert!(report.is_well(), "{report:?}");
        assert!(report.renewals_a_second > 0.5, "{report:?}");
    }
}

#[test]
fn a_fleet_of_whose_datagrams_many_are_lost_is_not_failed() {
    peaceful(&[Trouble::Loss5, Trouble::Loss10, Trouble::Loss25]);
}

#[test]
fn slow_nodes_and_a_rack_that_is_dark_for_a_while_are_not_failed() {
    peaceful(&[Trouble::Slow, Trouble::Dark2, Trouble::Dark4]);
}

#[test]
fn agents_that_come_at_once_all_get_in() {
    let report =
        join(Options { seed: 1, agents: 200, window: HealthWindow::Default, mesh: MeshTrouble::None });
    let report = report.expect("no invariant is broken");
    assert_eq!(report.wrongly_failed, 0, "{report:?}");
    assert!(report.acknowledged < 10.0, "{report:?}");
}
