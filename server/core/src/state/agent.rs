//! Agents: who asks. An agent is the same one as long as it speaks for the same node UUID.

use super::catalog::node_is_well_formed;
use super::node::SERF_HEALTH;
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::AgentRegistration;
use lockmesh_protocol::id::{AgentNumber, CheckId, Generation, LogIndex, NodeName};
use lockmesh_protocol::record::{Agent, Check, CheckStatus, Service};
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
        let agent = Agent { number, generation, node: registration.node.name.clone(), node_id };
        self.set(Change::Agent(number, Some(Arc::new(agent))));
        // Ids count anew with each generation; a kept reply of the former one would answer the
        // wrong command.
        self.forget_all(number);
        Reply::Agent { number, generation }
    }

    fn next_agent(&mut self) -> AgentNumber {
        let number = self.state.last_agent.next();
        self.set(Change::LastAgent(number));
        number
    }
}

/// The check that an agent's node gets while the agent lives.
pub(super) fn alive_check(node: &NodeName) -> Check {
    Check {
        node: node.clone(),
        id: CheckId::from(SERF_HEALTH),
        name: "Serf Health Status".into(),
        status: CheckStatus::Passing,
        notes: String::new(),
        output: "Agent alive and reachable".into(),
        service_id: None,
        service_name: String::new(),
        service_tags: Vec::new(),
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        exposed_port: 0,
        definition: String::new(),
        create_index: LogIndex(0),
        modify_index: LogIndex(0),
    }
}
