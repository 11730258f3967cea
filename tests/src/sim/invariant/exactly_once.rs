//! A request takes effect once, however often it is sent: its reply is kept once, and its value is written once.
//!
//! Every write of the simulated clients carries a value that no other write carries.

use super::{Fact, Invariant, Scene, ensure};
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
            Fact::Applied(past) => past.changes.iter().try_for_each(|change| self.change(change)),
            Fact::Strange { changes } => changes.iter().try_for_each(|change| self.change(change)),
            _ => Ok(()),
        }
    }
}
