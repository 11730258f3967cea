//! Rights: by their effects, and not by the commands that have them.
//!
//! The command of a client without an operator's right changes nothing of another node whose agent
//! is alive, or a session of it. Once there are operator hosts, an operator's command of another
//! host changes nothing.

use super::{Fact, Invariant, Scene, ensure, is_bookkeeping};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::{AgentNumber, NodeName, SessionId};
use lockmesh_protocol::record::MemberStatus;
use std::collections::{BTreeMap, BTreeSet};

/// The agents, sessions and operator hosts, according to the changes.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// The folded node of each agent, and `true` while it is alive.
    agents: BTreeMap<AgentNumber, (NodeName, bool)>,
    /// The folded node of each session.
    sessions: BTreeMap<SessionId, NodeName>,
    hosts: BTreeSet<NodeName>,
}

impl Rights {
    fn entry(&self, past: &Past) -> Result<(), String> {
        let Some(proposal) = &past.proposal else { return Ok(()) };
        let origin = proposal.request.as_ref().and_then(|request| self.agents.get(&request.agent));
        let Some((own, _)) = origin else { return Ok(()) };
        if is_of_operator(&proposal.command) && !self.hosts.is_empty() && !self.hosts.contains(own) {
            let effect = past.changes.iter().find(|change| !is_bookkeeping(change));
            ensure(effect.is_none(), || format!("{own} is no operator host and changed {effect:?}"))?;
        }
        if !matches!(proposal.command, Command::Restricted(_)) {
            return Ok(());
        }
        let other = past.changes.iter().find_map(|change| {
            let node = self.node_of(change).filter(|node| node != own && self.is_alive(node))?;
            Some((node, change))
        });
        ensure(other.is_none(), || format!("a client of {own} without the right changed {other:?}"))
    }

    fn is_alive(&self, node: &NodeName) -> bool {
        let mut agents = self.agents.values().filter(|(of, _)| of == node);
        agents.any(|(_, is_alive)| *is_alive || self.sessions.values().any(|of| of == node))
    }

    /// The folded node that a change is about.
    fn node_of(&self, change: &Change) -> Option<NodeName> {
        match change {
            Change::Node(node, _)
            | Change::Service(node, ..)
            | Change::Check(node, ..)
            | Change::Coordinate(node, _) => Some(node.folded()),
            Change::Session(session, _) => self.sessions.get(session).cloned(),
            _ => None,
        }
    }

    fn note(&mut self, change: &Change) {
        match change {
            Change::Agent(number, Some(agent)) => {
                let is_alive = matches!(agent.status, MemberStatus::Alive | MemberStatus::Restarting);
                self.agents.insert(*number, (agent.node.folded(), is_alive));
            }
            Change::Agent(number, None) => _ = self.agents.remove(number),
            Change::Session(id, Some(session)) => {
                self.sessions.insert(*id, session.spec.node.folded());
            }
            Change::Session(id, None) => _ = self.sessions.remove(id),
            Change::OperatorHosts(hosts) => self.hosts.clone_from(hosts),
            Change::Cleared => *self = Self::default(),
            _ => {}
        }
    }
}

fn is_of_operator(command: &Command) -> bool {
    matches!(
        command,
        Command::LeaveNode(NodeLeave { lease: None, .. })
            | Command::RotateGossipKey { .. }
            | Command::ConfigureDeadlocks(_)
            | Command::ConfigureAutopilot(..)
            | Command::ConfigureOperatorHosts(_)
            | Command::Restore(_)
    )
}

impl Invariant for Rights {
    fn name(&self) -> &'static str {
        "rights"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        let (changes, seen) = match fact {
            Fact::Applied(past) => (past.changes.as_slice(), self.entry(past)),
            Fact::Strange { changes } => (*changes, Ok(())),
            _ => return Ok(()),
        };
        changes.iter().for_each(|change| self.note(change));
        seen
    }
}
