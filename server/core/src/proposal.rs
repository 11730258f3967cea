//! A command before it is in the log.

use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::Stored;
use lockmesh_protocol::id::{RequestId, WallTime};
use serde::{Deserialize, Serialize};

/// A proposed command; encoded, it is the data of its log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The request id; `None` for the leader's own commands and for an agent's registration.
    pub request: Option<RequestId>,
    /// The leader's wall clock at the time of the proposal, for people.
    pub at: WallTime,
    /// The command.
    pub command: Command,
}

impl Stored for Proposal {
    fn version(&self) -> u8 {
        self.command.since()
    }
}
