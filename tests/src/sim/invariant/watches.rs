//! A watcher learns the last change: when all is quiet, every watcher has seen what is there.
//!
//! Its index may be another one: it moves when a tombstone is forgotten, and that is no news to
//! anybody.

use super::{Fact, Invariant, Scene, ensure};

/// Needs no memory: the history has it.
#[derive(Debug)]
pub(super) struct Watches;

impl Invariant for Watches {
    fn name(&self) -> &'static str {
        "watches"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        let Fact::LastSeen { query, answer } = fact else { return Ok(()) };
        let (index, rows) = scene.history.state().query(query);
        ensure(answer.is_some_and(|answer| answer.rows == rows), || {
            let seen = answer.map(|answer| answer.index);
            format!("{query:?} changed last at {index}, and its watcher saw {seen:?} last")
        })
    }
}
