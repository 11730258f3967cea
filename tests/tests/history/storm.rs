//! Storms: overlapping clients on the product's state machine in one process. Its behavior must
//! pass; its behavior with a deliberate bug must be detected.

use crate::world::{FaultInjection, World};
use lockmesh_tests::history::{Counts, check};

/// Number of turns in a storm: some hundred operations.
const TURNS: usize = 1_200;

#[test]
fn correct_state_machine_passes() {
    let mut sum = Counts::default();
    for seed in 0..60 {
        let (history, _) = World::new(seed, None).run(TURNS);
        let verdict = check(&history);
        assert_eq!(verdict.violations, [], "seed {seed}");
        assert_eq!(verdict.counts.unread_at_end, 0, "seed {seed}");
        sum.unknown_placed += verdict.counts.unknown_placed;
        sum.ends_inferred += verdict.counts.ends_inferred;
        sum.grants += verdict.counts.grants;
        sum.keys_checked_independently += verdict.counts.keys_checked_independently;
    }
    assert!(sum.unknown_placed > 150 && sum.ends_inferred > 20 && sum.grants > 500, "{sum:?}");
    assert!(sum.keys_checked_independently > 100, "{sum:?}");
}

#[test]
fn injected_faults_are_detected() {
    for fault_injection in FaultInjection::ALL {
        let mut found = 0;
        // Sometimes nothing is broken, or it is overwritten before any client can have seen it.
        for seed in 100..150 {
            if found == 3 {
                break;
            }
            let (history, was_done) = World::new(seed, Some(fault_injection)).run(TURNS);
            let violations = check(&history).violations;
            assert!(was_done || violations.is_empty(), "seed {seed}: {violations:?}");
            found += u32::from(!violations.is_empty());
        }
        assert_eq!(found, 3, "{fault_injection:?}");
    }
}
