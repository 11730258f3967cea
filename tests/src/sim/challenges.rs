//! Servers ask nodes whether they live, or have other agents ask them: a question and its answer,
//! each of which may be lost, as the shells of servers and agents carry them.

use super::agent::Agent;
use super::judge::Judge;
use super::liar::forge;
use super::marks::Mark;
use super::network::Place;
use super::process::DriverEvent;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input};
use lockmesh_core::frontend::{ChallengeWanted, MeshItemsWanted, QuestionWanted};
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::mesh::Output;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// How long a server waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// How long an agent does that asks for a server.
const JUROR_TIMEOUT: Duration = Duration::from_millis(400);

/// The port of the first agent; the others' follow.
const FIRST_PORT: u16 = 9_000;

/// One question of a server.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Who asks.
    pub server: ServerId,
    /// In which of its lives.
    pub life: u64,
    /// A number that no other question has.
    pub number: u64,
    /// What is asked.
    pub challenge: Challenge,
    /// The agent that asks for the server, if one does.
    pub through: Option<usize>,
    /// When whoever asks the node did.
    pub asked: Time,
}

/// Whom an agent answers that it lives.
#[derive(Clone, Copy, Debug)]
pub enum Challenger {
    /// A server, over its own connection or that of another agent.
    Server(Question),
    /// Another agent, by a datagram.
    Member(MemberId),
}

/// The port at which an agent listens.
pub(super) fn port(place: usize) -> u16 {
    FIRST_PORT + place as u16
}

/// The agent whose port it is.
pub(super) fn place_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

impl World {
    /// A server wants to know whether a node lives.
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

    /// A server has an agent ask another one: only an answer comes back.
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

    /// A server tells an agent what is new in the mesh.
    pub(super) fn tell_mesh(&mut self, server: ServerId, wanted: MeshItemsWanted) {
        if let Some(agent) = self.agent_at(&wanted.agent_address) {
            let event = Event::MeshItems(agent, wanted.items);
            self.stage.send(Place::Server(server), Place::Agent(agent), event);
        }
    }

    /// A question comes to an agent, for itself or to be asked for a server, or an answer goes the
    /// way back; or a question ends at the server that asked it.
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

    /// The agent that listens at an address.
    fn agent_at(&self, address: &str) -> Option<usize> {
        let port: u16 = address.strip_prefix("127.0.0.1:")?.parse().ok()?;
        place_of(port).filter(|place| *place < self.agents.len())
    }

    /// A question was answered, or not in time: the first of both counts.
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
                (None, answer) => DriverEvent::Challenged(question.challenge, answer),
                (Some(_), Some(answer)) => DriverEvent::AgentAnswered(answer),
                (Some(_), None) => return,
            };
            self.post(question.server, event);
        }
    }
}

/// An agent hands on what another one has answered.
fn hand_back(stage: &mut Stage, agent: usize, question: Question, answer: NodeAnswer) {
    let (from, to) = (Place::Agent(agent), Place::Server(question.server));
    stage.send(from, to, Event::Challenged(question, Some(answer)));
}

impl Agent {
    /// Somebody asks whether this agent lives.
    pub fn challenge(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        challenger: Challenger,
        challenge: Challenge,
    ) {
        let token = self.next_token();
        self.questions.insert(token, challenger);
        self.tell(stage, judge, Input::Challenge(token, challenge));
    }

    /// The quorum client has answered such a question; whether it was one.
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

    /// It asks another agent for a server, as the agent's own shell does beside the connection.
    fn ask_by_datagram(&mut self, stage: &mut Stage, judge: &mut Judge, question: Question) {
        let (now, mut output) = (self.boot_time(stage), Output::default());
        let Some(mesh) = self.member.mesh_mut() else { return };
        mesh.ask(now, question.challenge, &mut output);
        self.member.awaited.retain(|earlier| stage.now.since(earlier.asked) < JUROR_TIMEOUT);
        self.member.awaited.push(Question { asked: stage.now, ..question });
        self.send_output(stage, judge, output);
    }

    /// Another agent has answered this one: the server that asked hears it.
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
