//! Conflicting registrations: a second process registers for a node whose first process may be
//! alive, for example a host cloned with its data folder, or an agent started twice. The first
//! process keeps its lease as long as it answers; the second is rejected with an error message.
//!
//! An agent that was killed and restarted waits for one second, in which its former process is
//! challenged and does not answer. An announced restart does not wait.
//!
//! A node that announced a restart keeps its name for four seconds. After that another node id may
//! take the name, for example that of a container that was replaced: the sessions of the node live
//! as long as announced. A claim that waits meanwhile waits no longer if a backup is restored.

use super::Judge;
use super::windows::overdue_after;
use crate::cluster::Turn;
use crate::input::CallToken;
use crate::outbox::not_leader;
use crate::proposal::Proposal;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::lease::{HealthWindow, LeaseId, Renewal};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of waiting registrations.
const MAX_WAITING: usize = 64;
/// The maximum number of them for one node.
const MAX_WAITING_OF_NODE: usize = 4;
/// The minimum silence of the first process, if it can be challenged. It also applies if both
/// processes have one boot id and the second holds the lock of its data folder. A copied folder has
/// a lock of its own, and a virtual machine cloned while running has the same boot id, folder and
/// inode as the first. The second process cannot prove that the first one is dead.
const MIN_SILENCE_TIME: Duration = Duration::from_secs(1);
/// A renewal within this time may have been sent by a process that has died since.
const RENEWAL_TRAVEL_TIME: Duration = Duration::from_millis(500);
/// The time for which a node that announced a restart keeps its name from other node ids.
const NAME_KEEP_TIME: Duration = Duration::from_secs(4);
/// The maximum wait of a registration.
const MAX_WAIT_TIME: Duration = Duration::from_secs(10);

/// Registrations that wait until the first process is known to be alive or dead.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    waiting: Vec<WaitingRegistration>,
}

#[derive(Debug)]
pub(super) struct WaitingRegistration {
    came: Time,
    pub(super) token: CallToken,
    proposal: Proposal,
    /// The lease of the first process.
    lease: LeaseId,
}

/// The outcome of a waiting registration.
enum Verdict {
    Wait,
    /// The first process is gone, or another one replaced it.
    LookAgain,
    Propose,
    GiveUp,
}

impl Registrations {
    /// Returns whether a registration waits for the outcome of this lease.
    pub(super) fn wait_for(&self, lease: LeaseId) -> bool {
        self.waiting.iter().any(|waiting| waiting.lease == lease)
    }

    pub(super) fn postpone(&mut self, gap: Duration) {
        self.waiting.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
    }

    /// Takes all waiting registrations.
    pub(super) fn take(&mut self) -> Vec<WaitingRegistration> {
        std::mem::take(&mut self.waiting)
    }
}

impl Judge {
    /// Handles a proposal that depends on a node's liveness: it is proposed now or later, or fails.
    pub(super) fn proposal(&mut self, turn: &mut Turn<'_>, token: CallToken, proposal: Proposal) {
        match &proposal.command {
            // If another process of the node is alive, it remains the node's agent.
            Command::RegisterAgent(_) => self.hold_registration(turn, token, proposal),
            _ => {
                let windows = (&self.windows, self.brake.is_on());
                if let Some(lease) = self.force_leaves.hold(turn, windows, (token, proposal)) {
                    self.open_check(turn.now, lease);
                }
            }
        }
    }

    /// Holds a registration for a node that may have another live process.
    fn hold_registration(&mut self, turn: &mut Turn<'_>, token: CallToken, proposal: Proposal) {
        let Command::RegisterAgent(registration) = &proposal.command else { return };
        // Before this server serves, it may not know the first process.
        if !turn.view.is_serving() {
            return turn.fail(token, not_leader());
        }
        let first = first_process(turn, registration);
        let Some(holder) = first.or_else(|| self.keeps_its_name(turn, registration)) else {
            return turn.propose(proposal, token);
        };
        let (lease, is_restarting) = (holder.lease(), holder.status == MemberStatus::Restarting);
        if self.registrations.waiting.len() >= MAX_WAITING {
            let what = format!("{MAX_WAITING} registrations already wait for checks of other processes");
            return turn.fail(token, Unavailable::Overloaded(what));
        }
        if self.registrations.waiting.iter().filter(|waiting| waiting.lease == lease).count()
            >= MAX_WAITING_OF_NODE
        {
            let what = format!("{MAX_WAITING_OF_NODE} registrations of this node already wait for a check");
            return turn.fail(token, Unavailable::Overloaded(what));
        }
        self.registrations.waiting.push(WaitingRegistration { came: turn.now, token, proposal, lease });
        // A restarting process need not answer.
        if !is_restarting {
            self.open_check(turn.now, lease);
        }
    }

    /// The agent that announced a restart a moment ago, and whose name the registration claims.
    fn keeps_its_name<'a>(
        &self,
        turn: &Turn<'a>,
        registration: &AgentRegistration,
    ) -> Option<&'a Arc<Agent>> {
        let owner = turn.view.state.restarting_owner(registration)?;
        let heard = self.windows.member(owner.number).map(|window| window.heard);
        heard.is_some_and(|heard| turn.now.since(heard) < NAME_KEEP_TIME).then_some(owner)
    }

    /// Rejects the waiting registrations of a node whose first process renewed its lease.
    pub(super) fn refuse_registrations(&mut self, turn: &mut Turn<'_>, renewal: Renewal) {
        let (now, state) = (turn.now, turn.view.state);
        let is_answer = self.checks.nonce(renewal.lease) == Some(renewal.nonce);
        let refused = self.registrations.waiting.extract_if(.., |waiting| {
            waiting.lease == renewal.lease && (is_answer || now.since(waiting.came) >= RENEWAL_TRAVEL_TIME)
        });
        for WaitingRegistration { token, proposal, lease, .. } in refused {
            let Command::RegisterAgent(registration) = &proposal.command else { continue };
            let address = state.agent_of(lease).and_then(|agent| state.agent_address(agent));
            let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
            let node = &registration.node.name;
            let why = format!(
                "node {node} is here already: another process registered it and answers{at}: stop it, or give this \
                 host its own node id"
            );
            turn.fail(token, Unavailable::Denied(why));
        }
    }

    /// Resolves the waiting registrations that are decided by now.
    pub(super) fn resolve_registrations(&mut self, turn: &mut Turn<'_>) {
        for waiting in self.registrations.take() {
            match self.registration_verdict(turn, &waiting) {
                Verdict::Wait => self.registrations.waiting.push(waiting),
                Verdict::LookAgain => self.hold_registration(turn, waiting.token, waiting.proposal),
                Verdict::Propose => {
                    turn.propose(waiting.proposal, waiting.token);
                    // Other waiting registrations of this node must then check the new process.
                    self.checks.close(waiting.lease.agent);
                }
                Verdict::GiveUp => {
                    let what = "another process registered this node, and too few servers could check it";
                    turn.fail(waiting.token, Unavailable::Overloaded(what.into()));
                }
            }
        }
    }

    fn registration_verdict(&self, turn: &Turn<'_>, waiting: &WaitingRegistration) -> Verdict {
        let (state, waited) = (turn.view.state, turn.now.since(waiting.came));
        let agent = state.agent_of(waiting.lease);
        let Some(agent) = agent.filter(|agent| agent.status == MemberStatus::Alive) else {
            let is_kept = matches!(&waiting.proposal.command, Command::RegisterAgent(registration)
                if self.keeps_its_name(turn, registration).is_some_and(|owner| owner.lease() == waiting.lease));
            return match is_kept {
                true if waited < NAME_KEEP_TIME => Verdict::Wait,
                // A restore restarts the windows, but the name was kept for long enough before.
                true => Verdict::Propose,
                false => Verdict::LookAgain,
            };
        };
        let silence = match state.agent_address(agent) {
            Some(_) => MIN_SILENCE_TIME,
            // The process cannot be challenged, so it must miss a renewal.
            None => overdue_after(HealthWindow::Default),
        };
        // No node fails here, so each juror with enough unanswered challenges counts, even after a
        // pause.
        if waited >= silence && self.confirmed_by(turn, agent.number, false).is_some() {
            Verdict::Propose
        } else if waited >= MAX_WAIT_TIME {
            Verdict::GiveUp
        } else {
            Verdict::Wait
        }
    }
}

/// The other process that is the node's agent, as far as this server knows.
fn first_process<'a>(turn: &Turn<'a>, registration: &AgentRegistration) -> Option<&'a Arc<Agent>> {
    let first = turn.view.state.agent_of_node_id(&registration.node.id)?;
    let is_other = first.incarnation.process != registration.incarnation.process;
    (is_other && first.status == MemberStatus::Alive).then_some(first)
}
