//! Servers that applied the same index hold the same state: they came to the same changes, and a
//! state that comes from a disk or from another server is the one that the log makes.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::change::Change;

/// Needs no memory: the history has it.
#[derive(Debug)]
pub(super) struct Replicas;

impl Invariant for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Reached { server, from, to, changes } => {
                let expected = scene.history.changes(*from, *to);
                ensure(expected.eq(changes.iter()), || {
                    let expected: Vec<&Change> = scene.history.changes(*from, *to).collect();
                    let part = expected.iter().zip(changes.iter()).find(|(left, right)| **left != *right);
                    format!(
                        "server {server} came to {} changes behind {from} up to {to}, not {}: {part:?}",
                        changes.len(),
                        expected.len()
                    )
                })
            }
            Fact::Opened { server, index, state } => {
                let Some(expected) = scene.history.state_at(*index) else {
                    return Err(format!("server {server} stands at {index}, where nobody has been"));
                };
                ensure(expected == **state, || {
                    let lost: Vec<Change> =
                        expected.rows().filter(|row| !state.rows().any(|r| r == *row)).collect();
                    let added: Vec<Change> =
                        state.rows().filter(|row| !expected.rows().any(|r| r == *row)).collect();
                    format!("server {server}'s state at {index} lacks {lost:?} and has {added:?}")
                })
            }
            _ => Ok(()),
        }
    }
}
