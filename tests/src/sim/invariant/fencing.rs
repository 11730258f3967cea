//! Fencing tokens only increase: each grant has a token that no earlier grant had, and the shared
//! holders of one period have one in common. A restore brings old grants back with their old
//! tokens, but never issues one of them again.

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure, is_restore};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Fence, Key, SessionId};
use std::collections::BTreeMap;

/// The last token, the token of each key's last grant, and the owner of each token.
#[derive(Debug, Default)]
pub(super) struct Fencing {
    last: Fence,
    grants: BTreeMap<Key, (Fence, Option<SessionId>)>,
    given: BTreeMap<Fence, (Key, Option<SessionId>)>,
    shared: SharedHolds,
}

impl Fencing {
    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        let restores = is_restore(changes);
        // It lists the entries first, and may end sessions of shared holders last (seed 12358).
        if restores {
            self.shared.clear();
            let holds = changes.iter().filter(|change| matches!(change, Change::SharedHold(.., Some(_))));
            holds.for_each(|change| self.shared.see(change));
        }
        changes.iter().try_for_each(|change| self.change(change, restores))
    }

    fn change(&mut self, change: &Change, restores: bool) -> Result<(), String> {
        self.shared.see(change);
        match change {
            Change::Cleared => {
                self.grants.clear();
                Ok(())
            }
            Change::Fence(fence) => {
                let before = std::mem::replace(&mut self.last, *fence);
                let goes_on = *fence > before || (restores && *fence == before);
                ensure(goes_on, || format!("the fencing token went from {before} to {fence}"))
            }
            Change::Entry(key, Some(entry)) if entry.lock.session.is_some() => {
                let holder = entry.lock.session.filter(|session| !self.shared.contains(key, session));
                let owner = (key.clone(), holder);
                let first = self.given.entry(entry.lock.fence).or_insert_with(|| owner.clone());
                ensure(*first == owner, || {
                    format!("{} was given to {first:?} and {owner:?}", entry.lock.fence)
                })?;
                let grant = (entry.lock.fence, holder);
                let Some((fence, before)) = self.grants.insert(key.clone(), grant) else { return Ok(()) };
                ensure(entry.lock.fence > fence || (entry.lock.fence == fence && holder == before), || {
                    format!("{key} was granted under {} after {fence}", entry.lock.fence)
                })
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for Fencing {
    fn name(&self) -> &'static str {
        "fencing"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes),
            Fact::Strange { changes } => self.entry(changes),
            _ => Ok(()),
        }
    }
}
