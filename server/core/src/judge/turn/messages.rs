//! Messages about leases and checks, to and from other servers.

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
    /// Handles a message about leases and checks; returns `false` if it is of another kind.
    pub(crate) fn judge_message(&mut self, now: Time, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let from = message.from;
        // Accepted only from the leader that this server follows: a deposed leader's view may be
        // outdated.
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
                    // The tick that would detect the pause may come after this message.
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
            // These messages must not reach the engine.
            MessageKind::LeaseAnswers
            | MessageKind::CheckNodes
            | MessageKind::NodeReports
            | MessageKind::Accusations
            | MessageKind::GivenUp => {}
            _ => return false,
        }
        true
    }

    /// Decodes the context of a message of the core; `None` if it is unreadable.
    pub(crate) fn read_context<T: DeserializeOwned>(message: &PeerMessage) -> Option<T> {
        let read = wire::decode::<T, MAX_CONTEXT_BYTES>(&message.context);
        read.inspect_err(|error| {
            let (server, kind) = (message.from.0, message.kind);
            tracing::warn!(server, ?kind, %error, "cannot decode a message from a server");
        })
        .ok()
    }

    /// Sends a server a message that is not part of Raft.
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
    /// Replies to the caller of a renewal.
    pub(crate) fn answer(&mut self, caller: LeaseCaller, answer: LeaseAnswer, outbox: &mut Outbox) {
        match caller {
            LeaseCaller::Call(token) => outbox.replies.push((token, answer.into_response())),
            LeaseCaller::Server(server, number) => {
                self.answers.entry(server).or_default().push((number, answer));
            }
        }
    }
}
