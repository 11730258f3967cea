//! Messages between servers about leases and checks, carried in the context of Raft messages.
//! [`MessageKind::is_of_judge`] names their kinds.
//!
//! All of them may be lost or delayed: a relayed renewal times out, and a check list is repeated
//! until it is empty. So no message is ever awaited.

use super::{Judge, given_up};
use crate::cluster::Turn;
use crate::input::LeaseCaller;
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::given_up::GivenUp;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The interval at which a server challenges a node under check, and at which the leader sends its
/// check list.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of renewals or answers in one message.
pub(super) const BATCH: usize = 4096;

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

impl Judge {
    /// Handles a message from another server.
    pub(super) fn message(&mut self, turn: &mut Turn<'_>, message: &PeerMessage) {
        let (from, view) = (message.from, turn.view);
        // Accepted only from the leader that this server follows: a deposed leader's view may be
        // outdated.
        let is_of_leader = view.leader == Some(from);
        match message.kind {
            MessageKind::LeaseRenewals => {
                for (number, renewal) in message.read::<Vec<(u64, Renewal)>>().unwrap_or_default() {
                    self.receive_call(turn, LeaseCaller::Server(from, number), renewal);
                }
            }
            MessageKind::LeaseAnswers if is_of_leader => {
                for (number, answer) in message.read::<Vec<(u64, LeaseAnswer)>>().unwrap_or_default() {
                    self.relay.answered(turn, number, answer);
                }
            }
            MessageKind::CheckNodes if is_of_leader => {
                if let Some(list) = message.read::<CheckList>() {
                    self.receive_list(turn, message, &list);
                }
            }
            MessageKind::NodeReports if view.is_serving() => {
                if let Some(reports) = message.read::<JurorReports>() {
                    self.reports(turn, from, reports);
                }
            }
            MessageKind::Suspicions if view.is_serving() => {
                let suspicions = message.read::<Vec<(LeaseId, LeaseId)>>().unwrap_or_default();
                self.hear_suspicions(turn.now, view.state, suspicions);
            }
            MessageKind::GivenUp if view.is_serving() => {
                if let Some(given_up) = message.read::<GivenUp>() {
                    given_up::handle(turn, &mut self.counts, &given_up);
                }
            }
            _ => {}
        }
    }

    fn receive_list(&mut self, turn: &mut Turn<'_>, message: &PeerMessage, list: &CheckList) {
        // The tick that would detect the pause may come after this message.
        if turn.view.is_late {
            self.juror.was_late(turn.now);
        }
        self.juror.receive_list(turn.now, message.term, list);
        let reports = self.juror.reports(turn.now, list.number);
        turn.send(message.from, MessageKind::NodeReports, &reports);
    }

    /// Handles a juror's reply to a check list.
    fn reports(&mut self, turn: &mut Turn<'_>, from: ServerId, reports: JurorReports) {
        self.checks.receive_reports(from, &reports);
        // The copy relayed at once may have been lost.
        for answer in reports.reports.into_iter().filter_map(|report| report.answer) {
            self.receive_answer(turn, answer);
        }
    }

    /// Sends the check list to all voters, this server included.
    pub(super) fn send_list(&mut self, turn: &mut Turn<'_>) {
        let (now, view) = (turn.now, turn.view);
        let Some(list) = self.checks.next_list(now, view.state, &self.windows) else { return };
        for voter in view.membership.all_voters() {
            if voter == view.id {
                self.juror.receive_list(now, view.term, &list);
            } else {
                turn.send(voter, MessageKind::CheckNodes, &list);
            }
        }
    }
}
