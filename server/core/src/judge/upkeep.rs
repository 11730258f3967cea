//! The leader's other duties for members. It ends announced restarts and former hosts' sessions
//! when their windows end, reconciles the catalog with the roster (anti-entropy), and forgets
//! (reaps) members that failed long ago.
//!
//! All times count from when this leader first saw the fact; an election restarts them.

use crate::cluster::Turn;
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{AgentNumber, LogIndex};
use lockmesh_protocol::lease::{HealthWindow, LeaseId, RESTART_WINDOW};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The interval between two checks for due upkeep.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval between two comparisons of catalog and roster.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// The same interval after a comparison that found differences: there may be more.
const RECONCILE_AGAIN_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of members and nodes that one command reconciles.
const RECONCILED_AT_ONCE: usize = 256;
/// The retry interval after a proposal without effect.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The retry interval for a member that cannot be reaped because its node has sessions.
const REAP_INTERVAL: Duration = Duration::from_secs(3600);

/// The deadlines of one leader.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// Members that failed this long ago are forgotten.
    reap_failed_after: Duration,
    look_at: Time,
    reconcile_at: Time,
    restarts: BTreeMap<AgentNumber, AnnouncedRestart>,
    former: BTreeMap<AgentNumber, FormerHost>,
    failed: BTreeMap<AgentNumber, FailedMember>,
}

/// A restart that an agent announced.
#[derive(Debug)]
struct AnnouncedRestart {
    /// The index of the announcement.
    at: LogIndex,
    /// The time at which the restart's end is proposed, or proposed again.
    due: Time,
}

/// The previous host of a node, before the present one.
#[derive(Debug)]
struct FormerHost {
    /// Sessions created before this index belong to it.
    until: LogIndex,
    since: Time,
    /// The window whose end is awaited.
    window: HealthWindow,
    /// The time at which the window ends, or its end is proposed again.
    due: Time,
}

#[derive(Debug)]
struct FailedMember {
    lease: LeaseId,
    since: Time,
    /// The next attempt is not made before this time.
    not_before: Time,
}

impl Upkeep {
    pub(super) fn new(reap_failed_after: Duration) -> Self {
        Self { reap_failed_after, ..Self::default() }
    }

    /// Forgets all deadlines.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.reap_failed_after);
    }

    /// Clears everything and starts from the current state.
    pub(super) fn restart(&mut self, now: Time, state: &State) {
        *self = Self { look_at: now, reconcile_at: now, ..Self::new(self.reap_failed_after) };
        state.agents().for_each(|agent| self.follow(now, None, state, agent.number));
    }

    /// Follows a change of a member's row. `heard` is the time of the last renewal of its previous
    /// lease at this server, if any.
    pub(super) fn follow(&mut self, now: Time, heard: Option<Time>, state: &State, number: AgentNumber) {
        let agent = state.agent(number);
        match agent.and_then(|agent| agent.restart_announced) {
            Some(at) if self.restarts.get(&number).is_none_or(|known| known.at != at) => {
                self.restarts.insert(number, AnnouncedRestart { at, due: now + RESTART_WINDOW });
            }
            Some(_) => {}
            None => drop(self.restarts.remove(&number)),
        }
        match agent.and_then(|agent| agent.former_sessions_until) {
            // Guards of the former host count from renewals that arrived before this time.
            Some(until) if self.former.get(&number).is_none_or(|known| known.until != until) => {
                let window = HealthWindow::Fast;
                let since = heard.unwrap_or(now);
                let due = since + window.validity();
                self.former.insert(number, FormerHost { until, since, window, due });
            }
            Some(_) => {}
            None => drop(self.former.remove(&number)),
        }
        let failed = agent.filter(|agent| agent.status == MemberStatus::Failed).map(|agent| agent.lease());
        match failed {
            Some(lease) if self.failed.get(&number).is_none_or(|known| known.lease != lease) => {
                self.failed.insert(number, FailedMember { lease, since: now, not_before: now });
            }
            Some(_) => {}
            None => drop(self.failed.remove(&number)),
        }
    }

    pub(super) fn postpone(&mut self, gap: Duration) {
        self.restarts.values_mut().for_each(|restart| restart.due = restart.due + gap);
        for former in self.former.values_mut() {
            (former.since, former.due) = (former.since + gap, former.due + gap);
        }
        self.failed.values_mut().for_each(|failed| failed.since = failed.since + gap);
    }

    /// Proposes the commands that are due.
    pub(super) fn run(&mut self, turn: &mut Turn<'_>) {
        let (now, view) = (turn.now, turn.view);
        let Some(term) = view.serving.filter(|_| now >= self.look_at) else { return };
        self.look_at = now + LOOK_INTERVAL;
        let base = view.state.index_base();
        for (agent, announced_at) in self.restarts_due(now) {
            turn.propose_own(Command::EndRestart { agent, announced_at, term, base });
        }
        for (number, window) in self.former_due(now) {
            if let Some(lease) = view.state.agent(number).map(|agent| agent.lease()) {
                turn.propose_own(Command::EndFormerSessions { lease, window, term, base });
            }
        }
        for lease in self.reap_due(now) {
            turn.propose_own(Command::ReapMember { lease, term, base });
        }
        self.reconcile_if_due(turn);
    }

    fn reconcile_if_due(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        if now < self.reconcile_at {
            return;
        }
        let (members, strangers) = turn.view.state.unreconciled(RECONCILED_AT_ONCE);
        let found = members.len() + strangers.len();
        self.reconcile_at = now + if found > 0 { RECONCILE_AGAIN_INTERVAL } else { RECONCILE_INTERVAL };
        if found > 0 {
            tracing::info!(
                members = members.len(),
                strangers = strangers.len(),
                "reconciling the catalog with the roster of members"
            );
            turn.propose_own(Command::Reconcile { members, strangers });
        }
    }

    /// The agents whose restart window has ended, with the index of the announcement.
    fn restarts_due(&mut self, now: Time) -> Vec<(AgentNumber, LogIndex)> {
        let due = self.restarts.iter_mut().filter(|(_, restart)| restart.due <= now);
        let due = due.map(|(number, restart)| {
            restart.due = now + RETRY_DELAY;
            (*number, restart.at)
        });
        due.collect()
    }

    /// The agents whose former host's window has ended, with that window.
    fn former_due(&mut self, now: Time) -> Vec<(AgentNumber, HealthWindow)> {
        let mut due = Vec::new();
        // During an announced restart, guards of the former host may still rely on it.
        let is_due = |number: &AgentNumber, former: &FormerHost| {
            former.due <= now && !self.restarts.contains_key(number)
        };
        for (number, former) in self.former.iter_mut().filter(|(number, former)| is_due(number, former)) {
            due.push((*number, former.window));
            former.due = match HealthWindow::ALL.into_iter().find(|longer| *longer > former.window) {
                Some(longer) => {
                    former.window = longer;
                    former.since + longer.validity()
                }
                // The last window forgets the former host. Until that is applied, the proposal may
                // be lost.
                None => now + RETRY_DELAY,
            };
        }
        due
    }

    /// The members that failed long ago.
    fn reap_due(&mut self, now: Time) -> Vec<LeaseId> {
        let after = self.reap_failed_after;
        let is_due =
            |failed: &&mut FailedMember| now.since(failed.since) >= after && failed.not_before <= now;
        let due = self.failed.values_mut().filter(is_due).map(|failed| {
            failed.not_before = now + REAP_INTERVAL;
            failed.lease
        });
        due.collect()
    }
}
