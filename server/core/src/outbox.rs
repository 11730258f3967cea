//! Everything that shall happen next, in the order in which it was decided.

use crate::input::CallToken;
use crate::raft::log::{LogWrite, SnapshotMeta};
use crate::raft::message::PeerMessage;
use crate::state::Removed;
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId};
use lockmesh_protocol::lease::{Challenge, NodeQuestion};
use lockmesh_protocol::rpc::{Response, Unavailable};

/// What [`crate::Core::handle`] wants done. The shell empties it after every turn.
#[derive(Debug, Default)]
pub struct Outbox {
    /// A snapshot that arrived takes the place of everything: hand it to the snapshot's writer
    /// before the writes, among which is the log's reset. All that was watched may have changed.
    pub install: Option<SnapshotMeta>,
    /// What the log's writer must put on disk, first in, first out, then report as
    /// [`crate::Input::Persisted`].
    pub writes: Vec<LogWrite>,
    /// Messages that may leave at once. Those that rest on a write come out when the write is
    /// reported.
    pub messages: Vec<(ServerId, PeerMessage)>,
    /// Answers. A promise in here is durable.
    pub replies: Vec<(CallToken, Response)>,
    /// Readers that may look at the state now.
    pub readable: Vec<CallToken>,
    /// Readers that cannot be served.
    pub refused_reads: Vec<(CallToken, Unavailable)>,
    /// What became true, in log order.
    pub changes: Vec<Change>,
    /// Corruption checks among these: how many changes came before each, and what a checkpoint of
    /// exactly that index stands for. Such checkpoints are to be made, and told as
    /// [`crate::Input::Summed`].
    pub checks: Vec<(usize, SnapshotMeta)>,
    /// Rows that these removed many at once: to be dropped where nobody waits.
    pub removed: Removed,
    /// Nodes that shall be asked whether they live: what came of each is told as
    /// [`crate::Input::Challenged`].
    pub challenges: Vec<ChallengeWanted>,
    /// Agents that shall ask a node whether it lives. Only an answer is told, as
    /// [`crate::Input::AgentAnswered`].
    pub questions: Vec<QuestionWanted>,
    /// Agents in the mesh that shall be told what is new. Nothing is told of what became of that.
    pub mesh_items: Vec<MeshItemsWanted>,
    /// The log on disk may be compacted up to this index.
    pub compact: Option<LogIndex>,
    /// A follower needs a snapshot that is newer than the one on disk: make one now.
    pub snapshot_wanted: bool,
}

impl Outbox {
    /// Answers that it is not done, or that nobody knows whether it is, and why.
    pub(crate) fn fail(&mut self, token: CallToken, why: Unavailable) {
        self.replies.push((token, Response::Unavailable(why)));
    }

    /// Answers an operator that it cannot be done as things stand.
    pub(crate) fn deny(&mut self, token: CallToken, why: &str) {
        self.fail(token, Unavailable::Denied(why.into()));
    }
}

/// Why a server that does not lead does nothing.
pub(crate) fn not_leader() -> Unavailable {
    Unavailable::NotLeader { leader: None }
}

/// What is said of proposals that are in the log of a leader that leads no more.
pub(crate) fn lost_leadership() -> Unavailable {
    // Not a refusal: the entry may have reached a majority.
    Unavailable::Unknown("leadership lost while committing log".into())
}

/// A node that shall be asked whether it lives. What it answers is told as
/// [`crate::Input::Challenged`], and that it did not answer in time too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeWanted {
    /// Which node: its agent's certificate must name it.
    pub node: NodeName,
    /// Where its agent listens, as `host:port`.
    pub address: String,
    /// What is asked.
    pub challenge: Challenge,
}

/// An agent that shall ask a node whether it lives. Where it hears nothing, that says nothing of
/// the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionWanted {
    /// Which agent asks: its certificate must name this node.
    pub agent: NodeName,
    /// Where it listens, as `host:port`.
    pub agent_address: String,
    /// What it asks, and of whom.
    pub question: NodeQuestion,
}

/// An agent in the mesh that shall be told what is new there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshItemsWanted {
    /// Which agent: its certificate must name this node.
    pub agent: NodeName,
    /// Where it listens, as `host:port`.
    pub agent_address: String,
    /// Signed verdicts and events.
    pub items: Vec<Bytes>,
}
