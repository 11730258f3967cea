//! A client that looks after the quorum by way of its agent: asks what the leader knows, and hands
//! the leadership over.

use super::client::Wish;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::rpc::{Request, Response};

/// A client's thought is worth a question once in so many times.
const ASKS_ONE_IN: u64 = 8;
/// A question is a transfer of the leadership once in so many times.
const TRANSFERS_ONE_IN: u64 = 8;

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
            _ => {}
        }
    }
}
