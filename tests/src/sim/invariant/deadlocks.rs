//! Deadlocks: a circle of waits is found in the entry that closes it, and no other one is reported.
//!
//! The circles are searched from the start after every entry, by the rule alone: a request waits
//! for each session that holds a lock of it, or asked for one earlier, in a mode that conflicts.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use lockmesh_core::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::deadlock::{Deadlock, Deadlocks};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::record::{LockMode, LockRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The oldest format of a cluster that searches.
const SINCE_FORMAT: u8 = 9;

/// The sessions in a circle, and the deadlocks in the log.
#[derive(Debug, Default)]
pub(super) struct DeadlocksFound {
    in_circles: BTreeSet<SessionId>,
    row: Arc<Deadlocks>,
    /// The number of deadlocks found when the circles were last searched.
    known: u64,
    /// Set if a restore or a new format may have brought circles since then.
    is_new: bool,
}

impl DeadlocksFound {
    fn entry(&mut self, past: &Past, scene: &Scene<'_>) -> Result<(), String> {
        let found = self.row.found;
        self.note(&past.changes);
        let newest = self.row.newest.last().filter(|_| self.row.found > found);
        newest.map_or(Ok(()), |newest| was_closed_by(past, newest))?;
        // The state is that after the last of the entries that were applied at once.
        if past.entry.index != scene.history.last() || scene.history.state().format() < SINCE_FORMAT {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.in_circles, in_circles(scene.history.state()));
        let known = std::mem::replace(&mut self.known, self.row.found);
        if std::mem::take(&mut self.is_new) {
            return Ok(());
        }
        let new = self.in_circles.difference(&before).next();
        ensure(new.is_none() || self.row.found > known, || {
            format!("{new:?} is in a circle that was not reported")
        })?;
        let newest = self.row.newest.last().filter(|_| self.row.found > found);
        let Some(newest) = newest.filter(|newest| !newest.is_refused) else { return Ok(()) };
        ensure(self.in_circles.contains(&newest.waits[0].session), || format!("{newest:?} is no circle"))
    }

    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Deadlocks(row) => self.row = row.clone(),
                Change::Cleared | Change::Format(_) => self.is_new = true,
                _ => {}
            }
        }
    }
}

/// Checks that the session of a command closed a circle: by a request, or by a grant.
fn was_closed_by(past: &Past, newest: &Deadlock) -> Result<(), String> {
    let command = past.proposal.as_ref().map(|proposal| &proposal.command);
    let first = newest.waits[0].session;
    let is_right = match command {
        Some(Command::AcquireLocks { session, .. } | Command::Kv(KvCommand::Enqueue { session, .. })) => {
            first == *session
        }
        Some(Command::Kv(KvCommand::Acquire(_, session))) => first == *session && !newest.is_refused,
        Some(Command::Txn(_)) => !newest.is_refused,
        _ => false,
    };
    ensure(is_right, || format!("{command:?} closed {newest:?}"))
}

/// All sessions that wait for themselves, directly or through others.
fn in_circles(state: &State) -> BTreeSet<SessionId> {
    let mut waits: BTreeMap<SessionId, BTreeSet<SessionId>> = BTreeMap::new();
    for (position, request) in state.requests() {
        waits.entry(request.session).or_default().extend(blockers(state, *position, request));
    }
    let is_in_circle = |session: &&SessionId| {
        let mut reached = waits[*session].clone();
        let mut left: Vec<SessionId> = reached.iter().copied().collect();
        while let Some(next) = left.pop() {
            let more = waits.get(&next).into_iter().flatten();
            left.extend(more.filter(|other| reached.insert(**other)));
        }
        reached.contains(*session)
    };
    waits.keys().filter(is_in_circle).copied().collect()
}

fn blockers<'a>(
    state: &'a State,
    position: LogIndex,
    request: &'a LockRequest,
) -> impl Iterator<Item = SessionId> + 'a {
    let others = state.sessions().map(|row| row.spec.id).filter(|other| *other != request.session);
    others.filter(move |other| {
        request
            .locks
            .iter()
            .any(|lock| blocks(state, &lock.key, lock.mode, (position, request.session), *other))
    })
}

fn blocks(
    state: &State,
    key: &Key,
    mode: LockMode,
    (position, waiting): (LogIndex, SessionId),
    other: SessionId,
) -> bool {
    let held = state.mode_held(key, waiting);
    if held == Some(LockMode::Exclusive) || held == Some(mode) {
        return false;
    }
    let theirs = state.mode_held(key, other);
    if theirs.is_some_and(|theirs| theirs.conflicts_with(mode)) {
        return true;
    }
    let asked = state.requests().iter().filter(|(_, of)| of.session == other);
    let mut asked = asked.filter_map(|(at, of)| Some((*at, of.mode_of(key)?)));
    asked.any(|(at, wanted)| {
        let is_upgrade = theirs.is_some() && wanted == LockMode::Exclusive;
        wanted.conflicts_with(mode) && held.is_none() && (is_upgrade || at < position)
    })
}

impl Invariant for DeadlocksFound {
    fn name(&self) -> &'static str {
        "deadlocks"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(past, scene),
            Fact::Strange { changes } => {
                self.note(changes);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
