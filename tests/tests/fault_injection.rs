//! The simulator finds deliberate bugs: each rule of the core, of the disk and of the shell that a
//! guarantee depends on is broken in turn, and a seed must expose it.

use lockmesh_core::fault_injection::Rule;
use lockmesh_tests::sim::{FaultInjection, hunt};

/// A seed takes less than a second.
const SEEDS: u64 = 60;

/// Hunts every other deliberate bug, beginning with `first`, so that two tests share the work.
fn hunt_half(first: usize) {
    // A panic of the engine counts as found; its message need not be printed.
    std::panic::set_hook(Box::new(|_| {}));
    let hunted = FaultInjection::ALL.iter().skip(first).step_by(2);
    let missed: Vec<String> = hunted
        .filter(|fault_injection| hunt(**fault_injection, 0..SEEDS).is_none())
        .map(|fault_injection| fault_injection.name())
        .collect();
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "no seed exposed these bugs: {missed:?}");
}

#[test]
fn even_faults_are_detected() {
    hunt_half(0);
}

#[test]
fn odd_faults_are_detected() {
    hunt_half(1);
}

/// The servers' difference from the history, which keeps the rule, must not be the only evidence.
#[test]
fn unfair_queue_violates_fairness() {
    let outcome = hunt(FaultInjection::Core(Rule::FirstComeFirstServed), 0..SEEDS).expect("it is found");
    let invariants: Vec<&str> = outcome.violations.iter().map(|violation| violation.invariant).collect();
    assert!(invariants.contains(&"fairness"), "seed {}: {:?}", outcome.seed, outcome.violations);
}
