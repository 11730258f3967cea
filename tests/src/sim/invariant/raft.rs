//! Consensus itself: a term has one leader, a server gives one vote a term, and two logs that hold the same index of the
//! same term are equal up to there. (That nothing committed changes, the history says when it grows.)

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::process::Shadow;
use lockmesh_core::raft::log::{LogEntry, LogWrite};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::collections::BTreeMap;

/// Leaders, votes and entries.
#[derive(Debug, Default)]
pub(super) struct Raft {
    leaders: BTreeMap<Term, ServerId>,
    votes: BTreeMap<(ServerId, Term), ServerId>,
    /// Every entry that was ever written, with the term of the one before it where that is known.
    entries: BTreeMap<(LogIndex, Term), (LogEntry, Option<Term>)>,
}

impl Raft {
    fn sent(&mut self, server: ServerId, message: &PeerMessage) -> Result<(), String> {
        let term = message.term;
        match message.kind {
            MessageKind::Append | MessageKind::Heartbeat | MessageKind::Snapshot => {
                let leader = *self.leaders.entry(term).or_insert(server);
                ensure(leader == server, || format!("{leader} and {server} both lead in term {term}"))
            }
            MessageKind::RequestVote => self.vote(server, term, server),
            MessageKind::RequestVoteResponse if !message.reject => self.vote(server, term, message.to),
            _ => Ok(()),
        }
    }

    fn vote(&mut self, server: ServerId, term: Term, to: ServerId) -> Result<(), String> {
        let before = *self.votes.entry((server, term)).or_insert(to);
        ensure(before == to, || format!("{server} voted for {before} and for {to} in term {term}"))
    }

    fn wrote(&mut self, server: ServerId, write: &LogWrite, shadow: &Shadow) -> Result<(), String> {
        for entry in &write.entries {
            let before = shadow.entry(LogIndex(entry.index.0 - 1)).map(|before| before.term);
            let place = (entry.index, entry.term);
            let known = self.entries.entry(place).or_insert_with(|| (entry.clone(), before));
            ensure(known.0 == *entry, || {
                format!("{server} has another entry at index {} of term {}", entry.index, entry.term)
            })?;
            let agrees = known.1.is_none() || before.is_none() || known.1 == before;
            known.1 = known.1.or(before);
            ensure(agrees, || {
                format!("the logs differ before index {} of term {}", entry.index, entry.term)
            })?;
        }
        Ok(())
    }
}

impl Invariant for Raft {
    fn name(&self) -> &'static str {
        "raft"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Sent { server, message, .. } => self.sent(*server, message),
            Fact::Wrote { server, write, shadow } => self.wrote(*server, write, shadow),
            _ => Ok(()),
        }
    }
}
