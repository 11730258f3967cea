//! A watcher learns of the last change: at the end, every watcher has seen the present state.
//!
//! Its index may differ: a forgotten tombstone moves the index without a visible change.

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
            format!("{query:?} last changed at {index}, but its watcher last saw {seen:?}")
        })
    }
}
