//! Agents: who asks. An agent is the same one as long as it speaks for the same node UUID, and
//! keeps its lease as long as it is the same process. How members stand is in
//! [`member`](super::member).

use super::State;
use super::catalog::node_is_well_formed;
use super::node::SERF_HEALTH;
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::{AgentNumber, CheckId, Generation, LogIndex, NodeName};
use lockmesh_protocol::record::{Agent, Check, CheckStatus, MemberStatus, Service};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;

impl Step<'_> {
    /// Begins an agent's new life: its node is there and healthy, what it asked in earlier lives is
    /// forgotten.
    pub(super) fn register_agent(&mut self, registration: &AgentRegistration) -> Reply {
        // The node's part can fail half-way, so it is tried first; what follows cannot.
        let outcome = self.attempt(|step| step.register_agent_node(registration)).map_err(Refusal::Catalog);
        reply_or_refusal(outcome.map(|()| self.begin_generation(registration)))
    }

    fn register_agent_node(&mut self, registration: &AgentRegistration) -> Result<(), String> {
        let node = &registration.node;
        node_is_well_formed(node)?;
        if node.id.is_empty() {
            return Err("an agent's node must have an ID: give it one".into());
        }
        self.ensure_node(node).map_err(|reason| format!("failed inserting node: {reason}"))?;
        for service in &registration.services {
            let service = Service { node: node.name.clone(), ..service.clone() };
            self.ensure_service(&service).map_err(|reason| format!("failed inserting service: {reason}"))?;
        }
        self.ensure_check(&alive_check(&node.name))
    }

    fn begin_generation(&mut self, registration: &AgentRegistration) -> Reply {
        let node_id = registration.node.id.to_ascii_lowercase();
        let known = self.state.derived.agent_ids.get(&node_id).copied();
        let number = known.unwrap_or_else(|| self.next_agent());
        let generation =
            self.state.agents.get(&number).map_or(Generation(1), |agent| agent.generation.next());
        let before = self.state.agents.get(&number).cloned();
        let (lease_began, former_sessions_until) = self.lease_of(registration, before.as_deref());
        let cell = self.state.derived.cells.of(before.as_deref());
        // Guards believe what they were told for a restart, whichever process comes back.
        let restart_announced = before.as_deref().and_then(|before| before.restart_announced);
        let lives_on = before.filter(|before| before.status == MemberStatus::Alive);
        let agent = Agent {
            number,
            generation,
            node: registration.node.name.clone(),
            node_id,
            port: registration.port,
            gossip: registration.gossip,
            cell,
            version: registration.version.clone(),
            incarnation: registration.incarnation,
            lease_began,
            former_sessions_until,
            restart_announced,
            status: MemberStatus::Alive,
            status_since: lives_on.map_or(self.at, |before| before.status_since),
            address: registration.node.address.clone(),
        };
        let lease = agent.lease();
        self.set_agent(agent);
        // Ids count anew with each generation; a kept reply of the former one would answer the
        // wrong command.
        self.forget_all(number);
        Reply::Agent { number, generation, lease, secret: self.state.lease_key.secret(lease) }
    }

    /// Where the lease of a registration begins, and until where sessions are of a former host.
    fn lease_of(
        &self,
        registration: &AgentRegistration,
        before: Option<&Agent>,
    ) -> (LogIndex, Option<LogIndex>) {
        // Of a node that left no session is left either.
        let before = before.filter(|before| before.status != MemberStatus::Left);
        let Some(before) = before else { return (self.index, None) };
        let is_living = matches!(before.status, MemberStatus::Alive | MemberStatus::Restarting);
        // The verdict is on the lease: whoever was failed by it must not go on under it.
        // By the process alone: its certificate may have been renewed meanwhile.
        if is_living && before.incarnation.process == registration.incarnation.process {
            return (before.lease_began, before.former_sessions_until);
        }
        if before.incarnation.is_same_host(&registration.incarnation) {
            return (self.index, before.former_sessions_until);
        }
        // Guards of the other host may still believe in them until its windows are over.
        (self.index, Some(self.index))
    }

    fn next_agent(&mut self) -> AgentNumber {
        let number = self.state.last_agent.next();
        self.set(Change::LastAgent(number));
        number
    }
}

impl State {
    /// The agent that speaks for the node of this UUID.
    pub fn agent_of_node_id(&self, node_id: &str) -> Option<&Arc<Agent>> {
        let number = self.derived.agent_ids.get(&node_id.to_ascii_lowercase())?;
        self.agents.get(number)
    }
}

/// The check that an agent's node gets while the agent lives.
pub(super) fn alive_check(node: &NodeName) -> Check {
    health_check(node, CheckStatus::Passing, "Agent alive and reachable")
}

/// The check that it gets when the agent does not.
pub(super) fn failed_check(node: &NodeName) -> Check {
    health_check(node, CheckStatus::Critical, "Agent not live or unreachable")
}

fn health_check(node: &NodeName, status: CheckStatus, output: &str) -> Check {
    Check {
        name: "Serf Health Status".into(),
        output: output.into(),
        ..Check::of(node.clone(), CheckId::from(SERF_HEALTH), status)
    }
}
