//! One run: from its seed to its outcome.

use super::chronicle::Detail;
use super::fault_injection::FaultInjection;
use super::judge::Violation;
use super::marks::Marks;
use super::plan::Focus;
use super::stage::Stage;
use super::world::World;
use lockmesh_core::State;
use lockmesh_protocol::wire;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The focus.
    pub focus: Focus,
    /// The violations, if any.
    pub violations: Vec<Violation>,
    /// The rare branches that were reached.
    pub marks: Marks,
    /// The number of applied entries.
    pub entries: u64,
    /// The number of events.
    pub events: u64,
    /// The virtual time that passed, in microseconds.
    pub micros: u64,
    /// A hash of the last state.
    pub state_hash: u64,
}

/// Runs a seed. A panic of the code under test is a violation too.
pub fn run(seed: u64, fault_injection: FaultInjection, detail: Detail) -> Outcome {
    run_focused(seed, Focus::Everything, fault_injection, detail)
}

/// Runs a seed with a focus.
pub fn run_focused(seed: u64, focus: Focus, fault_injection: FaultInjection, detail: Detail) -> Outcome {
    let world = || play(seed, focus, fault_injection, detail).0;
    catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|panic| panicked(seed, focus, &*panic))
}

/// Runs a seed and keeps a line for every event.
pub fn trace(seed: u64, focus: Focus, fault_injection: FaultInjection) -> (Outcome, Vec<String>) {
    play(seed, focus, fault_injection, Detail::Trace)
}

/// Returns the outcome of the first seed that exposes the deliberate bug.
pub fn hunt(fault_injection: FaultInjection, mut seeds: std::ops::Range<u64>) -> Option<Outcome> {
    seeds.find_map(|seed| {
        let outcome = run(seed, fault_injection, Detail::Nothing);
        (!outcome.violations.is_empty()).then_some(outcome)
    })
}

fn play(seed: u64, focus: Focus, fault_injection: FaultInjection, detail: Detail) -> (Outcome, Vec<String>) {
    let mut world = World::new(Stage::new(seed, focus, fault_injection, detail));
    let mut events = 0;
    while !world.done && world.judge.violations.is_empty() {
        world.step();
        events += 1;
    }
    let now = world.stage.now;
    for violation in &world.judge.violations {
        world.stage.life.log(now, || format!("VIOLATION {}: {}", violation.invariant, violation.what));
    }
    let outcome = Outcome {
        seed,
        focus,
        violations: world.judge.violations,
        marks: world.stage.marks,
        entries: world.judge.history.last().0,
        events,
        micros: now.0,
        state_hash: hash(world.judge.history.state()),
    };
    (outcome, world.stage.life.into_lines())
}

fn panicked(seed: u64, focus: Focus, panic: &(dyn std::any::Any + Send)) -> Outcome {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
    Outcome {
        seed,
        focus,
        violations: vec![Violation { invariant: "panic", what: words.to_owned() }],
        marks: Marks::default(),
        entries: 0,
        events: 0,
        micros: 0,
        state_hash: 0,
    }
}

/// Computes FNV-1a over every row.
fn hash(state: &State) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for row in state.rows() {
        for byte in wire::encode(&row) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}
