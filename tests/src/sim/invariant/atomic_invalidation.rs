//! The end of a session releases all its locks, and closes them for its lock-delay, in the log
//! entry that ended it.

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure, is_restore};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::record::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sessions and their locks, according to the changes.
#[derive(Debug, Default)]
pub(super) struct AtomicInvalidation {
    sessions: BTreeMap<SessionId, Arc<Session>>,
    holders: BTreeMap<Key, SessionId>,
    shared: SharedHolds,
}

impl AtomicInvalidation {
    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        // A restore ends the sessions of its backup whose nodes have failed, not those before it.
        if is_restore(changes) {
            *self = Self::default();
        }
        let ended = changes.iter().filter_map(|change| match change {
            Change::Session(id, None) => Some(id),
            _ => None,
        });
        for id in ended.clone() {
            let Some(session) = self.sessions.remove(id) else { continue };
            let shared = self.shared.iter().filter(|(_, holder)| *holder == id);
            for (key, _) in shared {
                is_left(changes, key, &session)?;
            }
            let held =
                self.holders.iter().filter(|(key, holder)| *holder == id && !self.shared.contains(key, id));
            for (key, _) in held {
                is_freed(changes, key, &session)?;
            }
        }
        for change in changes {
            self.shared.see(change);
            match change {
                Change::Session(id, Some(session)) => {
                    self.sessions.insert(*id, session.clone());
                }
                Change::Entry(key, entry) => match entry.as_ref().and_then(|entry| entry.lock.session) {
                    Some(holder) => {
                        self.holders.insert(key.clone(), holder);
                    }
                    None => {
                        self.holders.remove(key);
                    }
                },
                Change::TreeDeleted(prefix) => {
                    self.holders.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
                }
                _ => {}
            }
        }
        for id in ended {
            let held = self.holders.iter().chain(self.shared.iter()).find(|(_, holder)| *holder == id);
            ensure(held.is_none(), || format!("{id} ended, but holds {held:?}"))?;
        }
        Ok(())
    }
}

/// Checks that an ended session no longer shares a lock, and that its lock-delay closes the key for
/// exclusive requests.
fn is_left(changes: &[Change], key: &Key, session: &Session) -> Result<(), String> {
    let (id, delay) = (session.spec.id, session.spec.lock_delay);
    let is_left = changes.contains(&Change::SharedHold(key.clone(), id, None));
    ensure(is_left, || format!("{id} ended, but still shares {key}"))?;
    let is_closed = |change: &Change| match change {
        Change::SharedDelay(of, Some(closed)) => of == key && closed.duration >= delay,
        _ => false,
    };
    ensure(delay.is_zero() || changes.iter().any(is_closed), || {
        format!("{id} ended, but {key} was not closed for exclusive requests")
    })
}

fn is_freed(changes: &[Change], key: &Key, session: &Session) -> Result<(), String> {
    let freed = changes.iter().any(|change| match change {
        Change::TreeDeleted(prefix) => key.as_str().starts_with(prefix.as_str()),
        Change::Entry(of, entry) => {
            of == key && entry.as_ref().is_none_or(|entry| entry.lock.session.is_none())
        }
        _ => false,
    });
    ensure(freed, || format!("{} ended, but {key} was not released", session.spec.id))?;
    let closed: BTreeSet<&Key> = changes
        .iter()
        .filter_map(|change| match change {
            Change::LockDelay(key, Some(delay)) if delay.duration == session.spec.lock_delay => Some(key),
            _ => None,
        })
        .collect();
    ensure(session.spec.lock_delay.is_zero() || closed.contains(key), || {
        format!("{} ended, but {key} was not closed for its lock-delay", session.spec.id)
    })
}

impl Invariant for AtomicInvalidation {
    fn name(&self) -> &'static str {
        "atomic_invalidation"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes),
            _ => Ok(()),
        }
    }
}
