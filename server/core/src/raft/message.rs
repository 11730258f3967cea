//! Messages between servers: our own mirror of the engine's messages.
//!
//! The engine's parser never reads a peer's bytes. A message is decoded by our own wire format and
//! checked by [`PeerMessage::fault`] before it is converted for the engine.

use crate::raft::log::{LogEntry, LogPosition, SnapshotMeta};
use bytes::Bytes;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::wire;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The maximum length of a context that is not part of Raft. The largest batch of renewals and the
/// full check list are far below it.
const MAX_CONTEXT_BYTES: usize = 1 << 20;

/// One message between servers. The meaning of the fields depends on `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMessage {
    /// The kind of message.
    pub kind: MessageKind,
    /// The receiver.
    pub to: ServerId,
    /// The sender; the shell verifies it against the sender's certificate.
    pub from: ServerId,
    /// The sender's term.
    pub term: Term,
    /// The term of the entry at `index`.
    pub log_term: Term,
    /// A log index.
    pub index: LogIndex,
    /// The entries that follow `index`.
    pub entries: Vec<LogEntry>,
    /// The sender's commit index.
    pub commit: LogIndex,
    /// The term of that index.
    pub commit_term: Term,
    /// The snapshot that a follower must fetch.
    pub snapshot: Option<SnapshotMeta>,
    /// The index that a snapshot must reach.
    pub request_snapshot: LogIndex,
    /// Set if the sender rejects the request.
    pub reject: bool,
    /// The index at which to retry.
    pub reject_hint: LogIndex,
    /// Matches a response to its request.
    pub context: Bytes,
    /// The sender's priority in elections.
    pub priority: i64,
}

/// The kinds of message that servers accept. The engine has more; those are never accepted from a
/// peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MessageKind {
    /// Entries for a follower.
    Append,
    /// The response to [`Self::Append`].
    AppendResponse,
    /// A candidate's request for a vote.
    RequestVote,
    /// The response to [`Self::RequestVote`].
    RequestVoteResponse,
    /// A candidate's question whether it would get the vote.
    RequestPreVote,
    /// The response to [`Self::RequestPreVote`].
    RequestPreVoteResponse,
    /// The leader's heartbeat.
    Heartbeat,
    /// The response to [`Self::Heartbeat`].
    HeartbeatResponse,
    /// A snapshot for a follower that is too far behind for the log.
    Snapshot,
    /// A request to stand for election at once.
    TimeoutNow,
    /// A follower's request for a read round.
    ReadIndex,
    /// The response to [`Self::ReadIndex`].
    ReadIndexResponse,
    /// A request for the checksum of the state at the index of a corruption check. The engine never
    /// sees this kind and those that follow: they are the core's own.
    Checksum,
    /// The response to [`Self::Checksum`], in the context.
    ChecksumResponse,
    /// The receiver's state at that index differs from a majority's.
    Corrupt,
    /// Lease renewals that a follower relays, in the context, as in all kinds that follow.
    LeaseRenewals,
    /// The replies to [`Self::LeaseRenewals`].
    LeaseAnswers,
    /// The leader's list of nodes that the voters must challenge.
    CheckNodes,
    /// A voter's reports on its challenges.
    NodeReports,
    /// Suspicions of agents in the mesh that a follower relays.
    Suspicions,
    /// A user event fired by an agent in the mesh.
    Event,
    /// The cluster time from the leader, with which datagrams of the mesh are stamped.
    ClusterTime,
    /// Sessions that guards of a node gave up, forwarded by a follower. Since format 2.
    GivenUp,
    /// The sender's disk rejects writes, with the reason. Since format 2.
    DiskRefuses,
}

impl MessageKind {
    /// Returns whether the kind belongs to the engine; all others are the core's own.
    pub fn is_consensus(self) -> bool {
        self <= Self::ReadIndexResponse
    }

    /// Returns whether the kind belongs to the corruption checks.
    pub(crate) fn is_of_corruption_checks(self) -> bool {
        matches!(self, Self::Checksum | Self::ChecksumResponse | Self::Corrupt)
    }

    /// Returns whether the kind belongs to the mesh.
    pub(crate) fn is_of_mesh(self) -> bool {
        matches!(self, Self::Event | Self::ClusterTime)
    }

    /// Returns whether the kind belongs to the failure detector.
    pub(crate) fn is_of_judge(self) -> bool {
        matches!(
            self,
            Self::LeaseRenewals
                | Self::LeaseAnswers
                | Self::CheckNodes
                | Self::NodeReports
                | Self::Suspicions
                | Self::GivenUp
        )
    }
}

impl PeerMessage {
    /// Decodes the context of a message of the core; `None` if it is unreadable.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let read = wire::decode::<T, MAX_CONTEXT_BYTES>(&self.context);
        read.inspect_err(|error| {
            let (server, kind) = (self.from.0, self.kind);
            tracing::warn!(server, ?kind, %error, "cannot decode a message from a server");
        })
        .ok()
    }

    /// The position that the sender has certainly reached: its disk must hold it before it sends
    /// this message. Pre-votes depend on no write.
    pub fn certain_position(&self) -> Option<LogPosition> {
        let last_index = match self.kind {
            // It is sent only after all entries up to this index are durable.
            MessageKind::AppendResponse if !self.reject => self.index,
            // Each shows that the sender's term is durable. A leader sends entries before its own
            // disk has them, so they show no more.
            MessageKind::RequestVote | MessageKind::Append | MessageKind::Heartbeat => LogIndex(0),
            MessageKind::RequestVoteResponse if !self.reject => LogIndex(0),
            // Pre-votes are sent without a write, and a server with an empty disk may send a
            // rejection.
            _ => return None,
        };
        Some(LogPosition { term: self.term, last_index })
    }

    /// Creates a message without content.
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

    /// Returns the fault of a message from `sender` to `receiver`; `None` if it may be stepped.
    pub fn fault(&self, sender: ServerId, receiver: ServerId) -> Option<&'static str> {
        let is_read = matches!(self.kind, MessageKind::ReadIndex | MessageKind::ReadIndexResponse);
        // Otherwise a server could vote in another server's name.
        if self.from != sender {
            Some("its sender differs from the certificate")
        } else if self.to != receiver {
            // The address may belong to another server by now, which must not count a message meant
            // for the former one.
            Some("it is addressed to another server")
        } else if is_read && (self.entries.len() != 1 || self.entries[0].data.is_empty()) {
            // The engine reads the first entry unchecked, and panics without one.
            Some("a read round without its context")
        } else if self.kind == MessageKind::Append && !follows(self.index, &self.entries) {
            // The in-memory log accepts only entries that follow its own, and stops the server
            // otherwise.
            Some("entries that do not follow their index")
        } else if (self.kind == MessageKind::Snapshot) != self.snapshot.is_some() {
            Some("a snapshot without metadata, or metadata without a snapshot")
        } else {
            None
        }
    }
}

/// Returns whether entries follow an index, and each other.
fn follows(index: LogIndex, entries: &[LogEntry]) -> bool {
    entries.iter().zip(index.0 + 1..).all(|(entry, expected)| entry.index.0 == expected)
}
