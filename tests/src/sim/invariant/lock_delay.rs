//! A lock-delay closes its key for the requested time, by a leader's clock; an election may prolong
//! it, but never shorten it. No closed key is granted, or not in exclusive mode if a shared holder
//! ended.

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure, is_restore};
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
    closed_for_exclusive: BTreeMap<Key, (Time, Duration)>,
    shared: SharedHolds,
}

impl LockDelays {
    fn entry(&mut self, past: &Past, scene: &Scene<'_>) -> Result<(), String> {
        for change in &past.changes {
            self.shared.see(change);
            match change {
                Change::Cleared => *self = Self::default(),
                Change::SharedDelay(key, Some(delay)) => {
                    self.closed_for_exclusive.insert(key.clone(), (past.at, delay.duration));
                }
                Change::SharedDelay(key, None) => {
                    let Some(closed) = self.closed_for_exclusive.remove(key) else { continue };
                    // A restore replaces it by one for all requests.
                    if !is_restore(&past.changes) {
                        opens(key, closed, past, scene)?;
                    }
                }
                Change::LockDelay(key, Some(delay)) => {
                    self.closed.insert(key.clone(), (past.at, delay.duration));
                }
                Change::LockDelay(key, None) => {
                    let Some(closed) = self.closed.remove(key) else { continue };
                    opens(key, closed, past, scene)?;
                }
                Change::Entry(key, Some(entry)) => {
                    let Some(session) = entry.lock.session else { continue };
                    ensure(!self.closed.contains_key(key), || format!("{key} was granted while closed"))?;
                    let is_closed = self.closed_for_exclusive.contains_key(key);
                    ensure(!is_closed || self.shared.contains(key, &session), || {
                        format!("{key} was granted to {session} alone after a shared holder ended")
                    })?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn opens(key: &Key, closed: (Time, Duration), past: &Past, scene: &Scene<'_>) -> Result<(), String> {
    let (since, duration) = closed;
    let (passed, least) = (past.at.since(since), scene.at_least(duration, since));
    ensure(passed >= least, || format!("{key} was closed for {duration:?} but opened after {passed:?}"))
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
