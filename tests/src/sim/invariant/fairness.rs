//! Fairness: requests get their locks in turn. None is granted a lock past an earlier request that
//! conflicts with it, except to a shared holder that becomes the exclusive one, or the reverse. A
//! request for several locks is granted all of them in one entry. No lock with a waiter remains
//! free and open behind a log entry. A restore ends all waits. A wait lasts exactly as long as
//! requested, by a leader's clock; an election may prolong it.

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId, WallTime};
use lockmesh_protocol::record::{LockMode, LockRequest, RequestedLock, Waiter};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The waiting requests, according to the changes, and the locks that are held or closed.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    requests: BTreeMap<LogIndex, (Arc<LockRequest>, Time)>,
    shared: SharedHolds,
    holders: BTreeMap<Key, (SessionId, Fence)>,
    closed: BTreeSet<Key>,
}

impl Fairness {
    /// Processes the changes of a log entry, or changes that follow from no entry.
    fn entry(&mut self, changes: &[Change], past: Option<&Past>, scene: &Scene<'_>) -> Result<(), String> {
        // The last request that left the queues: the grants that follow are its own.
        let mut called: Option<(LogIndex, Arc<LockRequest>)> = None;
        let (before, mut left) = (self.holds(), Vec::new());
        for change in changes {
            match change {
                Change::Waiter(key, queue_position, Some(waiter)) => {
                    let Waiter { session, ref value, flags, wait, enqueued_at_index } = **waiter;
                    let (mode, value) = (LockMode::Exclusive, value.clone());
                    let locks = vec![RequestedLock { key: key.clone(), mode, value, flags }];
                    let enqueued_at = WallTime(0);
                    let request = LockRequest { session, locks, wait, enqueued_at_index, enqueued_at };
                    self.wait(*queue_position, Arc::new(request), past, scene);
                }
                Change::LockRequest(queue_position, Some(request)) => {
                    self.wait(*queue_position, request.clone(), past, scene);
                }
                Change::Waiter(_, queue_position, None) | Change::LockRequest(queue_position, None) => {
                    let request = self.leave(past, scene, *queue_position)?;
                    left.extend(request.clone());
                    called = request.map(|request| (*queue_position, request));
                }
                Change::Cleared => *self = Self::default(),
                Change::LockDelay(key, Some(_)) | Change::SharedDelay(key, Some(_)) => {
                    self.closed.insert(key.clone());
                }
                Change::LockDelay(key, None) | Change::SharedDelay(key, None) => {
                    self.closed.remove(key);
                }
                Change::TreeDeleted(prefix) => {
                    self.holders.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
                }
                Change::SharedHold(key, session, hold) => {
                    let is_new = hold.is_some() && !self.shared.contains(key, session);
                    self.shared.see(change);
                    if is_new {
                        self.granted((key, LockMode::Shared), session, called.as_ref(), &before)?;
                    }
                }
                Change::Entry(key, entry) => {
                    let holder =
                        entry.as_ref().and_then(|entry| Some((entry.lock.session?, entry.lock.fence)));
                    let Some((session, fence)) = holder else {
                        self.holders.remove(key);
                        continue;
                    };
                    let known = self.holders.insert(key.clone(), (session, fence));
                    let is_grant = known.is_none_or(|(_, known)| known != fence);
                    if is_grant && !self.shared.contains(key, &session) {
                        self.granted((key, LockMode::Exclusive), &session, called.as_ref(), &before)?;
                    }
                }
                _ => {}
            }
        }
        self.no_lock_is_idle()?;
        left.iter().try_for_each(|request| self.all_or_none(request, changes))
    }

    /// The holders before an entry.
    fn holds(&self) -> BTreeSet<(Key, SessionId)> {
        let holders = self.holders.iter().map(|(key, (session, _))| (key.clone(), *session));
        holders.chain(self.shared.iter().map(|(key, session)| (key.clone(), *session))).collect()
    }

    fn wait(
        &mut self,
        position: LogIndex,
        request: Arc<LockRequest>,
        past: Option<&Past>,
        scene: &Scene<'_>,
    ) {
        self.requests.insert(position, (request, past.map_or(scene.now, |past| past.at)));
    }

    /// Removes a request from the queues.
    fn leave(
        &mut self,
        past: Option<&Past>,
        scene: &Scene<'_>,
        queue_position: LogIndex,
    ) -> Result<Option<Arc<LockRequest>>, String> {
        let Some((request, since)) = self.requests.remove(&queue_position) else { return Ok(None) };
        if let Some(past) = past
            && let Some(Command::EndWait { queue_position: ended, .. }) =
                past.proposal.as_ref().map(|proposal| &proposal.command)
            && *ended == queue_position
        {
            let (passed, least) = (past.at.since(since), scene.at_least(request.wait, since));
            ensure(passed >= least, || {
                let LockRequest { session, wait, .. } = &*request;
                format!("{session} requested a wait of {wait:?}, and timed out after {passed:?}")
            })?;
        }
        Ok(Some(request))
    }

    /// Checks that a grant passes no request that conflicts with it.
    fn granted(
        &self,
        (key, mode): (&Key, LockMode),
        session: &SessionId,
        called: Option<&(LogIndex, Arc<LockRequest>)>,
        before: &BTreeSet<(Key, SessionId)>,
    ) -> Result<(), String> {
        if before.contains(&(key.clone(), *session)) {
            return Ok(());
        }
        let position = called.filter(|(_, request)| request.session == *session && request.of(key).is_some());
        let passes = |(other, (request, _)): &(&LogIndex, &(Arc<LockRequest>, Time))| {
            request.session != *session
                && position.is_none_or(|(position, _)| *other < position)
                && request.mode_of(key).is_some_and(|theirs| theirs.conflicts_with(mode))
        };
        let passed = self.requests.iter().find(passes);
        ensure(passed.is_none(), || {
            format!("{key} was granted to {session}, but an earlier request waits for it: {passed:?}")
        })
    }

    /// Checks that a request that left the queues was granted all of its locks, or none.
    fn all_or_none(&self, request: &LockRequest, changes: &[Change]) -> Result<(), String> {
        let granted_for = |change: &Change| match change {
            Change::Entry(_, Some(entry)) => entry.lock.granted_for,
            Change::SharedHold(_, _, Some(hold)) => hold.granted_for,
            _ => None,
        };
        if changes.iter().all(|change| granted_for(change) != Some(request.enqueued_at_index)) {
            return Ok(());
        }
        let session = request.session;
        let is_held = |key: &Key| {
            let holder = self.holders.get(key).map(|(holder, _)| *holder);
            holder == Some(session) || self.shared.contains(key, &session)
        };
        let missing = request.locks.iter().find(|lock| !is_held(&lock.key));
        ensure(missing.is_none(), || {
            format!("{missing:?} was not granted with the other locks of {request:?}")
        })
    }

    fn no_lock_is_idle(&self) -> Result<(), String> {
        // The first request for a lock, if it waits for no other lock.
        let mut first: BTreeMap<&Key, &LockRequest> = BTreeMap::new();
        for (request, _) in self.requests.values() {
            for lock in &request.locks {
                first.entry(&lock.key).or_insert(request);
            }
        }
        let idle = first.into_iter().find(|(key, request)| {
            request.locks.len() == 1 && !self.holders.contains_key(*key) && !self.closed.contains(*key)
        });
        ensure(idle.is_none(), || format!("{idle:?} is free and open although it has a waiter"))
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
