//! Fifty storms over the whole quorum, each from its seed: no promise is broken, all is well in the
//! end, and the same seed makes the same run.

use lockmesh_tests::sim::{Detail, FaultInjection, Focus, Marks, run, trace};

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

/// A lone server, whose disk took neither its vote nor its entries, leads the same term again after
/// a crash.
#[test]
fn a_term_that_nobody_heard_of_may_be_led_again() {
    storms(1063..1064);
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 43..48 {
        let [(_, first), (_, second)] =
            [(); 2].map(|()| trace(seed, Focus::Everything, FaultInjection::None));
        assert!(first == second, "cargo sim --twice {seed} says where they part");
    }
}
