//! Replies to renewals, for callers of this server and of other servers.

use super::messages::{BATCH, LeaseAnswer};
use crate::cluster::Turn;
use crate::input::LeaseCaller;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use std::collections::BTreeMap;

/// Replies to renewals relayed by other servers, sent at the end of the turn.
#[derive(Debug, Default)]
pub(super) struct LeaseReplies(BTreeMap<ServerId, Vec<(u64, LeaseAnswer)>>);

impl LeaseReplies {
    /// Replies to the caller of a renewal.
    pub(super) fn reply(&mut self, turn: &mut Turn<'_>, caller: LeaseCaller, answer: LeaseAnswer) {
        match caller {
            LeaseCaller::Call(token) => turn.reply(token, answer.into_response()),
            LeaseCaller::Server(server, number) => {
                self.0.entry(server).or_default().push((number, answer));
            }
        }
    }

    /// Sends the gathered replies to the other servers.
    pub(super) fn flush(&mut self, turn: &mut Turn<'_>) {
        for (to, answers) in std::mem::take(&mut self.0) {
            for batch in answers.chunks(BATCH) {
                turn.send(to, MessageKind::LeaseAnswers, &batch);
            }
        }
    }

    /// Drops the gathered replies.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
