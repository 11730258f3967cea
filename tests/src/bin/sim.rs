//! Runs the simulated quorum: `sim SEED` prints a life, `sim --seeds A..B` runs many, `sim --twice SEED` compares two
//! runs, `sim --sabotage A..B` breaks one rule after the other and says which seed showed it.

use lockmesh_tests::sim::{Detail, Mark, Marks, Outcome, Sabotage, hunt, run, trace};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: sim [--quiet] [--json] [--trace] [--break NAME] SEED | --seeds A..B | --twice SEED | --sabotage A..B";

/// What was asked for.
#[derive(Default)]
struct Wanted {
    quiet: bool,
    json: bool,
    twice: bool,
    hunts: bool,
    every_mark: bool,
    trace: bool,
    sabotage: Sabotage,
    seeds: Option<std::ops::Range<u64>>,
}

fn main() -> ExitCode {
    match wanted(std::env::args().skip(1)) {
        Some(Wanted { twice: true, seeds: Some(seeds), .. }) => compare(seeds.start),
        Some(Wanted { hunts: true, seeds: Some(seeds), .. }) => hunt_all(&seeds),
        Some(Wanted { trace: true, seeds: Some(seeds), sabotage, .. }) => {
            let (outcome, lines) = trace(seeds.start, sabotage);
            lines.iter().for_each(|line| println!("{line}"));
            verdict(&outcome)
        }
        Some(Wanted { seeds: Some(seeds), quiet, json, sabotage, .. }) if seeds.end == seeds.start + 1 => {
            one(seeds.start, quiet, json, sabotage)
        }
        Some(Wanted { seeds: Some(seeds), json, sabotage, every_mark, .. }) => {
            let marks = many(seeds, json, sabotage);
            match marks {
                Ok(marks) if every_mark => missing(&marks),
                Ok(_) => ExitCode::SUCCESS,
                Err(code) => code,
            }
        }
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
            "--every-mark" => wanted.every_mark = true,
            "--trace" => wanted.trace = true,
            "--twice" => wanted.twice = true,
            "--break" => wanted.sabotage = Sabotage::named(&arguments.next()?)?,
            "--seeds" | "--sabotage" => {
                wanted.hunts = argument == "--sabotage";
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

/// Fails where a rare branch was reached by no seed: then the storms do not show what they are meant to.
fn missing(marks: &Marks) -> ExitCode {
    let missing = marks.missing();
    missing.iter().for_each(|mark| eprintln!("never reached: {}", mark.words()));
    if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(seeds: std::ops::Range<u64>, json: bool, sabotage: Sabotage) -> Result<Marks, ExitCode> {
    let began = Instant::now();
    let (mut marks, mut done, mut entries, mut micros) = (Marks::default(), 0, 0, 0);
    for seed in seeds {
        let outcome = run(seed, sabotage, Detail::Nothing);
        done += 1;
        marks.add(&outcome.marks);
        entries += outcome.entries;
        micros += outcome.micros;
        if !outcome.violations.is_empty() {
            return Err(verdict(&outcome));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if json {
        print_json(&marks, done, 0, seconds);
        return Ok(marks);
    }
    print_marks(&marks);
    println!(
        "{done} seeds, {entries} entries, {:.0} s of virtual time in {seconds:.1} s: {:.1} seeds a second",
        micros as f64 / 1e6,
        done as f64 / seconds
    );
    Ok(marks)
}

fn hunt_all(seeds: &std::ops::Range<u64>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = false;
    for sabotage in Sabotage::ALL {
        match hunt(*sabotage, seeds.clone()) {
            Some(Outcome { seed, violations, .. }) => {
                let words: String = violations[0].what.chars().take(100).collect();
                let by: Vec<&str> = violations.iter().map(|violation| violation.invariant).collect();
                println!("{:<28} seed {seed:<4} {:<20} {words}", sabotage.name(), by.join(" "));
            }
            None => {
                missed = true;
                println!("{:<28} NOT FOUND", sabotage.name());
            }
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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
