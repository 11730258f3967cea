//! Every effect of a turn, in the order in which it was decided.

use crate::input::CallToken;
use crate::raft::log::{LogWrite, SnapshotMeta};
use crate::raft::message::PeerMessage;
use crate::state::{Removed, ServiceTopic};
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, NodeName, ServerId};
use lockmesh_protocol::lease::{Challenge, NodeQuestion};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::collections::BTreeSet;

/// The effects of [`crate::Core::handle`]. The shell empties it after every turn.
#[derive(Debug, Default)]
pub struct Outbox {
    /// An arrived snapshot that replaces all state: pass it to the snapshot's writer before the
    /// writes, which include the reset of the log. All watched rows may have changed.
    pub install: Option<SnapshotMeta>,
    /// Writes for the log's writer, first in, first out; report each as
    /// [`crate::Input::Persisted`].
    pub writes: Vec<LogWrite>,
    /// Replies. A promise in them is durable.
    pub replies: Vec<(CallToken, Response)>,
    /// Readers that may read the state now.
    pub readable: Vec<CallToken>,
    /// Readers that cannot be served.
    pub refused_reads: Vec<(CallToken, Unavailable)>,
    /// Changes of the state, in log order.
    pub changes: Vec<Change>,
    /// The services that these changes touched.
    pub services: BTreeSet<ServiceTopic>,
    /// Corruption checks among these: the number of changes before each, and the metadata of a
    /// checkpoint of exactly that index. The shell makes these checkpoints and reports
    /// [`crate::Input::Summed`].
    pub checks: Vec<(usize, SnapshotMeta)>,
    /// The index up to which the log on disk may be compacted.
    pub compact: Option<LogIndex>,
    /// A follower needs a snapshot that is newer than the one on disk: make one now.
    pub snapshot_wanted: bool,
    /// Effects that the frontend passes on.
    pub shell: ShellEffects,
}

/// Effects for the shell alone: the frontend passes them on unchanged.
#[derive(Debug, Default)]
pub struct ShellEffects {
    /// Messages for other servers, which may be sent at once. Messages that depend on a write
    /// follow when the write is reported.
    pub messages: Vec<(ServerId, PeerMessage)>,
    /// Nodes to challenge, each for 250 ms; report each outcome as
    /// [`crate::NodeInput::Challenged`].
    pub challenges: Vec<ChallengeWanted>,
    /// Agents that must question a node. Only a reply is reported, as
    /// [`crate::NodeInput::AgentAnswered`].
    pub questions: Vec<QuestionWanted>,
    /// Agents in the mesh that receive news. The outcome is not reported.
    pub mesh_items: Vec<MeshItemsWanted>,
    /// Rows that were removed in bulk: drop them outside the critical path.
    pub removed: Removed,
}

impl ShellEffects {
    /// Moves all effects of another list to the end of this one.
    pub fn append(&mut self, other: &mut Self) {
        self.messages.append(&mut other.messages);
        self.challenges.append(&mut other.challenges);
        self.questions.append(&mut other.questions);
        self.mesh_items.append(&mut other.mesh_items);
        self.removed.append(other.removed.take());
    }
}

impl Outbox {
    /// Returns `true` if all effects were carried out.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            install,
            writes,
            replies,
            readable,
            refused_reads,
            changes,
            services,
            checks,
            compact,
            snapshot_wanted,
            shell: _, // passed on as a whole
        } = self;
        let has_one = install.is_some() || compact.is_some() || *snapshot_wanted;
        let lists_are_empty = writes.is_empty()
            && replies.is_empty()
            && readable.is_empty()
            && refused_reads.is_empty()
            && changes.is_empty()
            && services.is_empty()
            && checks.is_empty();
        lists_are_empty && !has_one
    }

    /// Discards the changes from earlier in this turn, because a snapshot replaces the state:
    /// written later, they would corrupt the snapshot.
    pub(crate) fn discard_changes(&mut self) {
        self.changes.clear();
        self.services.clear();
        self.checks.clear();
    }

    /// Replies that the request failed or that its outcome is unknown, with the reason.
    pub(crate) fn fail(&mut self, token: CallToken, why: Unavailable) {
        self.replies.push((token, Response::Unavailable(why)));
    }
}

/// The reply of a server that does not lead.
pub(crate) fn not_leader() -> Unavailable {
    Unavailable::NotLeader { leader: None }
}

/// The reply to proposals in the log of a leader that stepped down.
pub(crate) fn lost_leadership() -> Unavailable {
    // Not a rejection: the entry may have reached a majority.
    Unavailable::Unknown("leadership lost while committing log".into())
}

/// A node to challenge. Its reply, or the timeout, is reported as [`crate::NodeInput::Challenged`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeWanted {
    /// The node that the agent's certificate must name.
    pub node: NodeName,
    /// The address of its agent, as `host:port`.
    pub address: String,
    /// The challenge.
    pub challenge: Challenge,
}

/// An agent that must question a node. If the agent receives no reply, that is no evidence about
/// the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuestionWanted {
    /// The node that the asking agent's certificate must name.
    pub agent: NodeName,
    /// The agent's address, as `host:port`.
    pub agent_address: String,
    /// The question, and the node to ask.
    pub question: NodeQuestion,
}

/// An agent in the mesh that receives news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshItemsWanted {
    /// The node that the agent's certificate must name.
    pub agent: NodeName,
    /// The agent's address, as `host:port`.
    pub agent_address: String,
    /// Signed verdicts and events.
    pub items: Vec<Bytes>,
}
