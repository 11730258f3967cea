//! Waiting registrations: rejected if the first process renews its lease, proposed if it stays
//! silent.

use crate::core::{Core, Origin};
use crate::input::CallToken;
use crate::judge::registrations::WaitingRegistration;
use crate::judge::windows::overdue_after;
use crate::outbox::{Outbox, not_leader};
use crate::proposal::Proposal;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::lease::{HealthWindow, Renewal};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of waiting registrations.
const MAX_WAITING: usize = 64;
/// The minimum silence of the first process, if it can be challenged. It also applies if both
/// processes have one boot id and the second holds the lock of its data folder. A copied folder has
/// a lock of its own, and a virtual machine cloned while running has the same boot id, folder and
/// inode as the first. The second process cannot prove that the first one is dead.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A renewal within this time may have been sent by a process that has died since.
const ON_ITS_WAY: Duration = Duration::from_millis(500);
/// The time for which a node that announced a restart keeps its name from other node ids.
const NAME_KEPT: Duration = Duration::from_secs(4);
/// The maximum wait of a registration.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The outcome of a waiting registration.
enum Verdict {
    Wait,
    /// The first process is gone, or another one replaced it.
    LookAgain,
    Propose,
    GiveUp,
}

impl Core {
    /// Holds a registration for a node that may have another live process; returns any other
    /// proposal.
    pub(crate) fn hold_registration(
        &mut self,
        now: Time,
        token: CallToken,
        proposal: Proposal,
        outbox: &mut Outbox,
    ) -> Option<Proposal> {
        let Command::RegisterAgent(registration) = &proposal.command else { return Some(proposal) };
        // Before this server serves, it may not know the first process.
        if !self.is_serving() {
            outbox.fail(token, not_leader());
            return None;
        }
        let first = self.first_process(registration);
        let Some(holder) = first.or_else(|| self.keeps_its_name(now, registration)) else {
            return Some(proposal);
        };
        let (lease, is_restarting) = (holder.lease(), holder.status == MemberStatus::Restarting);
        if self.judge.registrations.waiting.len() >= MAX_WAITING {
            let what = format!("{MAX_WAITING} registrations already wait for checks of other processes");
            outbox.fail(token, Unavailable::Overloaded(what));
            return None;
        }
        self.judge.registrations.waiting.push(WaitingRegistration { came: now, token, proposal, lease });
        // A restarting process need not answer.
        if !is_restarting {
            self.open_check(now, lease);
        }
        None
    }

    /// The agent that announced a restart a moment ago, and whose name the registration claims.
    fn keeps_its_name(&self, now: Time, registration: &AgentRegistration) -> Option<&Arc<Agent>> {
        let owner = self.state.restarting_owner(registration)?;
        let heard = self.judge.windows.member(owner.number).map(|window| window.heard);
        heard.is_some_and(|heard| now.since(heard) < NAME_KEPT).then_some(owner)
    }

    /// The other process that is the node's agent, as far as this server knows.
    fn first_process(&self, registration: &AgentRegistration) -> Option<&Arc<Agent>> {
        let first = self.state.agent_of_node_id(&registration.node.id)?;
        let is_other = first.incarnation.process != registration.incarnation.process;
        (is_other && first.status == MemberStatus::Alive).then_some(first)
    }

    /// Rejects the waiting registrations of a node whose first process renewed its lease.
    pub(super) fn refuse_registrations(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        let is_answer = self.judge.checks.nonce(renewal.lease) == Some(renewal.nonce);
        let waiting = &mut self.judge.registrations.waiting;
        let refused = waiting.extract_if(.., |waiting| {
            waiting.lease == renewal.lease && (is_answer || now.since(waiting.came) >= ON_ITS_WAY)
        });
        let refused: Vec<WaitingRegistration> = refused.collect();
        for WaitingRegistration { token, proposal, lease, .. } in refused {
            let Command::RegisterAgent(registration) = &proposal.command else { continue };
            let agent = self.state.agent_of(lease);
            let address = agent.and_then(|agent| self.state.agent_address(agent));
            let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
            let node = &registration.node.name;
            outbox.deny(
                token,
                &format!(
                    "node {node} is here already: another process registered it and answers{at}: stop it, or give \
                     this host its own node id"
                ),
            );
        }
    }

    /// Resolves the waiting registrations that are decided by now.
    pub(super) fn look_at_registrations(&mut self, now: Time, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.registrations.waiting) {
            match self.registration_verdict(now, &waiting) {
                Verdict::Wait => self.judge.registrations.waiting.push(waiting),
                Verdict::LookAgain => {
                    let WaitingRegistration { token, proposal, .. } = waiting;
                    if let Some(proposal) = self.hold_registration(now, token, proposal, outbox) {
                        self.batch.push((proposal, Origin::Client(token, now)));
                    }
                }
                Verdict::Propose => {
                    self.batch.push((waiting.proposal, Origin::Client(waiting.token, now)));
                    // Other waiting registrations of this node must then check the new process.
                    self.judge.checks.close(waiting.lease.agent);
                }
                Verdict::GiveUp => {
                    let what = "another process registered this node, and too few servers could check it";
                    outbox.fail(waiting.token, Unavailable::Overloaded(what.into()));
                }
            }
        }
    }

    fn registration_verdict(&self, now: Time, waiting: &WaitingRegistration) -> Verdict {
        let agent = self.state.agent_of(waiting.lease);
        let Some(agent) = agent.filter(|agent| agent.status == MemberStatus::Alive) else {
            let is_kept = matches!(&waiting.proposal.command, Command::RegisterAgent(registration)
                if self.keeps_its_name(now, registration).is_some());
            return if is_kept { Verdict::Wait } else { Verdict::LookAgain };
        };
        let silence = match self.state.agent_address(agent) {
            Some(_) => LEAST_SILENCE,
            // The process cannot be challenged, so it must miss a renewal.
            None => overdue_after(HealthWindow::Default),
        };
        let waited = now.since(waiting.came);
        // No node fails here, so each juror with enough unanswered challenges counts, even after a
        // pause.
        if waited >= silence && self.confirmed_by(now, agent.number, false).is_some() {
            Verdict::Propose
        } else if waited >= LONGEST_WAIT {
            Verdict::GiveUp
        } else {
            Verdict::Wait
        }
    }

    /// Fails all waiting registrations when leadership is lost: the next leader must challenge.
    pub(super) fn drop_registrations(&mut self, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.registrations.waiting) {
            outbox.fail(waiting.token, not_leader());
        }
    }
}
