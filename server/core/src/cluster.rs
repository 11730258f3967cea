//! What the parts of a server decide by, and what they return. The failure detector, the autopilot,
//! the corruption checks, the mesh data and the deadlines are values of their own: each handles an
//! input by a read-only view of the cluster and returns decisions, which [`crate::Core`] carries
//! out in their order.

use crate::input::CallToken;
use crate::outbox::{ChallengeWanted, MeshItemsWanted, QuestionWanted, not_leader};
use crate::proposal::Proposal;
use crate::proposals::{Origin, Proposals};
use crate::raft::engine::MemberChange;
use crate::raft::log::Membership;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::read_index::{ReadIndex, Reader};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;

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
    /// The last applied entry.
    pub(crate) applied: (LogIndex, Term),
    /// The first servers of the cluster, which are known before the roster.
    pub(crate) founders: &'a [Server],
    /// The readers that wait for a read round.
    pub(crate) readers: &'a ReadIndex,
    pub(crate) proposals: &'a Proposals,
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

    /// Returns `true` if this server leads, whether it serves yet or not.
    pub(crate) fn is_leader(&self) -> bool {
        self.leader == Some(self.id)
    }

    /// Returns the leader, if it is another server.
    pub(crate) fn other_leader(&self) -> Option<ServerId> {
        self.leader.filter(|leader| *leader != self.id)
    }

    /// Returns the leader to which clients are redirected; this server itself only once it serves.
    pub(crate) fn known_leader(&self) -> Option<ServerId> {
        known_leader(self.id, self.leader, self.is_serving(), self.is_set_back)
    }

    /// Returns the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = ServerId> {
        let own = self.id;
        self.membership.all().into_iter().filter(move |server| *server != own)
    }

    /// Returns a server's node name for logs.
    pub(crate) fn node_of(&self, id: ServerId) -> &str {
        node_of(self.state, self.founders, id)
    }
}

/// See [`ClusterView::known_leader`].
pub(crate) fn known_leader(
    own: ServerId,
    leader: Option<ServerId>,
    is_serving: bool,
    is_set_back: bool,
) -> Option<ServerId> {
    // A server that was set back has no reliable knowledge and must not redirect clients.
    let leader = leader.filter(|_| !is_set_back)?;
    (leader != own || is_serving).then_some(leader)
}

/// Returns a server's node name for logs. The initial servers are known before the roster.
pub(crate) fn node_of<'a>(state: &'a State, founders: &'a [Server], id: ServerId) -> &'a str {
    let founder = || founders.iter().find(|server| server.id == id);
    let server = state.server(id).map(AsRef::as_ref).or_else(founder);
    server.map_or("unknown", |server| server.node.as_str())
}

/// A decision of one of the values.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Reply to a caller.
    Reply(CallToken, Response),
    /// Send a message to another server.
    Send(ServerId, PeerMessage),
    /// Propose a client's command.
    Propose(Proposal, Origin),
    /// Propose a command of the leader's own.
    ProposeOwn(Command, Origin),
    /// Answer this reader after a read round.
    Read(Reader),
    /// Challenge a node.
    Challenge(ChallengeWanted),
    /// Have an agent challenge a node.
    Ask(QuestionWanted),
    /// Send news to an agent in the mesh.
    Push(MeshItemsWanted),
    /// A corruption check has confirmed this server's state.
    ConfirmState(LogIndex),
    /// Change the membership, and reply to this caller when the change is settled.
    ChangeMembership(MemberChange, Option<CallToken>),
    /// Propose the entry that settles the membership.
    SettleMembership,
    /// Transfer the leadership.
    TransferLeader(ServerId),
    /// Give up the leadership.
    StepDown,
    /// Offer a snapshot to a server again, or replicate to it from its own index.
    RetrySnapshot(ServerId),
}

/// One input in progress: the view of the cluster, the time, and the decisions so far.
pub(crate) struct Turn<'a> {
    pub(crate) view: &'a ClusterView<'a>,
    pub(crate) now: Time,
    pub(crate) decisions: &'a mut Vec<Decision>,
}

impl Turn<'_> {
    pub(crate) fn decide(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    pub(crate) fn reply(&mut self, token: CallToken, response: Response) {
        self.decide(Decision::Reply(token, response));
    }

    /// Replies that the request failed or that its outcome is unknown, with the reason.
    pub(crate) fn fail(&mut self, token: CallToken, why: Unavailable) {
        self.reply(token, Response::Unavailable(why));
    }

    /// Replies that the request is not possible at present.
    pub(crate) fn deny(&mut self, token: CallToken, why: &str) {
        self.fail(token, Unavailable::Denied(why.into()));
    }

    pub(crate) fn refuse(&mut self, tokens: impl IntoIterator<Item = CallToken>) {
        tokens.into_iter().for_each(|token| self.fail(token, not_leader()));
    }

    /// Sends a server a message that is not part of Raft.
    pub(crate) fn send<T: Serialize>(&mut self, to: ServerId, kind: MessageKind, said: &T) {
        let context = wire::encode(said).into();
        let message = PeerMessage::new(kind, self.view.id, to);
        self.decide(Decision::Send(to, PeerMessage { term: self.view.term, context, ..message }));
    }

    /// Sends a message to all other servers, without retries.
    pub(crate) fn send_to_others<T: Serialize>(&mut self, kind: MessageKind, said: &T) {
        self.view.others().for_each(|server| self.send(server, kind, said));
    }

    /// Proposes the command of a client that sent it at this time.
    pub(crate) fn propose(&mut self, proposal: Proposal, token: CallToken) {
        self.decide(Decision::Propose(proposal, Origin::Client(token, self.now)));
    }

    /// Proposes a command of the leader's own, with no caller to notify.
    pub(crate) fn propose_own(&mut self, command: Command) {
        self.decide(Decision::ProposeOwn(command, Origin::Internal));
    }

    /// Returns `true` if a matching command was proposed and is not applied yet.
    pub(crate) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        let decided = self.decisions.iter().any(|decision| match decision {
            Decision::Propose(Proposal { command, .. }, _) | Decision::ProposeOwn(command, _) => {
                is_meant(command)
            }
            _ => false,
        });
        decided || self.view.proposals.is_on_its_way(is_meant)
    }
}

/// A small cluster for tests of the values: this server is the first voter.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct SampleCluster {
    pub(crate) leader: Option<ServerId>,
    pub(crate) serving: Option<Term>,
    pub(crate) membership: Membership,
    pub(crate) state: State,
    pub(crate) applied: LogIndex,
    pub(crate) readers: ReadIndex,
    pub(crate) proposals: Proposals,
}

#[cfg(test)]
impl SampleCluster {
    /// This server's term.
    pub(crate) const TERM: Term = Term(1);

    /// Creates a cluster of these voters, which this server leads.
    pub(crate) fn of(voters: &[u64]) -> Self {
        let voters: Vec<_> = voters.iter().copied().map(ServerId).collect();
        Self {
            leader: Some(voters[0]),
            serving: Some(Self::TERM),
            membership: Membership::of_voters(&voters),
            state: State::default(),
            applied: LogIndex(0),
            readers: ReadIndex::default(),
            proposals: Proposals::default(),
        }
    }

    pub(crate) fn view(&self) -> ClusterView<'_> {
        ClusterView {
            id: self.membership.voters[0],
            term: Self::TERM,
            leader: self.leader,
            serving: self.serving,
            membership: &self.membership,
            state: &self.state,
            applied: (self.applied, Self::TERM),
            founders: &[],
            readers: &self.readers,
            proposals: &self.proposals,
            is_set_back: false,
            is_corrupt: false,
            is_late: false,
        }
    }
}
