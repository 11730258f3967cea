//! A server of another cluster, at an address that agents are configured with where the seed says
//! so.
//!
//! It takes connections, says that it leads, and would register agents and grant locks: all that an
//! accidental founder does. **Invariant:** an agent that belongs to the simulated cluster asks it
//! for nothing but its identity.

use super::stage::{Ask, Event, Requester};
use super::world::World;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::rpc::{Request, Response, ServerStatus, Status, Unavailable};
use std::time::Duration;

/// Where it is reached.
pub(super) const ADDRESS: &str = "x1:8300";

/// As whom the simulation knows it; it calls itself server 1, as another one does.
pub(super) const SERVER: ServerId = ServerId(1 << 40);

/// How far its log has come.
const APPLIED: LogIndex = LogIndex(1 << 20);

/// The server, if this is its address.
pub(super) fn at(address: &str) -> Option<ServerId> {
    (address == ADDRESS).then_some(SERVER)
}

impl World {
    /// An agent asks the other cluster's server.
    pub(super) fn another_cluster_asked(&mut self, ask: Ask) {
        let Requester::Agent(agent) = ask.by else { return };
        let response = match &ask.request {
            Request::Status => Response::Status(status()),
            Request::Read { query: Query::NodeChecks(_), .. } => Response::Answer(Answer {
                index: APPLIED,
                rows: Rows::Checks(Vec::new()),
                known_leader: true,
                last_contact: Duration::ZERO,
            }),
            request => {
                let what = format!("agent {agent} asks a server of another cluster: {request:?}");
                self.judge.object("cluster identity", what);
                Response::Unavailable(Unavailable::Denied("it is of another cluster".into()))
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
