//! The holder of a lock is a live session, behind every log entry.

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Key, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Sessions and holders, according to the changes.
#[derive(Debug, Default)]
pub(super) struct HolderAlive {
    sessions: BTreeSet<SessionId>,
    holders: BTreeMap<Key, SessionId>,
    shared: SharedHolds,
}

impl HolderAlive {
    fn change(&mut self, change: &Change) {
        self.shared.see(change);
        match change {
            Change::Session(id, Some(_)) => {
                self.sessions.insert(*id);
            }
            Change::Session(id, None) => {
                self.sessions.remove(id);
            }
            Change::Entry(key, entry) => match entry.as_ref().and_then(|entry| entry.lock.session) {
                Some(holder) => {
                    self.holders.insert(key.clone(), holder);
                }
                None => {
                    self.holders.remove(key);
                }
            },
            Change::Cleared => {
                (self.sessions, self.holders) = Default::default();
                self.shared.clear();
            }
            Change::TreeDeleted(prefix) => {
                self.holders.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
            }
            _ => {}
        }
    }
}

impl Invariant for HolderAlive {
    fn name(&self) -> &'static str {
        "holder_alive"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        let changes = match fact {
            Fact::Applied(past) => past.changes.as_slice(),
            Fact::Strange { changes } => changes,
            _ => return Ok(()),
        };
        changes.iter().for_each(|change| self.change(change));
        for (key, holder) in self.holders.iter().chain(self.shared.iter()) {
            ensure(self.sessions.contains(holder), || format!("{key} is held by {holder}, which is gone"))?;
        }
        Ok(())
    }
}
