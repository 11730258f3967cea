//! A command on its way into the log.

use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::Stored;
use lockmesh_protocol::id::{RequestId, WallTime};
use serde::{Deserialize, Serialize};

/// A command on its way into the log; encoded, it is the log entry's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// What makes it unique; none for the leader's own commands and for an agent's registration.
    pub request: Option<RequestId>,
    /// The leader's wall clock when it was proposed: data for people.
    pub at: WallTime,
    /// What to do.
    pub command: Command,
}

impl Stored for Proposal {
    fn version(&self) -> u8 {
        self.command.since()
    }
}
