//! A watcher learns the last change: an answer is news or comes after the time that was asked for, an index never goes
//! back on one server's word, and when all is quiet every watcher has seen what is there.

use super::{Fact, Invariant, Scene, ensure};

/// Needs no memory: the history has it.
#[derive(Debug, Default)]
pub(super) struct Watches;

impl Invariant for Watches {
    fn name(&self) -> &'static str {
        "watches"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        let Fact::LastSeen { query, answer } = fact else { return Ok(()) };
        let (index, rows) = scene.history.state().query(query);
        let seen = answer.map(|answer| (answer.index, &answer.rows));
        ensure(seen == Some((index, &rows)), || {
            let seen = seen.map(|(index, _)| index);
            format!("{query:?} changed last at {index}, and its watcher saw {seen:?} last")
        })
    }
}
