//! `lockmesh dev`: a whole Lockmesh in one command, joined by real QUIC with mutual TLS on
//! loopback.
//!
//! | file | is |
//! |---|---|
//! | `options.rs` | what it can be told |
//! | `setup.rs` | what all ways have in common: the folder, the agents' configuration |
//! | `alone.rs` | one server and the agent in this process |
//! | `fleet.rs` | several servers as processes of their own, the agent in this one |
//! | `nodes.rs` | servers and agents, each a process of its own |
//! | `folder.rs` | the folder of one process |
//! | `member.rs`, `agents.rs` | the folders of servers, of agents: configuration, certificate, addresses |
//! | `ports.rs` | ports that they keep, and that no other command picks |
//! | `child.rs`, `children.rs` | one process, and all of them together |
//! | `running.rs` | finds a process by its folder, makes sure that it is ours, and kills it |

mod agents;
mod alone;
mod child;
mod children;
mod fleet;
mod folder;
mod member;
mod nodes;
mod options;
mod ports;
mod running;
mod setup;

pub use folder::MOST_NODES;
pub use options::DevOptions;
pub use running::{KillError, Running};

use crate::error::RunError;

/// Runs all of it until the process is told to stop. Once it serves, a line on stdout that begins
/// with `ready` says where.
///
/// # Errors
/// Something of it cannot start, or a process of it ended before it served. Nothing of it runs any
/// more. A data folder that was named keeps what is in it; a temporary one is gone.
pub async fn run(options: DevOptions) -> Result<(), RunError> {
    match (options.nodes, options.servers) {
        (None, None) => alone::run(options).await,
        (None, Some(count)) => fleet::run(options, count).await,
        (Some(nodes), servers) => nodes::run(options, nodes, servers.unwrap_or(nodes::SERVERS)).await,
    }
}
