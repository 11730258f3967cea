//! What servers say to each other: our own mirror of the engine's messages.
//!
//! No parser of the engine's ever sees a peer's bytes: a message is decoded by our own wire, looked
//! at by [`PeerMessage::fault`], and only then becomes one of the engine's.

use crate::raft::log::{LogEntry, SnapshotMeta};
use crate::setback::LogPosition;
use bytes::Bytes;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use serde::{Deserialize, Serialize};

/// One message between servers. Which fields mean something depends on `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMessage {
    /// What it is.
    pub kind: MessageKind,
    /// Who shall have it.
    pub to: ServerId,
    /// Who says it; the shell binds it to the sender's certificate.
    pub from: ServerId,
    /// The sender's term.
    pub term: Term,
    /// The term of the entry at `index`.
    pub log_term: Term,
    /// A place in the log.
    pub index: LogIndex,
    /// Entries that follow it.
    pub entries: Vec<LogEntry>,
    /// The sender's commit index.
    pub commit: LogIndex,
    /// The term of that index.
    pub commit_term: Term,
    /// The snapshot that a follower shall fetch.
    pub snapshot: Option<SnapshotMeta>,
    /// The index that a snapshot must reach.
    pub request_snapshot: LogIndex,
    /// Whether the sender says no.
    pub reject: bool,
    /// Where to try again.
    pub reject_hint: LogIndex,
    /// Ties an answer to its question.
    pub context: Bytes,
    /// The sender's priority in elections.
    pub priority: i64,
}

/// The kinds of message that may travel. The engine has more; those are never taken from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MessageKind {
    /// Entries for a follower.
    Append,
    /// Its answer.
    AppendResponse,
    /// A candidate asks for a vote.
    RequestVote,
    /// The answer.
    RequestVoteResponse,
    /// Would you vote for me?
    RequestPreVote,
    /// The answer.
    RequestPreVoteResponse,
    /// The leader lives.
    Heartbeat,
    /// The answer.
    HeartbeatResponse,
    /// A follower is so far behind that it needs a snapshot.
    Snapshot,
    /// Become the leader now.
    TimeoutNow,
    /// A follower asks for a read round.
    ReadIndex,
    /// The answer.
    ReadIndexResponse,
    /// The leader asks for the checksum of the state at the index of a corruption check. This kind
    /// and those that follow are the core's own: no engine ever sees them.
    Checksum,
    /// The answer, in the context.
    ChecksumResponse,
    /// The receiver's state at that index is another one than a majority's.
    Corrupt,
    /// A follower relays renewals of leases, in the context, as in all that follow.
    LeaseRenewals,
    /// The answers.
    LeaseAnswers,
    /// The leader tells which nodes the voters shall ask whether they live.
    CheckNodes,
    /// What a voter has found so far.
    NodeReports,
    /// A follower relays accusations of agents in the mesh.
    Accusations,
    /// An agent in the mesh has fired this user event.
    Event,
    /// The leader tells the cluster's time, which datagrams of the mesh are stamped with.
    ClusterTime,
    /// A follower passes on which sessions guards of a node gave up. From format 2 on.
    GivenUp,
    /// The sender's disk refuses writes, for this reason. From format 2 on.
    DiskRefuses,
}

impl MessageKind {
    /// Whether it is consensus, which the engine makes and takes; all others are the core's own.
    pub fn is_consensus(self) -> bool {
        !matches!(
            self,
            Self::Checksum
                | Self::ChecksumResponse
                | Self::Corrupt
                | Self::LeaseRenewals
                | Self::LeaseAnswers
                | Self::CheckNodes
                | Self::NodeReports
                | Self::Accusations
                | Self::Event
                | Self::ClusterTime
                | Self::GivenUp
                | Self::DiskRefuses
        )
    }
}

impl PeerMessage {
    /// How far its sender has certainly come: what its disk must hold for it to say so. Votes that
    /// are only probed for rest on nothing.
    pub fn certain_position(&self) -> Option<LogPosition> {
        let last_index = match self.kind {
            // It leaves its sender only when all entries up to there are on disk.
            MessageKind::AppendResponse if !self.reject => self.index,
            // Each shows that the sender has this term on disk. A leader's entries may leave before
            // they are on its own disk, so they show no more.
            MessageKind::RequestVote | MessageKind::Append | MessageKind::Heartbeat => LogIndex(0),
            MessageKind::RequestVoteResponse if !self.reject => LogIndex(0),
            // Pre-votes are sent without a write, and a refusal may be sent by one that holds
            // nothing.
            _ => return None,
        };
        Some(LogPosition { term: self.term, last_index })
    }

    /// A message that says nothing but what it is.
    pub fn new(kind: MessageKind, from: ServerId, to: ServerId) -> Self {
        Self {
            kind,
            to,
            from,
            term: Term(0),
            log_term: Term(0),
            index: LogIndex(0),
            entries: Vec::new(),
            commit: LogIndex(0),
            commit_term: Term(0),
            snapshot: None,
            request_snapshot: LogIndex(0),
            reject: false,
            reject_hint: LogIndex(0),
            context: Bytes::new(),
            priority: 0,
        }
    }

    /// What is wrong with a message from `sender` to `receiver`; none if it may be given to the
    /// engine.
    pub fn fault(&self, sender: ServerId, receiver: ServerId) -> Option<&'static str> {
        let is_read = matches!(self.kind, MessageKind::ReadIndex | MessageKind::ReadIndexResponse);
        // Otherwise one server could vote in another one's name.
        if self.from != sender {
            Some("it names another sender than its certificate")
        } else if self.to != receiver {
            // Another server may be at this address by now: what is meant for one must not count
            // for the other.
            Some("it is meant for another server")
        } else if is_read && (self.entries.len() != 1 || self.entries[0].data.is_empty()) {
            // The engine takes the first entry without looking, and panics where there is none.
            Some("a read round without its context")
        } else if self.kind == MessageKind::Append && !follows(self.index, &self.entries) {
            // The log in memory takes entries only where they fit, and stops the server where they
            // do not.
            Some("entries that do not follow what they are said to follow")
        } else if (self.kind == MessageKind::Snapshot) != self.snapshot.is_some() {
            Some("a snapshot without its mark, or a mark without a snapshot")
        } else {
            None
        }
    }
}

/// Whether entries follow an index, and each other.
fn follows(index: LogIndex, entries: &[LogEntry]) -> bool {
    entries.iter().zip(index.0 + 1..).all(|(entry, expected)| entry.index.0 == expected)
}
