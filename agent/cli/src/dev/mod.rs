//! `lockmesh dev`: a whole cluster in one command, connected by QUIC with mutual TLS on loopback.
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | the options |
//! | `setup.rs` | the data folder and the agents' configuration |
//! | `alone.rs` | one server and the agent in this process |
//! | `fleet.rs` | several servers with their own processes, the agent in this one |
//! | `nodes.rs` | servers and agents, each with its own process |
//! | `folder.rs` | the folder of one process |
//! | `member.rs`, `agents.rs` | the folders of servers, of agents: configuration, certificate, addresses |
//! | `ports.rs` | ports that the processes keep, and that no other command picks |
//! | `child.rs`, `children.rs` | one process, and all of them together |
//! | `running.rs` | finds a process by its folder, verifies it, and kills it |

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

/// Runs all of it until a signal stops the process. A line on stdout that begins with `ready` has
/// the addresses.
///
/// # Errors
/// A part cannot start, or a process ended before it served. All parts are stopped. A named data
/// folder is kept; a temporary one is deleted.
pub async fn run(options: DevOptions) -> Result<(), RunError> {
    match (options.nodes, options.servers) {
        (None, None) => alone::run(options).await,
        (None, Some(count)) => fleet::run(options, count).await,
        (Some(nodes), servers) => nodes::run(options, nodes, servers.unwrap_or(nodes::SERVERS)).await,
    }
}
