//! Replays the kept corpus on every decoder, and runs a bounded round of seeded mutations: an input
//! that a fuzzer found once is checked by `cargo test` forever. For a long run see
//! `tests/fuzz/README.md`.

use lockmesh_tests::fuzz::mutate::{Dice, mutate};
use lockmesh_tests::fuzz::{TARGETS, Target, corpus};
use std::panic::catch_unwind;

/// Number of mutants per target; `LOCKMESH_FUZZ_ROUNDS` raises it.
const ROUNDS: usize = 2_000;

#[test]
fn the_kept_corpus_passes() {
    for target in TARGETS {
        let kept = corpus::kept(target);
        assert!(!kept.is_empty(), "{} has no corpus: run the test write_corpus", target.name);
        for (name, input) in kept {
            check(target, &input, &name);
        }
    }
}

#[test]
fn mutants_pass() {
    let rounds =
        std::env::var("LOCKMESH_FUZZ_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    for target in TARGETS {
        let mut inputs = (target.seeds)();
        inputs.extend(corpus::kept(target).into_iter().map(|(_, input)| input));
        let mut dice = Dice::new(7);
        for round in 0..rounds {
            let (input, other) = (dice.below(inputs.len()), dice.below(inputs.len()));
            let mutant = mutate(&inputs[input], &inputs[other], &mut dice);
            check(target, &mutant, &format!("mutant {round}"));
        }
    }
}

#[test]
fn a_check_can_fail() {
    let picky = Target { name: "picky", check: |data| assert!(data.len() < 3), seeds: Vec::new };
    assert!(catch_unwind(|| check(&picky, b"abc", "three bytes")).is_err());
    check(&picky, b"ab", "two bytes");
}

#[test]
fn every_target_is_in_manifest() {
    let manifest = include_str!("../fuzz/Cargo.toml");
    for target in TARGETS {
        assert!(
            manifest.contains(&format!("\"{}\"", target.name)),
            "tests/fuzz/Cargo.toml lacks {}",
            target.name
        );
    }
}

#[test]
#[ignore = "rewrites tests/corpus; run it when a format or a seed has changed"]
fn write_corpus() {
    for target in TARGETS {
        corpus::write(target, 16).expect("tests/corpus can be written");
    }
}

fn check(target: &Target, input: &[u8], name: &str) {
    let outcome = catch_unwind(|| (target.check)(input));
    let shown = input.escape_ascii();
    assert!(
        outcome.is_ok(),
        "{} failed on {name}; keep it as a file in its corpus: b\"{shown}\"",
        target.name
    );
}
