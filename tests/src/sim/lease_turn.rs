//! The lease events of one turn of a server, as seen in its input and output.

use super::process::{DriverEvent, Turn};
use lockmesh_core::frontend::Event;
use lockmesh_core::{Input, LeaseContents, NodeInput, Proposal};
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, Term};
use lockmesh_protocol::lease::{Challenge, LeaseAck, Renewal};
use lockmesh_protocol::rpc::Response;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct LeaseTurn {
    /// The term in which the server served before the turn.
    pub served: Option<Term>,
    /// The term in which the server served after the turn.
    pub serves: Option<Term>,
    /// The last applied index after the turn.
    pub applied: LogIndex,
    /// Renewals that agents sent to it, or that other servers relayed.
    pub renewals: Vec<Renewal>,
    /// Answers of nodes to it, or to jurors that report to it.
    pub answers: Vec<Renewal>,
    /// Answers that other agents passed on, forged ones included.
    pub passed_on: Vec<Renewal>,
    /// Acknowledgements of another server, which it relays.
    pub relayed: Vec<LeaseAck>,
    /// The acknowledgements that it sent.
    pub acknowledged: Vec<LeaseAck>,
    /// Challenges that it wants to send.
    pub asked: Vec<Challenge>,
    /// The verdicts that it proposed, with their log indexes.
    pub verdicts: Vec<(LogIndex, NodeFailure)>,
}

impl LeaseTurn {
    /// Records an input of the server.
    pub fn takes(&mut self, event: &DriverEvent) {
        match event {
            DriverEvent::Ask(ask, _) => {
                self.renewals.extend(ask.request.renewal().copied());
            }
            DriverEvent::Frontend(Event::Core(Input::Peer(_, message))) => {
                let LeaseContents { renewals, answers, acknowledged } = LeaseContents::of(message);
                self.renewals.extend(renewals);
                self.answers.extend(answers);
                self.relayed.extend(acknowledged);
            }
            DriverEvent::Frontend(Event::Core(Input::Node(NodeInput::AgentAnswered(answer)))) => {
                self.passed_on.push(answer.renewal);
            }
            DriverEvent::Frontend(Event::Core(Input::Node(NodeInput::Challenged(
                challenge,
                Some(answer),
            )))) => {
                let is_answer =
                    (answer.renewal.lease, answer.renewal.nonce) == (challenge.lease, challenge.nonce);
                self.answers.extend(is_answer.then_some(answer.renewal));
            }
            _ => {}
        }
    }

    /// Records the output of the turn.
    pub fn ended(&mut self, turn: &Turn, serves: Option<Term>, applied: LogIndex) {
        (self.serves, self.applied) = (serves, applied);
        let given = turn.given.iter().filter_map(|given| match given.response {
            Response::LeaseRenewed(ack) => Some(ack),
            _ => None,
        });
        let sent =
            turn.shell.messages.iter().flat_map(|(_, message)| LeaseContents::of(message).acknowledged);
        self.acknowledged.extend(given.chain(sent));
        self.asked.extend(turn.shell.challenges.iter().map(|wanted| wanted.challenge));
        let Some(term) = serves.or(self.served) else { return };
        // A leader writes no entries of its term other than its own.
        let entries = turn.writes.iter().flat_map(|write| &write.entries);
        let own = entries.filter(|entry| entry.term == term && !entry.data.is_empty());
        self.verdicts.extend(own.filter_map(|entry| {
            match format::decode::<Proposal>(&entry.data).ok()?.command {
                Command::FailNode(failure) => Some((entry.index, failure)),
                _ => None,
            }
        }));
    }
}
