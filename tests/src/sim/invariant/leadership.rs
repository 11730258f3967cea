//! An agent treats a server as leader only on that server's own word, and only until the server
//! retracts it. While the agent follows another leader, no leader-only call waits elsewhere. The
//! quorum status that an operator receives comes from a leader.

use super::agent_event::{AgentEvent, needs_leader};
use super::{Fact, Invariant, Scene, ensure};
use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};
use std::collections::{BTreeMap, BTreeSet};

/// All agents, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    agents: BTreeMap<usize, Agent>,
}

/// One life of an agent.
#[derive(Debug, Default)]
struct Agent {
    connections: BTreeMap<u64, Connection>,
    /// The leader's address as the agent reports it.
    leader: Option<String>,
    /// The local callers that request a leader's status.
    status_callers: BTreeSet<CallToken>,
}

#[derive(Debug, Default)]
struct Connection {
    address: String,
    /// `true` if the server last claimed to lead.
    leads: bool,
    /// The pending calls, with `true` for those that only a leader serves.
    calls: BTreeMap<CallId, bool>,
}

impl Agent {
    fn see(&mut self, event: &AgentEvent<'_>) -> Result<(), String> {
        match event {
            AgentEvent::Started => *self = Self::default(),
            AgentEvent::Dialled { connection, address, .. } => {
                let new = Connection { address: (*address).into(), ..Connection::default() };
                self.connections.insert(*connection, new);
            }
            AgentEvent::Ended { connection } => drop(self.connections.remove(connection)),
            AgentEvent::Sent { connection, call, request } => return self.sent(*connection, *call, request),
            AgentEvent::Cancelled { connection, call } => _ = self.is_over(*connection, *call),
            // A reply after a cancellation may be outdated.
            AgentEvent::Replied { connection, call, response } => {
                if self.is_over(*connection, *call) {
                    self.word(*connection, response);
                }
            }
            AgentEvent::Leader(address) => self.leader = address.map(str::to_owned),
            AgentEvent::Called { token, call: LocalCall::Ask(Request::Status), .. } => {
                self.status_callers.insert(*token);
            }
            AgentEvent::Told { token, answer, .. } => return self.check_reply(*token, answer),
            AgentEvent::Settled => return self.calls_wait_at_the_leader(),
            AgentEvent::Called { .. } | AgentEvent::Left { .. } => {}
        }
        Ok(())
    }

    fn sent(&mut self, connection: u64, call: CallId, request: &Request) -> Result<(), String> {
        let Some(to) = self.connections.get_mut(&connection) else { return Ok(()) };
        let needs_leader = needs_leader(request);
        // A transfer that was sent stays with that server: it must not be sent to another one.
        to.calls.insert(call, needs_leader && !matches!(request, Request::TransferLeader(_)));
        ensure(to.leads || !needs_leader, || {
            format!("{request:?} was sent to {}, which does not claim to lead", to.address)
        })
    }

    /// Returns `true` if a call was pending.
    fn is_over(&mut self, connection: u64, call: CallId) -> bool {
        self.connections.get_mut(&connection).is_some_and(|known| known.calls.remove(&call).is_some())
    }

    fn word(&mut self, connection: u64, response: &Response) {
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        match response {
            Response::Status(status) => connection.leads = status.leader == Some(status.server),
            Response::Unavailable(
                Unavailable::NotLeader { .. } | Unavailable::Removed | Unavailable::Corrupt,
            ) => connection.leads = false,
            _ => {}
        }
    }

    fn check_reply(
        &mut self,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> Result<(), String> {
        let wants_status = self.status_callers.remove(&token);
        match answer {
            Ok(Answered::Response(Response::Status(status))) if wants_status => {
                ensure(status.leader == Some(status.server), || {
                    format!(
                        "the leader's status came from server {}, but {:?} leads",
                        status.server, status.leader
                    )
                })
            }
            _ => Ok(()),
        }
    }

    fn calls_wait_at_the_leader(&self) -> Result<(), String> {
        let elsewhere = |connection: &&Connection| {
            connection.calls.values().any(|needs_leader| *needs_leader)
                && self.leader.as_deref() != Some(connection.address.as_str())
        };
        match self.connections.values().find(elsewhere) {
            None => Ok(()),
            Some(Connection { address, calls, .. }) => {
                Err(format!("{calls:?} wait at {address}, but {:?} leads", self.leader))
            }
        }
    }
}

impl Invariant for Leadership {
    fn name(&self) -> &'static str {
        "leadership"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        let Fact::Agent { agent, event } = fact else { return Ok(()) };
        let seen = self.agents.entry(*agent).or_default().see(event);
        seen.map_err(|what| format!("agent {agent}: {what}"))
    }
}
