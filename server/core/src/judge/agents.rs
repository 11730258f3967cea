//! Challenges through agents: the leader has three agents challenge each node under check, because
//! all voters may be cut off from it.
//!
//! An answer to an agent is a renewal like any other. The silence of a node toward agents is no
//! evidence: a verdict needs the voters alone.

use super::checks::Checks;
use crate::cluster::{Decision, Turn};
use crate::outbox::QuestionWanted;
use crate::state::State;
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::lease::{Challenge, NodeQuestion};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::record::{Agent, MemberStatus};
use std::sync::Arc;

/// The number of agents that challenge a node.
const AGENTS: usize = 3;
/// The maximum number of agents considered for each one chosen: in a large fleet many may be
/// silent.
const LOOKED_AT: usize = 64;

/// Has agents challenge every node under check, as often as the voters do.
pub(super) fn ask_due(turn: &mut Turn<'_>, checks: &mut Checks) {
    for challenge in checks.agents_due(turn.now) {
        let questions = questions(turn.view.state, checks, challenge).unwrap_or_default();
        turn.decisions.extend(questions.into_iter().map(Decision::Ask));
    }
}

/// Returns the questions for the chosen agents, or `None` if the node does not listen.
fn questions(state: &State, checks: &Checks, challenge: Challenge) -> Option<Vec<QuestionWanted>> {
    let suspect = state.agent_of(challenge.lease)?;
    let (node, address) = (suspect.node.clone(), state.agent_address(suspect)?);
    let question = NodeQuestion { challenge, node, address };
    let agents = agents_that_ask(state, challenge, |number| checks.is_open(number));
    let wanted = agents.into_iter().filter_map(|agent| {
        let (agent, agent_address) = (agent.node.clone(), state.agent_address(agent)?);
        Some(QuestionWanted { agent, agent_address, question: question.clone() })
    });
    Some(wanted.collect())
}

/// Chooses the agents that challenge a node. The choice differs per check and is stable while the
/// check is open and the agents live, so their connections stay open. In a large fleet, members of
/// the node's own cell are preferred: they can also probe by gossip.
fn agents_that_ask(
    state: &State,
    challenge: Challenge,
    is_under_check: impl Fn(AgentNumber) -> bool,
) -> Vec<&Arc<Agent>> {
    let cell = state.agent_of(challenge.lease).map(|suspect| suspect.cell);
    let mut random = Random::new(challenge.nonce);
    let mut chosen: Vec<&Arc<Agent>> = Vec::new();
    for _ in 0..AGENTS {
        let nearest = state.agents_from(random.number()).take(LOOKED_AT);
        let may_ask = |agent: &&Arc<Agent>| {
            let is_other = chosen.iter().map(|known| known.number).all(|known| known != agent.number);
            let is_able = agent.status == MemberStatus::Alive && agent.port != 0;
            is_other && is_able && agent.number != challenge.lease.agent && !is_under_check(agent.number)
        };
        let mut able = nearest.filter(may_ask);
        let first = able.next();
        let next = first.into_iter().chain(able).find(|agent| Some(agent.cell) == cell).or(first);
        chosen.extend(next);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::tests::{agent, load};
    use lockmesh_protocol::id::CellNumber;

    /// Loads this many agents, alternating between two cells, with the first one alone in a third.
    fn asked_in(agents: u32, nonce: u64, suspect: u32) -> Vec<Agent> {
        let mut state = State::default();
        for number in 1..=agents {
            let cell = if number == 1 { 2 } else { number as u16 % 2 };
            let row = agent(number, format!("h{number}"), u64::from(number), MemberStatus::Alive);
            load(&mut state, Agent { cell: CellNumber(cell), ..row });
        }
        let lease = state.agent(AgentNumber(suspect)).expect("it was loaded").lease();
        let chosen = agents_that_ask(&state, Challenge { lease, nonce }, |number| number.0.is_multiple_of(5));
        chosen.into_iter().map(|agent| Agent::clone(agent)).collect()
    }

    #[test]
    fn indirect_probes_prefer_own_cell() {
        for nonce in 1..200 {
            let asked = asked_in(40, nonce, 8);
            let is_well = |agent: &Agent| {
                agent.cell == CellNumber(0) && agent.number.0 != 8 && !agent.number.0.is_multiple_of(5)
            };
            assert!(asked.len() == 3 && asked.iter().all(is_well), "{asked:?}");
        }
    }

    #[test]
    fn indirect_probes_fall_back_across_cells() {
        assert_eq!(asked_in(40, 7, 1).len(), 3);
        assert_eq!(asked_in(2, 7, 1).len(), 1);
    }
}
