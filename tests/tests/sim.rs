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
fn first_25_storms_keep_guarantees() {
    storms(0..25);
}

#[test]
fn next_25_storms_keep_guarantees() {
    storms(25..50);
}

/// The catalog has the status of every check of an agent in the end.
#[test]
fn health_check_storms_keep_guarantees() {
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
fn unpersisted_term_may_be_reused() {
    storms(1063..1064);
}

#[test]
fn same_seed_repeats_run() {
    for seed in 43..48 {
        let [(_, first), (_, second)] =
            [(); 2].map(|()| trace(seed, Focus::Everything, FaultInjection::None));
        assert!(first == second, "cargo sim --twice {seed} shows where they diverge");
    }
}

#[test]
fn dead_host_lock_passes_within_window() {
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
fn lost_or_hostile_mesh_only_delays() {
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
fn datagram_loss_fails_no_node() {
    peaceful(&[Trouble::Loss5, Trouble::Loss10, Trouble::Loss25]);
}

#[test]
fn slow_or_isolated_nodes_not_failed() {
    peaceful(&[Trouble::Slow, Trouble::Dark2, Trouble::Dark4]);
}

#[test]
fn simultaneous_agents_all_join() {
    let report =
        join(Options { seed: 1, agents: 200, window: HealthWindow::Default, mesh: MeshTrouble::None });
    let report = report.expect("no invariant is broken");
    assert_eq!(report.wrongly_failed, 0, "{report:?}");
    assert!(report.acknowledged < 10.0, "{report:?}");
}
