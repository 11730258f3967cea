//! Force-leave: a node that lives is not made to leave, as in Consul, whose agent refutes it.
//!
//! The leader's failure detector decides before anything is proposed:
//!
//! | the node | a force-leave |
//! |---|---|
//! | renewed its lease within the default window, announced a restart, or registers just now | is answered, and changes nothing |
//! | has failed, has left, or is not a member | is proposed |
//! | was not heard by this leader within the window, and has not failed | waits for a renewal or a verdict |
//!
//! The third row is a leader that was just elected, or a verdict that is under way. The node is
//! challenged meanwhile, so a living one is known within a round trip.
//!
//! **Invariant:** a force-leave ends no session of a node whose guards may believe in it by a
//! renewal of the default window or by an announced restart.

use crate::core::{Core, Origin};
use crate::input::CallToken;
use crate::outbox::{Outbox, not_leader};
use crate::proposal::Proposal;
use crate::read_index::Reader;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::{LogIndex, NodeName};
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The maximum number of force-leaves that wait.
const MAX_WAITING: usize = 64;
/// How long a force-leave waits at most: less than an agent waits for the answer to a write.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A force-leave that waits until the leader knows whether its node lives.
#[derive(Debug)]
pub(in crate::judge) struct WaitingForceLeave {
    pub(in crate::judge) came: Time,
    token: CallToken,
    proposal: Proposal,
}

/// What the leader knows of the node that a force-leave names.
enum Liveness {
    Alive,
    /// It failed, left, or was never there.
    Gone,
    /// The holder of this lease was not heard within its window, and no verdict is applied.
    Unknown(LeaseId),
}

impl Core {
    /// Takes a force-leave; returns any other proposal, and one that may go into the log.
    pub(crate) fn hold_force_leave(
        &mut self,
        now: Time,
        token: CallToken,
        proposal: Proposal,
        outbox: &mut Outbox,
    ) -> Option<Proposal> {
        let Some(node) = forced_node(&proposal.command) else { return Some(proposal) };
        // Until it serves, its state may lack the node's registration.
        if !self.is_serving() {
            outbox.fail(token, not_leader());
            return None;
        }
        match self.liveness(now, node) {
            Liveness::Gone => return Some(self.without_own_reply(proposal)),
            Liveness::Alive => self.read_index.arrive(now, Reader::Unchanged(token)),
            Liveness::Unknown(_) if self.judge.force_leaves.len() >= MAX_WAITING => {
                let what =
                    format!("{MAX_WAITING} force-leaves wait until it is known whether their nodes live");
                outbox.fail(token, Unavailable::Overloaded(what));
            }
            Liveness::Unknown(lease) => {
                self.open_check(now, lease);
                self.judge.force_leaves.push(WaitingForceLeave { came: now, token, proposal });
            }
        }
        None
    }

    /// Resolves the waiting force-leaves of which the leader knows more by now.
    pub(super) fn look_at_force_leaves(&mut self, now: Time, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.force_leaves) {
            let Some(node) = forced_node(&waiting.proposal.command) else { continue };
            match self.liveness(now, node) {
                Liveness::Gone => {
                    let proposal = self.without_own_reply(waiting.proposal);
                    self.batch.push((proposal, Origin::Client(waiting.token, now)));
                }
                Liveness::Alive => self.read_index.arrive(now, Reader::Unchanged(waiting.token)),
                Liveness::Unknown(_) if now.since(waiting.came) >= LONGEST_WAIT => {
                    let why = format!(
                        "node {node} has neither answered nor failed yet, so it was not made to leave: try again in \
                         {} s",
                        LONGEST_WAIT.as_secs()
                    );
                    outbox.deny(waiting.token, &why);
                }
                Liveness::Unknown(_) => self.judge.force_leaves.push(waiting),
            }
        }
    }

    /// The node lived when the round began: nothing is proposed, and Consul's answer is the same.
    pub(crate) fn answer_unchanged(&self, token: CallToken, outbox: &mut Outbox) {
        let index = LogIndex(self.applied.0.0 + self.state.index_base());
        outbox.replies.push((token, Response::Applied(Applied { index, reply: Reply::Done })));
    }

    /// This server no longer leads: the agent asks the next leader.
    pub(super) fn drop_force_leaves(&mut self, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.force_leaves) {
            outbox.fail(waiting.token, not_leader());
        }
    }

    /// An agent that prunes its own node is forgotten with its kept replies, so none may be kept
    /// for it: a state that holds one is refused in a backup.
    fn without_own_reply(&self, proposal: Proposal) -> Proposal {
        let Command::LeaveNode(NodeLeave { node, prune: true, .. }) = &proposal.command else {
            return proposal;
        };
        let member = self.state.member(&node.folded()).map(|agent| agent.number);
        let request = proposal.request.filter(|request| Some(request.agent) != member);
        Proposal { request, ..proposal }
    }

    fn liveness(&self, now: Time, node: &NodeName) -> Liveness {
        let folded = node.folded();
        let is_registration = |command: &Command| matches!(command, Command::RegisterAgent(new) if new.node.name.folded() == folded);
        // Behind it in the log the force-leave would end what the new process begins.
        if self.is_on_its_way(is_registration) {
            return Liveness::Alive;
        }
        let Some(agent) = self.state.member(&folded) else { return Liveness::Gone };
        let lease = agent.lease();
        match agent.status {
            MemberStatus::Failed | MemberStatus::Left => return Liveness::Gone,
            // Guards believe in their sessions for so long without the agent.
            _ if agent.restart_announced.is_some() => return Liveness::Alive,
            MemberStatus::Alive | MemberStatus::Restarting => {}
        }
        let member = self.judge.windows.member(lease.agent).filter(|member| member.lease == lease);
        let is_within =
            member.is_some_and(|member| now < member.end(HealthWindow::Default, self.judge.is_braking()));
        if is_within && self.judge.windows.renewed(lease).is_some() {
            Liveness::Alive
        } else {
            Liveness::Unknown(lease)
        }
    }
}

/// The node that a command makes leave, unless its own agent says so.
fn forced_node(command: &Command) -> Option<&NodeName> {
    match command {
        Command::LeaveNode(NodeLeave { node, lease: None, .. }) => Some(node),
        _ => None,
    }
}
