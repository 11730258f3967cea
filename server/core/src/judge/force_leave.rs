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

use super::windows::Windows;
use crate::cluster::{Decision, Turn};
use crate::input::CallToken;
use crate::outbox::not_leader;
use crate::proposal::Proposal;
use crate::read_index::Reader;
use crate::state::State;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The maximum number of waiting force-leaves.
const MAX_WAITING: usize = 64;
/// The maximum wait of a force-leave: less than an agent's timeout for a write.
const MAX_WAIT_TIME: Duration = Duration::from_secs(5);

/// A force-leave that waits until the leader knows whether its node is alive.
#[derive(Debug)]
struct WaitingForceLeave {
    came: Time,
    token: CallToken,
    proposal: Proposal,
}

/// The force-leaves that wait.
#[derive(Debug, Default)]
pub(super) struct ForceLeaves(Vec<WaitingForceLeave>);

/// The leader's knowledge of the node that a force-leave names.
enum Liveness {
    Alive,
    /// The node failed, left, or was never a member.
    Gone,
    /// The holder of this lease did not renew within its window, and no verdict is applied.
    Unknown(LeaseId),
}

impl ForceLeaves {
    pub(super) fn postpone(&mut self, gap: Duration) {
        self.0.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
    }

    /// Takes the callers of all waiting force-leaves.
    pub(super) fn take_callers(&mut self) -> impl Iterator<Item = CallToken> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|waiting| waiting.token)
    }

    /// Holds a force-leave until it may enter the log; passes any other proposal on. Returns the
    /// lease to check, if the force-leave waits.
    pub(super) fn hold(
        &mut self,
        turn: &mut Turn<'_>,
        windows: (&Windows, bool),
        (token, proposal): (CallToken, Proposal),
    ) -> Option<LeaseId> {
        let Some(node) = forced_node(&proposal.command) else {
            turn.propose(proposal, token);
            return None;
        };
        // Before this server serves, its state may lack the node's registration.
        if !turn.view.is_serving() {
            turn.fail(token, not_leader());
            return None;
        }
        match liveness(turn, windows, node) {
            Liveness::Gone => turn.propose(without_own_reply(turn.view.state, proposal), token),
            Liveness::Alive => turn.decide(Decision::Read(Reader::Unchanged(token))),
            Liveness::Unknown(_) if self.0.len() >= MAX_WAITING => {
                let what = format!("{MAX_WAITING} force-leaves already wait for checks of their nodes");
                turn.fail(token, Unavailable::Overloaded(what));
            }
            Liveness::Unknown(lease) => {
                self.0.push(WaitingForceLeave { came: turn.now, token, proposal });
                return Some(lease);
            }
        }
        None
    }

    /// Resolves the waiting force-leaves whose node's liveness is now known.
    pub(super) fn resolve(&mut self, turn: &mut Turn<'_>, windows: (&Windows, bool)) {
        for waiting in std::mem::take(&mut self.0) {
            let Some(node) = forced_node(&waiting.proposal.command) else { continue };
            match liveness(turn, windows, node) {
                Liveness::Gone => {
                    let proposal = without_own_reply(turn.view.state, waiting.proposal);
                    turn.propose(proposal, waiting.token);
                }
                Liveness::Alive => turn.decide(Decision::Read(Reader::Unchanged(waiting.token))),
                Liveness::Unknown(_) if turn.now.since(waiting.came) >= MAX_WAIT_TIME => {
                    let why = format!(
                        "node {node} has neither answered nor failed yet, so it was not forced to leave: retry in \
                         {} s",
                        MAX_WAIT_TIME.as_secs()
                    );
                    turn.fail(waiting.token, Unavailable::Denied(why));
                }
                Liveness::Unknown(_) => self.0.push(waiting),
            }
        }
    }
}

/// Returns the leader's knowledge of a node; the windows come with whether the brake is on.
fn liveness(turn: &Turn<'_>, (windows, is_braking): (&Windows, bool), node: &NodeName) -> Liveness {
    let folded = node.folded();
    let is_registration = |command: &Command| matches!(command, Command::RegisterAgent(new) if new.node.name.folded() == folded);
    // Behind the registration in the log, the force-leave would end the new process's
    // membership.
    if turn.is_on_its_way(is_registration) {
        return Liveness::Alive;
    }
    let Some(agent) = turn.view.state.member(&folded) else { return Liveness::Gone };
    let lease = agent.lease();
    match agent.status {
        MemberStatus::Failed | MemberStatus::Left => return Liveness::Gone,
        // Guards rely on their sessions for this long without the agent.
        _ if agent.restart_announced.is_some() => return Liveness::Alive,
        MemberStatus::Alive | MemberStatus::Restarting => {}
    }
    let member = windows.member(lease.agent).filter(|member| member.lease == lease);
    let is_within = member.is_some_and(|member| turn.now < member.end(HealthWindow::Default, is_braking));
    if is_within && windows.renewed(lease).is_some() { Liveness::Alive } else { Liveness::Unknown(lease) }
}

/// Drops the request id of an agent that prunes its own node. The agent is forgotten with its kept
/// replies, so none may be kept for it: a state with such a reply is rejected in a backup.
fn without_own_reply(state: &State, proposal: Proposal) -> Proposal {
    let Command::LeaveNode(NodeLeave { node, prune: true, .. }) = &proposal.command else {
        return proposal;
    };
    let member = state.member(&node.folded()).map(|agent| agent.number);
    let request = proposal.request.filter(|request| Some(request.agent) != member);
    Proposal { request, ..proposal }
}

/// The node that a command forces to leave; `None` if the node's own agent sent it.
fn forced_node(command: &Command) -> Option<&NodeName> {
    match command {
        Command::LeaveNode(NodeLeave { node, lease: None, .. }) => Some(node),
        _ => None,
    }
}
