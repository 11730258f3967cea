//! Raft: a term has one leader, a server casts one vote per term, and two logs with the same index
//! of the same term are equal up to there. (The history checks on each append that no committed
//! entry changes.)
//!
//! A term that its leader forgets in a crash, and that no other server knows of, does not count:
//! only that leader may lead it again, and write other entries. This happens if the majority is one
//! server whose disk accepts neither its vote nor its entries.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_core::raft::log::LogEntry;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::collections::BTreeMap;

/// Leaders, votes and entries.
#[derive(Debug, Default)]
pub(super) struct Raft {
    leaders: BTreeMap<Term, ServerId>,
    votes: BTreeMap<(ServerId, Term), ServerId>,
    /// The highest term in which each server has sent a message.
    said: BTreeMap<ServerId, Term>,
    /// Every entry that was ever written.
    entries: BTreeMap<(LogIndex, Term), Written>,
}

/// An entry that was written.
#[derive(Debug)]
struct Written {
    entry: LogEntry,
    /// The term of the entry before it, if that is known.
    before: Option<Term>,
    /// The only server that wrote it, until another does.
    only: Option<ServerId>,
}

impl Raft {
    fn sent(&mut self, server: ServerId, message: &PeerMessage) -> Result<(), String> {
        // Other messages of the core are sent without any write, and change no server's term.
        if !message.kind.is_consensus() {
            return Ok(());
        }
        let term = message.term;
        let said = self.said.entry(server).or_default();
        *said = (*said).max(term);
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

    fn wrote(&mut self, server: ServerId, entry: &LogEntry, before: Option<Term>) -> Result<(), String> {
        let (index, term) = (entry.index, entry.term);
        let new = || Written { entry: entry.clone(), before, only: Some(server) };
        let known = self.entries.entry((index, term)).or_insert_with(new);
        known.only = known.only.filter(|only| *only == server);
        ensure(known.entry == *entry, || {
            format!("{server} has a different entry at index {index} of term {term}")
        })?;
        let agrees = known.before.is_none() || before.is_none() || known.before == before;
        known.before = known.before.or(before);
        ensure(agrees, || format!("the logs differ before index {index} of term {term}"))
    }

    /// Removes entries that a crash undid: those of terms that neither the server's own disk nor
    /// any other server knows.
    fn crashed(&mut self, server: ServerId, durable: Term) {
        let known = durable.max(self.said.get(&server).copied().unwrap_or_default());
        self.entries.retain(|(_, term), written| written.only != Some(server) || *term <= known);
    }
}

impl Invariant for Raft {
    fn name(&self) -> &'static str {
        "raft"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Sent { server, message, .. } => self.sent(*server, message),
            Fact::Wrote { server, write, shadow } => write.entries.iter().try_for_each(|entry| {
                let before = shadow.entry(LogIndex(entry.index.0 - 1)).map(|before| before.term);
                self.wrote(*server, entry, before)
            }),
            Fact::Crashed { server, durable } => {
                self.crashed(*server, durable.hard_state.term);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_core::raft::log::EntryKind;

    const ONE: ServerId = ServerId(1);

    fn entry(term: u64, data: &'static str) -> LogEntry {
        let (data, context) = (data.as_bytes().into(), Default::default());
        LogEntry { index: LogIndex(7), term: Term(term), kind: EntryKind::Normal, data, context }
    }

    #[test]
    fn forgotten_unseen_term_is_reusable() {
        let mut raft = Raft::default();
        raft.wrote(ONE, &entry(3, "lost"), None).unwrap();
        raft.crashed(ONE, Term(2));
        raft.wrote(ONE, &entry(3, "anew"), None).unwrap();
    }

    #[test]
    fn durable_or_seen_term_keeps_entries() {
        let mut durable = Raft::default();
        durable.wrote(ONE, &entry(3, "first"), None).unwrap();
        durable.crashed(ONE, Term(3));
        assert!(durable.wrote(ONE, &entry(3, "other"), None).is_err());

        let mut heard = Raft::default();
        heard.wrote(ONE, &entry(3, "first"), None).unwrap();
        heard.said.insert(ONE, Term(3));
        heard.crashed(ONE, Term(2));
        assert!(heard.wrote(ONE, &entry(3, "other"), None).is_err());

        let mut copied = Raft::default();
        copied.wrote(ONE, &entry(3, "first"), None).unwrap();
        copied.wrote(ServerId(2), &entry(3, "first"), None).unwrap();
        copied.crashed(ONE, Term(2));
        assert!(copied.wrote(ONE, &entry(3, "other"), None).is_err());
    }

    #[test]
    fn lease_answers_reveal_no_term() {
        let mut raft = Raft::default();
        raft.wrote(ONE, &entry(3, "lost"), None).unwrap();
        let message = PeerMessage::new(MessageKind::LeaseAnswers, ONE, ServerId(2));
        raft.sent(ONE, &PeerMessage { term: Term(3), ..message }).unwrap();
        raft.crashed(ONE, Term(2));
        raft.wrote(ONE, &entry(3, "anew"), None).unwrap();
    }

    #[test]
    fn running_server_keeps_its_entries() {
        let mut raft = Raft::default();
        raft.wrote(ONE, &entry(3, "first"), None).unwrap();
        assert!(raft.wrote(ONE, &entry(3, "other"), None).is_err());
    }
}
