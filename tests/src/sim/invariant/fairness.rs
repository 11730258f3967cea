//! Fairness: waiters get a lock in turn. No lock with a waiter is granted to another session, or
//! remains free and open behind a log entry. A restore ends all waits. A wait lasts exactly as long
//! as requested, by a leader's clock; an election may prolong it.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Fence, Key, LogIndex};
use lockmesh_protocol::record::{Entry, Waiter};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The waiters, according to the changes, and the locks that are held or closed.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    queues: BTreeMap<Key, BTreeMap<LogIndex, (Arc<Waiter>, Time)>>,
    grants: BTreeMap<Key, Fence>,
    held: BTreeSet<Key>,
    closed: BTreeSet<Key>,
}

impl Fairness {
    /// Processes the changes of a log entry, or changes that follow from no entry.
    fn entry(&mut self, changes: &[Change], past: Option<&Past>, scene: &Scene<'_>) -> Result<(), String> {
        let mut called = None;
        for change in changes {
            match change {
                Change::Waiter(key, queue_position, Some(waiter)) => {
                    let place = (waiter.clone(), past.map_or(scene.now, |past| past.at));
                    self.queues.entry(key.clone()).or_default().insert(*queue_position, place);
                }
                Change::Waiter(key, queue_position, None) => {
                    called = self.leave(past, scene, key, *queue_position)?;
                }
                Change::Cleared => (self.queues, self.held, self.closed) = Default::default(),
                Change::LockDelay(key, Some(_)) => drop(self.closed.insert(key.clone())),
                Change::LockDelay(key, None) => drop(self.closed.remove(key)),
                Change::TreeDeleted(prefix) => {
                    self.held.retain(|key| !key.as_str().starts_with(prefix.as_str()));
                }
                Change::Entry(key, entry) => self.passes(key, entry.as_deref(), called.take())?,
                _ => {}
            }
        }
        let idle = self.queues.keys().find(|key| !self.held.contains(*key) && !self.closed.contains(*key));
        ensure(idle.is_none(), || format!("{idle:?} is free and open although it has a waiter"))
    }

    /// Removes a waiter from a queue, and returns it if it was the first.
    fn leave(
        &mut self,
        past: Option<&Past>,
        scene: &Scene<'_>,
        key: &Key,
        queue_position: LogIndex,
    ) -> Result<Option<Arc<Waiter>>, String> {
        let Some(queue) = self.queues.get_mut(key) else { return Ok(None) };
        let is_first = queue.first_key_value().is_some_and(|(first, _)| *first == queue_position);
        let Some((waiter, since)) = queue.remove(&queue_position) else { return Ok(None) };
        if queue.is_empty() {
            self.queues.remove(key);
        }
        if let Some(past) = past
            && matches!(past.proposal.as_ref().map(|p| &p.command), Some(Command::EndWait { .. }))
        {
            let (passed, least) = (past.at.since(since), scene.at_least(waiter.wait, since));
            ensure(passed >= least, || {
                format!(
                    "{} requested a wait of {:?} for {key}, and timed out after {passed:?}",
                    waiter.session, waiter.wait
                )
            })?;
        }
        Ok(is_first.then_some(waiter))
    }

    fn passes(
        &mut self,
        key: &Key,
        entry: Option<&Entry>,
        called: Option<Arc<Waiter>>,
    ) -> Result<(), String> {
        let Some((entry, holder)) = entry.and_then(|entry| Some((entry, entry.lock.session.as_ref()?)))
        else {
            self.held.remove(key);
            return Ok(());
        };
        self.held.insert(key.clone());
        let is_grant = self.grants.insert(key.clone(), entry.lock.fence) != Some(entry.lock.fence);
        let is_its_turn = called.is_some_and(|waiter| waiter.session == *holder);
        ensure(!is_grant || is_its_turn || !self.queues.contains_key(key), || {
            format!("{key} was granted to {holder}, but other sessions had waited for it")
        })
    }
}

impl Invariant for Fairness {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes, Some(past), scene),
            Fact::Strange { changes } => self.entry(changes, None, scene),
            _ => Ok(()),
        }
    }
}
