//! What the log is made of, as the disk sees it: our own mirror of the engine's types.

use crate::setback::PeerMemory;
use bytes::Bytes;
use lockmesh_protocol::format::Stored;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use serde::{Deserialize, Serialize};

/// One entry of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Its index.
    pub index: LogIndex,
    /// The term that wrote it.
    pub term: Term,
    /// How `data` is to be read.
    pub kind: EntryKind,
    /// A proposal of ours, behind the version of its [`format`](lockmesh_protocol::format), or the
    /// engine's own text of a membership change.
    pub data: Bytes,
    /// The engine's context of a membership change.
    pub context: Bytes,
}

/// Entries that follow each other, as they lie in one row of the log on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogBatch(pub Vec<LogEntry>);

impl Stored for LogBatch {}

/// How an entry's data is to be read. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// An encoded proposal; empty where a new leader began its term.
    Normal,
    /// The engine's `ConfChange`.
    Membership,
    /// The engine's `ConfChangeV2`.
    JointMembership,
}

/// What a server must not forget between two messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardState {
    /// The newest term it saw.
    pub term: Term,
    /// Whom it voted for in that term; 0 for nobody.
    pub vote: ServerId,
    /// The last index that it knew to be committed.
    pub commit: LogIndex,
}

/// Who votes and who learns, as of one log index. All lists are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Those who vote.
    pub voters: Vec<ServerId>,
    /// Those who only follow.
    pub learners: Vec<ServerId>,
    /// Those who vote still while a joint change is under way.
    pub voters_outgoing: Vec<ServerId>,
    /// Those who will follow when it is done.
    pub learners_next: Vec<ServerId>,
    /// Whether the joint change ends by itself.
    pub auto_leave: bool,
}

impl Membership {
    /// A membership of these voters alone.
    pub fn of_voters(voters: &[ServerId]) -> Self {
        let mut voters = voters.to_vec();
        voters.sort_unstable();
        Self { voters, ..Self::default() }
    }

    /// Whether a change is under way.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// Everybody who votes or follows, now or until a change is done, in order and once.
    pub fn all(&self) -> Vec<ServerId> {
        let mut all: Vec<_> = self.each().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Everybody who votes, in order and once.
    pub fn all_voters(&self) -> Vec<ServerId> {
        let mut voters: Vec<_> = self.voters.iter().chain(&self.voters_outgoing).copied().collect();
        voters.sort_unstable();
        voters.dedup();
        voters
    }

    /// Whether those of whom this is true are a majority of the voters; in a joint membership, of
    /// both its halves.
    pub fn is_majority(&self, is_counted: impl Fn(ServerId) -> bool) -> bool {
        let is_majority = |voters: &[ServerId]| {
            voters.is_empty() || 2 * voters.iter().filter(|id| is_counted(**id)).count() > voters.len()
        };
        // None at all is no majority of nobody.
        !self.voters.is_empty() && is_majority(&self.voters) && is_majority(&self.voters_outgoing)
    }

    /// Whether a server takes part.
    pub fn contains(&self, server: ServerId) -> bool {
        self.each().any(|member| member == server)
    }

    /// The same as [`Membership::all`], in no order, and perhaps more than once.
    pub(crate) fn each(&self) -> impl Iterator<Item = ServerId> {
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        lists.into_iter().flatten().copied()
    }
}

/// The point that a snapshot of the state stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMeta {
    /// The last applied index.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// The membership as of exactly that index.
    pub membership: Membership,
}

/// One write for the log's writer. Writes are made in the order of their numbers; one commit may
/// carry many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// What [`crate::Input::Persisted`] shall report.
    pub number: u64,
    /// Throw the log away and begin anew behind this snapshot, which is durable already.
    pub reset: Option<SnapshotMeta>,
    /// Entries to append; the first one's index replaces everything from there on.
    pub entries: Vec<LogEntry>,
    /// The hard state to keep.
    pub hard_state: Option<HardState>,
}

/// What was found on disk at start.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The hard state.
    pub hard_state: HardState,
    /// What the snapshot stands for.
    pub snapshot: SnapshotMeta,
    /// The log behind the compaction index, ascending and without gaps; may begin at or before the
    /// snapshot's index.
    pub entries: Vec<LogEntry>,
    /// The entry before the first: (index, term).
    pub base: (LogIndex, Term),
    /// The state of the snapshot.
    pub state: crate::State,
    /// What the server knew for itself by then.
    pub own: OwnMemory,
}

/// What a server knows for itself: no part of the replicated state, but kept with its checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMemory {
    /// How far the other servers have certainly come.
    pub peers: PeerMemory,
    /// The snapshot of another server that took the place of its state, until a corruption check
    /// has confirmed that; none where the state is its own work.
    pub copy_of: Option<LogIndex>,
}

/// Where a server's log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// The term.
    pub term: Term,
    /// The first index in memory.
    pub first_index: LogIndex,
    /// The last index, on disk or not.
    pub last_index: LogIndex,
    /// The last committed index.
    pub commit_index: LogIndex,
    /// The last applied index.
    pub applied_index: LogIndex,
    /// The index of the last change of membership.
    pub membership_index: LogIndex,
    /// Bytes of entries in memory.
    pub log_bytes: usize,
    /// Proposals that wait for their commit.
    pub pending_proposals: usize,
}
