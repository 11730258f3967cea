//! A server of another cluster, at an address in the agents' configuration if the seed has one.
//!
//! It accepts connections, claims to lead, and would register agents and grant locks, as a cluster
//! that was bootstrapped by mistake does. **Invariant:** an agent of the simulated cluster requests
//! only its identity.

use super::stage::{Ask, Event, Requester};
use super::world::World;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::rpc::{Request, Response, ServerStatus, Status, Unavailable};
use std::time::Duration;

/// Its address.
pub(super) const ADDRESS: &str = "x1:8300";

/// Its ID in the simulation; it calls itself server 1, as another server does.
pub(super) const SERVER: ServerId = ServerId(1 << 40);

/// The length of its log.
const APPLIED: LogIndex = LogIndex(1 << 20);

/// Returns the server if this is its address.
pub(super) fn at(address: &str) -> Option<ServerId> {
    (address == ADDRESS).then_some(SERVER)
}

impl World {
    /// Replies to an agent's request.
    pub(super) fn another_cluster_asked(&mut self, ask: Ask) {
        let Requester::Agent(agent) = ask.by else { return };
        let response = match &ask.request {
            Request::Status => Response::Status(status()),
            Request::Read { query: Query::NodeChecks(_), .. } => Response::Answer(Answer {
                index: APPLIED,
                rows: Rows::Checks(Vec::new()),
                known_leader: true,
                last_contact: Duration::ZERO,
                is_filtered: false,
            }),
            request => {
                let what = format!("agent {agent} asks a server of another cluster: {request:?}");
                self.judge.object("cluster identity", what);
                Response::Unavailable(Unavailable::Denied("this server belongs to another cluster".into()))
            }
        };
        let answer = Event::Answer(ask.by, ask.call, SERVER, Box::new(response));
        self.agents[agent].answer(&mut self.stage, ask.call, answer);
    }
}

fn status() -> Status {
    let server = ServerId(1);
    let row = ServerStatus {
        id: server,
        node_id: String::new(),
        node: "x1".into(),
        address: ADDRESS.into(),
        voter: true,
        last_index: APPLIED,
        last_contact: None,
        healthy: true,
        stable_since: None,
        version: String::new(),
    };
    Status {
        cluster_id: "another".into(),
        server,
        leader: Some(server),
        // Newer than any term of the simulated cluster.
        term: Term(1 << 20),
        last_index: APPLIED,
        commit_index: APPLIED,
        applied_index: APPLIED,
        servers: vec![row],
        ..Status::default()
    }
}
