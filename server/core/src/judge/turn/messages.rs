//! Messages about leases and checks: taken from other servers, and sent to them.

use crate::core::Core;
use crate::input::LeaseCaller;
use crate::judge::Judge;
use crate::judge::messages::{BATCH, CheckList, JurorReports, LeaseAnswer, MAX_CONTEXT_BYTES};
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::given_up::GivenUp;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Core {
    /// Takes a message about leases and checks; whether it was one.
    pub(crate) fn judge_message(&mut self, now: Time, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let from = message.from;
        // Only the leader that this server follows may say it: a deposed one may know no better.
        let is_of_leader = self.engine.leader() == Some(from);
        match message.kind {
            MessageKind::LeaseRenewals => {
                for (number, renewal) in
                    Self::read_context::<Vec<(u64, Renewal)>>(message).unwrap_or_default()
                {
                    self.hear_call(now, LeaseCaller::Server(from, number), renewal, outbox);
                }
            }
            MessageKind::LeaseAnswers if is_of_leader => {
                for (number, answer) in
                    Self::read_context::<Vec<(u64, LeaseAnswer)>>(message).unwrap_or_default()
                {
                    self.relayed_answer(number, answer, outbox);
                }
            }
            MessageKind::CheckNodes if is_of_leader => {
                if let Some(list) = Self::read_context::<CheckList>(message) {
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
                if let Some(reports) = Self::read_context::<JurorReports>(message) {
                    self.take_reports(now, from, reports, outbox);
                }
            }
            MessageKind::Accusations if self.is_serving() => {
                let accusations = Self::read_context::<Vec<(LeaseId, LeaseId)>>(message).unwrap_or_default();
                self.hear_accusations(now, accusations);
            }
            MessageKind::GivenUp if self.is_serving() => {
                if let Some(given_up) = Self::read_context::<GivenUp>(message) {
                    self.take_given_up(&given_up, outbox);
                }
            }
            // They are the judge's all the same: the engine must not see them.
            MessageKind::LeaseAnswers
            | MessageKind::CheckNodes
            | MessageKind::NodeReports
            | MessageKind::Accusations
            | MessageKind::GivenUp => {}
            _ => return false,
        }
        true
    }

    /// What a message of the core's own says; none where it cannot be read.
    pub(crate) fn read_context<T: DeserializeOwned>(message: &PeerMessage) -> Option<T> {
        let read = wire::decode::<T, MAX_CONTEXT_BYTES>(&message.context);
        read.inspect_err(|error| {
            let (server, kind) = (message.from.0, message.kind);
            tracing::warn!(server, ?kind, %error, "cannot read what a server says");
        })
        .ok()
    }

    /// Sends a server something that is not consensus.
    pub(crate) fn send<T: Serialize>(&self, to: ServerId, kind: MessageKind, said: &T, outbox: &mut Outbox) {
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
    pub(crate) fn answer(&mut self, caller: LeaseCaller, answer: LeaseAnswer, outbox: &mut Outbox) {
        match caller {
            LeaseCaller::Call(token) => outbox.replies.push((token, answer.into_response())),
            LeaseCaller::Server(server, number) => {
                self.answers.entry(server).or_default().push((number, answer));
            }
        }
    }
}
