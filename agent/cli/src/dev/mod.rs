//! `lockmesh dev`: a whole Lockmesh in one command, joined by real QUIC with mutual TLS on
//! loopback.
//!
//! | file | is |
//! |---|---|
//! | `options.rs` | what it can be told |
//! | `setup.rs` | what both ways have in common: the folder, the agent |
//! | `alone.rs` | one server and the agent in this process |
//! | `fleet.rs` | several servers as processes of their own, the agent in this one |
//! | `member.rs` | one server's folder: its configuration, certificate and port |
//! | `child.rs` | one server's process |

mod alone;
mod child;
mod fleet;
mod member;
mod options;
mod setup;

pub use options::DevOptions;

use crate::error::RunError;

/// Runs all of it until the process is told to stop. Once it serves, a line on stdout that begins
/// with `ready` says where.
///
/// # Errors
/// Something of it cannot start, or a server ended before it served. Nothing of it runs any more. A
/// data folder that was named keeps what is in it; a temporary one is gone.
pub async fn run(options: DevOptions) -> Result<(), RunError> {
    match options.servers {
        None => alone::run(options).await,
        Some(count) => fleet::run(options, count).await,
    }
}
