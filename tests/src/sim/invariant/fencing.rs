//! Fencing tokens only go up: each grant has one that no grant before it had.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Fence, Key, SessionId};
use std::collections::BTreeMap;

/// The last token, and the token of each key's last grant.
#[derive(Debug, Default)]
pub(super) struct Fencing {
    last: Fence,
    grants: BTreeMap<Key, (Fence, Option<SessionId>)>,
}

impl Fencing {
    fn change(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Fence(fence) => {
                let before = std::mem::replace(&mut self.last, *fence);
                ensure(*fence > before, || format!("the token went from {before} to {fence}"))
            }
            Change::Entry(key, Some(entry)) if entry.session.is_some() => {
                let grant = (entry.fence, entry.session.clone());
                let Some((fence, holder)) = self.grants.insert(key.clone(), grant) else { return Ok(()) };
                ensure(entry.fence > fence || (entry.fence == fence && entry.session == holder), || {
                    format!("{key} was granted under {} after {fence}", entry.fence)
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
            Fact::Applied(past) => past.changes.iter().try_for_each(|change| self.change(change)),
            Fact::Strange { changes } => changes.iter().try_for_each(|change| self.change(change)),
            _ => Ok(()),
        }
    }
}
