//! **A held lock has a live holder** (I9 of the design): when no fault began within the last two
//! windows plus two seconds, each lock of a guard is believed in by its guard or has passed on.
//! This is checked ten times a second throughout a run.
//!
//! A fault counts from its beginning. A fault of one host concerns the locks of that host, and of
//! the hosts that reach no server themselves: they live through the other hosts. A fault of servers
//! or of the network between them, and a new leader (which restarts every window), concern all
//! locks. While no leader can commit, every lock waits: that fault counts as new until it is over.
//! A write that a leader refuses because its queue is full is a fault of the host that sent it.
//! While the brake is on, the servers' windows are the longest one. A guard that releases by its
//! own choice has the same time, counted from the release.
//!
//! A grant whose reply was lost in silence is no fault: its guard recognizes it in that time,
//! counted from the last of its requests that failed since.
//!
//! A lying host may keep its own locks: no server can tell a false answer for itself from a true
//! one. Three cases have a different bound:
//! - If the guard's own process died or is paused while its host runs, the node's lease does not
//!   cover it: the session's TTL bounds it.
//! - A host is not judged for [`RESTART_WINDOW`] after its agent announced a restart.
//! - A hold that a restored backup brought back after its guard had released it is an operator's
//!   act: the guard closes the session at its next activity.

use super::guard::{PREFIX, holder_in, holder_of};
use super::marks::Mark;
use super::network::Place;
use super::stage::Event;
use super::world::World;
use lockmesh_core::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Key, LogIndex, NodeName, SessionId};
use lockmesh_protocol::lease::{HealthWindow, RESTART_WINDOW};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::Session;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Interval between checks.
const LOOK: Duration = Duration::from_millis(100);

/// Time allowed beside the windows for a lock to pass on: a check, a commit, and a client's retry.
const SLACK: Duration = Duration::from_secs(2);

/// Known faults, and locks that no guard believes in.
#[derive(Debug, Default)]
pub(super) struct HeldLocks {
    /// The start of the last fault that concerns all hosts.
    everywhere: Time,
    /// The start of the last fault of each host.
    at_host: BTreeMap<usize, Time>,
    /// The last restart announcement of each host's agent.
    announced: BTreeMap<usize, Time>,
    /// The last time at which the brake was on.
    braked: Option<Time>,
    /// Locks that their guards do not believe in, with the start of the disbelief.
    unbelieved: BTreeMap<(SessionId, Key), Time>,
    /// Locks that were free since the last check; the same session may hold them again.
    freed: BTreeSet<Key>,
    /// Locks that their guards have believed in since the grant.
    once_believed: BTreeSet<(SessionId, Key)>,
    /// Sessions of guards whose processes died.
    bereaved: BTreeSet<SessionId>,
    /// Holds that a restored backup brought back.
    restored: BTreeSet<(SessionId, Key)>,
}

impl HeldLocks {
    /// Notes the start of a fault that concerns all hosts.
    pub(super) fn fault_everywhere(&mut self, now: Time) {
        self.everywhere = now;
    }

    /// Notes the start of a fault that concerns one host.
    pub(super) fn fault_at(&mut self, agent: usize, now: Time) {
        self.at_host.insert(agent, now);
    }

    /// Returns the start of the last fault that concerns a host.
    pub(super) fn last_fault(&self, agent: usize) -> Time {
        self.at_host.get(&agent).copied().unwrap_or_default().max(self.everywhere)
    }
}

impl World {
    /// Notes the start of a network or agent fault of one host. It also concerns the hosts that may
    /// be reached only through this one.
    pub(super) fn fault_at(&mut self, agent: usize) {
        let now = self.stage.now;
        self.held.fault_at(agent, now);
        let others = (0..self.agents.len()).filter(|other| !self.reaches_a_server(*other));
        for other in others.collect::<Vec<_>>() {
            self.held.fault_at(other, now);
        }
    }

    /// Checks all locks, and schedules the next check.
    pub(super) fn look_at_held(&mut self) {
        if self.stage.plan.guards.per_agent == 0 {
            return;
        }
        self.stage.after(LOOK, Event::LookAtHeld);
        let now = self.stage.now;
        if !self.can_commit() {
            self.held.fault_everywhere(now);
        }
        if self.machines.values().any(|machine| {
            machine.process.as_ref().is_some_and(|process| machine.serves() && process.core().is_braking())
        }) {
            self.held.braked = Some(now);
        }
        let before = std::mem::take(&mut self.held.unbelieved);
        let held: Vec<_> = held(self.judge.history.state()).collect();
        for (key, session) in held {
            self.judge_held(&before, key, &session);
        }
        let passed_on = |(session, key): &(SessionId, Key)| {
            holder_of(&self.judge, key).is_none_or(|(holder, _)| holder != *session)
        };
        let ended = before.iter().filter(|(hold, since)| {
            now.since(**since) > LOOK && !self.held.unbelieved.contains_key(hold) && passed_on(hold)
        });
        let ended = ended.count();
        let state = self.judge.history.state();
        let is_held = |(session, key): &(SessionId, Key)| {
            holder_in(state, key).is_some_and(|(holder, _)| holder == *session)
        };
        self.held.restored.retain(is_held);
        self.held.once_believed.retain(is_held);
        self.held.freed.clear();
        (0..ended).for_each(|_| self.stage.hit(Mark::UnbelievedPassedOn));
    }

    fn judge_held(&mut self, before: &BTreeMap<(SessionId, Key), Time>, key: Key, session: &Session) {
        let (now, id) = (self.stage.now, session.spec.id);
        let Some(agent) = place_of(&session.spec.node) else { return };
        let hold = (id, key);
        let last_fault = self.held.last_fault(agent);
        let window = match self.held.braked {
            Some(braked) if braked >= last_fault => HealthWindow::Safe,
            _ => session.spec.health_window,
        };
        let bound = 2 * window.duration() + SLACK;
        if self.is_believed(&hold) {
            self.held.once_believed.insert(hold);
            if last_fault > Time(0) && now > last_fault + bound {
                self.stage.hit(Mark::BelievedAfterFault);
            }
            return;
        }
        let since = before.get(&hold).filter(|_| !self.held.freed.contains(&hold.1));
        let since = since.copied().unwrap_or(now);
        self.held.unbelieved.insert(hold.clone(), since);
        // A guard that stopped receiving renewals lost its lock to the fault. Any other guard
        // released it for a reason of its own, or has not learned of the grant.
        let was_lost = self.held.once_believed.contains(&hold) && self.was_silenced(id);
        let is_of_the_fault = since <= last_fault + bound && was_lost;
        let mut due = if is_of_the_fault { last_fault } else { last_fault.max(since) } + bound;
        if self.held.bereaved.contains(&id) || self.stands_alone(id) {
            let ttl = session.spec.ttl.unwrap_or_default() * self.stage.plan.core.ttl_multiplier;
            due = due.max(last_fault.max(since) + ttl + SLACK);
        }
        if let Some(failed) = self.failed_since_silence(id) {
            due = due.max(failed + bound);
        }
        if let Some(announced) = self.held.announced.get(&agent) {
            due = due.max(*announced + RESTART_WINDOW + SLACK);
        }
        let is_exempt = self.held.restored.contains(&hold) || self.agents[agent].is_liar(&self.stage);
        if now > due && !is_exempt {
            let (silent, unbelieved) = (now.since(last_fault), now.since(since));
            let what = format!(
                "{} is held by {id} of agent {agent} ({:?}), but no guard has believed in it for {unbelieved:?}; \
                 the last fault was {silent:?} ago",
                hold.1, session.spec.health_window
            );
            self.judge.object("held_for_someone", what);
        }
    }

    /// Returns `true` if a guard believes that it holds this lock.
    fn is_believed(&self, (session, key): &(SessionId, Key)) -> bool {
        let guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        let mut beliefs = guards.filter_map(|guard| guard.belief(self.stage.now));
        beliefs.any(|belief| belief.session == *session && belief.key == *key)
    }

    /// Returns `true` if the process of this session's guard is paused while its host runs.
    fn stands_alone(&self, session: SessionId) -> bool {
        let mut guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        guards.any(|guard| guard.stands_alone() && guard.owns(&session))
    }

    /// Returns the last time at which a request of this session's guard failed, since the guard was
    /// granted a lock without a reply.
    fn failed_since_silence(&self, session: SessionId) -> Option<Time> {
        let mut guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        guards.find_map(|guard| guard.failed_since_silence(&session))
    }

    /// Returns `true` if this session's guard stopped believing in it because no renewal was
    /// acknowledged.
    fn was_silenced(&self, session: SessionId) -> bool {
        let mut guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        guards.any(|guard| guard.was_silenced(&session))
    }

    /// Returns `true` if there is a leader that can commit.
    pub(super) fn can_commit(&self) -> bool {
        let mut leaders = self.machines.values().filter(|machine| machine.serves());
        let (Some(leader), None) = (leaders.next(), leaders.next()) else { return false };
        let Some(process) = &leader.process else { return false };
        let here = Place::Server(leader.id);
        let members = process.core().replica().membership();
        let is_there = |id: &&lockmesh_protocol::id::ServerId| {
            let there = Place::Server(**id);
            let runs = self.process(**id).is_some_and(|process| process.stands_until.is_none())
                && self.machines[id].disk.hangs_since(self.stage.now).is_none();
            let network = &self.stage.network;
            runs && (there == here || (network.carries((here, there)) && network.carries((there, here))))
        };
        let is_majority = 2 * members.voters.iter().filter(is_there).count() > members.voters.len();
        let has_disk = !process.failing && leader.disk.hangs_since(self.stage.now).is_none();
        process.stands_until.is_none() && has_disk && !leader.found_corrupt && is_majority
    }

    /// Ends the process of a guard or of an agent on this host. Sessions that no guard has any more
    /// are then ended by no process: an agent forgets the pending ends that guards left to it.
    pub(super) fn bereave(&mut self, agent: usize) {
        let guards = &self.agents[agent].guards;
        let state = self.judge.history.state();
        // Sessions that wait for a lock count too: it may be granted to them later.
        let is_left = |session: &Session| {
            place_of(&session.spec.node) == Some(agent)
                && !guards.iter().any(|guard| guard.still_has(&session.spec.id))
        };
        let left: Vec<SessionId> =
            state.sessions().filter(|session| is_left(session)).map(|session| session.spec.id).collect();
        self.held.bereaved.extend(left);
    }

    /// Notes an applied entry that may be an act that guards do not know of yet.
    pub(super) fn note_for_held(&mut self, index: LogIndex) {
        let Some(past) = self.judge.history.at(index) else { return };
        let now = self.stage.now;
        if past.changes.contains(&Change::Cleared) {
            let holds = held(self.judge.history.state()).map(|(key, session)| (session.spec.id, key));
            let unknown: Vec<_> = holds.filter(|hold| !self.is_believed(hold)).collect();
            self.held.restored.extend(unknown);
            return self.held.fault_everywhere(now);
        }
        let freed = past.changes.iter().filter_map(|change| match change {
            Change::Entry(key, entry) => {
                entry.as_ref().is_none_or(|entry| entry.lock.session.is_none()).then(|| key.clone())
            }
            _ => None,
        });
        self.held.freed.extend(freed);
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        if let Some(Command::AnnounceRestart(lease)) = command
            && let Some(agent) = self.judge.history.state().agent_of(*lease)
            && let Some(place) = place_of(&agent.node)
        {
            self.held.announced.insert(place, now);
        }
        if let Some(Command::EndRestart { agent, .. }) = command
            && let Some(agent) =
                self.judge.history.state().agent(*agent).filter(|it| it.restart_announced.is_none())
            && let Some(place) = place_of(&agent.node)
        {
            self.held.announced.remove(&place);
        }
    }
}

/// Returns the held locks of guards, with the session of each.
fn held(state: &State) -> impl Iterator<Item = (Key, Arc<Session>)> {
    let (_, rows) = state.query(&Query::Locks(PREFIX.into()));
    let locks = if let Rows::Locks(locks) = rows { locks } else { Vec::new() };
    locks.into_iter().filter_map(|lock| Some((lock.key, lock.session?)))
}

/// Returns the number of the agent on this node.
pub(super) fn place_of(node: &NodeName) -> Option<usize> {
    node.as_str().strip_prefix('n')?.parse().ok()
}
