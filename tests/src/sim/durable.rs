//! The contents of a server's disk after a power cut: the log, the hard state, the checkpoint.
//!
//! For most seeds this is the disk. For the others it is everything that the real store has
//! reported as durable, and that must still be there after a power cut.

use super::disk::Checkpoint;
use lockmesh_core::State;
use lockmesh_core::raft::log::{
    EntryKind, HardState, LogEntry, LogPosition, LogWrite, OwnMemory, Recovered, SnapshotMeta,
};
use lockmesh_core::raft::membership_after;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::collections::VecDeque;

/// State that survives a power cut.
#[derive(Clone, Debug)]
pub struct Durable {
    /// The index and term of the entry before the log's first.
    pub base: (LogIndex, Term),
    /// The log.
    pub entries: VecDeque<LogEntry>,
    /// The hard state.
    pub hard_state: HardState,
    /// The position of the checkpoint.
    pub mark: SnapshotMeta,
    /// The checkpoint.
    pub state: State,
    /// The server's own memory at the time of the checkpoint.
    pub own: OwnMemory,
}

impl Durable {
    /// Returns the term of an entry that is on disk, or at the end of the checkpoint.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        match index.0.checked_sub(self.base.0.0)? {
            0 => Some(self.base.1),
            distance => self.entries.get(distance as usize - 1).map(|entry| entry.term),
        }
    }

    /// Returns the last index in the log.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.entries.len() as u64)
    }

    /// Returns `true` if an entry would survive a power cut.
    pub fn holds(&self, index: LogIndex, term: Term) -> bool {
        index <= self.mark.index || self.term(index) == Some(term)
    }

    /// Applies a write.
    pub fn write(&mut self, write: LogWrite) {
        if let Some(mark) = write.reset {
            self.base = (mark.index, mark.term);
            self.hard_state.commit = self.hard_state.commit.max(mark.index);
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            assert!(first.index > self.base.0, "an entry would replace compacted entries");
            assert!(first.index <= self.last_index().next(), "entries must follow the log without a gap");
            self.entries.truncate((first.index.0 - self.base.0.0 - 1) as usize);
        }
        self.entries.extend(write.entries);
        if let Some(hard_state) = write.hard_state {
            let commit = hard_state.commit.max(self.hard_state.commit);
            self.hard_state = HardState { commit, ..hard_state };
        }
    }

    /// Removes all entries up to an index, inclusive.
    pub fn compact(&mut self, up_to: LogIndex) {
        while self.base.0 < up_to {
            let Some(gone) = self.entries.pop_front() else { return };
            self.base = (gone.index, gone.term);
        }
    }

    /// Applies a checkpoint.
    pub fn checkpoint(&mut self, checkpoint: Checkpoint) {
        if let Some(own) = checkpoint.rows.own() {
            self.own.clone_from(own);
        }
        checkpoint.rows.into_changes().into_iter().for_each(|change| self.state.load(change));
        self.mark = checkpoint.mark;
    }

    /// Returns the contents of a new store.
    pub fn new(mark: SnapshotMeta) -> Self {
        let hard_state = HardState { term: mark.term, vote: ServerId(0), commit: mark.index };
        let base = (mark.index, mark.term);
        let (entries, state, own) = (VecDeque::new(), State::default(), OwnMemory::default());
        Self { base, entries, hard_state, mark, state, own }
    }

    /// Returns the state that a process starts with.
    pub fn recovered(&self) -> Recovered {
        Recovered {
            hard_state: self.hard_state,
            snapshot: self.mark.clone(),
            entries: self.entries.iter().cloned().collect(),
            base: self.base,
            state: self.state.clone(),
            own: self.own.clone(),
        }
    }

    /// Returns the progress of a server that starts on this disk.
    pub fn position(&self) -> LogPosition {
        let last_index = self.last_index().max(self.mark.index);
        LogPosition { term: self.hard_state.term, last_index }
    }

    /// Returns `true` if a server that starts on this disk may be the only voter, for any committed
    /// part of its log.
    pub fn may_be_alone(&self, server: ServerId) -> bool {
        let mark = &self.mark;
        if self.term(mark.index) != Some(mark.term) {
            // The log is discarded in favor of the checkpoint.
            return mark.membership.voters == [server];
        }
        let mut part = self.recovered();
        part.hard_state.commit = mark.index;
        loop {
            if membership_after(&part).voters == [server] {
                return true;
            }
            let is_change = |entry: &LogEntry| entry.kind != EntryKind::Normal && entry.index > mark.index;
            let Some(last) = part.entries.iter().rposition(is_change) else { return false };
            part.entries.truncate(last);
        }
    }

    /// Returns a description of data that is missing in `found` although it was reported as
    /// durable; a write in `begun` may have replaced it.
    pub fn lost_in(&self, found: &Self, begun: &[LogWrite]) -> Option<String> {
        let (mine, theirs) = (self.hard_state, found.hard_state);
        let forgets_vote = mine.vote != ServerId(0) && theirs.term == mine.term && theirs.vote != mine.vote;
        if theirs.term < mine.term || forgets_vote || theirs.commit < mine.commit {
            return Some(format!("expected {mine:?}, found {theirs:?}"));
        }
        if found.mark.index < self.mark.index {
            return Some(format!(
                "expected the checkpoint of {}, found the one of {}",
                self.mark.index, found.mark.index
            ));
        }
        // A checkpoint replaces a log that does not lead up to it.
        if self.term(found.mark.index) != Some(found.mark.term) {
            return None;
        }
        let replaced = begun.iter().filter_map(|write| write.entries.first()).map(|entry| entry.index).min();
        let must_be = |entry: &&LogEntry| replaced.is_none_or(|from| entry.index < from);
        let lost = self.entries.iter().filter(must_be).find(|entry| !found.holds(entry.index, entry.term));
        lost.map(|entry| format!("the entry at {} of term {} is lost", entry.index, entry.term))
    }
}

impl From<&Recovered> for Durable {
    fn from(found: &Recovered) -> Self {
        Self {
            base: found.base,
            entries: found.entries.iter().cloned().collect(),
            hard_state: found.hard_state,
            mark: found.snapshot.clone(),
            state: found.state.clone(),
            own: found.own.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_core::raft::log::EntryKind;

    fn log(entries: &[(u64, u64)]) -> Durable {
        let mut durable = Durable::new(mark(1, 1));
        let entries = entries.iter().map(|(index, term)| LogEntry {
            index: LogIndex(*index),
            term: Term(*term),
            kind: EntryKind::Normal,
            data: Default::default(),
            context: Default::default(),
        });
        durable.entries = entries.collect();
        durable
    }

    fn mark(index: u64, term: u64) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(index), term: Term(term), membership: Default::default() }
    }

    #[test]
    fn diverging_log_yields_to_checkpoint() {
        let held = log(&[(2, 1), (3, 2), (4, 2)]);
        let parted = Durable { mark: mark(3, 3), base: (LogIndex(3), Term(3)), ..log(&[]) };
        assert_eq!(held.lost_in(&parted, &[]), None);
        // A checkpoint to which the log leads does not, however new it is.
        let led_to = Durable { mark: mark(3, 2), base: (LogIndex(3), Term(2)), ..log(&[]) };
        assert!(held.lost_in(&led_to, &[]).is_some_and(|lost| lost.contains("the entry at 4")));
        assert!(held.lost_in(&log(&[(2, 1)]), &[]).is_some_and(|lost| lost.contains("the entry at 3")));
    }
}
