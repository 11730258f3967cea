//! Failover: the leader opens checks of silent nodes, and proposes a verdict once a majority of the
//! voters got no answer for a window. The sessions of a failed node end, and its locks pass on.
//!
//! Windows are judged from the shortest to the longest: each verdict ends the sessions of its own
//! window and of shorter ones, and that of the default window fails the member. Sessions with
//! longer windows keep the check open.

use super::Judge;
use crate::cluster::{Decision, Turn};
use crate::proposals::{Origin, PROPOSAL_RETRY_DELAY};
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::id::{AgentNumber, ServerId};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseId};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The maximum number of open checks; the longest overdue nodes come first.
const MAX_CHECKS: usize = 256;
/// The interval between two evaluations of a check without a verdict.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

impl Judge {
    /// Opens a check of every node whose renewal is overdue, up to [`MAX_CHECKS`].
    pub(super) fn check_overdue_nodes(&mut self, now: Time) {
        let free = MAX_CHECKS.saturating_sub(self.checks.len());
        if free == 0 {
            return;
        }
        let overdue = self.windows.overdue(now).filter(|number| !self.checks.is_open(*number));
        let overdue: Vec<LeaseId> =
            overdue.filter_map(|number| self.windows.lease(number)).take(free).collect();
        overdue.into_iter().for_each(|lease| self.open_check(now, lease));
    }

    /// Returns whether another check may be opened.
    pub(super) fn may_open_check(&self) -> bool {
        self.checks.len() < MAX_CHECKS
    }

    /// Opens a check of this lease unless one is open.
    pub(super) fn open_check(&mut self, now: Time, lease: LeaseId) {
        if self.checks.nonce(lease).is_none() {
            let nonce = self.random.number().max(1);
            self.checks.open(now, Challenge { lease, nonce });
            self.counts.checks_opened += 1;
        }
    }

    pub(super) fn propose_verdicts(&mut self, turn: &mut Turn<'_>) {
        for lease in self.checks.to_look_at(turn.now) {
            match self.verdict(turn, lease) {
                Some(failure) => self.propose_verdict(turn, failure),
                None => self.checks.check_again(lease.agent, turn.now + LOOK_INTERVAL),
            }
        }
    }

    fn propose_verdict(&mut self, turn: &mut Turn<'_>, failure: NodeFailure) {
        let agent = failure.lease.agent;
        // Until the outcome is known, no renewal of this agent counts.
        self.deciding.insert(agent);
        self.checks.check_again(agent, turn.now + PROPOSAL_RETRY_DELAY);
        turn.decide(Decision::ProposeOwn(Command::FailNode(failure), Origin::Verdict(agent)));
    }

    /// The verdict that is due on this lease and confirmed by a majority.
    fn verdict(&self, turn: &Turn<'_>, lease: LeaseId) -> Option<NodeFailure> {
        let (number, view) = (lease.agent, turn.view);
        // A waiting renewal is acknowledged unless a verdict comes first.
        let is_renewing = view.readers.is_lease_renewal_waiting(lease);
        if is_renewing || self.deciding.contains(&number) {
            return None;
        }
        let window = self.window_due(turn, lease)?;
        let confirmed_by = self.confirmed_by(turn, number, true)?;
        let silent_for = turn.now.since(self.windows.member(number)?.heard);
        let (term, base) = (view.serving?, view.state.index_base());
        Some(NodeFailure { lease, window, confirmed_by, silent_for, term, base })
    }

    /// The shortest ended window of this lease that has sessions, or that fails the member.
    fn window_due(&self, turn: &Turn<'_>, lease: LeaseId) -> Option<HealthWindow> {
        let (now, state) = (turn.now, turn.view.state);
        let member = self.windows.member(lease.agent).filter(|member| member.lease == lease)?;
        // Guards rely on sessions from before an announced restart until the restart's window ends,
        // even if a new process is silent now.
        let agent = state.agent_of(lease).filter(|agent| agent.restart_announced.is_none())?;
        let is_over = |window: &HealthWindow| member.end(*window, self.is_braking()) <= now;
        if !HealthWindow::ALL.iter().any(is_over) {
            return None;
        }
        let in_use = state.windows_in_use(&agent.node);
        // The member itself fails with the default window.
        let is_wanted = |window: &HealthWindow| {
            in_use.contains(window)
                || (*window == HealthWindow::Default && member.status != MemberStatus::Failed)
        };
        HealthWindow::ALL.into_iter().filter(is_wanted).find(is_over)
    }

    /// The voters with unanswered challenges of a node; `None` if they are no majority.
    pub(super) fn confirmed_by(
        &self,
        turn: &Turn<'_>,
        number: AgentNumber,
        is_verdict: bool,
    ) -> Option<Vec<ServerId>> {
        let own = (turn.view.id, &self.juror);
        let confirmed_by = self.checks.confirmed_by(turn.now, number, own, is_verdict);
        let is_enough = turn.view.membership.is_majority(|server| confirmed_by.contains(&server));
        is_enough.then_some(confirmed_by)
    }

    /// Notes the outcome of a verdict, applied or without effect: renewals count again.
    pub(super) fn verdict_known(
        &mut self,
        turn: &mut Turn<'_>,
        number: AgentNumber,
        failure: Option<&NodeFailure>,
    ) {
        let (now, view) = (turn.now, turn.view);
        self.deciding.remove(&number);
        // The state determines which windows are judged from here on.
        self.follow(now, view.state, number);
        let Some(NodeFailure { window, silent_for, confirmed_by, .. }) = failure else { return };
        self.credit_reporter(now, number);
        self.checks.check_again(number, now);
        self.counts.verdicts[*window as usize] += 1;
        let node = view.state.agent(number).map_or("unknown", |agent| agent.node.as_str());
        let silent_ms = silent_for.as_millis() as u64;
        let servers = confirmed_by.iter().map(|id| view.node_of(*id)).collect::<Vec<_>>().join(" ");
        match window {
            HealthWindow::Default => {
                tracing::warn!(%node, silent_ms, %servers, "node failed: these servers got no reply");
            }
            window => {
                let window = window.as_str();
                tracing::warn!(
                    %node,
                    window,
                    silent_ms,
                    %servers,
                    "sessions of a silent node ended: these servers got no reply"
                );
            }
        }
    }
}
