//! Servers that applied the same index hold the same state: they produced the same changes, and a
//! state from a disk or from another server is the one that the log produces.

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
                        "server {server} produced {} changes behind {from} up to {to}, not {}: {part:?}",
                        changes.len(),
                        expected.len()
                    )
                })
            }
            Fact::Opened { server, index, state } => {
                let Some(expected) = scene.history.state_at(*index) else {
                    return Err(format!("server {server} is at {index}, which no server has applied"));
                };
                ensure(expected == **state, || {
                    let lost: Vec<Change> =
                        expected.rows().filter(|row| !state.rows().any(|r| r == *row)).collect();
                    let added: Vec<Change> =
                        state.rows().filter(|row| !expected.rows().any(|r| r == *row)).collect();
                    format!("server {server}'s state at {index} lacks {lost:?} and also has {added:?}")
                })
            }
            _ => Ok(()),
        }
    }
}
