//! The log's types as the disk stores them: our own mirror of the engine's types.

use bytes::Bytes;
use lockmesh_protocol::format::Stored;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// One entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The index of the entry.
    pub index: LogIndex,
    /// The term of the leader that wrote it.
    pub term: Term,
    /// The encoding of `data`.
    pub kind: EntryKind,
    /// A proposal, prefixed with the version of its [`format`](lockmesh_protocol::format), or the
    /// engine's encoding of a membership change.
    pub data: Bytes,
    /// The engine's context of a membership change.
    pub context: Bytes,
}

/// Consecutive entries, as stored in one row of the log on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogBatch(pub Vec<LogEntry>);

impl Stored for LogBatch {}

/// The encoding of an entry's data. Stored: only append variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// An encoded proposal; empty for the first entry of a leader's term.
    Normal,
    /// The engine's `ConfChange`.
    Membership,
    /// The engine's `ConfChangeV2`.
    JointMembership,
}

/// The state that a server must persist before it sends messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardState {
    /// The newest term that the server has seen.
    pub term: Term,
    /// The candidate that received its vote in that term; 0 for none.
    pub vote: ServerId,
    /// The last index known to be committed.
    pub commit: LogIndex,
}

/// The voters and learners as of one log index. All lists are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The voters.
    pub voters: Vec<ServerId>,
    /// The learners.
    pub learners: Vec<ServerId>,
    /// The former voters, which still vote during a joint change.
    pub voters_outgoing: Vec<ServerId>,
    /// The voters that become learners when the joint change ends.
    pub learners_next: Vec<ServerId>,
    /// Set if the joint change ends automatically.
    pub auto_leave: bool,
}

impl Membership {
    /// Returns a membership of only these voters.
    pub fn of_voters(voters: &[ServerId]) -> Self {
        let mut voters = voters.to_vec();
        voters.sort_unstable();
        Self { voters, ..Self::default() }
    }

    /// Returns whether a change is in progress.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// All voters and learners, now or until a change ends, sorted and unique.
    pub fn all(&self) -> Vec<ServerId> {
        let mut all: Vec<_> = self.each().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// All voters, sorted and unique.
    pub fn all_voters(&self) -> Vec<ServerId> {
        let mut voters: Vec<_> = self.voters.iter().chain(&self.voters_outgoing).copied().collect();
        voters.sort_unstable();
        voters.dedup();
        voters
    }

    /// Returns whether the servers for which `is_counted` is true are a majority of the voters; in
    /// a joint membership, of both halves.
    pub fn is_majority(&self, is_counted: impl Fn(ServerId) -> bool) -> bool {
        let is_majority = |voters: &[ServerId]| {
            voters.is_empty() || 2 * voters.iter().filter(|id| is_counted(**id)).count() > voters.len()
        };
        // An empty list of voters has no majority.
        !self.voters.is_empty() && is_majority(&self.voters) && is_majority(&self.voters_outgoing)
    }

    /// Returns whether a server is a voter or learner.
    pub fn contains(&self, server: ServerId) -> bool {
        self.each().any(|member| member == server)
    }

    /// The same as [`Membership::all`], unsorted and possibly with duplicates.
    pub(crate) fn each(&self) -> impl Iterator<Item = ServerId> {
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        lists.into_iter().flatten().copied()
    }
}

/// The index, term and membership of a snapshot of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMeta {
    /// The last applied index.
    pub index: LogIndex,
    /// The term of that index.
    pub term: Term,
    /// The membership as of exactly that index.
    pub membership: Membership,
}

/// One write to the log. Writes are made in the order of their numbers; one commit may contain
/// many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// The number that [`crate::Input::Persisted`] reports.
    pub number: u64,
    /// Discards the log and restarts it after this snapshot, which is already durable.
    pub reset: Option<SnapshotMeta>,
    /// Entries to append; they replace everything from the first one's index on.
    pub entries: Vec<LogEntry>,
    /// The hard state to write.
    pub hard_state: Option<HardState>,
}

/// The data recovered from disk at start.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The hard state.
    pub hard_state: HardState,
    /// The index, term and membership of the snapshot.
    pub snapshot: SnapshotMeta,
    /// The log after the compaction index, ascending and without gaps; may begin at or before the
    /// snapshot's index.
    pub entries: Vec<LogEntry>,
    /// The (index, term) of the entry before the first one.
    pub base: (LogIndex, Term),
    /// The state of the snapshot.
    pub state: crate::State,
    /// The server's own records as of the snapshot.
    pub own: OwnMemory,
}

/// A server's own records: not part of the replicated state, but kept with its checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMemory {
    /// The positions that the other servers have certainly reached.
    pub peers: PeerMemory,
    /// The index of the snapshot that another server sent, until a corruption check confirms the
    /// state; `None` if this server built the state itself.
    pub copy_of: Option<LogIndex>,
}

/// A server's log position. It only grows while the disk keeps what was written: within a term a
/// log loses nothing that was acknowledged to the term's leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPosition {
    /// The term.
    pub term: Term,
    /// The last index of the log.
    pub last_index: LogIndex,
}

impl Display for LogPosition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "index {} in term {}", self.last_index, self.term)
    }
}

/// The positions that the other servers have certainly reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMemory(BTreeMap<ServerId, LogPosition>);

impl PeerMemory {
    /// Returns the position of a server, as far as it is known here.
    pub fn of(&self, server: ServerId) -> Option<LogPosition> {
        self.0.get(&server).copied()
    }

    /// Records that a server has reached a position.
    pub fn note(&mut self, server: ServerId, certain: LogPosition) {
        let known = self.0.entry(server).or_default();
        *known = certain.max(*known);
    }

    /// Forgets a server that was removed from the quorum.
    pub(crate) fn forget(&mut self, server: ServerId) {
        self.0.remove(&server);
    }
}

/// The positions of a server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// The current term.
    pub term: Term,
    /// The first index in memory.
    pub first_index: LogIndex,
    /// The last index, durable or not.
    pub last_index: LogIndex,
    /// The last committed index.
    pub commit_index: LogIndex,
    /// The last applied index.
    pub applied_index: LogIndex,
    /// The index of the last membership change.
    pub membership_index: LogIndex,
    /// The size of the entries in memory, in bytes.
    pub log_bytes: usize,
    /// The number of proposals that wait for their commit.
    pub pending_proposals: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_position_never_decreases() {
        let at = |term, index| LogPosition { term: Term(term), last_index: LogIndex(index) };
        let (mut memory, server) = (PeerMemory::default(), ServerId(2));
        for (noted, known) in
            [(at(5, 9), at(5, 9)), (at(5, 8), at(5, 9)), (at(4, 99), at(5, 9)), (at(6, 1), at(6, 1))]
        {
            memory.note(server, noted);
            assert_eq!(memory.of(server), Some(known));
        }
    }
}
