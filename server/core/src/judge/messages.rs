//! What servers tell each other of leases and checks, in the context of their messages.
//!
//! All of it may be lost or come late: a relayed renewal is refused after a while, and a list of
//! checks is told again until it is empty. So no message is ever waited for.

use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How often a server asks a node that is under check, and the leader tells the voters.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// The most renewals or answers in one message.
pub(super) const BATCH: usize = 4096;
/// The longest context of such a message: the largest batch, and the list of all checks, are far
/// below it.
pub(super) const MAX_CONTEXT_BYTES: usize = 1 << 20;

/// What a renewal is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeaseAnswer {
    Renewed(LeaseAck),
    Ended(LeaseId, LeaseEnd),
    Unavailable(Unavailable),
}

impl LeaseAnswer {
    pub(super) fn into_response(self) -> Response {
        match self {
            Self::Renewed(ack) => Response::LeaseRenewed(ack),
            Self::Ended(lease, why) => Response::LeaseEnded(lease, why),
            Self::Unavailable(why) => Response::Unavailable(why),
        }
    }
}

/// All checks that a leader has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckList {
    /// Counts the lists of one leader's process.
    pub(super) number: u64,
    pub(super) checks: Vec<CheckOrder>,
}

/// A node that a juror shall ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckOrder {
    pub(super) challenge: Challenge,
    pub(super) node: NodeName,
    /// Where it is asked, as `host:port`; none where it listens nowhere.
    pub(super) address: Option<String>,
    /// How long the check has been open.
    pub(super) age: Duration,
    /// How long a juror abstains that was late or cut off.
    pub(super) window: Duration,
}

/// What a juror reports of all checks that it knows, as the answer to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JurorReports {
    /// The number of the list: a report is no older than that.
    pub(super) number: u64,
    pub(super) reports: Vec<JurorReport>,
}

/// What a juror reports of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JurorReport {
    pub(super) challenge: Challenge,
    /// How often it has asked without an answer, one time after the other.
    pub(super) unanswered: u32,
    /// Whether it was late itself, or cut off from the leader, so that its silence says nothing.
    pub(super) abstains: bool,
    /// What the node answered.
    pub(super) answer: Option<Renewal>,
}
