//! What agents and servers send each other. Many calls share one frame; replies come in any order.

use crate::bootstrap::Introduction;
use crate::change::Change;
use crate::command::Command;
use crate::given_up::NodeAnswer;
use crate::gossip::mesh::MeshNews;
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

/// The most messages in one frame: a message of two bytes unfolds into hundreds, and a frame must
/// not unfold into gigabytes.
pub const MAX_FRAME_MESSAGES: usize = 1 << 16;

/// Which call a reply belongs to; counted by the caller, per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallId(pub u64);

/// What a caller sends in one piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Begins a call.
    Begin(CallId, Request),
    /// The caller is gone: no reply is wanted, a waiter is to be freed. A write may still take
    /// effect.
    Cancel(CallId),
}

impl Call {
    /// The same for a server that speaks `lockmesh/1`, which knows less: a session that was given
    /// up is destroyed there, without the reason.
    #[must_use]
    pub fn for_first_dialect(self) -> Self {
        match self {
            Self::Begin(id, Request::Propose(request, Command::GiveUpSession { session, .. })) => {
                Self::Begin(id, Request::Propose(request, Command::DestroySession(session)))
            }
            known => known,
        }
    }
}

/// A caller's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFrame(#[serde(deserialize_with = "frame_messages")] pub Vec<Call>);

/// A server's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFrame(#[serde(deserialize_with = "frame_messages")] pub Vec<(CallId, Response)>);

/// What an agent asks of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Change the state. Without an id only [`Command::RegisterAgent`] is taken.
    Propose(Option<RequestId>, Command),
    /// Ask the state.
    Read {
        /// What.
        query: Query,
        /// How fresh.
        consistency: Consistency,
        /// Whether to wait for news.
        blocking: Option<Blocking>,
    },
    /// Keep a session alive.
    Renew(SessionId),
    /// What this server knows of the quorum; answered by any server from what it knows.
    Status,
    /// A part of a backup. The leader makes a fresh one for the first part, and keeps it for a
    /// minute of silence, after the last part for some seconds.
    BackupPart {
        /// Which backup; none to begin one.
        backup: Option<u64>,
        /// Which part, from 0.
        number: u32,
        /// Whether any server may serve it.
        stale: bool,
    },
    /// Make another server the leader; any that can where none is named.
    TransferLeader(Option<ServerId>),
    /// Take a server out of the quorum.
    RemoveServer(ServerId),
    /// Take a server in, as a learner that gets its vote when it has caught up.
    AddServer(NewServer),
    /// How the leader looks after the servers.
    Autopilot,
    /// A server that belongs to nothing yet says who it is; answered by any server with who that
    /// one is.
    Introduce(Introduction),
    /// Tells a server that belongs to nothing yet where servers are that it shall join.
    Invite(Vec<String>),
    /// A server of the quorum says where it is now.
    Announce(Server),
    /// A part of the snapshot of the state, for a server that is too far behind to follow the log.
    SnapshotPart {
        /// Which snapshot; none to begin one.
        snapshot: Option<u64>,
        /// Which part, from 0.
        number: u32,
        /// The snapshot must stand for this index or a later one.
        least: LogIndex,
    },
    /// An agent lives. Answered by any server once the leader has acknowledged it.
    RenewLease(Renewal),
    /// A server asks an agent whether it lives, or another agent does for a server.
    Challenge(Challenge),
    /// A server has an agent ask another one whether it lives.
    AskNode(NodeQuestion),
    /// An agent in the mesh asks what it lacks of it; answered by any server from what it knows.
    SyncMesh(RosterDigest),
    /// An agent in the mesh has probed these in vain. Answered by any server, before anything came
    /// of it.
    Accuse(Vec<LeaseId>),
    /// How the lease of a node stands, or those of all nodes, in parts. The leader alone knows.
    NodeLeases(NodeLeaseQuery),
    /// An agent in the mesh has fired this event. Answered by any server, which tells the others
    /// and whoever asks for news of the mesh.
    Spread(Bytes),
    /// A server tells an agent in the mesh what is new: signed verdicts and events, for itself and
    /// for those to whom it passes them on.
    TellMesh(Vec<Bytes>),
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The command was applied (a refusal is an application too).
    Applied(Applied),
    /// The query's answer.
    Answer(Answer),
    /// The session that was renewed, or none of that id.
    Renewed(Option<Arc<Session>>),
    /// The quorum as this server sees it.
    Status(Status),
    /// A part of a backup.
    BackupPart(BackupPart),
    /// An operator's order was carried out.
    Done,
    /// The server belongs to the quorum now.
    Joined(Joined),
    /// How the leader looks after the servers, and the index at which somebody said so.
    Autopilot(Autopilot, LogIndex),
    /// Who the server is that was asked.
    Introduced(Introduction),
    /// A part of a snapshot.
    SnapshotPart(SnapshotPart),
    /// The leader has heard the renewal.
    LeaseRenewed(LeaseAck),
    /// The lease is none any more.
    LeaseEnded(LeaseId, LeaseEnd),
    /// The agent lives.
    Alive(Renewal),
    /// What the agent lacked of the mesh.
    Mesh(Box<MeshNews>),
    /// How nodes' leases stand.
    NodeLeases(NodeLeases),
    /// No answer could be had.
    Unavailable(Unavailable),
    /// The agent lives, and guards on its node gave sessions up. Only for a peer that speaks
    /// `lockmesh/2`.
    AliveGivingUp(Box<NodeAnswer>),
}

impl Response {
    /// The response that carries what a node answered.
    pub fn alive(answer: NodeAnswer) -> Self {
        match answer.given_up {
            None => Self::Alive(answer.renewal),
            Some(_) => Self::AliveGivingUp(Box::new(answer)),
        }
    }

    /// What a node answered; none where this is no such response.
    pub fn node_answer(&self) -> Option<NodeAnswer> {
        match self {
            Self::Alive(renewal) => Some((*renewal).into()),
            Self::AliveGivingUp(answer) => Some(**answer),
            _ => None,
        }
    }

    /// The same for a peer that speaks `lockmesh/1`, which knows less.
    #[must_use]
    pub fn for_first_dialect(self) -> Self {
        match self {
            Self::AliveGivingUp(answer) => Self::Alive(answer.renewal),
            known => known,
        }
    }
}

/// Why no answer could be had, and what became of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unavailable {
    /// Certainly not done: this server is not the leader. It may know who is.
    #[error("No cluster leader")]
    NotLeader {
        /// The leader's address, as this server knows it.
        leader: Option<String>,
    },
    /// Certainly not done: the server has more to do than it can.
    #[error("the server is overloaded: try again ({0})")]
    Overloaded(String),
    /// Certainly not done: the server cannot write to its disk.
    #[error("the server cannot write to its disk: {0}")]
    Disk(String),
    /// Certainly not done: the server does not take this request from this peer, or not at all.
    #[error("{0}")]
    Denied(String),
    /// Unknown: it was on its way when the server lost the leadership, its disk or its peer.
    #[error("{0}")]
    Unknown(String),
    /// Certainly not done, and never will be: the answer does not fit a frame. Ask for less at a
    /// time.
    #[error(
        "the answer is longer than {limit} bytes: ask for less at a time, by a longer prefix, or by ?keys for the \
         names alone"
    )]
    AnswerTooLong {
        /// The most bytes that an answer may have, encoded.
        limit: u64,
    },
    /// Certainly not done: this server was taken out of the quorum and serves nobody any more;
    /// another one does.
    #[error("this server was removed from the quorum: ask another one")]
    Removed,
    /// Certainly not done: no server takes this agent, for what its certificate or theirs says.
    /// Said by the agent itself.
    #[error("No cluster leader takes this agent: {0}")]
    NotAdmitted(String),
    /// Certainly not done: what this server holds is not what a majority of the servers holds.
    #[error(
        "the state of this server is corrupt: a corruption check found it to differ from that of a majority of the \
         servers; ask another one. To mend it, stop it, empty its data folder and start it: it joins as a new server"
    )]
    Corrupt,
}

impl Unavailable {
    /// Whether the request certainly changed nothing.
    pub fn certainly_not_done(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// A part of a backup: changes that set every row anew, at most about 1 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPart {
    /// Which backup.
    pub backup: u64,
    /// The cluster that it is of.
    pub cluster_id: String,
    /// The index that it stands for.
    pub index: LogIndex,
    /// That index's term.
    pub term: Term,
    /// Which part, from 0.
    pub number: u32,
    /// Whether it is the last one.
    pub last: bool,
    /// The rows.
    pub rows: Vec<Change>,
}

/// A part of a snapshot: rows as they lie on disk, about 1 MiB, which only servers read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// Which snapshot.
    pub snapshot: u64,
    /// Which part, from 0.
    pub number: u32,
    /// What the snapshot stands for, and the checksum of its rows.
    pub mark: Bytes,
    /// The rows.
    pub rows: Bytes,
    /// The checksum of all that is above.
    pub digest: [u8; 32],
    /// The checksum of all parts, with the last one.
    pub whole: Option<[u8; 32]>,
}

/// What a server must know that was taken into a quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its id.
    pub server: ServerId,
    /// The cluster's.
    pub cluster_id: String,
    /// Every server of the quorum, itself among them.
    pub servers: Vec<Server>,
}

/// The quorum as one server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The cluster's id; empty before its first command.
    pub cluster_id: String,
    /// The server that answers.
    pub server: ServerId,
    /// The leader it knows, once that one serves.
    pub leader: Option<ServerId>,
    /// How long ago it heard from that leader; zero from the leader itself, none where it knows of
    /// no leader.
    pub last_contact: Option<Duration>,
    /// Its term.
    pub term: Term,
    /// The last index in its log.
    pub last_index: LogIndex,
    /// The last index known to be committed.
    pub commit_index: LogIndex,
    /// The last index that it applied.
    pub applied_index: LogIndex,
    /// The first index that its log still holds.
    pub first_index: LogIndex,
    /// The index of the membership's last change.
    pub membership_index: LogIndex,
    /// Every server of the quorum, in order of their ids.
    pub servers: Vec<ServerStatus>,
    /// How many agents registered.
    pub agents: u64,
    /// The agent that asks, where it registered.
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
    /// Whether it votes.
    pub voter: bool,
    /// The last index it is known to have.
    pub last_index: LogIndex,
    /// How long ago the leader heard from it; none where nobody knows: only the leader does.
    pub last_contact: Option<Duration>,
    /// Whether the leader finds it well; of itself alone a follower knows it.
    pub healthy: bool,
    /// Since when that has been so without a break, by the leader's wall clock; none where nobody
    /// knows: only the leader does, from when it began to lead.
    pub stable_since: Option<WallTime>,
    /// The version of the program that it runs; empty where the server that answers has not met it
    /// yet.
    pub version: String,
}

/// Reads the messages of a frame, and stops at the first that is too many.
/// # Errors
/// The bytes hold something else than such messages, or too many. No message of the frame is to be
/// acted upon: its sender is at fault.
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
    fn a_frame_unfolds_into_no_more_than_its_messages() {
        let frame = |count| encode(&CallFrame(vec![Call::Cancel(CallId(1)); count]));
        let decoded = decode::<CallFrame, MAX_FRAME_BYTES>(&frame(MAX_FRAME_MESSAGES));
        assert_eq!(decoded.map(|frame| frame.0.len()), Ok(MAX_FRAME_MESSAGES));
        let refused = decode::<CallFrame, MAX_FRAME_BYTES>(&frame(MAX_FRAME_MESSAGES + 1));
        assert!(matches!(refused, Err(WireError::Malformed(_))));
    }
}
