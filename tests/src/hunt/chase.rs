//! All rules and their finders: first each finder without a broken rule, which must pass, then rule
//! after rule.

use super::build::Built;
use super::finder::{Finder, Said};
use super::table::Rule;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// The outcome for a broken rule.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The rule.
    pub rule: Rule,
    /// The finder that failed, with its result; `None` if the rule survived.
    pub found: Option<(Finder, Said)>,
    /// The total duration of its finders.
    pub took: Duration,
}

/// Returns every finder of these rules, without duplicates.
pub fn finders(rules: &[Rule]) -> BTreeSet<Finder> {
    rules.iter().flat_map(Rule::finders).map(|finder| finder.without_fault()).collect()
}

/// Runs every finder without a broken rule. Returns those that fail or contain no test.
pub fn without_fault(
    built: &Built,
    copy: &Path,
    finders: BTreeSet<Finder>,
    workers: usize,
) -> Vec<(Finder, String)> {
    let runs = in_parallel(finders.into_iter().collect(), workers, |finder: Finder| {
        let said = finder.run(built, copy, None);
        let fault = match (said.passed, said.tests) {
            (true, 0) => Some("it contains no test".to_owned()),
            (true, _) => None,
            (false, _) => Some(said.what),
        };
        fault.map(|fault| (finder, fault))
    });
    runs.into_iter().flatten().collect()
}

/// Breaks each rule, and runs its finders until one fails. Reports each outcome immediately.
pub fn chase(
    built: &Built,
    copy: &Path,
    rules: Vec<Rule>,
    workers: usize,
    tell: impl Fn(&Outcome) + Sync,
) -> Vec<Outcome> {
    in_parallel(rules, workers, |rule: Rule| {
        let outcome = chase_one(built, copy, rule);
        tell(&outcome);
        outcome
    })
}

fn chase_one(built: &Built, copy: &Path, rule: Rule) -> Outcome {
    let mut took = Duration::ZERO;
    // A fault point is named by its finder, and needs no switch.
    let switched = (!rule.edits.is_empty()).then_some(rule.name.as_str());
    let mut runs = rule.finders().into_iter().map(|finder| {
        let said = finder.run(built, copy, switched);
        took += said.took;
        (finder, said)
    });
    let found = runs.find(|(_, said)| !said.passed);
    Outcome { found, took, rule }
}

/// Assigns each item to the next free worker; results are in the order of the items.
fn in_parallel<T: Send, R: Send>(items: Vec<T>, workers: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let waiting = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                while let Some((place, item)) =
                    { waiting.lock().expect("no worker panics while it takes").next() }
                {
                    let result = work(item);
                    done.lock().expect("no worker panics while it reports").push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("all workers have ended");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
