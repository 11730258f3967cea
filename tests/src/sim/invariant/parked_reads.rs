//! An agent has a blocking read parked at a server only while a local caller waits for it, and at
//! most one connection to each address.

use super::agent_event::AgentEvent;
use super::{Fact, Invariant, Scene, ensure};
use lockmesh_agent_core::quorum_client::{CallToken, LocalCall};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{CallId, Request};
use std::collections::{BTreeMap, BTreeSet};

/// The subject of a wait, at the agent and at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    News(Query, Consistency, LogIndex),
    Lock(Key, SessionId),
}

impl Wanted {
    fn of_caller(call: &LocalCall) -> Option<Self> {
        match call {
            LocalCall::Read { query, consistency, blocking: Some(Blocking { index, .. }) } => {
                Some(Self::News(query.clone(), *consistency, *index))
            }
            LocalCall::Acquire { locks, session, .. } => Some(Self::Lock(locks[0].key.clone(), *session)),
            _ => None,
        }
    }

    fn of_request(request: &Request) -> Option<Self> {
        match request {
            Request::Read { query: Query::QueuePosition { key, session, .. }, .. } => {
                Some(Self::Lock(key.clone(), *session))
            }
            Request::Read { query: Query::RequestOutcome { keys, session, .. }, .. } => {
                Some(Self::Lock(keys[0].clone(), *session))
            }
            Request::Read { query, consistency, blocking: Some(Blocking { index, .. }) } => {
                Some(Self::News(query.clone(), *consistency, *index))
            }
            _ => None,
        }
    }
}

/// One life of an agent.
#[derive(Debug, Default)]
struct Agent {
    callers: BTreeMap<CallToken, Wanted>,
    parked: BTreeMap<(u64, CallId), Wanted>,
    connections: BTreeMap<u64, String>,
}

impl Agent {
    fn see(&mut self, event: &AgentEvent<'_>) -> Result<(), String> {
        match event {
            AgentEvent::Started => *self = Self::default(),
            AgentEvent::Dialled { connection, address, .. } => {
                self.connections.insert(*connection, (*address).into());
            }
            AgentEvent::Ended { connection } => {
                self.connections.remove(connection);
                self.parked.retain(|(on, _), _| on != connection);
            }
            AgentEvent::Sent { connection, call, request } => {
                let parked = Wanted::of_request(request).map(|wanted| ((*connection, *call), wanted));
                self.parked.extend(parked);
            }
            AgentEvent::Cancelled { connection, call } | AgentEvent::Replied { connection, call, .. } => {
                self.parked.remove(&(*connection, *call));
            }
            AgentEvent::Called { token, call, .. } => {
                self.callers.extend(Wanted::of_caller(call).map(|wanted| (*token, wanted)));
            }
            AgentEvent::Left { token } | AgentEvent::Told { token, .. } => {
                self.callers.remove(token);
            }
            AgentEvent::Settled => {
                self.nothing_is_connected_twice()?;
                return self.somebody_waits();
            }
            AgentEvent::Leader(_) => {}
        }
        Ok(())
    }

    fn nothing_is_connected_twice(&self) -> Result<(), String> {
        let addresses: BTreeSet<&String> = self.connections.values().collect();
        ensure(addresses.len() == self.connections.len(), || {
            format!("connected twice to one address: {:?}", self.connections.values())
        })
    }

    fn somebody_waits(&self) -> Result<(), String> {
        let is_waited_for = |wanted: &&Wanted| !self.callers.values().any(|caller| caller == *wanted);
        let parked = self.parked.values().find(is_waited_for);
        parked.map_or(Ok(()), |wanted| {
            Err(format!("{wanted:?} is parked at a server without a waiting caller"))
        })
    }
}

/// All agents, by their numbers.
#[derive(Debug, Default)]
pub(super) struct ParkedReads {
    agents: BTreeMap<usize, Agent>,
}

impl Invariant for ParkedReads {
    fn name(&self) -> &'static str {
        "parked_reads"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        let Fact::Agent { agent, event } = fact else { return Ok(()) };
        let seen = self.agents.entry(*agent).or_default().see(event);
        seen.map_err(|what| format!("agent {agent}: {what}"))
    }
}
