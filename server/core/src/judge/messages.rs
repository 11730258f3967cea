//! What servers tell each other of leases and checks, in the context of their messages.
//!
//! All of it may be lost or come late: a relayed renewal is refused after a while, and a list of
//! checks is told again until it is empty. So no message is ever waited for.

use super::Judge;
use crate::core::Core;
use crate::input::CallToken;
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseEnd, LeaseId, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most renewals or answers in one message.
pub(super) const BATCH: usize = 4096;
/// The longest context of such a message: the largest batch, and the list of all checks, are far
/// below it.
const MAX_CONTEXT_BYTES: usize = 1 << 20;

/// Who waits for the answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseCaller {
    /// Somebody who called this server.
    Call(CallToken),
    /// Another server that relayed it, under this number of its own.
    Server(ServerId, u64),
}

/// What a renewal is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LeaseAnswer {
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

impl Core {
    /// Takes a message about leases and checks; whether it was one.
    pub(crate) fn judge_message(&mut self, now: Time, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let from = message.from;
        // Only the leader that this server follows may say it: a deposed one may know no better.
        let is_of_leader = self.engine.leader() == Some(from);
        match message.kind {
            MessageKind::LeaseRenewals => {
                for (number, renewal) in read::<Vec<(u64, Renewal)>>(message).unwrap_or_default() {
                    self.hear_call(now, LeaseCaller::Server(from, number), renewal, outbox);
                }
            }
            MessageKind::LeaseAnswers if is_of_leader => {
                for (number, answer) in read::<Vec<(u64, LeaseAnswer)>>(message).unwrap_or_default() {
                    self.relayed_answer(number, answer, outbox);
                }
            }
            MessageKind::CheckNodes if is_of_leader => {
                if let Some(list) = read::<CheckList>(message) {
                    // The tick that would notice may come behind this message.
                    if !self.is_running(now) {
                        self.judge.juror.was_late(now);
                    }
                    self.judge.juror.take_list(now, message.term, &list);
                    let reports = self.judge.juror.reports(now, list.number);
                    self.send(from, MessageKind::NodeReports, &reports, outbox);
                }
            }
            MessageKind::NodeReports if self.is_serving() => {
                if let Some(reports) = read::<JurorReports>(message) {
                    self.take_reports(now, from, reports, outbox);
                }
            }
            // They are the judge's all the same: the engine must not see them.
            MessageKind::LeaseAnswers | MessageKind::CheckNodes | MessageKind::NodeReports => {}
            _ => return false,
        }
        true
    }

    /// Sends a server something of the judge's.
    pub(super) fn send<T: Serialize>(&self, to: ServerId, kind: MessageKind, said: &T, outbox: &mut Outbox) {
        let context = Bytes::from(wire::encode(said));
        let message = PeerMessage::new(kind, self.config.id, to);
        outbox.messages.push((to, PeerMessage { term: self.engine.term(), context, ..message }));
    }

    pub(super) fn flush_answers(&mut self, outbox: &mut Outbox) {
        for (to, answers) in std::mem::take(&mut self.judge.answers) {
            for batch in answers.chunks(BATCH) {
                self.send(to, MessageKind::LeaseAnswers, &batch, outbox);
            }
        }
    }
}

impl Judge {
    /// Answers whoever waits for the answer to a renewal.
    pub(super) fn answer(&mut self, caller: LeaseCaller, answer: LeaseAnswer, outbox: &mut Outbox) {
        match caller {
            LeaseCaller::Call(token) => outbox.replies.push((token, answer.into_response())),
            LeaseCaller::Server(server, number) => {
                self.answers.entry(server).or_default().push((number, answer));
            }
        }
    }
}

fn read<T: DeserializeOwned>(message: &PeerMessage) -> Option<T> {
    let read = wire::decode::<T, MAX_CONTEXT_BYTES>(&message.context);
    read.inspect_err(|error| {
        let (server, kind) = (message.from.0, message.kind);
        tracing::warn!(server, ?kind, %error, "cannot read what a server says of leases");
    })
    .ok()
}
