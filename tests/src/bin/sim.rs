//! Runs the simulated quorum: `sim SEED` prints one run, `sim --seeds A..B` executes many, `sim
//! --twice SEED` compares two runs, `sim --hunt A..B` breaks one rule after another and prints the
//! seed that found each.

use lockmesh_tests::sim::{Detail, FaultInjection, Focus, Mark, Marks, Outcome, hunt, run_focused, trace};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: sim [--quiet] [--json] [--trace] [--guards | --checks] [--break NAME] SEED | --seeds A..B | --twice SEED | --hunt A..B";

/// The requested options.
#[derive(Default)]
struct Wanted {
    quiet: bool,
    json: bool,
    twice: bool,
    hunts: bool,
    every_mark: bool,
    trace: bool,
    focus: Focus,
    fault_injection: FaultInjection,
    seeds: Option<std::ops::Range<u64>>,
}

fn main() -> ExitCode {
    match wanted(std::env::args().skip(1)) {
        Some(Wanted { twice: true, seeds: Some(seeds), .. }) => compare(seeds.start),
        Some(Wanted { hunts: true, seeds: Some(seeds), .. }) => hunt_all(&seeds),
        Some(Wanted { trace: true, seeds: Some(seeds), focus, fault_injection, .. }) => {
            let (outcome, lines) = trace(seeds.start, focus, fault_injection);
            lines.iter().for_each(|line| println!("{line}"));
            verdict(&outcome)
        }
        Some(Wanted { seeds: Some(seeds), quiet, json, focus, fault_injection, .. })
            if seeds.end == seeds.start + 1 =>
        {
            one(seeds.start, quiet, json, (focus, fault_injection))
        }
        Some(Wanted { seeds: Some(seeds), json, focus, fault_injection, every_mark, .. }) => {
            let marks = many(seeds, json, (focus, fault_injection));
            match marks {
                Ok(marks) if every_mark => missing(&marks, focus),
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
            "--guards" => wanted.focus = Focus::Guards,
            "--checks" => wanted.focus = Focus::Checks,
            "--twice" => wanted.twice = true,
            "--break" => wanted.fault_injection = FaultInjection::named(&arguments.next()?)?,
            "--seeds" | "--hunt" => {
                wanted.hunts = argument == "--hunt";
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

fn one(seed: u64, quiet: bool, json: bool, (focus, fault_injection): (Focus, FaultInjection)) -> ExitCode {
    let detail = if quiet || json { Detail::Nothing } else { Detail::Life };
    let outcome = run_focused(seed, focus, fault_injection, detail);
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
    let focus = match outcome.focus {
        Focus::Everything => "",
        Focus::Guards => "--guards ",
        Focus::Checks => "--checks ",
    };
    eprintln!("to reproduce it: cargo sim {focus}{}", outcome.seed);
    ExitCode::FAILURE
}

/// Fails if no seed reached a rare branch: the storms then do not cover their purpose.
fn missing(marks: &Marks, focus: Focus) -> ExitCode {
    let missing = marks.missing(focus);
    missing.iter().for_each(|mark| eprintln!("never reached: {}", mark.words()));
    if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(seeds: std::ops::Range<u64>, json: bool, what: (Focus, FaultInjection)) -> Result<Marks, ExitCode> {
    let began = Instant::now();
    let Sum { marks, done, entries, micros, failed } = on_every_core(&seeds, what);
    if let Some(outcome) = failed {
        return Err(verdict(&outcome));
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

/// The totals of many runs.
#[derive(Default)]
struct Sum {
    marks: Marks,
    done: u64,
    entries: u64,
    micros: u64,
    /// The first seed that found a violation.
    failed: Option<Outcome>,
}

/// Runs seeds in order, one per core, until one finds a violation. All earlier seeds are completed,
/// so the result is the first one regardless of timing.
fn on_every_core(seeds: &std::ops::Range<u64>, (focus, fault_injection): (Focus, FaultInjection)) -> Sum {
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::new(Sum::default()));
    let work = || {
        while sum.lock().expect("no run panics").failed.is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = run_focused(seed, focus, fault_injection, Detail::Nothing);
            sum.lock().expect("no run panics").add(outcome);
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    sum.into_inner().expect("no run panics")
}

impl Sum {
    fn add(&mut self, outcome: Outcome) {
        self.done += 1;
        self.marks.add(&outcome.marks);
        self.entries += outcome.entries;
        self.micros += outcome.micros;
        let is_first = self.failed.as_ref().is_none_or(|failed| outcome.seed < failed.seed);
        if is_first && !outcome.violations.is_empty() {
            self.failed = Some(outcome);
        }
    }
}

fn hunt_all(seeds: &std::ops::Range<u64>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = false;
    for fault_injection in FaultInjection::ALL {
        match hunt(*fault_injection, seeds.clone()) {
            Some(Outcome { seed, violations, .. }) => {
                let words: String = violations[0].what.chars().take(100).collect();
                let by: Vec<&str> = violations.iter().map(|violation| violation.invariant).collect();
                println!("{:<28} seed {seed:<4} {:<20} {words}", fault_injection.name(), by.join(" "));
            }
            None => {
                missed = true;
                println!("{:<28} NOT FOUND", fault_injection.name());
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
    let [(first, left), (_, right)] = [(); 2].map(|()| trace(seed, Focus::Everything, FaultInjection::None));
    let parting = left.iter().zip(&right).position(|(left, right)| left != right);
    match parting {
        Some(place) => {
            eprintln!("the runs differ at event {place}:\n  {}\n  {}", left[place], right[place]);
            ExitCode::FAILURE
        }
        None if left.len() != right.len() => {
            eprintln!("one run has {} events, the other {}", left.len(), right.len());
            ExitCode::FAILURE
        }
        None => {
            println!("{} identical lines; state {:016x}", left.len(), first.state_hash);
            ExitCode::SUCCESS
        }
    }
}
