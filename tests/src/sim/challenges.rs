//! Challenges: servers ask nodes whether they are alive, directly or through other agents. Both a
//! question and its reply may be lost. This module does what the shells of servers and agents do.

use super::agent::Agent;
use super::judge::Judge;
use super::liar::forge;
use super::marks::Mark;
use super::network::Place;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::gossip::mesh::Output;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input};
use lockmesh_core::frontend::{ChallengeWanted, MeshItemsWanted, QuestionWanted};
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Timeout of a server's question.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// Timeout of a question that an agent sends on behalf of a server.
const JUROR_TIMEOUT: Duration = Duration::from_millis(400);

/// Port of the first agent; the others follow in order.
const FIRST_PORT: u16 = 9_000;

/// A question from a server.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The server.
    pub server: ServerId,
    /// The life of the server that asked.
    pub life: u64,
    /// Unique number of the question.
    pub number: u64,
    /// The challenge that is sent to the node.
    pub challenge: Challenge,
    /// The agent that relays the question, if any.
    pub through: Option<usize>,
    /// Time at which the server or the relaying agent sent the question to the node.
    pub asked: Time,
}

/// The recipient of an agent's proof of life.
#[derive(Clone, Copy, Debug)]
pub enum Challenger {
    /// A server, over its own connection or through another agent.
    Server(Question),
    /// Another agent, by datagram.
    Member(MemberId),
}

/// Returns the port on which an agent listens.
pub(super) fn port(place: usize) -> u16 {
    FIRST_PORT + place as u16
}

/// Returns the agent that listens on a port.
pub(super) fn place_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

impl World {
    /// Sends a server's challenge to a node.
    pub(super) fn challenge(&mut self, server: ServerId, life: u64, wanted: &ChallengeWanted) {
        self.stage.hit(Mark::Challenged);
        let number = self.stage.call();
        let question = Question {
            server,
            life,
            number,
            challenge: wanted.challenge,
            through: None,
            asked: self.stage.now,
        };
        self.questions.insert(question.number);
        if let Some(place) = self.agent_at(&wanted.address) {
            let event = Event::Challenge(place, question);
            self.stage.send(Place::Server(server), Place::Agent(place), event);
        }
        self.stage.after(ANSWER_TIMEOUT, Event::Challenged(question, None));
    }

    /// Sends a server's question to an agent, which forwards it; the server receives only a reply.
    pub(super) fn hand_on(&mut self, server: ServerId, life: u64, wanted: &QuestionWanted) {
        let (agent, asked) = (self.agent_at(&wanted.agent_address), self.agent_at(&wanted.question.address));
        let (Some(agent), Some(asked)) = (agent, asked) else { return };
        let (number, challenge) = (self.stage.call(), wanted.question.challenge);
        let question =
            Question { server, life, number, challenge, through: Some(agent), asked: self.stage.now };
        self.questions.insert(number);
        let event = Event::HandOn(agent, asked, question);
        self.stage.send(Place::Server(server), Place::Agent(agent), event);
    }

    /// Sends a server's news of the mesh to an agent.
    pub(super) fn tell_mesh(&mut self, server: ServerId, wanted: MeshItemsWanted) {
        if let Some(agent) = self.agent_at(&wanted.agent_address) {
            let event = Event::MeshItems(agent, wanted.items);
            self.stage.send(Place::Server(server), Place::Agent(agent), event);
        }
    }

    /// Delivers a challenge event: a question to an agent (its own or to be forwarded), a relayed
    /// answer, or the end of a question at the server that sent it.
    pub(super) fn carry(&mut self, event: Event) {
        match event {
            Event::Challenge(agent, question) => {
                let (challenger, challenge) = (Challenger::Server(question), question.challenge);
                self.agents[agent].challenge(&mut self.stage, &mut self.judge, challenger, challenge);
            }
            Event::HandOn(agent, _, question) if self.agents[agent].is_liar(&self.stage) => {
                let forged = forge(&mut self.stage, question.challenge).into();
                hand_back(&mut self.stage, agent, question, forged);
            }
            Event::HandOn(agent, asked, question) => {
                let (from, to) = (Place::Agent(agent), Place::Agent(asked));
                self.stage.send(from, to, Event::Challenge(asked, question));
                self.agents[agent].ask_by_datagram(&mut self.stage, &mut self.judge, question);
            }
            Event::HandBack(agent, question, answer) => hand_back(&mut self.stage, agent, question, answer),
            Event::Challenged(question, answer) => self.challenged(question, answer),
            _ => {}
        }
    }

    /// Returns the agent that listens on an address.
    fn agent_at(&self, address: &str) -> Option<usize> {
        let port: u16 = address.strip_prefix("127.0.0.1:")?.parse().ok()?;
        place_of(port).filter(|place| *place < self.agents.len())
    }

    /// Resolves a question by a reply or a timeout; the first of the two counts.
    fn challenged(&mut self, question: Question, answer: Option<NodeAnswer>) {
        if !self.questions.remove(&question.number) {
            return;
        }
        if answer.is_some() {
            self.stage.hit(Mark::ChallengeAnswered);
        }
        let life = self.machines.get(&question.server).and_then(|machine| machine.process.as_ref());
        if life.is_some_and(|process| process.life == question.life) {
            let event = match (question.through, answer) {
                (None, answer) => lockmesh_core::Input::Node(lockmesh_core::NodeInput::Challenged(
                    question.challenge,
                    answer.map(Box::new),
                )),
                (Some(_), Some(answer)) => {
                    lockmesh_core::Input::Node(lockmesh_core::NodeInput::AgentAnswered(Box::new(answer)))
                }
                (Some(_), None) => return,
            };
            self.post(question.server, event);
        }
    }
}

/// Relays another agent's answer to the server.
fn hand_back(stage: &mut Stage, agent: usize, question: Question, answer: NodeAnswer) {
    let (from, to) = (Place::Agent(agent), Place::Server(question.server));
    stage.send(from, to, Event::Challenged(question, Some(answer)));
}

impl Agent {
    /// Delivers a challenge to this agent.
    pub fn challenge(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        challenger: Challenger,
        challenge: Challenge,
    ) {
        let token = self.next_token();
        self.questions.insert(token, challenger);
        self.handle_input(stage, judge, Input::Challenge(token, challenge));
    }

    /// Passes on the quorum client's answer to a challenge; returns `false` if the call was not a
    /// challenge.
    pub(super) fn answers_challenge(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        let Some(challenger) = self.questions.remove(&token) else { return false };
        let answer = answer.as_ref().ok().and_then(|answered| match answered {
            Answered::Response(response) => response.node_answer(),
            _ => None,
        });
        match (challenger, answer) {
            (Challenger::Server(question), Some(answer)) => self.answer_server(stage, question, answer),
            (Challenger::Member(to), Some(answer)) => self.answer_by_datagram(stage, judge, to, &answer),
            (_, None) => {}
        }
        true
    }

    fn answer_server(&self, stage: &mut Stage, question: Question, answer: NodeAnswer) {
        let (to, event) = match question.through {
            Some(agent) => (Place::Agent(agent), Event::HandBack(agent, question, answer)),
            None => (Place::Server(question.server), Event::Challenged(question, Some(answer))),
        };
        stage.send(Place::Agent(self.place), to, event);
    }

    fn answer_by_datagram(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        to: MemberId,
        answer: &NodeAnswer,
    ) {
        let (now, mut output) = (self.boot_time(stage), Output::default());
        if let Some(mesh) = self.member.mesh_mut() {
            mesh.answer(now, to, answer, &mut output);
        }
        self.send_output(stage, judge, output);
    }

    /// Asks another agent on behalf of a server, as the agent's own shell does beside the
    /// connection.
    fn ask_by_datagram(&mut self, stage: &mut Stage, judge: &mut Judge, question: Question) {
        let (now, mut output) = (self.boot_time(stage), Output::default());
        let Some(mesh) = self.member.mesh_mut() else { return };
        mesh.challenge(now, question.challenge, &mut output);
        self.member.awaited.retain(|earlier| stage.now.since(earlier.asked) < JUROR_TIMEOUT);
        self.member.awaited.push(Question { asked: stage.now, ..question });
        self.send_output(stage, judge, output);
    }

    /// Relays another agent's answer by datagram to the server that asked.
    pub(super) fn hand_back_by_datagram(&mut self, stage: &mut Stage, answer: NodeAnswer) {
        let renewal = answer.renewal;
        let now = stage.now;
        let is_answered = |question: &mut Question| {
            (question.challenge.lease, question.challenge.nonce) == (renewal.lease, renewal.nonce)
        };
        for question in self.member.awaited.extract_if(.., is_answered) {
            if now.since(question.asked) < JUROR_TIMEOUT {
                stage.hit(Mark::AnsweredByDatagram);
                hand_back(stage, self.place, question, answer);
            }
        }
    }
}
