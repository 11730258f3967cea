//! Force-leave of a living node has no effect, as in Consul, where the node's agent refutes it.
//!
//! The leader's failure detector decides before the command is proposed:
//!
//! | the node | a force-leave |
//! |---|---|
//! | renewed within its window, announced a restart, or is registering | succeeds without effect |
//! | has failed, has left, or is not a member | is proposed |
//! | is silent beyond the window, but has not failed | waits for a renewal or a verdict |
//!
//! The third case occurs after an election or during a pending verdict. The node is challenged
//! meanwhile, so a living one is known within a round trip.
//!
//! **Invariant:** a force-leave ends no session of a node while guards may rely on a renewal of the
//! default window or on an announced restart.

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

/// The maximum number of waiting force-leaves.
const MAX_WAITING: usize = 64;
/// The maximum wait of a force-leave: less than an agent's timeout for a write.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A force-leave that waits until the leader knows whether its node is alive.
#[derive(Debug)]
pub(in crate::judge) struct WaitingForceLeave {
    pub(in crate::judge) came: Time,
    token: CallToken,
    proposal: Proposal,
}

/// The leader's knowledge of the node that a force-leave names.
enum Liveness {
    Alive,
    /// The node failed, left, or was never a member.
    Gone,
    /// The holder of this lease did not renew within its window, and no verdict is applied.
    Unknown(LeaseId),
}

impl Core {
    /// Holds a force-leave; returns any other proposal, and one that may enter the log.
    pub(crate) fn hold_force_leave(
        &mut self,
        now: Time,
        token: CallToken,
        proposal: Proposal,
        outbox: &mut Outbox,
    ) -> Option<Proposal> {
        let Some(node) = forced_node(&proposal.command) else { return Some(proposal) };
        // Before this server serves, its state may lack the node's registration.
        if !self.is_serving() {
            outbox.fail(token, not_leader());
            return None;
        }
        match self.liveness(now, node) {
            Liveness::Gone => return Some(self.without_own_reply(proposal)),
            Liveness::Alive => self.read_index.arrive(now, Reader::Unchanged(token)),
            Liveness::Unknown(_) if self.judge.force_leaves.len() >= MAX_WAITING => {
                let what = format!("{MAX_WAITING} force-leaves already wait for checks of their nodes");
                outbox.fail(token, Unavailable::Overloaded(what));
            }
            Liveness::Unknown(lease) => {
                self.open_check(now, lease);
                self.judge.force_leaves.push(WaitingForceLeave { came: now, token, proposal });
            }
        }
        None
    }

    /// Resolves the waiting force-leaves whose node's liveness is now known.
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
                        "node {node} has neither answered nor failed yet, so it was not forced to leave: retry in \
                         {} s",
                        LONGEST_WAIT.as_secs()
                    );
                    outbox.deny(waiting.token, &why);
                }
                Liveness::Unknown(_) => self.judge.force_leaves.push(waiting),
            }
        }
    }

    /// Replies without a proposal: the node was alive when the round began. Consul's reply is the
    /// same.
    pub(crate) fn answer_unchanged(&self, token: CallToken, outbox: &mut Outbox) {
        let index = LogIndex(self.applied.0.0 + self.state.index_base());
        outbox.replies.push((token, Response::Applied(Applied { index, reply: Reply::Done })));
    }

    /// Fails all waiting force-leaves when leadership is lost: the agents retry at the next leader.
    pub(super) fn drop_force_leaves(&mut self, outbox: &mut Outbox) {
        for waiting in std::mem::take(&mut self.judge.force_leaves) {
            outbox.fail(waiting.token, not_leader());
        }
    }

    /// Drops the request id of an agent that prunes its own node. The agent is forgotten with its
    /// kept replies, so none may be kept for it: a state with such a reply is rejected in a backup.
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
        // Behind the registration in the log, the force-leave would end the new process's
        // membership.
        if self.is_on_its_way(is_registration) {
            return Liveness::Alive;
        }
        let Some(agent) = self.state.member(&folded) else { return Liveness::Gone };
        let lease = agent.lease();
        match agent.status {
            MemberStatus::Failed | MemberStatus::Left => return Liveness::Gone,
            // Guards rely on their sessions for this long without the agent.
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

/// The node that a command forces to leave; `None` if the node's own agent sent it.
fn forced_node(command: &Command) -> Option<&NodeName> {
    match command {
        Command::LeaveNode(NodeLeave { node, lease: None, .. }) => Some(node),
        _ => None,
    }
}
