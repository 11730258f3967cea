//! A request takes effect once, however often it is sent: its reply is kept once, and its value is written once.
//!
//! Every write of the simulated clients carries a value that no other write carries. A restore writes nothing of its own: what
//! was there once is there again.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, Generation, Key};
use std::collections::{BTreeMap, BTreeSet};

/// Whose replies were kept, and what was written.
#[derive(Debug, Default)]
pub(super) struct ExactlyOnce {
    lives: BTreeMap<AgentNumber, Generation>,
    kept: BTreeSet<(AgentNumber, Generation, u64)>,
    present: BTreeMap<Key, Bytes>,
    written: BTreeSet<(Key, Bytes)>,
}

impl ExactlyOnce {
    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        if !is_restore(changes) {
            return changes.iter().try_for_each(|change| self.change(change));
        }
        let entries = changes.iter().filter_map(|change| match change {
            Change::Entry(key, Some(entry)) => Some((key.clone(), entry.value.clone())),
            _ => None,
        });
        self.present = entries.collect();
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Agent(number, Some(agent)) => {
                self.lives.insert(*number, agent.generation);
                Ok(())
            }
            Change::Reply(agent, sequence, Some(_)) => {
                let life = self.lives.get(agent).copied().unwrap_or_default();
                ensure(self.kept.insert((*agent, life, *sequence)), || {
                    format!("request {sequence} of agent {agent} took effect twice")
                })
            }
            Change::Entry(key, Some(entry)) if !entry.value.is_empty() => {
                let before = self.present.insert(key.clone(), entry.value.clone());
                let is_new = before.as_ref() != Some(&entry.value);
                let first = !is_new || self.written.insert((key.clone(), entry.value.clone()));
                ensure(first, || format!("{:?} was written to {key} twice", entry.value))
            }
            Change::TreeDeleted(prefix) => {
                self.present.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
                Ok(())
            }
            Change::Entry(key, None) => {
                self.present.remove(key);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly_once"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes),
            Fact::Strange { changes } => self.entry(changes),
            _ => Ok(()),
        }
    }
}
