//! Agents as jurors: the leader has three of them ask each node under check, besides the voters,
//! who may all be cut off from it.
//!
//! What a node answers to them is a renewal as any other. That they hear nothing says nothing: a
//! verdict rests on the voters alone.

use crate::core::Core;
use crate::outbox::{Outbox, QuestionWanted};
use lockmesh_protocol::lease::{Challenge, NodeQuestion, Renewal};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::time::Time;
use std::sync::Arc;

/// How many agents ask a node.
const AGENTS: usize = 3;
/// So many agents are looked at, at most, for each that asks: in a large fleet many may be silent.
const LOOKED_AT: usize = 64;

impl Core {
    /// Has agents ask every node under check, as often as the voters ask it.
    pub(super) fn ask_through_agents(&mut self, now: Time, outbox: &mut Outbox) {
        for challenge in self.judge.checks.agents_due(now) {
            outbox.questions.extend(self.questions(challenge).unwrap_or_default());
        }
    }

    /// What a node answered to an agent.
    pub(crate) fn agent_answered(&mut self, now: Time, renewal: Renewal, outbox: &mut Outbox) {
        if self.hear_answer(now, renewal, outbox) {
            self.observer.observed.saved_by_agents += 1;
        }
    }

    /// Who asks a node; none where it listens nowhere.
    fn questions(&self, challenge: Challenge) -> Option<Vec<QuestionWanted>> {
        let suspect = self.state.agent_of(challenge.lease)?;
        let (node, address) = (suspect.node.clone(), self.state.agent_address(suspect)?);
        let question = NodeQuestion { challenge, node, address };
        let wanted = self.agents_that_ask(challenge).into_iter().filter_map(|agent| {
            let (agent, agent_address) = (agent.node.clone(), self.state.agent_address(agent)?);
            Some(QuestionWanted { agent, agent_address, question: question.clone() })
        });
        Some(wanted.collect())
    }

    /// Others in each check, and the same ones as long as it is open and they live: their
    /// connections stand then.
    fn agents_that_ask(&self, challenge: Challenge) -> Vec<&Arc<Agent>> {
        let mut random = Random::new(challenge.nonce);
        let mut chosen: Vec<&Arc<Agent>> = Vec::new();
        for _ in 0..AGENTS {
            let mut nearest = self.state.agents_from(random.number()).take(LOOKED_AT);
            let is_new = |agent: &Arc<Agent>| chosen.iter().all(|known| known.number != agent.number);
            let next = nearest
                .find(|agent| agent.number != challenge.lease.agent && is_new(agent) && self.may_ask(agent));
            chosen.extend(next);
        }
        chosen
    }

    fn may_ask(&self, agent: &Agent) -> bool {
        agent.status == MemberStatus::Alive && agent.port != 0 && !self.judge.checks.is_open(agent.number)
    }
}
