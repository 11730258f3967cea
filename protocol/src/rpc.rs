//! Messages between agents and servers. Many calls share one frame; replies arrive in any order.

use crate::acl::{Caller, NoAccess};
use crate::bootstrap::Introduction;
use crate::change::Change;
use crate::command::Command;
use crate::given_up::NodeAnswer;
use crate::gossip::MeshNews;
use crate::gossip::roster::RosterDigest;
use crate::id::{AgentNumber, LogIndex, RequestId, ServerId, SessionId, Term, WallTime};
use crate::lease::{
    Challenge, LeaseAck, LeaseEnd, LeaseId, NodeLeaseQuery, NodeLeases, NodeQuestion, Renewal,
};
use crate::query::{Answer, Blocking, Consistency, Query};
use crate::record::{Autopilot, NewServer, Server, Session};
use crate::reply::Applied;
pub use crate::wire::MAX_FRAME_BYTES;
use bytes::Bytes;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of messages in one frame: a message of two bytes may expand to hundreds, and
/// a frame must not expand to gigabytes.
pub const MAX_FRAME_MESSAGES: usize = 1 << 16;

/// The maximum time for which a server keeps a [`Request::ReadParts`] waiting while it has the
/// maximum number of views.
pub const VIEW_WAIT: Duration = Duration::from_secs(10);

/// The id that matches a reply to its call; assigned by the caller, per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallId(pub u64);

/// A message of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Starts a call.
    Begin(CallId, Request),
    /// Cancels a call: no reply is needed, and a waiter is freed. A write may still take effect.
    Cancel(CallId),
    /// Starts a call for a client. Since [`Dialect::Tenth`](crate::dialect::Dialect::Tenth).
    BeginAs(CallId, Caller, Request),
}

/// A caller's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFrame(#[serde(deserialize_with = "frame_messages")] pub Vec<Call>);

/// A server's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFrame(#[serde(deserialize_with = "frame_messages")] pub Vec<(CallId, Response)>);

/// A request of an agent to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Changes the state. Without an id only [`Command::RegisterAgent`] is accepted.
    Propose(Option<RequestId>, Command),
    /// Queries the state.
    Read {
        /// The query.
        query: Query,
        /// The consistency.
        consistency: Consistency,
        /// The blocking options; `None` for an immediate reply.
        blocking: Option<Blocking>,
    },
    /// Renews a session.
    Renew(SessionId),
    /// Requests this server's view of the quorum; any server replies.
    Status,
    /// Requests a part of a backup. The leader creates a new one for the first part. It keeps a
    /// backup for a minute after the last request, and for some seconds after its last part.
    BackupPart {
        /// The id of the backup; `None` to start one.
        backup: Option<u64>,
        /// The number of the part, from 0.
        number: u32,
        /// Set if any server may serve it.
        stale: bool,
    },
    /// Transfers leadership to a server; `None` for any that is able.
    TransferLeader(Option<ServerId>),
    /// Removes a server from the quorum.
    RemoveServer(ServerId),
    /// Adds a server as a learner, which is promoted to voter once it has caught up.
    AddServer(NewServer),
    /// Requests the autopilot configuration.
    Autopilot,
    /// Introduces a server that belongs to no cluster yet; any server replies with its own
    /// introduction.
    Introduce(Introduction),
    /// Invites a server that belongs to no cluster yet to join through these addresses.
    Invite(Vec<String>),
    /// Announces the current address of a server of the quorum.
    Announce(Server),
    /// Requests a part of the state's snapshot, for a server whose log is too far behind.
    SnapshotPart {
        /// The id of the snapshot; `None` to start one.
        snapshot: Option<u64>,
        /// The number of the part, from 0.
        number: u32,
        /// The minimum index of the snapshot.
        least: LogIndex,
    },
    /// Renews an agent's lease. Any server replies, once the leader has acknowledged it.
    RenewLease(Renewal),
    /// Challenges an agent, from a server or relayed by another agent.
    Challenge(Challenge),
    /// Makes an agent relay a challenge to another one.
    AskNode(NodeQuestion),
    /// Requests missing mesh data; any server replies with the data that it has.
    SyncMesh(RosterDigest),
    /// Reports suspicions of members whose probes failed. Any server replies, before any
    /// consequence.
    Suspect(Vec<LeaseId>),
    /// Requests the state of one node's lease, or of all in parts. Only the leader knows it.
    NodeLeases(NodeLeaseQuery),
    /// Spreads an event that an agent in the mesh has fired. Any server replies, and forwards the
    /// event to the other servers and to agents that request mesh data.
    Spread(Bytes),
    /// Sends an agent in the mesh new signed verdicts and events, for itself and to forward.
    TellMesh(Vec<Bytes>),
    /// Queries the state for an answer of any size, in parts of one view. Since
    /// [`Dialect::Fourth`](crate::dialect::Dialect::Fourth), as are the next two.
    ReadParts {
        /// The query.
        query: Query,
        /// The consistency.
        consistency: Consistency,
    },
    /// Requests the next part of a view, from the server and on the connection that it was begun
    /// with.
    ReadPart {
        /// The view.
        view: ViewId,
        /// The position behind the last part.
        after: u64,
        /// The consistency of the view.
        consistency: Consistency,
    },
    /// Ends a view, which need not be complete.
    EndView(ViewId, Consistency),
    /// Renews an agent's lease, and reports sessions whose ends got no answer. Since
    /// [`Dialect::Seventh`](crate::dialect::Dialect::Seventh).
    RenewGivingUp(Box<NodeAnswer>),
}

/// A stream of a connection. The data of one does not wait for that of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Calls with short answers.
    #[default]
    Calls,
    /// Renewals of the node's lease.
    Renewals,
    /// Calls whose answers may have megabytes.
    Lists,
}

impl Request {
    /// Returns the renewal of a node's lease in it, if any.
    pub fn renewal(&self) -> Option<&Renewal> {
        match self {
            Self::RenewLease(renewal) => Some(renewal),
            Self::RenewGivingUp(answer) => Some(&answer.renewal),
            _ => None,
        }
    }

    /// Returns the stream on which an agent sends it.
    pub fn lane(&self) -> Lane {
        match self {
            // A renewal behind other calls may arrive too late for its sessions.
            Self::RenewLease(_) | Self::RenewGivingUp(_) => Lane::Renewals,
            Self::ReadParts { .. } | Self::ReadPart { .. } | Self::EndView(..) | Self::BackupPart { .. } => {
                Lane::Lists
            }
            Self::Read { query, .. } if query.is_long() => Lane::Lists,
            _ => Lane::Calls,
        }
    }
}

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The command was applied; this includes refusals.
    Applied(Applied),
    /// The query's result.
    Answer(Answer),
    /// The renewed session; `None` if there is no session with that id.
    Renewed(Option<Arc<Session>>),
    /// The quorum from this server's view.
    Status(Status),
    /// A part of a backup.
    BackupPart(BackupPart),
    /// The operation was carried out.
    Done,
    /// The server joined the quorum.
    Joined(Joined),
    /// The autopilot configuration, and the index of its last change.
    Autopilot(Autopilot, LogIndex),
    /// The server's own introduction.
    Introduced(Introduction),
    /// A part of a snapshot.
    SnapshotPart(SnapshotPart),
    /// The leader acknowledged the renewal.
    LeaseRenewed(LeaseAck),
    /// The lease has ended.
    LeaseEnded(LeaseId, LeaseEnd),
    /// The agent is alive.
    Alive(Renewal),
    /// The missing mesh data.
    Mesh(Box<MeshNews>),
    /// The states of node leases.
    NodeLeases(NodeLeases),
    /// There is no result.
    Unavailable(Unavailable),
    /// The agent is alive, and guards on its node gave up sessions. Since
    /// [`Dialect::Second`](crate::dialect::Dialect::Second).
    AliveGivingUp(Box<NodeAnswer>),
    /// A part of an answer. Since [`Dialect::Fourth`](crate::dialect::Dialect::Fourth).
    AnswerPart(Box<AnswerPart>),
    /// A query's result without the rows to which the caller has no right. Since
    /// [`Dialect::Tenth`](crate::dialect::Dialect::Tenth), as is the next one.
    FilteredAnswer(Answer),
    /// A part of such a result.
    FilteredPart(Box<AnswerPart>),
}

impl Call {
    /// Returns the start of a call, for the agent itself or for a client.
    pub fn begin(id: CallId, caller: Caller, request: Request) -> Self {
        match caller {
            Caller::Agent => Self::Begin(id, request),
            caller => Self::BeginAs(id, caller, request),
        }
    }
}

impl Response {
    /// Returns the response for an answer.
    pub fn answer(answer: Answer) -> Self {
        if answer.is_filtered { Self::FilteredAnswer(answer) } else { Self::Answer(answer) }
    }

    /// Returns the response for a part of an answer.
    pub fn part(part: AnswerPart) -> Self {
        let part = Box::new(part);
        if part.answer.is_filtered { Self::FilteredPart(part) } else { Self::AnswerPart(part) }
    }

    /// Returns the same response with the mark in its answer, which is not part of the message.
    #[must_use]
    pub fn received(self) -> Self {
        match self {
            Self::FilteredAnswer(answer) => Self::Answer(Answer { is_filtered: true, ..answer }),
            Self::FilteredPart(mut part) => {
                part.answer.is_filtered = true;
                Self::AnswerPart(part)
            }
            other => other,
        }
    }

    /// Returns the response for a node's reply.
    pub fn alive(answer: NodeAnswer) -> Self {
        match answer.given_up {
            // The form that servers of every dialect read.
            None => Self::Alive(answer.renewal),
            Some(_) => Self::AliveGivingUp(Box::new(answer)),
        }
    }

    /// Returns a node's reply; `None` if this is another response.
    pub fn node_answer(&self) -> Option<NodeAnswer> {
        match self {
            Self::Alive(renewal) => Some((*renewal).into()),
            Self::AliveGivingUp(answer) => Some(**answer),
            _ => None,
        }
    }
}

/// The reason why there is no result, and the outcome of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unavailable {
    /// Certainly not done: this server is not the leader. It may know the leader.
    #[error("No cluster leader")]
    NotLeader {
        /// The leader's address, as known to this server.
        leader: Option<String>,
    },
    /// Certainly not done: the server is overloaded.
    #[error("the server is overloaded: try again ({0})")]
    Overloaded(String),
    /// Certainly not done: the server cannot write to its disk.
    #[error("the server cannot write to its disk: {0}")]
    Disk(String),
    /// Certainly not done: the server does not accept this request from this peer.
    #[error("{0}")]
    Denied(String),
    /// Unknown outcome: the request was in flight when the server lost the leadership, its disk or
    /// its peer.
    #[error("{0}")]
    Unknown(String),
    /// Certainly not done, and a retry is pointless: the reply exceeds a frame. Request less at a
    /// time.
    #[error(
        "the answer is longer than {limit} bytes: ask for less at a time, by a longer prefix, or by ?keys for the \
         names alone"
    )]
    AnswerTooLong {
        /// The maximum size of an encoded reply in bytes.
        limit: u64,
    },
    /// Certainly not done: this server was removed from the quorum and no longer serves agents;
    /// another server does.
    #[error("this server was removed from the quorum: ask another one")]
    Removed,
    /// Certainly not done: no server accepts this agent, because of its certificate or theirs.
    /// Reported by the agent itself.
    #[error("No cluster leader takes this agent: {0}")]
    NotAdmitted(String),
    /// Certainly not done: this server's state differs from that of a majority of the servers.
    #[error(
        "the state of this server is corrupt: a corruption check found it to differ from that of a majority of the \
         servers; ask another one. To mend it, stop it, empty its data folder and start it: it joins as a new server"
    )]
    Corrupt,
    /// Certainly not done: the caller has no right to the request. Since
    /// [`Dialect::Tenth`](crate::dialect::Dialect::Tenth).
    #[error("{0}")]
    NoAccess(NoAccess),
}

impl Unavailable {
    /// Returns `true` if the request certainly changed nothing.
    pub fn certainly_not_done(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// A view of the state that a server keeps for the parts of one answer. It ends with its
/// connection, after a minute, or when too much of what it shows was replaced meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewId {
    /// The server.
    pub server: ServerId,
    /// Its number at this server; not used again.
    pub number: u64,
}

/// A part of an answer: rows of about 1 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPart {
    /// The rows, with the index of the whole answer.
    pub answer: Answer,
    /// The view with the other rows.
    pub view: ViewId,
    /// The position behind these rows; `None` in the last part.
    pub next: Option<u64>,
}

/// A part of a backup: changes that set every row, at most about 1 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPart {
    /// The id of the backup.
    pub backup: u64,
    /// The cluster of the backup.
    pub cluster_id: String,
    /// The index of the backup.
    pub index: LogIndex,
    /// The term of that index.
    pub term: Term,
    /// The number of the part, from 0.
    pub number: u32,
    /// Set for the last part.
    pub last: bool,
    /// The rows.
    pub rows: Vec<Change>,
}

/// A part of a snapshot: rows in their form on disk, about 1 MiB, which only servers read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// The id of the snapshot.
    pub snapshot: u64,
    /// The number of the part, from 0.
    pub number: u32,
    /// The snapshot's metadata, and the checksum of its rows.
    pub mark: Bytes,
    /// The rows.
    pub rows: Bytes,
    /// The checksum of all fields above.
    pub digest: [u8; 32],
    /// The checksum of all parts, in the last one.
    pub whole: Option<[u8; 32]>,
}

/// The data that a server receives when it joins a quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its id.
    pub server: ServerId,
    /// The cluster's id.
    pub cluster_id: String,
    /// All servers of the quorum, including itself.
    pub servers: Vec<Server>,
}

/// The quorum from the view of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster's id; empty before its first command.
    pub cluster_id: String,
    /// The server that replies.
    pub server: ServerId,
    /// The leader, once it serves requests.
    pub leader: Option<ServerId>,
    /// The time since its last contact with the leader; zero on the leader itself, `None` without a
    /// known leader.
    pub last_contact: Option<Duration>,
    /// Its term.
    pub term: Term,
    /// The last index in its log.
    pub last_index: LogIndex,
    /// The last index that is known to be committed.
    pub commit_index: LogIndex,
    /// The last index that it has applied.
    pub applied_index: LogIndex,
    /// The first index in its log.
    pub first_index: LogIndex,
    /// The index of the last membership change.
    pub membership_index: LogIndex,
    /// All servers of the quorum, in ascending order of their ids.
    pub servers: Vec<ServerStatus>,
    /// The number of registered agents.
    pub agents: u64,
    /// The number of the requesting agent, if it is registered.
    pub caller: Option<AgentNumber>,
}

/// One server of the quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its Raft id.
    pub id: ServerId,
    /// Its node's UUID.
    pub node_id: String,
    /// Its node's name.
    pub node: String,
    /// Its RPC address as `ip:port`.
    pub address: String,
    /// Set if it is a voter.
    pub voter: bool,
    /// The last index that it is known to have.
    pub last_index: LogIndex,
    /// The time since the leader last had contact with it; `None` if unknown: only the leader knows
    /// it.
    pub last_contact: Option<Duration>,
    /// Set if the leader considers it healthy; a follower only knows this about itself.
    pub healthy: bool,
    /// The time since which that has been so, by the leader's wall clock. `None` if unknown: only
    /// the leader knows it, from the start of its leadership.
    pub stable_since: Option<WallTime>,
    /// Its program version; empty if the replying server has not been in contact with it yet.
    pub version: String,
}

/// Deserializes the messages of a frame, and stops at the first one beyond the limit.
///
/// # Errors
/// The bytes are not such messages, or there are too many. No message of the frame may be
/// processed: its sender is at fault.
pub fn frame_messages<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(FrameMessages(PhantomData))
}

struct FrameMessages<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FrameMessages<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_FRAME_MESSAGES} messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        // The length is only the claim of the peer, so no memory is reserved by it.
        let mut messages = Vec::with_capacity(sequence.size_hint().unwrap_or_default().min(64));
        while let Some(message) = sequence.next_element()? {
            if messages.len() == MAX_FRAME_MESSAGES {
                return Err(Error::custom(format_args!(
                    "more than {MAX_FRAME_MESSAGES} messages in a frame"
                )));
            }
            messages.push(message);
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, CallFrame, CallId, MAX_FRAME_BYTES, MAX_FRAME_MESSAGES};
    use crate::wire::{WireError, decode, encode};

    #[test]
    fn frame_message_count_is_limited() {
        let frame = |count| encode(&CallFrame(vec![Call::Cancel(CallId(1)); count]));
        let decoded = decode::<CallFrame, MAX_FRAME_BYTES>(&frame(MAX_FRAME_MESSAGES));
        assert_eq!(decoded.map(|frame| frame.0.len()), Ok(MAX_FRAME_MESSAGES));
        let refused = decode::<CallFrame, MAX_FRAME_BYTES>(&frame(MAX_FRAME_MESSAGES + 1));
        assert!(matches!(refused, Err(WireError::Malformed(_))));
    }
}
