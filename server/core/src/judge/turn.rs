//! The inputs of the failure detector, and the steps that it returns.

use crate::cluster::ClusterView;
use crate::core::Origin;
use crate::input::{CallToken, LeaseCaller};
use crate::outbox::{ChallengeWanted, QuestionWanted, not_leader};
use crate::proposal::Proposal;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::read_index::Reader;
use bytes::Bytes;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::{AgentNumber, ServerId};
use lockmesh_protocol::lease::{Challenge, LeaseId, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;

/// An input of the failure detector.
#[derive(Debug)]
pub(crate) enum JudgeInput<'a> {
    /// This server begins to serve.
    Start,
    /// This server stops to lead.
    Stop,
    /// A tick, on every server.
    Tick,
    /// A message between servers for which [`MessageKind::is_of_judge`] holds.
    Message(&'a PeerMessage),
    /// A proposal for which [`super::depends_on_liveness`] holds.
    Proposal(CallToken, Proposal),
    /// The outcome of a proposed verdict: `None` if it had no effect.
    Verdict(AgentNumber, Option<&'a NodeFailure>),
    /// An agent's renewal of its lease.
    Renewal(CallToken, Renewal),
    /// The read round that a renewal waited for is over.
    RoundOver(LeaseCaller, Renewal),
    /// A renewal cannot be acknowledged, for this reason.
    RoundFailed(LeaseCaller, Unavailable),
    /// Suspicions of an agent in the mesh.
    Accuse(CallToken, LeaseId, Vec<LeaseId>),
    /// The outcome of a challenge.
    Challenged(Challenge, Option<NodeAnswer>),
    /// A node's answer that arrived through an agent.
    AgentAnswered(NodeAnswer),
    /// The end of a turn: gathered messages to other servers are sent.
    Flush,
}

/// A step that the failure detector has decided.
#[derive(Debug)]
pub(crate) enum JudgeStep {
    /// Reply to a caller.
    Reply(CallToken, Response),
    /// Send this context to another server.
    Send(ServerId, MessageKind, Bytes),
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
}

/// One input in progress: the view of the cluster, the time, and the steps so far.
pub(super) struct Turn<'a> {
    pub(super) view: &'a ClusterView<'a>,
    pub(super) now: Time,
    pub(super) steps: &'a mut Vec<JudgeStep>,
}

impl Turn<'_> {
    pub(super) fn reply(&mut self, token: CallToken, response: Response) {
        self.steps.push(JudgeStep::Reply(token, response));
    }

    /// Replies that the request failed or that its outcome is unknown, with the reason.
    pub(super) fn fail(&mut self, token: CallToken, why: Unavailable) {
        self.reply(token, Response::Unavailable(why));
    }

    pub(super) fn refuse(&mut self, tokens: impl IntoIterator<Item = CallToken>) {
        tokens.into_iter().for_each(|token| self.fail(token, not_leader()));
    }

    pub(super) fn send<T: Serialize>(&mut self, to: ServerId, kind: MessageKind, said: &T) {
        self.steps.push(JudgeStep::Send(to, kind, wire::encode(said).into()));
    }

    /// Proposes the command of a client that sent it at this time.
    pub(super) fn propose(&mut self, proposal: Proposal, token: CallToken) {
        self.steps.push(JudgeStep::Propose(proposal, Origin::Client(token, self.now)));
    }

    /// Proposes a command of the leader's own, with no caller to notify.
    pub(super) fn propose_own(&mut self, command: Command) {
        self.steps.push(JudgeStep::ProposeOwn(command, Origin::Nobody));
    }

    /// Returns `true` if a matching command was proposed and is not applied yet.
    pub(super) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        let decided = self.steps.iter().any(|step| match step {
            JudgeStep::Propose(Proposal { command, .. }, _) | JudgeStep::ProposeOwn(command, _) => {
                is_meant(command)
            }
            _ => false,
        });
        decided || self.view.is_on_its_way(is_meant)
    }
}
