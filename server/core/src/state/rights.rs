//! Rights of agents and their clients, as far as the state knows them.
//!
//! - A restricted command is not about another agent's node: its client has no operator's right. It
//!   may remove the node of a dead agent, once no session of it is left: guards believe in sessions
//!   with longer windows. The check belongs to the log entry, so a retry gets the reply of the
//!   first attempt, even if the agent has returned.
//! - The operator hosts are the nodes whose agents may send operator requests. A command counts by
//!   the hosts at its log entry. They stay through a restore: a backup does not open the cluster to
//!   other hosts.

use super::State;
use super::member::is_living;
use super::step::Step;
use lockmesh_protocol::acl::AclCommand;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, TxnOp};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::query::Rows;
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Returns the refusal of an operator's command that came through another host's agent.
pub(super) fn refusal(step: &Step<'_>, command: &Command) -> Option<Refusal> {
    let agent = step.state.members.agents.get(&step.origin?)?;
    let is_refused = is_of_operator(command) && !step.state.is_operator_host(&agent.node);
    is_refused.then(|| Refusal::NotOperatorHost(agent.node.clone()))
}

fn is_of_operator(command: &Command) -> bool {
    match command {
        Command::Restore(_)
        | Command::ConfigureAutopilot(..)
        | Command::RotateGossipKey { .. }
        | Command::ConfigureDeadlocks(_)
        | Command::ConfigureOperatorHosts(_)
        | Command::Acl(AclCommand::Configure(_) | AclCommand::Bootstrap(..)) => true,
        Command::LeaveNode(leave) => leave.lease.is_none(),
        _ => false,
    }
}

/// Executes a restricted command.
pub(super) fn restricted(step: &mut Step<'_>, command: &NodeCommand) -> Reply {
    let members = &step.state.members;
    let own = step.origin.and_then(|agent| members.agents.get(&agent)).map(|agent| agent.node.folded());
    let removes = removes(command);
    let other = nodes_of(step.state, command).into_iter().find(|node| {
        let folded = node.folded();
        let agent = members.of_node(&folded).filter(|_| Some(&folded) != own.as_ref());
        agent.is_some_and(|agent| !removes || is_living(agent) || has_sessions(step.state, &folded))
    });
    match other {
        Some(node) => Reply::Refused(Refusal::OtherNode(node)),
        None => step.carry_out(&Command::from(command.clone())),
    }
}

/// `true` for a command that only removes: it may tidy up after a dead agent.
fn removes(command: &NodeCommand) -> bool {
    match command {
        NodeCommand::Deregister(_) | NodeCommand::DestroySession(_) | NodeCommand::GiveUpSession { .. } => {
            true
        }
        NodeCommand::Register(_)
        | NodeCommand::UpdateCoordinate { .. }
        | NodeCommand::Txn(_)
        | NodeCommand::CreateSession(_) => false,
    }
}

fn has_sessions(state: &State, folded: &NodeName) -> bool {
    state.sessions.by_node.contains_key(folded)
}

/// The nodes that a command is about.
fn nodes_of(state: &State, command: &NodeCommand) -> Vec<NodeName> {
    match command {
        NodeCommand::Register(registration) => names_of(state, &registration.node),
        NodeCommand::Deregister(deregistration) => vec![deregistration.node.clone()],
        NodeCommand::DestroySession(session) | NodeCommand::GiveUpSession { session, .. } => {
            state.session(*session).map(|session| session.spec.node.clone()).into_iter().collect()
        }
        NodeCommand::UpdateCoordinate { node, .. } => vec![node.clone()],
        NodeCommand::CreateSession(session) => vec![session.node.clone()],
        NodeCommand::Txn(ops) => {
            let writes = ops.iter().filter(|op| op.is_write());
            writes.flat_map(|op| nodes_of_operation(state, op)).collect()
        }
    }
}

fn nodes_of_operation(state: &State, op: &TxnOp) -> Vec<NodeName> {
    match op {
        TxnOp::Kv(_) => Vec::new(),
        TxnOp::Node { node, .. } => names_of(state, node),
        TxnOp::Service { service, .. } => vec![service.node.clone()],
        TxnOp::Check { check, .. } => vec![check.node.clone()],
    }
}

/// The name of a node, and those of the nodes with its id, which the write would rename or delete.
pub(super) fn names_of(state: &State, node: &Node) -> Vec<NodeName> {
    let named = state.members.of_node_id(&node.id).map(|agent| agent.node.clone());
    let in_catalog = state.catalog.node_ids.get(&node.id.to_ascii_lowercase()).cloned();
    std::iter::once(node.name.clone()).chain(named).chain(in_catalog).collect()
}

/// Sets the operator hosts.
pub(super) fn configure_operator_hosts(step: &mut Step<'_>, hosts: &BTreeSet<NodeName>) -> Reply {
    let folded: BTreeSet<NodeName> = hosts.iter().map(NodeName::folded).collect();
    if *step.state.operator_hosts != folded {
        step.set(Change::OperatorHosts(Arc::new(folded)));
    }
    Reply::Done
}

/// The row, if it is not that of a new cluster.
pub(super) fn row(hosts: &Arc<BTreeSet<NodeName>>) -> Option<Change> {
    (!hosts.is_empty()).then(|| Change::OperatorHosts(hosts.clone()))
}

impl State {
    /// Returns `true` if the agent of a node may send operator requests.
    pub fn is_operator_host(&self, node: &NodeName) -> bool {
        self.operator_hosts.is_empty() || self.operator_hosts.contains(&node.folded())
    }

    pub(super) fn operator_host_rows(&self) -> Rows {
        Rows::OperatorHosts(self.operator_hosts.iter().cloned().collect())
    }
}
