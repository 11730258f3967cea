//! Mutual exclusion: a lock has one holder, or several that share it, according to the log, and
//! according to clients' beliefs at any true time. Shared holders of one period have one fencing
//! token, which no other holder has.
//!
//! A client believes in its lock from its notification until it lets go, and no longer than its
//! session's lease. The lease ends one TTL after the send time of the last acknowledged renewal, or
//! when the servers failed its node or ended the sessions of its former host. By then its agent
//! must have reported the end of the node's lease; `node_lease` checks that. A restore takes all
//! locks from their holders; the fencing token identifies earlier grants.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{Fence, Key, SessionId};
use lockmesh_protocol::record::LossCause;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The holders, and the clients that believe that they hold.
#[derive(Debug, Default)]
pub(super) struct MutualExclusion {
    holders: BTreeMap<Key, (SessionId, Fence)>,
    shared: SharedHolds,
    /// The shared holds that ended in this entry: their sessions may hold the locks alone now.
    upgrading: BTreeSet<(Key, SessionId)>,
    beliefs: BTreeMap<(Key, SessionId), Fence>,
    leases: BTreeMap<SessionId, Time>,
    /// The times at which sessions ended with their nodes.
    failed: BTreeMap<SessionId, Time>,
    /// Grants up to this one were made before the last restore.
    restored_at: Fence,
}

impl MutualExclusion {
    fn applied(&mut self, past: &Past) -> Result<(), String> {
        let failed = past.changes.iter().filter_map(|change| match change {
            Change::Loss(_, Some(loss)) if ends_with_node(&loss.cause) => Some((loss.session, past.at)),
            _ => None,
        });
        self.failed.extend(failed);
        self.entry(&past.changes)
    }

    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        if is_restore(changes) {
            self.beliefs.clear();
            let fences = changes.iter().filter_map(|change| match change {
                Change::Fence(fence) => Some(*fence),
                _ => None,
            });
            self.restored_at = fences.max().unwrap_or(self.restored_at);
        }
        self.upgrading.clear();
        // A restore lists the entries first.
        if is_restore(changes) {
            self.shared.clear();
            changes.iter().for_each(|change| self.shared.see(change));
        }
        changes.iter().try_for_each(|change| self.change(change))?;
        let beside = self
            .holders
            .iter()
            .find(|(key, (session, _))| self.shared.is_shared(key) && !self.shared.contains(key, session));
        ensure(beside.is_none(), || format!("an exclusive holder is beside shared ones: {beside:?}"))
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        self.shared.see(change);
        if let Change::SharedHold(key, session, None) = change {
            self.upgrading.insert((key.clone(), *session));
        }
        if *change == Change::Cleared {
            self.holders.clear();
        }
        if let Change::TreeDeleted(prefix) = change {
            self.holders.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
        }
        let Change::Entry(key, entry) = change else { return Ok(()) };
        let holder = entry.as_ref().and_then(|entry| Some((entry.lock.session?, entry.lock.fence)));
        let before = match holder {
            Some(holder) => self.holders.insert(key.clone(), holder),
            None => self.holders.remove(key),
        };
        match (before, holder) {
            // The entry names the next of several holders, or the holder changes the mode.
            (Some(before), Some(after)) if before.1 == after.1 && self.shared.contains(key, &after.0) => {
                Ok(())
            }
            (Some(before), Some(after))
                if before.0 == after.0
                    && (self.shared.contains(key, &after.0)
                        || self.upgrading.contains(&(key.clone(), after.0))) =>
            {
                Ok(())
            }
            (Some(before), Some(after)) => ensure(before == after, || {
                format!("{key} passed from {} to {} without being free in between", before.0, after.0)
            }),
            _ => Ok(()),
        }
    }

    fn believe(&mut self, session: &SessionId, key: &Key, fence: Fence, now: Time) -> Result<(), String> {
        if fence <= self.restored_at {
            return Ok(());
        }
        let others = self.beliefs.iter().filter(|((of, who), _)| of == key && who != session);
        for ((_, other), held) in others.filter(|(_, held)| **held != fence) {
            let lease = self.leases.get(other).copied().unwrap_or_default();
            let lease = self.failed.get(other).map_or(lease, |failed| lease.min(*failed));
            ensure(lease <= now, || {
                format!(
                    "{session} was granted {key} (fence {fence}), while {other} (fence {held}) believes in it until {} µs",
                    lease.0
                )
            })?;
        }
        self.beliefs.insert((key.clone(), *session), fence);
        Ok(())
    }
}

/// The holders of locks in shared mode, according to the changes.
#[derive(Debug, Default)]
pub(super) struct SharedHolds(BTreeMap<Key, BTreeSet<SessionId>>);

impl SharedHolds {
    pub(super) fn see(&mut self, change: &Change) {
        match change {
            Change::SharedHold(key, session, Some(_)) => {
                self.0.entry(key.clone()).or_default().insert(*session);
            }
            Change::SharedHold(key, session, None) => {
                if let Some(holders) = self.0.get_mut(key) {
                    holders.remove(session);
                }
            }
            _ => {}
        }
    }

    pub(super) fn contains(&self, key: &Key, session: &SessionId) -> bool {
        self.0.get(key).is_some_and(|holders| holders.contains(session))
    }

    pub(super) fn is_shared(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(|holders| !holders.is_empty())
    }

    /// All holders with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &SessionId)> {
        self.0.iter().flat_map(|(key, holders)| holders.iter().map(move |session| (key, session)))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns `true` if the servers ended the session with its node, or with the node's former host.
/// `force_leave` checks that a node that was forced to leave had failed.
fn ends_with_node(cause: &LossCause) -> bool {
    matches!(cause, LossCause::NodeFailed { .. } | LossCause::NodeForcedToLeave | LossCause::HostReplaced)
}

impl Invariant for MutualExclusion {
    fn name(&self) -> &'static str {
        "mutual_exclusion"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.applied(past),
            Fact::Strange { changes } => self.entry(changes),
            Fact::Believes { session, key, fence } => self.believe(session, key, *fence, scene.now),
            Fact::Leased { session, until } => {
                self.leases.insert(*(*session), *until);
                Ok(())
            }
            Fact::LetsGo { session, key } => {
                self.beliefs.retain(|(of, who), _| who != *session || key.is_some_and(|key| key != of));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
