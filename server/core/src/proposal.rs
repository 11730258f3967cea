//! A command on its way into the log.

use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::{self, FormatError, Stored};
use lockmesh_protocol::id::{RequestId, WallTime};
use lockmesh_protocol::wire;
use serde::{Deserialize, Serialize};

/// The first format version with the caller.
const CALLER_SINCE: u8 = 11;

/// A proposed command; encoded, it is the data of its log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The request id; `None` for the leader's own commands and for an agent's registration.
    pub request: Option<RequestId>,
    /// The leader's wall clock at the time of the proposal, for people.
    pub at: WallTime,
    /// The command.
    pub command: Command,
    /// The caller; [`Caller::Agent`] if requests were not judged at the time of the proposal.
    pub caller: Caller,
}

impl Proposal {
    /// Returns a proposal of a server or of an agent itself.
    pub fn new(request: Option<RequestId>, at: WallTime, command: Command) -> Self {
        Self { request, at, command, caller: Caller::Agent }
    }
}

mod v10 {
    use super::{Command, RequestId, WallTime};

    /// The proposal of builds before access control lists.
    #[derive(serde::Deserialize)]
    pub(super) struct Proposal {
        pub(super) request: Option<RequestId>,
        pub(super) at: WallTime,
        pub(super) command: Command,
    }
}

impl From<v10::Proposal> for Proposal {
    fn from(old: v10::Proposal) -> Self {
        let v10::Proposal { request, at, command } = old;
        Self::new(request, at, command)
    }
}

impl Stored for Proposal {
    fn version(&self) -> u8 {
        match self.caller {
            Caller::Agent => self.command.since(),
            _ => self.command.since().max(CALLER_SINCE),
        }
    }

    /// Before the caller it is shorter.
    fn encode_version(&self, bytes: &mut Vec<u8>) {
        match self.version() {
            ..CALLER_SINCE => wire::encode_into(&(&self.request, &self.at, &self.command), bytes),
            _ => wire::encode_into(self, bytes),
        }
    }

    fn decode_version(version: u8, body: &[u8]) -> Result<Self, FormatError> {
        match version {
            ..CALLER_SINCE => Ok(format::decode_as::<v10::Proposal>(version, body)?.into()),
            _ => format::decode_as(version, body),
        }
    }
}
