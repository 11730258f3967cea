//! Servers ask nodes whether they live: a question and its answer, each of which may be lost, as a
//! server's shell carries them.

use super::agent::Agent;
use super::judge::Judge;
use super::marks::Mark;
use super::network::Place;
use super::process::DriverEvent;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input};
use lockmesh_core::frontend::ChallengeWanted;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::{Challenge, Renewal};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

/// How long a server waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

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
}

/// The port at which an agent listens.
pub(super) fn port(place: usize) -> u16 {
    FIRST_PORT + place as u16
}

/// The agent that listens at an address.
fn listener(address: &str) -> Option<usize> {
    let port: u16 = address.strip_prefix("127.0.0.1:")?.parse().ok()?;
    port.checked_sub(FIRST_PORT).map(usize::from)
}

impl World {
    /// A server wants to know whether a node lives.
    pub(super) fn challenge(&mut self, server: ServerId, life: u64, wanted: &ChallengeWanted) {
        self.stage.hit(Mark::Challenged);
        let question = Question { server, life, number: self.stage.call(), challenge: wanted.challenge };
        self.questions.insert(question.number);
        if let Some(place) = listener(&wanted.address).filter(|place| *place < self.agents.len()) {
            let event = Event::Challenge(place, question);
            self.stage.send(Place::Server(server), Place::Agent(place), event);
        }
        self.stage.after(ANSWER_TIMEOUT, Event::Challenged(question, None));
    }

    /// A question was answered, or not in time: the first of both counts.
    pub(super) fn challenged(&mut self, question: Question, answer: Option<Renewal>) {
        if !self.questions.remove(&question.number) {
            return;
        }
        if answer.is_some() {
            self.stage.hit(Mark::ChallengeAnswered);
        }
        let life = self.machines.get(&question.server).and_then(|machine| machine.process.as_ref());
        if life.is_some_and(|process| process.life == question.life) {
            self.post(question.server, DriverEvent::Challenged(question.challenge, answer));
        }
    }
}

impl Agent {
    /// A server asks whether this agent lives.
    pub fn challenge(&mut self, stage: &mut Stage, judge: &mut Judge, question: Question) {
        let token = self.next_token();
        self.questions.insert(token, question);
        self.tell(stage, judge, Input::Challenge(token, question.challenge));
    }

    /// The quorum client has answered a server's question; whether it was one.
    pub(super) fn answers_challenge(
        &mut self,
        stage: &mut Stage,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        let Some(question) = self.questions.remove(&token) else { return false };
        if let Ok(Answered::Response(Response::Alive(renewal))) = answer {
            let event = Event::Challenged(question, Some(*renewal));
            stage.send(Place::Agent(self.place), Place::Server(question.server), event);
        }
        true
    }
}
