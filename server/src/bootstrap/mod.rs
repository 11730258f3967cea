//! How servers become a quorum: they find each other, promise, and begin; or a server that comes
//! later is taken in.
//!
//! ```text
//! free ── all are here, or one of them asks ──> promised ── all have promised ──> member: Raft begins
//!   └──── a member is here ── AddServer ──────> admitted ───────────────────────> member: it follows
//! ```
//!
//! | file | is |
//! |---|---|
//! | `decide.rs` | what follows from who is here; start with it |
//! | `record.rs` | what is never forgotten of that |
//! | `run.rs` | the driver's stand-in until there is a quorum |
//! | `discovery.rs` | the tasks that look for other servers and introduce this one |
//! | `join.rs` | the tasks that ask a quorum for something: to take this server in, or to note where it is |

mod decide;
mod discovery;
mod join;
mod record;
mod run;

pub(crate) use join::announce;
pub use record::RecordError;
pub(crate) use record::{BootstrapState, Membership, Record};
pub(crate) use run::BootstrapLoop;

use lockmesh_protocol::bootstrap::Introduction;
use lockmesh_protocol::rpc::Joined;
use std::net::SocketAddr;
use std::path::Path;

/// Returns the id of the cluster that the server of a data folder founds or belongs to; none before
/// that is certain. The server may run.
///
/// # Errors
/// The record of the folder cannot be read.
pub fn cluster_of(folder: &Path) -> Result<Option<String>, RecordError> {
    let record = Record::read(folder)?;
    Ok(record.and_then(|record| record.membership()).map(|membership| membership.cluster_id))
}

/// What was heard while there is no quorum yet.
#[derive(Debug)]
pub enum BootstrapEvent {
    /// A name stands for these addresses now.
    Resolved(String, Vec<SocketAddr>),
    /// A server said who it is.
    Introduced(Introduction),
    /// A cluster took this server in.
    Joined(Joined),
}
