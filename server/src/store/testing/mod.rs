//! The store for tests and the simulator: on a disk that fails on purpose, and without threads.
//!
//! | file | is |
//! |---|---|
//! | `disk.rs` | a disk in memory that loses its power, its space, or what it was given |
//! | `manual.rs` | both files, written when whoever drives them says so |
//! | `memory.rs` | a backup of a state that is in memory |
//! | `threaded.rs` | checkpoints by hand of a store with threads |

mod disk;
mod manual;
mod memory;
mod threaded;

use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, WallTime};
use lockmesh_protocol::record::{Agent, Incarnation, MemberStatus};

pub use disk::{Draw, Failure, FaultyDisk, Survival};
pub use manual::ManualStore;
pub use memory::backup_of;

/// An agent with a node id of one's choice.
pub(crate) fn agent(number: AgentNumber, node: &str, node_id: String) -> Agent {
    Agent {
        number,
        generation: Generation(1),
        node: node.into(),
        node_id,
        port: 0,
        version: String::new(),
        incarnation: Incarnation::default(),
        lease_began: LogIndex(1),
        former_sessions_until: None,
        status: MemberStatus::Alive,
        status_since: WallTime(0),
    }
}
