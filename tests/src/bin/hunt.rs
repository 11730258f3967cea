//! Breaks rules on purpose, one after another, in a copy of the tree, and reports the finder of
//! each. Fails if a rule survives, if a finder fails without a broken rule, or if a rule's text no
//! longer matches the tree.

use clap::Parser;
use lockmesh_tests::hunt::{build, chase, copy, lot, table};
use lockmesh_tests::options::between;
use lockmesh_tests::tidy::tree;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The copy and its build are in target/hunt.
#[derive(Parser)]
struct Wanted {
    #[arg(long)]
    list: bool,
    #[arg(long)]
    json: bool,
    #[arg(long)]
    jobs: Option<usize>,
    /// A rule or a topic.
    #[arg(long)]
    only: Vec<String>,
    /// The beginning of a finder: `--by sim` breaks only rules that the simulator must find, and
    /// runs no other finder.
    #[arg(long)]
    by: Vec<String>,
    /// Draws this number of these rules; the printed seed repeats the sample.
    #[arg(long, value_parser = between::<1, 100_000, usize>)]
    lot: Option<usize>,
    #[arg(long, requires = "lot")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let wanted = Wanted::parse();
    let top = tree::top();
    let all = table::rules(&top);
    let is_wanted = |rule: &&table::Rule| {
        wanted.only.is_empty() || wanted.only.iter().any(|name| *name == rule.name || *name == rule.topic)
    };
    let chosen = all.iter().filter(is_wanted).cloned();
    let chosen: Vec<table::Rule> = chosen.filter_map(|rule| rule.found_by(&wanted.by)).collect();
    let chosen = match wanted.lot {
        Some(count) => sample(chosen, count, wanted.seed.unwrap_or_else(seconds_since_1970)),
        None => chosen,
    };
    if wanted.list {
        chosen.iter().for_each(|rule| println!("{:<13} {:<34} {}", rule.topic, rule.name, rule.rule));
        return ExitCode::SUCCESS;
    }
    let faults = table::faults(&top, &all);
    if !faults.is_empty() || chosen.is_empty() {
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        eprintln!(
            "{}",
            if chosen.is_empty() {
                "no rule has this name and this finder: see --list"
            } else {
                "fix tests/hunt first"
            }
        );
        return ExitCode::from(2);
    }
    hunt(&top, &all, chosen, &wanted)
}

fn sample(rules: Vec<table::Rule>, count: usize, seed: u64) -> Vec<table::Rule> {
    let all = rules.len();
    let drawn = lot::draw(rules, count, seed);
    eprintln!("{} of {all} rules; to repeat them: --lot {count} --seed {seed}", drawn.len());
    drawn
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hunt(top: &std::path::Path, all: &[table::Rule], chosen: Vec<table::Rule>, wanted: &Wanted) -> ExitCode {
    let began = Instant::now();
    let (tree, target) = (top.join("target/hunt/tree"), top.join("target/hunt/build"));
    copy::make(top, &tree, all);
    let finders = chase::finders(&chosen);
    let built = match build::build(&tree, &target, &finders) {
        Ok(built) => built,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    eprintln!("built in {:.0} s; every finder runs with nothing broken", began.elapsed().as_secs_f64());
    let count = finders.len();
    let jobs = wanted.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let false_alarms = chase::without_fault(&built, &tree, finders, jobs);
    eprintln!("{count} finders, {} false alarms; now rules are broken", false_alarms.len());
    let outcomes = chase::chase(&built, &tree, chosen, jobs, |outcome| {
        if !wanted.json {
            println!("{}", line(outcome));
        }
    });
    if wanted.json {
        println!("{}", serde_json::Value::Array(outcomes.iter().map(json).collect()));
    }
    let survivors: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.found.is_none())
        .map(|outcome| outcome.rule.name.as_str())
        .collect();
    for (finder, what) in &false_alarms {
        eprintln!("false alarm: {} fails with nothing broken: {what}", finder.words);
    }
    eprintln!(
        "{} rules broken, {} found, {} survive {survivors:?}, in {:.0} s",
        outcomes.len(),
        outcomes.len() - survivors.len(),
        survivors.len(),
        began.elapsed().as_secs_f64()
    );
    if survivors.is_empty() && false_alarms.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(outcome: &chase::Outcome) -> String {
    let (name, seconds) = (&outcome.rule.name, outcome.took.as_secs_f64());
    match &outcome.found {
        Some((finder, said)) => format!("{name:<36} {seconds:>6.1} s  {}: {}", finder.words, said.what),
        None => format!("{name:<36} {seconds:>6.1} s  SURVIVES: {}", outcome.rule.rule),
    }
}

fn json(outcome: &chase::Outcome) -> serde_json::Value {
    serde_json::json!({
        "topic": outcome.rule.topic,
        "name": outcome.rule.name,
        "rule": outcome.rule.rule,
        "found_by": outcome.found.as_ref().map(|(finder, _)| &finder.words),
        "said": outcome.found.as_ref().map(|(_, said)| &said.what),
        "seconds": outcome.took.as_secs_f64(),
    })
}
