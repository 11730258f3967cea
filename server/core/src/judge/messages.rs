//! Messages between servers about leases and checks, carried in the context of Raft messages.
//!
//! All of them may be lost or delayed: a relayed renewal times out, and a check list is repeated
//! until it is empty. So no message is ever awaited.

use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The interval at which a server challenges a node under check, and at which the leader sends its
/// check list.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of renewals or answers in one message.
pub(super) const BATCH: usize = 4096;
/// The maximum length of such a context. The largest batch and the full check list are far below
/// it.
pub(super) const MAX_CONTEXT_BYTES: usize = 1 << 20;

/// The reply to a renewal.
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
    /// The sequence number of the list, within one leader process.
    pub(super) number: u64,
    pub(super) checks: Vec<CheckOrder>,
}

/// A node that a juror must challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckOrder {
    pub(super) challenge: Challenge,
    pub(super) node: NodeName,
    /// The address of the node as `host:port`; `None` if it does not listen.
    pub(super) address: Option<String>,
    /// The time since the check was opened.
    pub(super) age: Duration,
    /// The time for which a juror abstains that was paused or cut off.
    pub(super) window: Duration,
}

/// A juror's reports on all checks, in reply to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JurorReports {
    /// The number of the list; the reports are no older than the list.
    pub(super) number: u64,
    pub(super) reports: Vec<JurorReport>,
}

/// A juror's report on one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JurorReport {
    pub(super) challenge: Challenge,
    /// The number of consecutive unanswered challenges.
    pub(super) unanswered: u32,
    /// Set if the juror was paused or cut off from the leader, so that its silence is no evidence.
    pub(super) abstains: bool,
    /// The answer of the node.
    pub(super) answer: Option<Renewal>,
}
