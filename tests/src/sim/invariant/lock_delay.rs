//! A lock-delay closes its key for the requested time, by a leader's clock; an election may prolong
//! it, but never shorten it. No closed key is granted.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::Key;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The closed keys, with the start and the length of the delay.
#[derive(Debug, Default)]
pub(super) struct LockDelays {
    closed: BTreeMap<Key, (Time, Duration)>,
}

impl LockDelays {
    fn entry(&mut self, past: &Past, scene: &Scene<'_>) -> Result<(), String> {
        for change in &past.changes {
            match change {
                Change::Cleared => self.closed.clear(),
                Change::LockDelay(key, Some(delay)) => {
                    self.closed.insert(key.clone(), (past.at, delay.duration));
                }
                Change::LockDelay(key, None) => {
                    let Some((since, duration)) = self.closed.remove(key) else { continue };
                    let (passed, least) = (past.at.since(since), scene.at_least(duration, since));
                    ensure(passed >= least, || {
                        format!("{key} was closed for {duration:?} but opened after {passed:?}")
                    })?;
                }
                Change::Entry(key, Some(entry)) if entry.lock.session.is_some() => {
                    ensure(!self.closed.contains_key(key), || format!("{key} was granted while closed"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Invariant for LockDelays {
    fn name(&self) -> &'static str {
        "lock_delay"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(past, scene),
            _ => Ok(()),
        }
    }
}
