//! No command precedes the registration that its ID names, and none is sent under a registration
//! that the servers are known to have forgotten.

use super::agent_event::AgentEvent;
use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, Generation, RequestId};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{CallId, Request, Response};
use std::collections::{BTreeMap, BTreeSet};

/// Registrations known to the log and to the agents.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// The newest registration of each agent in the log.
    newest: BTreeMap<AgentNumber, Generation>,
    /// Commands that wait for their reply, by connection and call.
    sent: BTreeMap<(u64, CallId), RequestId>,
    /// The registrations that each agent knows to be forgotten.
    forgotten: BTreeSet<(usize, AgentNumber, Generation)>,
}

impl Registrations {
    fn agent(&mut self, agent: usize, event: &AgentEvent<'_>) -> Result<(), String> {
        match event {
            // The next life does not know this, and has another registration.
            AgentEvent::Started => self.forgotten.retain(|(of, ..)| *of != agent),
            AgentEvent::Sent { connection, call, request: Request::Propose(Some(id), command) } => {
                self.sent.insert((*connection, *call), *id);
                let is_forgotten = self.forgotten.contains(&(agent, id.agent, id.generation));
                return ensure(!is_forgotten, || {
                    format!(
                        "agent {agent} sent {command:?} under a registration that it knows to be forgotten"
                    )
                });
            }
            AgentEvent::Ended { connection } => self.sent.retain(|(on, _), _| on != connection),
            AgentEvent::Cancelled { connection, call } => drop(self.sent.remove(&(*connection, *call))),
            AgentEvent::Replied { connection, call, response } => {
                let id = self.sent.remove(&(*connection, *call));
                if let (Some(id), Response::Applied(Applied { reply, .. })) = (id, response)
                    && *reply == Reply::Refused(Refusal::Forgotten)
                {
                    self.forgotten.insert((agent, id.agent, id.generation));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Invariant for Registrations {
    fn name(&self) -> &'static str {
        "registrations"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Agent { agent, event } => self.agent(*agent, event),
            Fact::Applied(past) => {
                for change in &past.changes {
                    if let Change::Agent(number, Some(row)) = change {
                        self.newest.insert(*number, row.generation);
                    }
                }
                let id = past.proposal.as_ref().and_then(|proposal| proposal.request.as_ref());
                let is_known =
                    |id: &RequestId| self.newest.get(&id.agent).is_some_and(|known| *known >= id.generation);
                ensure(id.is_none_or(is_known), || format!("{id:?} precedes its registration"))
            }
            _ => Ok(()),
        }
    }
}
