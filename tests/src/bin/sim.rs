//! Runs the simulated quorum: `sim SEED` prints a life, `sim --seeds A..B` runs many, `sim --twice SEED` compares two runs.

use lockmesh_tests::sim::{Detail, Mark, Marks, Outcome, Sabotage, run, trace};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str =
    "usage: sim [--quiet] [--json] [--trace] [--break NAME] SEED | --seeds A..B | --twice SEED";

/// What was asked for.
#[derive(Default)]
struct Wanted {
    quiet: bool,
    json: bool,
    twice: bool,
    trace: bool,
    sabotage: Sabotage,
    seeds: Option<std::ops::Range<u64>>,
}

fn main() -> ExitCode {
    match wanted(std::env::args().skip(1)) {
        Some(Wanted { twice: true, seeds: Some(seeds), .. }) => compare(seeds.start),
        Some(Wanted { trace: true, seeds: Some(seeds), sabotage, .. }) => {
            let (outcome, lines) = trace(seeds.start, sabotage);
            lines.iter().for_each(|line| println!("{line}"));
            verdict(&outcome)
        }
        Some(Wanted { seeds: Some(seeds), quiet, json, sabotage, .. }) if seeds.end == seeds.start + 1 => {
            one(seeds.start, quiet, json, sabotage)
        }
        Some(Wanted { seeds: Some(seeds), json, sabotage, .. }) => many(seeds, json, sabotage),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn wanted(mut arguments: impl Iterator<Item = String>) -> Option<Wanted> {
    let mut wanted = Wanted::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quiet" => wanted.quiet = true,
            "--json" => wanted.json = true,
            "--trace" => wanted.trace = true,
            "--twice" => wanted.twice = true,
            "--break" => wanted.sabotage = Sabotage::named(&arguments.next()?)?,
            "--seeds" => {
                let (from, to) = arguments.next()?.split_once("..").map(|(a, b)| (a.parse(), b.parse()))?;
                wanted.seeds = Some(from.ok()?..to.ok()?);
            }
            seed => {
                let seed: u64 = seed.parse().ok()?;
                wanted.seeds = Some(seed..seed + 1);
            }
        }
    }
    wanted.seeds.is_some().then_some(wanted)
}

fn one(seed: u64, quiet: bool, json: bool, sabotage: Sabotage) -> ExitCode {
    let detail = if quiet || json { Detail::Nothing } else { Detail::Life };
    let outcome = run(seed, sabotage, detail);
    if json {
        print_json(&outcome.marks, 1, outcome.violations.len(), 0.0);
    } else {
        print_marks(&outcome.marks);
        println!(
            "seed {seed}: {} entries, {} events, {:.1} s of virtual time, state {:016x}",
            outcome.entries,
            outcome.events,
            outcome.micros as f64 / 1e6,
            outcome.state_hash
        );
    }
    verdict(&outcome)
}

fn verdict(outcome: &Outcome) -> ExitCode {
    for violation in &outcome.violations {
        eprintln!("seed {}: {} is broken: {}", outcome.seed, violation.invariant, violation.what);
    }
    if outcome.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("to see it: cargo sim {}", outcome.seed);
    ExitCode::FAILURE
}

fn many(seeds: std::ops::Range<u64>, json: bool, sabotage: Sabotage) -> ExitCode {
    let began = Instant::now();
    let (mut marks, mut done, mut entries, mut micros) = (Marks::default(), 0, 0, 0);
    for seed in seeds {
        let outcome = run(seed, sabotage, Detail::Nothing);
        done += 1;
        marks.add(&outcome.marks);
        entries += outcome.entries;
        micros += outcome.micros;
        if !outcome.violations.is_empty() {
            return verdict(&outcome);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if json {
        print_json(&marks, done, 0, seconds);
        return ExitCode::SUCCESS;
    }
    print_marks(&marks);
    println!(
        "{done} seeds, {entries} entries, {:.0} s of virtual time in {seconds:.1} s: {:.1} seeds a second",
        micros as f64 / 1e6,
        done as f64 / seconds
    );
    ExitCode::SUCCESS
}

fn print_marks(marks: &Marks) {
    for mark in Mark::ALL {
        println!("{:>9}  {}", marks.count(*mark), mark.words());
    }
}

fn print_json(marks: &Marks, seeds: u64, violations: usize, seconds: f64) {
    let counts: serde_json::Map<String, serde_json::Value> =
        Mark::ALL.iter().map(|mark| (format!("{mark:?}"), marks.count(*mark).into())).collect();
    let summary = serde_json::json!({
        "seeds": seeds, "violations": violations, "seconds": seconds, "marks": counts,
    });
    println!("{summary}");
}

fn compare(seed: u64) -> ExitCode {
    let ((first, left), (_, right)) = (trace(seed, Sabotage::None), trace(seed, Sabotage::None));
    let parting = left.iter().zip(&right).position(|(left, right)| left != right);
    match parting {
        Some(place) => {
            eprintln!("the runs part at event {place}:\n  {}\n  {}", left[place], right[place]);
            ExitCode::FAILURE
        }
        None if left.len() != right.len() => {
            eprintln!("one run has {} events, the other {}", left.len(), right.len());
            ExitCode::FAILURE
        }
        None => {
            println!("{} lines, twice the same; state {:016x}", left.len(), first.state_hash);
            ExitCode::SUCCESS
        }
    }
}
