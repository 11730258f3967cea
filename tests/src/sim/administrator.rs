//! A client that looks after the quorum by way of its agent: asks what the leader knows, hands the
//! leadership over, and makes nodes leave, most of which are alive.

use super::client::Wish;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};

/// A client's thought is worth a question once in so many times.
const ASKS_ONE_IN: u64 = 8;
/// A question is a transfer of the leadership once in so many times.
const TRANSFERS_ONE_IN: u64 = 8;

/// A question about the servers is a force-leave once in so many times.
const FORCES_ONE_IN: u64 = 4;

/// What it knows.
#[derive(Debug, Default)]
pub struct Administrator {
    served: bool,
}

impl Administrator {
    /// Whether it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    /// What it wants now.
    pub fn wish(&self, stage: &mut Stage) -> Option<Wish> {
        if self.served || !(stage.calm || stage.draw.once_in(ASKS_ONE_IN)) {
            return None;
        }
        let transfers = !stage.calm && stage.plan.faults.transfer.is_some();
        let request = match transfers && stage.draw.once_in(TRANSFERS_ONE_IN) {
            true => Request::TransferLeader(None),
            false if stage.draw.once_in(4) => Request::Autopilot,
            // No draw, so that a seed stands for the same storm as without it.
            false if !stage.calm && stage.now.0.is_multiple_of(FORCES_ONE_IN) => force_leave(stage),
            false => Request::Status,
        };
        Some(Wish::new(stage.now, request))
    }

    /// A wish was answered.
    pub fn heard(&mut self, stage: &mut Stage, response: &Response) {
        self.served |= stage.calm;
        match response {
            Response::Status(_) => stage.hit(Mark::LeaderTold),
            Response::Done => stage.hit(Mark::TransferByAgent),
            Response::Applied(Applied { reply: Reply::Done, .. }) => stage.hit(Mark::ForceLeaveAnswered),
            _ => {}
        }
    }
}

/// Makes any agent's node leave, its own among them.
fn force_leave(stage: &Stage) -> Request {
    let number = stage.now.0 / FORCES_ONE_IN;
    let node = format!("n{}", number % stage.plan.clients.agents as u64).into();
    let prune = number.is_multiple_of(3);
    Request::Propose(None, Command::LeaveNode(NodeLeave { node, lease: None, prune }))
}
