//! A client that administers the quorum through its agent: it asks for the leader's status,
//! transfers leadership, rotates the gossip key, and forces nodes to leave, most of which are
//! alive.

use super::client::Wish;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::deadlock::DeadlockPolicy;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeSet;

/// One in this many wake-ups leads to a request.
const ASKS_ONE_IN: u64 = 8;
/// One in this many requests is a leadership transfer.
const TRANSFERS_ONE_IN: u64 = 8;

/// One in this many status requests is a force-leave instead.
const FORCES_ONE_IN: u64 = 4;

/// One in this many status requests rotates the gossip key instead.
const ROTATES_ONE_IN: u64 = 8;

/// The state of the client.
#[derive(Debug)]
pub struct Administrator {
    node: NodeName,
    served: bool,
}

impl Administrator {
    /// Returns the client of an agent.
    pub fn new(place: usize) -> Self {
        Self { node: format!("n{place}").into(), served: false }
    }

    /// Returns `true` if the client was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage, judge: &Judge) -> Option<Wish> {
        let state = judge.history.state();
        // After the storm all hosts are operator hosts again.
        if stage.calm && !state.is_operator_host(&NodeName::from("")) {
            self.served = false;
            let opens = state.is_operator_host(&self.node);
            let open = Request::Propose(None, Command::ConfigureOperatorHosts(BTreeSet::new()));
            return opens.then(|| Wish::new(stage.now, open));
        }
        if self.served || !(stage.calm || stage.draw.once_in(ASKS_ONE_IN)) {
            return None;
        }
        let transfers = !stage.calm && stage.plan.faults.transfer.is_some();
        let request = match transfers && stage.draw.once_in(TRANSFERS_ONE_IN) {
            true => Request::TransferLeader(None),
            false if stage.draw.once_in(4) => Request::Autopilot,
            // No random draw, so that a seed gives the same storm as without it.
            false if !stage.calm && stage.now.0.is_multiple_of(FORCES_ONE_IN) => force_leave(stage),
            false if !stage.calm && stage.now.0 % ROTATES_ONE_IN == 1 => rotate_key(stage),
            false if !stage.calm && stage.now.0 % ROTATES_ONE_IN == 3 => configure_deadlocks(stage),
            false if !stage.calm && stage.now.0 % ROTATES_ONE_IN == 5 => configure_hosts(stage),
            false => Request::Status,
        };
        Some(Wish::new(stage.now, request))
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &mut Stage, response: &Response) {
        self.served |= stage.calm;
        match response {
            Response::Status(_) => stage.hit(Mark::LeaderTold),
            Response::Applied(Applied { reply: Reply::GossipKey(_), .. }) => stage.hit(Mark::KeyRotated),
            Response::Done => stage.hit(Mark::TransferByAgent),
            Response::Applied(Applied { reply: Reply::Done, .. }) => stage.hit(Mark::ForceLeaveAnswered),
            _ => {}
        }
    }
}

/// Forces an agent's node to leave, possibly its own agent's node.
fn force_leave(stage: &Stage) -> Request {
    let number = stage.now.0 / FORCES_ONE_IN;
    let node = format!("n{}", number % stage.plan.clients.agents as u64).into();
    let prune = number.is_multiple_of(3);
    Request::Propose(None, Command::LeaveNode(NodeLeave { node, lease: None, prune }))
}

/// Changes the policy for deadlocks.
fn configure_deadlocks(stage: &Stage) -> Request {
    let refuses = (stage.now.0 / ROTATES_ONE_IN).is_multiple_of(2);
    let policy = if refuses { DeadlockPolicy::Refuse } else { DeadlockPolicy::Report };
    Request::Propose(None, Command::ConfigureDeadlocks(policy))
}

/// Makes one node, or all nodes, operator hosts.
fn configure_hosts(stage: &Stage) -> Request {
    let number = stage.now.0 / ROTATES_ONE_IN;
    let host = format!("n{}", number % stage.plan.clients.agents as u64).as_str().into();
    let hosts = Some(host).filter(|_| !number.is_multiple_of(3)).into_iter().collect();
    Request::Propose(None, Command::ConfigureOperatorHosts(hosts))
}

/// Rotates the gossip key, from a number that may be wrong.
fn rotate_key(stage: &Stage) -> Request {
    let from = (stage.now.0 / ROTATES_ONE_IN % 3) as u32;
    Request::Propose(None, Command::RotateGossipKey { from })
}
