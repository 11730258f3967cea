//! Deadlocks: the search for a circle of waits, in the entry that may close one, and the record of
//! those found.
//!
//! A new request is the last in its queues, so a circle that it closes contains its session. The
//! same is true of a grant past requests that wait: an upgrade at once, or a lock that a
//! transaction hands over. Other grants, and the end of a hold or a request, add no wait.
//!
//! The search goes from the session in both directions, to its blockers and to the sessions that it
//! blocks, and expands the side with fewer sessions: a session without waiters costs one step.

use super::State;
use super::keys::Keys;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::deadlock::{
    AwaitedLock, BLOCKERS_LISTED, DEADLOCK_SESSIONS_KEPT, DEADLOCKS_KEPT, Deadlock, DeadlockPolicy,
    DeadlockedSession, Deadlocks, LockWait,
};
use lockmesh_protocol::id::{Key, LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::Rows;
use lockmesh_protocol::record::{LockMode, LockRequest, RequestedLock};
use lockmesh_protocol::reply::{LockRefusal, Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The format version from which circles are searched.
const SINCE_FORMAT: u8 = 9;

/// The maximum number of sessions that a search visits.
const SESSIONS_MAX: usize = 4_096;

/// The maximum number of pairs of sessions that a search compares.
const COMPARISONS_MAX: usize = 65_536;

/// The maximum number of sessions that a refusal names.
const SESSIONS_NAMED: usize = 8;

/// The maximum number of sessions ahead of a request that are examined for its list of blockers.
const EXAMINED_MAX: usize = 64;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Circle {
    None,
    /// Each session with the key for which it waits; the next session blocks it.
    Found(Vec<(SessionId, Key)>),
    /// The search reached a limit.
    Unknown,
}

/// Looks for a circle of waits that this command closed with a session, and records it.
///
/// # Errors
/// There is one, and the cluster refuses the requests that close circles.
pub(super) fn note_circle(step: &mut Step<'_>, session: SessionId, may_refuse: bool) -> Result<(), Refusal> {
    if step.state.format() < SINCE_FORMAT {
        return Ok(());
    }
    let waits = match circle(&step.state.keys, session) {
        Circle::None => return Ok(()),
        Circle::Unknown => None,
        Circle::Found(waits) => Some(waits),
    };
    let refusal =
        waits.as_ref().filter(|_| may_refuse && step.state.deadlocks.policy == DeadlockPolicy::Refuse);
    let refusal = refusal.map(|waits| LockRefusal::Deadlock {
        length: waits.len() as u64,
        waits: waits.iter().take(SESSIONS_NAMED).cloned().collect(),
    });
    record(step, waits, refusal.is_some());
    refusal.map_or(Ok(()), |refusal| Err(Refusal::Lock(refusal)))
}

/// Returns the locks with which a grant may close a circle: those that are new to a session which
/// waits for others.
pub(super) fn may_close<'a>(
    keys: &Keys,
    locks: impl Iterator<Item = (&'a Key, LockMode)>,
    session: SessionId,
) -> Vec<Key> {
    if !keys.waiting.contains_key(&session) {
        return Vec::new();
    }
    let new = locks.filter(|(key, mode)| keys.mode_held(key, session) != Some(*mode));
    new.map(|(key, _)| key.clone()).collect()
}

/// Looks for a circle that a grant closed: it passed requests that wait, for a session that waits
/// for another lock.
pub(super) fn note_circle_of_grant(step: &mut Step<'_>, granted: &[Key], session: SessionId) {
    let keys = &step.state.keys;
    let passed = granted.iter().any(|key| keys.queues.contains_key(key));
    if passed && keys.waiting.contains_key(&session) {
        // A grant is not refused.
        drop(note_circle(step, session, false));
    }
}

fn record(step: &mut Step<'_>, waits: Option<Vec<(SessionId, Key)>>, is_refused: bool) {
    let mut deadlocks = Deadlocks::clone(&step.state.deadlocks);
    match waits {
        None => deadlocks.unknown += 1,
        Some(waits) => {
            deadlocks.found += 1;
            let length = waits.len() as u64;
            let named = |(session, key): (SessionId, Key)| {
                let row = step.state.session(session);
                let name = row.map(|row| row.spec.name.clone()).unwrap_or_default();
                let node = row.map_or_else(|| NodeName::from(""), |row| row.spec.node.clone());
                DeadlockedSession { session, name, node, key }
            };
            let waits = waits.into_iter().take(DEADLOCK_SESSIONS_KEPT).map(named).collect();
            let (index, found_at) = (step.index, step.at);
            if deadlocks.newest.len() == DEADLOCKS_KEPT {
                deadlocks.newest.remove(0);
            }
            deadlocks.newest.push(Arc::new(Deadlock { index, found_at, is_refused, length, waits }));
        }
    }
    step.set(Change::Deadlocks(Arc::new(deadlocks)));
}

pub(super) fn configure_deadlocks(step: &mut Step<'_>, policy: DeadlockPolicy) -> Reply {
    if step.state.deadlocks.policy != policy {
        let deadlocks = Deadlocks { policy, ..Deadlocks::clone(&step.state.deadlocks) };
        step.set(Change::Deadlocks(Arc::new(deadlocks)));
    }
    Reply::Done
}

/// The row, if it is not that of a new cluster.
pub(super) fn row(deadlocks: &Arc<Deadlocks>) -> Option<Change> {
    (**deadlocks != Deadlocks::default()).then(|| Change::Deadlocks(deadlocks.clone()))
}

/// One direction of a search: the sessions that it reached.
struct Side {
    /// Each session with the neighbour that it was reached from, and the key between them.
    reached: BTreeMap<SessionId, (SessionId, Key)>,
    frontier: Vec<SessionId>,
}

/// Searches the shortest circle through a session, or almost the shortest one.
fn circle(keys: &Keys, start: SessionId) -> Circle {
    let side = || Side { reached: BTreeMap::new(), frontier: vec![start] };
    // One side goes to its blockers, the other to the sessions that it blocks.
    let (mut blockers, mut blocked) = (side(), side());
    let mut compared = 0;
    loop {
        let is_ahead = blockers.frontier.len() < blocked.frontier.len();
        let (side, other) = if is_ahead { (&mut blockers, &blocked) } else { (&mut blocked, &blockers) };
        if side.frontier.is_empty() {
            return Circle::None;
        }
        let mut meeting = None;
        for session in std::mem::take(&mut side.frontier) {
            let left = COMPARISONS_MAX - compared;
            let (found, count) =
                if is_ahead { keys.blockers(session, left) } else { keys.blocked(session, left) };
            compared += count;
            if compared >= COMPARISONS_MAX {
                return Circle::Unknown;
            }
            for (key, neighbour) in found {
                if side.reached.contains_key(&neighbour) {
                    continue;
                }
                side.reached.insert(neighbour, (session, key));
                side.frontier.push(neighbour);
                if neighbour == start || other.reached.contains_key(&neighbour) {
                    meeting = meeting.or(Some(neighbour));
                }
            }
        }
        if let Some(meeting) = meeting {
            return Circle::Found(joined(&blockers, &blocked, start, meeting));
        }
        if blockers.reached.len() + blocked.reached.len() > SESSIONS_MAX {
            return Circle::Unknown;
        }
    }
}

/// Joins the ways from the start to the meeting and from there back to the start.
fn joined(blockers: &Side, blocked: &Side, start: SessionId, meeting: SessionId) -> Vec<(SessionId, Key)> {
    let mut waits = Vec::new();
    let mut session = meeting;
    while let Some((waiting, key)) = blockers.reached.get(&session) {
        waits.push((*waiting, key.clone()));
        session = *waiting;
        if session == start {
            break;
        }
    }
    waits.reverse();
    let mut session = meeting;
    while let Some((blocker, key)) = blocked.reached.get(&session) {
        waits.push((session, key.clone()));
        session = *blocker;
        if session == start {
            break;
        }
    }
    waits
}

impl Keys {
    /// The sessions that block a session, each with a key, after at most this many comparisons, and
    /// their number.
    fn blockers(&self, session: SessionId, limit: usize) -> (Vec<(Key, SessionId)>, usize) {
        let mut compared = 0;
        let mut found = Vec::new();
        for (key, position) in self.waiting.get(&session).into_iter().flatten() {
            let Some(request) = self.request(key, *position) else { continue };
            for other in self.ahead_of(key, *position) {
                compared += 1;
                if compared > limit {
                    return (found, compared);
                }
                if self.is_blocked_by(key, *position, request, other) {
                    found.push((key.clone(), other));
                }
            }
        }
        (found, compared)
    }

    /// The sessions that a session blocks, in the same way.
    fn blocked(&self, session: SessionId, limit: usize) -> (Vec<(Key, SessionId)>, usize) {
        let mut compared = 0;
        let mut found = Vec::new();
        let held = self.held.get(&session);
        let waiting = self.waiting.get(&session).into_iter().flat_map(BTreeMap::keys);
        let waiting = waiting.filter(|key| held.is_none_or(|held| !held.contains(*key)));
        for key in held.into_iter().flatten().chain(waiting) {
            compared += 1;
            if compared > limit {
                return (found, compared);
            }
            for (position, request) in self.queues.get(key).into_iter().flatten() {
                compared += 1;
                if compared > limit {
                    return (found, compared);
                }
                if self.is_blocked_by(key, *position, request, session) {
                    found.push((key.clone(), request.session));
                }
            }
        }
        (found, compared)
    }

    /// The holders of a lock, the upgrade and the requests before a position in its queue: those
    /// that may block a request there.
    fn ahead_of(&self, key: &Key, position: LogIndex) -> impl Iterator<Item = SessionId> {
        let holders = self.holders_of(key).into_iter().chain(self.upgrades.get(key).copied());
        let queue = self.queues.get(key).into_iter().flat_map(move |queue| queue.range(..position));
        holders.chain(queue.map(|(_, request)| request.session))
    }

    /// Returns whether a session holds a lock, or asked for it earlier, so that a request for it
    /// cannot be granted.
    fn is_blocked_by(&self, key: &Key, position: LogIndex, request: &LockRequest, other: SessionId) -> bool {
        let Some(mode) = request.mode_of(key).filter(|_| request.session != other) else { return false };
        let held = self.mode_held(key, request.session);
        if held == Some(LockMode::Exclusive) || held == Some(mode) {
            return false;
        }
        if self.mode_held(key, other).is_some_and(|theirs| theirs.conflicts_with(mode)) {
            return true;
        }
        if held.is_some() {
            // An upgrade waits for holders only.
            return false;
        }
        let theirs = self.queue_position(key, other).filter(|theirs| *theirs < position);
        let earlier = theirs.and_then(|theirs| self.request(key, theirs)?.mode_of(key));
        self.upgrades.get(key) == Some(&other) || earlier.is_some_and(|theirs| theirs.conflicts_with(mode))
    }
}

/// The numbers of deadlocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlockCounts {
    /// The deadlocks that still exist, of the newest ones.
    pub existing: u64,
    /// The deadlocks found in the cluster's life.
    pub found: u64,
    /// Searches that reached their limit.
    pub unknown: u64,
}

impl DeadlockCounts {
    /// Counts the deadlocks of a state.
    pub fn of(state: &State) -> Self {
        let Deadlocks { found, unknown, ref newest, .. } = *state.deadlocks;
        let existing = newest.iter().filter(|deadlock| state.keys.still_exists(deadlock)).count() as u64;
        Self { existing, found, unknown }
    }
}

/// The requests that wait for a lock under a prefix.
pub(super) fn waits(state: &State, prefix: &str) -> Rows {
    let keys = &state.keys;
    let standing = state.deadlocks.newest.iter().filter(|deadlock| keys.still_exists(deadlock));
    let deadlocked: BTreeSet<SessionId> =
        standing.flat_map(|deadlock| deadlock.waits.iter().map(|wait| wait.session)).collect();
    let is_wanted =
        |request: &LockRequest| request.locks.iter().any(|lock| lock.key.as_str().starts_with(prefix));
    let mut ahead: BTreeMap<(&Key, LogIndex), u64> = BTreeMap::new();
    for (key, queue) in &keys.queues {
        ahead.extend(queue.keys().zip(0..).map(|(position, number)| ((key, *position), number)));
    }
    let requests = keys.requests.iter().filter(|(_, request)| is_wanted(request));
    let shown = requests.filter_map(|(position, request)| {
        let awaited = |lock: &RequestedLock| AwaitedLock {
            key: lock.key.clone(),
            mode: lock.mode,
            ahead: ahead.get(&(&lock.key, *position)).copied().unwrap_or_default(),
            blocked_by: keys.first_blockers(&lock.key, *position, request),
        };
        Some(LockWait {
            session: state.session(request.session)?.clone(),
            queue_position: *position,
            enqueued_at: request.enqueued_at,
            wait: request.wait,
            is_deadlocked: deadlocked.contains(&request.session),
            locks: request.locks.iter().map(awaited).collect(),
        })
    });
    Rows::Waits(shown.collect())
}

/// The deadlocks found, newest first.
pub(super) fn found(state: &State) -> Rows {
    let newest = state.deadlocks.newest.iter().rev();
    let rows = newest.map(|deadlock| (deadlock.clone(), state.keys.still_exists(deadlock))).collect();
    Rows::Deadlocks(state.deadlocks.policy, rows)
}

impl Keys {
    /// Returns whether each session of a deadlock still waits for the next one.
    fn still_exists(&self, deadlock: &Deadlock) -> bool {
        let waits = &deadlock.waits;
        let is_whole = deadlock.length == waits.len() as u64;
        let next = waits.iter().skip(1).chain(waits.iter().take(usize::from(is_whole)));
        !deadlock.is_refused
            && waits.iter().zip(next).all(|(wait, next)| {
                let position = self.queue_position(&wait.key, wait.session);
                let request = position.and_then(|position| self.request(&wait.key, position));
                position.zip(request).is_some_and(|(position, request)| {
                    self.is_blocked_by(&wait.key, position, request, next.session)
                })
            })
    }

    fn first_blockers(&self, key: &Key, position: LogIndex, request: &LockRequest) -> Vec<SessionId> {
        let others = self.ahead_of(key, position).take(EXAMINED_MAX);
        let mut found: Vec<SessionId> = Vec::new();
        for other in others.filter(|other| self.is_blocked_by(key, position, request, *other)) {
            if !found.contains(&other) && found.len() < BLOCKERS_LISTED {
                found.push(other);
            }
        }
        found
    }
}
