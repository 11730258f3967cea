//! Registrations that wait: taken in, refused where the first process renews, proposed where it
//! says nothing.

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

/// How many registrations may wait.
const MAX_WAITING: usize = 64;
/// How long the first process must be silent, where it can be asked. Also where both are of one
/// boot and the second one has the lock of its data folder: a copied folder has a lock of its own,
/// and a virtual machine that was cloned while it ran has the same boot id, folder and inode as the
/// first. Nothing that the second one can show proves that the first one is dead.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A renewal that comes within this time may have been sent by a process that is dead by now.
const ON_ITS_WAY: Duration = Duration::from_millis(500);
/// How long a registration waits at most.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What becomes of a registration that waits.
enum Verdict {
    Wait,
    /// The first process is not there any more, or another one took its place.
    LookAgain,
    Propose,
    GiveUp,
}

impl Core {
    /// Takes a registration for a node on which another process may live; gives back what need not
    /// wait.
    pub(crate) fn hold_registration(
        &mut self,
        now: Time,
        token: CallToken,
        proposal: Proposal,
        outbox: &mut Outbox,
    ) -> Option<Proposal> {
        let Command::RegisterAgent(registration) = &proposal.command else { return Some(proposal) };
        // Until it serves it may not know the first one.
        if !self.is_serving() {
            outbox.fail(token, not_leader());
            return None;
        }
        let Some(first) = self.first_process(registration) else { return Some(proposal) };
        let lease = first.lease();
        if self.judge.registrations.waiting.len() >= MAX_WAITING {
            let what = format!("{MAX_WAITING} registrations wait until it is known whether others live");
            outbox.fail(token, Unavailable::Overloaded(what));
            return None;
        }
        self.judge.registrations.waiting.push(WaitingRegistration { came: now, token, proposal, lease });
        self.open_check(now, lease);
        None
    }

    /// The other process that is a node's agent, as far as is known.
    fn first_process(&self, registration: &AgentRegistration) -> Option<&Arc<Agent>> {
        let first = self.state.agent_of_node_id(&registration.node.id)?;
        let is_other = first.incarnation.process != registration.incarnation.process;
        (is_other && first.status == MemberStatus::Alive).then_some(first)
    }

    /// The first process renewed its lease: whoever wants its place is refused.
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

    /// Looks at all that wait.
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
                    // Others that want the same place must meet the one that has it by then.
                    self.judge.checks.close(waiting.lease.agent);
                }
                Verdict::GiveUp => {
                    let what = "another process registered this node, and too few servers could ask whether it lives";
                    outbox.fail(waiting.token, Unavailable::Overloaded(what.into()));
                }
            }
        }
    }

    fn registration_verdict(&self, now: Time, waiting: &WaitingRegistration) -> Verdict {
        let agent = self.state.agent_of(waiting.lease);
        let Some(agent) = agent.filter(|agent| agent.status == MemberStatus::Alive) else {
            return Verdict::LookAgain;
        };
        let silence = match self.state.agent_address(agent) {
            Some(_) => LEAST_SILENCE,
            // Nobody can ask it: it must have missed a renewal.
            None => overdue_after(HealthWindow::Default),
        };
        let waited = now.since(waiting.came);
        // No node fails by it, so whoever has asked often enough counts, also a juror that
        // was late before.
        if waited >= silence && self.confirmed_by(now, agent.number, false).is_some() {
            Verdict::Propose
        } else if waited >= LONGEST_WAIT {
            Verdict::GiveUp
        } else {
            Verdict::Wait
        }
    }

    /// This server no longer leads: the next leader must ask.
    pub(super) fn drop_registrations(&mut self, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.registrations.waiting) {
            outbox.fail(waiting.token, not_leader());
        }
    }
}
