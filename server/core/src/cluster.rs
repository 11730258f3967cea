//! A read-only view of the cluster for the values that decide, such as the failure detector. They
//! take it with each input and return steps, which [`Core`] carries out.

use crate::core::{Core, Origin, PendingProposal};
use crate::judge::{JudgeInput, JudgeStep};
use crate::outbox::Outbox;
use crate::proposal::Proposal;
use crate::raft::log::Membership;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::read_index::ReadIndex;
use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{AgentNumber, NodeName, ServerId, Term};
use lockmesh_protocol::lease::{NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;
use std::collections::VecDeque;

/// The cluster as this server knows it at one input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterView<'a> {
    /// This server.
    pub(crate) id: ServerId,
    pub(crate) term: Term,
    /// The leader of the term; this server also before it serves.
    pub(crate) leader: Option<ServerId>,
    /// The term in which this server leads and serves.
    pub(crate) serving: Option<Term>,
    pub(crate) membership: &'a Membership,
    pub(crate) state: &'a State,
    /// The first servers of the cluster, which are known before the roster.
    pub(crate) founders: &'a [Server],
    /// The readers that wait for a read round.
    pub(crate) readers: &'a ReadIndex,
    /// Proposals in the log that are not applied yet.
    pub(crate) pending: &'a VecDeque<PendingProposal>,
    /// Proposals of this turn.
    pub(crate) batch: &'a [(Proposal, Origin)],
    /// Set if this server holds less than it acknowledged: it sends nothing.
    pub(crate) is_set_back: bool,
    /// Set if this server's state is known to be corrupt: it refuses all clients.
    pub(crate) is_corrupt: bool,
    /// Set if this server may have been paused and its deadlines may have to be extended.
    pub(crate) is_late: bool,
}

impl ClusterView<'_> {
    /// Returns `true` if this server leads and serves.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns the leader, if it is another server.
    pub(crate) fn other_leader(&self) -> Option<ServerId> {
        self.leader.filter(|leader| *leader != self.id)
    }

    /// Returns `true` if a matching command was proposed at this leader and is not applied yet.
    pub(crate) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        is_on_its_way(self.pending, self.batch, is_meant)
    }

    /// Returns a server's node name for logs.
    pub(crate) fn node_of(&self, id: ServerId) -> &str {
        node_of(self.state, self.founders, id)
    }
}

impl Core {
    /// Passes an input to the failure detector, and carries out its steps.
    pub(crate) fn judge(&mut self, now: Time, input: JudgeInput<'_>, outbox: &mut Outbox) {
        let view = ClusterView {
            id: self.config.id,
            term: self.engine.term(),
            leader: self.engine.leader(),
            serving: self.serving,
            membership: self.engine.membership(),
            state: &self.state,
            founders: &self.config.cluster_start.servers,
            readers: &self.read_index,
            pending: &self.pending,
            batch: &self.batch,
            is_set_back: self.set_back.is_some(),
            is_corrupt: self.corruption.is_known_here(),
            is_late: !self.is_running(now),
        };
        let mut steps = Vec::new();
        self.judge.handle(&view, now, input, &mut steps);
        for step in steps {
            match step {
                JudgeStep::Reply(token, response) => outbox.replies.push((token, response)),
                JudgeStep::Send(to, kind, context) => self.send_context(to, kind, context, outbox),
                JudgeStep::Propose(proposal, origin) => self.batch.push((proposal, origin)),
                JudgeStep::ProposeOwn(command, origin) => self.batch.push((self.own(command), origin)),
                JudgeStep::Read(reader) => self.read_index.arrive(now, reader),
                JudgeStep::Challenge(wanted) => outbox.challenges.push(wanted),
                JudgeStep::Ask(wanted) => outbox.questions.push(wanted),
            }
        }
    }

    /// Passes a message to the failure detector; returns `false` if it is of another kind.
    pub(crate) fn judge_message(&mut self, now: Time, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let is_of_judge = message.kind.is_of_judge();
        if is_of_judge {
            self.judge(now, JudgeInput::Message(message), outbox);
        }
        is_of_judge
    }

    /// Returns `true` if this leader has proposed a matching command that is not applied yet.
    pub(crate) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        is_on_its_way(&self.pending, &self.batch, is_meant)
    }

    /// Returns a server's node name for logs.
    pub(crate) fn node_of(&self, id: ServerId) -> &str {
        node_of(&self.state, &self.config.cluster_start.servers, id)
    }

    /// Returns `true` if very many nodes are silent at once, so that this leader's windows are
    /// long.
    pub fn is_braking(&self) -> bool {
        self.judge.is_braking()
    }

    /// The folded names of the nodes that report failed probes of an agent's node, at most a few.
    /// They belong to its open check, so the list is empty except on the leader.
    pub fn suspected_by(&self, number: AgentNumber) -> &[NodeName] {
        self.judge.suspected_by(number)
    }

    /// Returns the status of one node's lease, or one page of all leases; `None` if this server is
    /// not the leader, which alone knows them.
    pub(crate) fn node_leases(&self, now: Time, query: &NodeLeaseQuery) -> Option<NodeLeases> {
        self.serving.map(|_| self.judge.node_leases(now, &self.state, query))
    }

    /// Sends a server a message that is not part of Raft.
    pub(crate) fn send<T: Serialize>(&self, to: ServerId, kind: MessageKind, said: &T, outbox: &mut Outbox) {
        self.send_context(to, kind, wire::encode(said).into(), outbox);
    }

    fn send_context(&self, to: ServerId, kind: MessageKind, context: Bytes, outbox: &mut Outbox) {
        let message = PeerMessage::new(kind, self.config.id, to);
        outbox.messages.push((to, PeerMessage { term: self.engine.term(), context, ..message }));
    }
}

fn is_on_its_way(
    pending: &VecDeque<PendingProposal>,
    batch: &[(Proposal, Origin)],
    is_meant: impl Fn(&Command) -> bool,
) -> bool {
    let pending = pending.iter().filter_map(|pending| pending.proposal.as_ref());
    let proposals = batch.iter().map(|(proposal, _)| proposal);
    pending.chain(proposals).any(|proposal| is_meant(&proposal.command))
}

/// The initial servers are known before the roster.
fn node_of<'a>(state: &'a State, founders: &'a [Server], id: ServerId) -> &'a str {
    let founder = || founders.iter().find(|server| server.id == id);
    let server = state.server(id).map(AsRef::as_ref).or_else(founder);
    server.map_or("unknown", |server| server.node.as_str())
}
