//! The hand-over of guards from one process of the agent to the next.
//!
//! A process that announces its restart promises guards that their sessions stay valid through the
//! whole restart window. The servers keep the node for that long, unless the next process says
//! that no guard relies on the promise any more. A guard relies on the newest report that it has
//! received, and it has received a report once it polls behind the report's index.
//!
//! Several followers may share a session, and each of them may rely on the promise. So every report
//! to a guard with a promise has an index of its own, which identifies the guard in its next poll,
//! also at the next process. Pure: its caller keeps the list on disk from one process to the next.
//!
//! **Invariant:** a guard is pending as long as it may rely on the promise of an earlier process.

use crate::session_events::{SessionEvent, SessionState};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{SessionId, Term};
use lockmesh_protocol::lease::{LeaseId, RESTART_WINDOW};
use std::collections::BTreeMap;
use std::time::Duration;

/// Added to the index of an event, in microseconds since the boot, for an index of a report's own:
/// above those of events, and used once. Clients that count in floating point have 53 bits.
const OWN_INDEX: u64 = 1 << 52;

/// The maximum number of listed reports about one session. Beyond that the guards are not known.
const MAX_REPORTS: usize = 256;

/// The indexes of reports that guards may have, each with that of the first report to its guard.
pub type Promises = BTreeMap<u64, u64>;

/// The reports of one process to guards, and of earlier ones, that may still bind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The reports to guards that may rely on the promise of this process or of an earlier one.
    reports: BTreeMap<SessionId, BTreeMap<u64, Report>>,
    /// The newest index of a report.
    newest: u64,
    /// `false` if a predecessor left no list, for example because it was killed after an
    /// announcement, or is of an older build: any guard may rely on its promise, until that
    /// expires.
    is_known: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Report {
    /// The index of the first report to the same guard.
    guard: u64,
    /// The index of the reported event; 0 if it is that of an earlier process.
    event: u64,
    /// `true` if it gives another deadline than a promise.
    replaces: bool,
}

/// A poll of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPoll {
    /// Set if the guard may rely on a promise.
    guard: Option<u64>,
    /// The index of the event behind which it waits.
    pub behind: u64,
}

impl Handover {
    /// Creates the state of a process whose predecessor left these guards pending.
    pub fn of(predecessor: impl IntoIterator<Item = (SessionId, Promises)>) -> Self {
        let mut handover = Self { is_known: true, ..Self::default() };
        for (session, promises) in predecessor {
            handover.newest = promises.keys().copied().fold(handover.newest, u64::max);
            let report = |(index, guard)| (index, Report { guard, event: 0, replaces: false });
            handover.reports.insert(session, promises.into_iter().map(report).collect());
        }
        handover
    }

    /// Records a report about a session to a poll, or without one, before it is sent. It may be a
    /// promise of this process if a restart of it is announced. Returns the index to send.
    pub fn reported(
        &mut self,
        session: SessionId,
        event: &SessionEvent,
        is_announced: bool,
        poll: Option<GuardPoll>,
    ) -> u64 {
        if event.state == SessionState::Lost {
            // The promise has no object any more.
            self.reports.remove(&session);
            return event.index;
        }
        let known = self.reports.get(&session);
        let is_pending = |guard: &u64| known.is_some_and(|known| known.values().any(|it| it.guard == *guard));
        let guard = poll.and_then(|poll| poll.guard).filter(is_pending);
        if guard.is_none() && !is_announced {
            return event.index;
        }
        if known.is_some_and(|known| known.len() >= MAX_REPORTS) {
            self.is_known = false;
            return event.index;
        }
        self.newest = (self.newest + 1).max(OWN_INDEX + event.index);
        // A suspended guard keeps the promise.
        let replaces = !is_announced && event.state != SessionState::Suspended;
        let report = Report { guard: guard.unwrap_or(self.newest), event: event.index, replaces };
        self.reports.entry(session).or_default().insert(self.newest, report);
        self.newest
    }

    /// Records a poll behind an index: its guard has received that report.
    pub fn polled(&mut self, session: SessionId, behind: u64) -> GuardPoll {
        let Some(reports) = self.reports.get_mut(&session) else { return GuardPoll { guard: None, behind } };
        let Some(&Report { guard, event, replaces }) = reports.get(&behind) else {
            return GuardPoll { guard: None, behind };
        };
        // Its other reports are older, or were lost.
        reports.retain(|index, other| other.guard != guard || (*index == behind && !replaces));
        if reports.is_empty() {
            self.reports.remove(&session);
        }
        GuardPoll { guard: (!replaces).then_some(guard), behind: event }
    }

    /// Returns the next step to take the guards over.
    pub fn next_step(&mut self, situation: &Situation) -> Step {
        // There was no earlier process, or all that it promised has expired.
        if situation.is_new_agent || situation.ran >= RESTART_WINDOW {
            self.reports.clear();
            self.is_known = true;
            return Step::Done;
        }
        match (self.is_known && self.reports.is_empty(), situation.lease) {
            // Without effect if no restart was announced.
            (true, Some(lease)) => Step::End(end_restart(lease)),
            (true, None) | (false, _) => Step::Wait,
        }
    }

    /// Returns the guards that the next process must take over; `None` if they are not known.
    pub fn for_successor(&self) -> Option<BTreeMap<SessionId, Promises>> {
        let promises = |reports: &BTreeMap<u64, Report>| {
            reports.iter().map(|(index, report)| (*index, report.guard)).collect()
        };
        let left = self.reports.iter().map(|(session, reports)| (*session, promises(reports)));
        self.is_known.then(|| left.collect())
    }
}

/// The situation of a process that takes guards over.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The time since its start.
    pub ran: Duration,
    /// `true` if no process of this agent came before this one.
    pub is_new_agent: bool,
    /// The lease under which it is registered.
    pub lease: Option<LeaseId>,
}

/// The next step of such a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing can be done yet.
    Wait,
    /// The announced restart can end: the command, which the leader completes.
    End(Command),
    /// The guards are taken over: none is left for the next process.
    Done,
}

fn end_restart(lease: LeaseId) -> Command {
    Command::EndRestart { agent: lease.agent, announced_at: lease.began, term: Term(0), base: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{AgentNumber, LogIndex};

    fn event(state: SessionState, index: u64) -> SessionEvent {
        SessionEvent {
            state,
            deadline: None,
            jeopardy_at: None,
            reason: String::new(),
            index,
            recovered: None,
        }
    }

    const RUNNING: Situation =
        Situation { ran: Duration::from_secs(1), is_new_agent: false, lease: Some(LEASE) };
    const LEASE: LeaseId = LeaseId { agent: AgentNumber(1), began: LogIndex(9) };

    fn is_complete(handover: &mut Handover) -> bool {
        handover.next_step(&RUNNING) == Step::End(end_restart(LEASE))
    }

    #[test]
    fn step_follows_the_situation() {
        let step = |situation: Situation| Handover::of([]).next_step(&situation);
        assert_eq!(step(RUNNING), Step::End(end_restart(LEASE)));
        assert_eq!(step(Situation { lease: None, ..RUNNING }), Step::Wait);
        let is_new = Situation { is_new_agent: true, ..RUNNING };
        assert_eq!(Handover::default().next_step(&is_new), Step::Done);
        assert_eq!(Handover::default().next_step(&RUNNING), Step::Wait);
    }

    fn session() -> SessionId {
        SessionId::from_random([1; 16])
    }

    /// Polls behind an index; returns the index of the report.
    fn report(handover: &mut Handover, behind: u64, event: &SessionEvent, is_announced: bool) -> u64 {
        let poll = handover.polled(session(), behind);
        handover.reported(session(), event, is_announced, Some(poll))
    }

    /// Returns what a process leaves that told `count` guards of its restart, and their indexes.
    fn predecessor(count: u64) -> (Handover, Vec<u64>) {
        let mut handover = Handover::of([]);
        let promise = event(SessionState::Jeopardy, 7);
        let indexes = (0..count).map(|_| report(&mut handover, 3, &promise, true)).collect();
        (Handover::of(handover.for_successor().expect("it is known")), indexes)
    }

    #[test]
    fn completes_when_the_guard_polled_behind_a_deadline() {
        let (mut handover, told) = predecessor(1);
        let suspended = report(&mut handover, told[0], &event(SessionState::Suspended, 10), false);
        let again = report(&mut handover, suspended, &event(SessionState::Suspended, 15), false);
        assert!(!is_complete(&mut handover), "it keeps the promise while suspended");
        // Its answer is lost, so the guard polls as before.
        report(&mut handover, again, &event(SessionState::Safe, 20), false);
        let safe = report(&mut handover, again, &event(SessionState::Safe, 25), false);
        assert!(!is_complete(&mut handover), "it may not have received it");
        assert_eq!(handover.polled(session(), safe), GuardPoll { guard: None, behind: 25 });
        assert!(is_complete(&mut handover));
        assert_eq!(report(&mut handover, 25, &event(SessionState::Safe, 30), false), 30);
    }

    #[test]
    fn another_follower_confirms_for_no_guard() {
        let (mut handover, told) = predecessor(2);
        let safe = event(SessionState::Safe, 20);
        let other = report(&mut handover, 0, &safe, false);
        for behind in [other, 7, u64::MAX, 0] {
            report(&mut handover, behind, &safe, false);
        }
        let first = report(&mut handover, told[0], &safe, false);
        // Also many times: it is one guard.
        for _ in 0..9 {
            handover.polled(session(), first);
        }
        assert!(!is_complete(&mut handover), "the other guard may rely on the promise");
        let second = report(&mut handover, told[1], &safe, false);
        assert_ne!(first, second);
        handover.polled(session(), second);
        assert!(is_complete(&mut handover));
    }

    #[test]
    fn ended_sessions_are_not_awaited() {
        let (mut handover, told) = predecessor(1);
        assert_eq!(report(&mut handover, told[0], &event(SessionState::Lost, 10), false), 10);
        assert!(is_complete(&mut handover));
    }

    #[test]
    fn abandoned_poll_makes_no_guard_pending_again() {
        let (mut handover, told) = predecessor(1);
        let abandoned = handover.polled(session(), told[0]);
        let safe = report(&mut handover, told[0], &event(SessionState::Safe, 20), false);
        handover.polled(session(), safe);
        handover.reported(session(), &event(SessionState::Safe, 30), false, Some(abandoned));
        assert!(is_complete(&mut handover));
    }

    #[test]
    fn successor_takes_over_all_promises() {
        let (mut handover, told) = predecessor(2);
        let safe = report(&mut handover, told[0], &event(SessionState::Safe, 20), false);
        handover.polled(session(), safe);
        // The other one has the promise of two processes, and has not received the last report.
        let promise = event(SessionState::Jeopardy, 30);
        let newer = report(&mut handover, told[1], &promise, true);
        assert_eq!(report(&mut handover, 20, &promise, true), newer + 1, "told for the first time");
        let left = Promises::from([(told[1], told[1]), (newer, told[1]), (newer + 1, newer + 1)]);
        assert_eq!(handover.for_successor(), Some([(session(), left)].into()));
        let mut next = Handover::of(handover.for_successor().expect("it is known"));
        for behind in [told[1], newer + 1] {
            assert!(!is_complete(&mut next));
            let safe = report(&mut next, behind, &event(SessionState::Safe, 40), false);
            next.polled(session(), safe);
        }
        assert!(is_complete(&mut next));
    }

    #[test]
    fn too_many_guards_are_not_known() {
        let (mut handover, _) = predecessor(MAX_REPORTS as u64);
        assert!(handover.for_successor().is_some());
        report(&mut handover, 0, &event(SessionState::Jeopardy, 7), true);
        assert_eq!(handover.for_successor(), None);
    }

    #[test]
    fn missing_list_completes_by_timeout() {
        let mut handover = Handover::default();
        report(&mut handover, 0, &event(SessionState::Safe, 10), true);
        assert!(!is_complete(&mut handover));
        assert_eq!(handover.for_successor(), None);
        let is_over = Situation { ran: RESTART_WINDOW, ..RUNNING };
        assert_eq!(handover.next_step(&is_over), Step::Done);
        assert!(is_complete(&mut handover));
    }
}
