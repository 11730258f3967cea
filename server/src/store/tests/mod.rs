//! The store under power losses, full disks and foreign files.

mod log;
mod power;
mod refusals;
mod reported;
mod rows;
mod script;
mod speed;
mod turns;
mod work;

use lockmesh_protocol::id::{AgentNumber, CellNumber, Generation, LogIndex, WallTime};
use lockmesh_protocol::record::{Agent, Incarnation, MemberStatus};

/// Returns an agent with a chosen node id.
fn agent(number: AgentNumber, node: &str, node_id: String) -> Agent {
    Agent {
        number,
        generation: Generation(1),
        node: node.into(),
        node_id,
        port: 0,
        gossip: None,
        cell: CellNumber(0),
        version: String::new(),
        incarnation: Incarnation::default(),
        lease_began: LogIndex(1),
        former_sessions_until: None,
        restart_announced: None,
        status: MemberStatus::Alive,
        status_since: WallTime(0),
        address: String::new(),
    }
}
