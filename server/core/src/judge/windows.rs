//! The leader's windows, by which a node lease ends: the time of each member's last renewal, and
//! the end of each of its windows.
//!
//! A window ends when the next renewal has been due for the window's length. So an outage shorter
//! than the window never ends a session, however soon before the next renewal it began.
//!
//! All windows restart when a leader begins to serve. Uncertainty starts a window later, never
//! earlier: an agent counts its own deadline from the sending of a renewal that arrived before the
//! window began.

use crate::state::State;
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::lease::{HealthWindow, LeaseId, RESTART_WINDOW};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The delay of a renewal after which the node is challenged.
const RENEWAL_GRACE: Duration = Duration::from_millis(200);

/// The time after which a node with an announced restart is challenged.
const ASK_RESTARTING_AFTER: Duration = Duration::from_secs(RESTART_WINDOW.as_secs() / 3);

/// The time without a renewal after which a node with this shortest window is challenged.
pub(super) fn overdue_after(window: HealthWindow) -> Duration {
    window.renewal_interval() + RENEWAL_GRACE
}

/// The windows of all judged members.
#[derive(Debug, Default)]
pub(super) struct Windows {
    members: BTreeMap<AgentNumber, MemberWindow>,
    /// The times at which members become overdue, earliest first.
    queue: BTreeSet<(Time, AgentNumber)>,
    /// The last renewal of each lease at this leader, failed members included. It is only reported
    /// and moves no window.
    renewed: BTreeMap<AgentNumber, (LeaseId, Time)>,
}

/// The windows of one member.
#[derive(Debug)]
pub(super) struct MemberWindow {
    pub(super) lease: LeaseId,
    /// The time of its last renewal or answer, or the time at which judging began.
    pub(super) heard: Time,
    /// The time of its last own renewal, as opposed to the answer to a challenge.
    pub(super) renewed: Time,
    pub(super) status: MemberStatus,
    /// Set during an announced restart.
    is_restarting: bool,
    /// The shortest window in use as its agent knows it, which sets the renewal interval.
    shortest: Option<HealthWindow>,
    /// The shortest window and the time it came into use, if later than the last renewal.
    shortened: Option<(HealthWindow, Time)>,
    overdue: Time,
}

impl MemberWindow {
    fn new(heard: Time, agent: &Agent, shortest: Option<HealthWindow>) -> Self {
        let (lease, status) = (agent.lease(), agent.status);
        let is_restarting = status == MemberStatus::Restarting && agent.restart_announced.is_some();
        let renewed = heard;
        Self { lease, heard, renewed, status, is_restarting, shortest, shortened: None, overdue: heard }
    }

    /// The end of a window. While the brake is on, all windows are as long as the longest.
    pub(super) fn end(&self, window: HealthWindow, is_braking: bool) -> Time {
        let length = match is_braking {
            true => HealthWindow::Safe.validity().max(window.validity()),
            false => window.validity(),
        };
        let end = self.start(window) + length;
        // New sessions must not postpone the judgement of a member without limit.
        end.min(self.heard + HealthWindow::Safe.validity())
    }

    /// The window that determines when the member is overdue.
    pub(super) fn present(&self) -> HealthWindow {
        self.shortest.unwrap_or_default()
    }

    /// Returns whether it announced a restart whose window has not ended.
    pub(super) fn is_restarting(&self) -> bool {
        self.is_restarting
    }

    /// Returns whether its renewal is overdue.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        self.overdue <= now
    }

    fn start(&self, window: HealthWindow) -> Time {
        let since = self.shortened.filter(|(shortened, _)| *shortened == window);
        since.map_or(self.heard, |(_, since)| since.max(self.heard))
    }

    fn overdue_at(&self) -> Time {
        let window = self.present();
        // An announced restart takes a while; an earlier challenge would fail.
        let length = if self.is_restarting { ASK_RESTARTING_AFTER } else { overdue_after(window) };
        self.start(window) + length
    }
}

impl Windows {
    /// Restarts all windows at the current time.
    pub(super) fn restart(&mut self, now: Time, state: &State) {
        *self = Self::default();
        state.agents().for_each(|agent| self.follow(now, state, agent.number));
    }

    /// Follows a change of a member's row, or a verdict without effect.
    pub(super) fn follow(&mut self, now: Time, state: &State, number: AgentNumber) {
        let present = state.agent(number).filter(|agent| agent.status != MemberStatus::Left);
        let lease = present.map(|agent| agent.lease());
        if self.renewed.get(&number).is_some_and(|(renewed, _)| Some(*renewed) != lease) {
            self.renewed.remove(&number);
        }
        let Some(agent) = state.agent(number).filter(|agent| is_judged(state, agent)) else {
            return self.remove(number);
        };
        let known = self.members.get(&number).filter(|known| known.lease == agent.lease());
        // The start of a restart, or its end by a registration, is a message from the agent.
        let is_word = |known: MemberStatus| known != agent.status && agent.status != MemberStatus::Failed;
        let is_heard = known.is_none_or(|known| is_word(known.status));
        let heard = known.filter(|_| !is_heard).map_or(now, |known| known.heard);
        let shortened = known.and_then(|known| known.shortened);
        let window = MemberWindow::new(heard, agent, state.shortest_window(&agent.node));
        let renewed = known.filter(|_| !is_heard).map_or(now, |known| known.renewed);
        self.set(number, MemberWindow { shortened, renewed, ..window });
    }

    /// Notes a new session with this window on the member's node.
    pub(super) fn come_into_use(&mut self, now: Time, number: AgentNumber, window: HealthWindow) {
        if let Some(known) = self.members.remove(&number) {
            // Its agent still renews by a longer window, so renewals it did not know to send are
            // not overdue.
            let is_shorter = window < known.present();
            let shortened = if is_shorter { Some((window, now)) } else { known.shortened };
            let shortest = Some(known.shortest.map_or(window, |shortest| shortest.min(window)));
            self.replace(number, MemberWindow { shortened, shortest, ..known });
        }
    }

    /// Notes a renewal of this lease.
    pub(super) fn note_renewal(&mut self, now: Time, lease: LeaseId, shortest: Option<HealthWindow>) {
        let known = self.members.get(&lease.agent).filter(|known| known.lease == lease);
        if let Some(known) = known {
            let heard = now.max(known.heard);
            let window = MemberWindow { heard, shortest, shortened: None, overdue: heard, ..*known };
            self.set(lease.agent, window);
            self.renewed.insert(lease.agent, (lease, now));
        }
    }

    /// Notes a renewal that the holder of this lease sent on its own.
    pub(super) fn renewed_itself(&mut self, now: Time, lease: LeaseId) {
        let known = self.members.get_mut(&lease.agent).filter(|known| known.lease == lease);
        if let Some(known) = known {
            known.renewed = now.max(known.renewed);
        }
    }

    /// The time of the last renewal of this lease at this leader, if any.
    pub(super) fn renewed(&self, lease: LeaseId) -> Option<Time> {
        let renewed = self.renewed.get(&lease.agent).filter(|(renewed, _)| *renewed == lease);
        renewed.map(|(_, at)| *at)
    }

    /// The time of a member's last renewal, or of the change to its shortest window if later.
    /// `None` for a member that is not judged or that announced a restart.
    pub(super) fn last_heard(&self, number: AgentNumber) -> Option<Time> {
        let member = self.members.get(&number).filter(|member| !member.is_restarting)?;
        Some(member.shortened.map_or(member.heard, |(_, since)| since.max(member.heard)))
    }

    pub(super) fn lease(&self, number: AgentNumber) -> Option<LeaseId> {
        self.members.get(&number).map(|member| member.lease)
    }

    pub(super) fn member(&self, number: AgentNumber) -> Option<&MemberWindow> {
        self.members.get(&number)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// The members whose renewal is overdue, the most overdue first.
    pub(super) fn overdue(&self, now: Time) -> impl Iterator<Item = AgentNumber> {
        self.queue.iter().take_while(move |(overdue, _)| *overdue <= now).map(|(_, number)| *number)
    }

    /// Moves every window by `gap`, for which this server was paused.
    pub(super) fn postpone(&mut self, gap: Duration) {
        self.queue =
            std::mem::take(&mut self.queue).into_iter().map(|(at, number)| (at + gap, number)).collect();
        for member in self.members.values_mut() {
            member.heard = member.heard + gap;
            member.renewed = member.renewed + gap;
            member.overdue = member.overdue + gap;
            member.shortened = member.shortened.map(|(window, since)| (window, since + gap));
        }
    }

    fn set(&mut self, number: AgentNumber, member: MemberWindow) {
        self.remove_from_queue(number);
        self.replace(number, member);
    }

    /// Inserts a member in place of the removed one with this number.
    fn replace(&mut self, number: AgentNumber, mut member: MemberWindow) {
        self.queue.remove(&(member.overdue, number));
        member.overdue = member.overdue_at();
        self.queue.insert((member.overdue, number));
        self.members.insert(number, member);
    }

    fn remove(&mut self, number: AgentNumber) {
        self.remove_from_queue(number);
        self.members.remove(&number);
    }

    fn remove_from_queue(&mut self, number: AgentNumber) {
        if let Some(known) = self.members.get(&number) {
            self.queue.remove(&(known.overdue, number));
        }
    }
}

/// Returns whether sessions or a status depend on a member's health.
fn is_judged(state: &State, agent: &Agent) -> bool {
    // The name may belong to another agent by now.
    let is_member = state.member(&agent.node.folded()).is_some_and(|member| member.number == agent.number);
    is_member
        && match agent.status {
            MemberStatus::Alive | MemberStatus::Restarting => true,
            MemberStatus::Failed => state.shortest_window(&agent.node).is_some(),
            MemberStatus::Left => false,
        }
}
