//! The leader opens checks of silent nodes. It proposes a verdict once a majority of the voters got
//! no answer for a window.
//!
//! Windows are judged from the shortest to the longest: each verdict ends the sessions of its own
//! window and of shorter ones, and that of the default window fails the member. Sessions with
//! longer windows keep the check open.

use crate::core::{Core, Origin, RETRY_PROPOSAL};
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

impl Core {
    /// Opens a check of every node whose renewal is overdue, up to [`MAX_CHECKS`].
    pub(super) fn open_checks(&mut self, now: Time) {
        let judge = &self.judge;
        let free = MAX_CHECKS.saturating_sub(judge.checks.len());
        if free == 0 {
            return;
        }
        let overdue = judge.windows.overdue(now).filter(|number| !judge.checks.is_open(*number));
        let overdue: Vec<LeaseId> =
            overdue.filter_map(|number| judge.windows.lease(number)).take(free).collect();
        overdue.into_iter().for_each(|lease| self.open_check(now, lease));
    }

    /// Returns whether another check may be opened.
    pub(super) fn may_open_check(&self) -> bool {
        self.judge.checks.len() < MAX_CHECKS
    }

    /// Opens a check of this lease unless one is open.
    pub(super) fn open_check(&mut self, now: Time, lease: LeaseId) {
        if self.judge.checks.nonce(lease).is_none() {
            let nonce = self.judge.random.number().max(1);
            self.judge.checks.open(now, Challenge { lease, nonce });
            self.observer.observed.checks_opened += 1;
        }
    }

    pub(super) fn propose_verdicts(&mut self, now: Time) {
        for lease in self.judge.checks.to_look_at(now) {
            match self.verdict(now, lease) {
                Some(failure) => self.propose_verdict(now, failure),
                None => self.judge.checks.look_again(lease.agent, now + LOOK_INTERVAL),
            }
        }
    }

    fn propose_verdict(&mut self, now: Time, failure: NodeFailure) {
        let agent = failure.lease.agent;
        // Until the outcome is known, no renewal of this agent counts.
        self.judge.deciding.insert(agent);
        self.judge.checks.look_again(agent, now + RETRY_PROPOSAL);
        self.batch.push((self.own(Command::FailNode(failure)), Origin::Verdict(agent)));
    }

    /// The verdict that is due on this lease and confirmed by a majority.
    fn verdict(&self, now: Time, lease: LeaseId) -> Option<NodeFailure> {
        let number = lease.agent;
        // A waiting renewal is acknowledged unless a verdict comes first.
        let is_renewing = self.read_index.is_lease_renewal_waiting(lease);
        if is_renewing || self.judge.deciding.contains(&number) {
            return None;
        }
        let window = self.window_due(now, lease)?;
        let confirmed_by = self.confirmed_by(now, number, true)?;
        let silent_for = now.since(self.judge.windows.member(number)?.heard);
        let (term, base) = (self.serving?, self.state.index_base());
        Some(NodeFailure { lease, window, confirmed_by, silent_for, term, base })
    }

    /// The shortest ended window of this lease that has sessions, or that fails the member.
    fn window_due(&self, now: Time, lease: LeaseId) -> Option<HealthWindow> {
        let member = self.judge.windows.member(lease.agent).filter(|member| member.lease == lease)?;
        // Guards rely on sessions from before an announced restart until the restart's window ends,
        // even if a new process is silent now.
        let agent = self.state.agent_of(lease).filter(|agent| agent.restart_announced.is_none())?;
        let is_over = |window: &HealthWindow| member.end(*window, self.judge.is_braking()) <= now;
        if !HealthWindow::ALL.iter().any(is_over) {
            return None;
        }
        let in_use = self.state.windows_in_use(&agent.node);
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
        now: Time,
        number: AgentNumber,
        is_verdict: bool,
    ) -> Option<Vec<ServerId>> {
        let own = (self.config.id, &self.judge.juror);
        let confirmed_by = self.judge.checks.confirmed_by(now, number, own, is_verdict);
        let is_enough = self.engine.membership().is_majority(|server| confirmed_by.contains(&server));
        is_enough.then_some(confirmed_by)
    }

    /// Notes the outcome of a verdict, applied or without effect: renewals count again.
    pub(crate) fn verdict_is_known(&mut self, now: Time, number: AgentNumber, failure: Option<&NodeFailure>) {
        self.judge.deciding.remove(&number);
        // The state determines which windows are judged from here on.
        self.judge.follow(now, &self.state, number);
        let Some(NodeFailure { window, silent_for, confirmed_by, .. }) = failure else { return };
        self.judge.credit_accuser(now, number);
        self.judge.checks.look_again(number, now);
        self.observer.observed.verdicts[*window as usize] += 1;
        let node = self.state.agent(number).map_or("unknown", |agent| agent.node.as_str());
        let silent_ms = silent_for.as_millis() as u64;
        let servers = confirmed_by.iter().map(|id| self.node_of(*id)).collect::<Vec<_>>().join(" ");
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
