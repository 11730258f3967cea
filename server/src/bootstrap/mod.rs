//! Cluster formation: servers find each other, promise a plan, and begin Raft; a later server is
//! admitted to the existing quorum.
//!
//! ```text
//! free ── all are here, or one of them asks ──> promised ── all have promised ──> member: Raft begins
//!   └──── a member is here ── AddServer ──────> admitted ───────────────────────> member: it follows
//! ```
//!
//! | file | is |
//! |---|---|
//! | `decide/` | the decisions, from the servers that are present; start with it |
//! | `record.rs` | the durable record of them |
//! | `run.rs` | the event loop that replaces the driver until there is a quorum |
//! | `discovery.rs` | the tasks that look for other servers and introduce this one |
//! | `join.rs` | the tasks that ask a quorum to admit this server, or to record its address |

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

/// Returns the id of the cluster that the server of a data folder founds or belongs to; `None`
/// before that is certain. The server may be running.
///
/// # Errors
/// The record of the folder cannot be read.
pub fn cluster_of(folder: &Path) -> Result<Option<String>, RecordError> {
    let record = Record::read(folder)?;
    Ok(record.and_then(|record| record.membership()).map(|membership| membership.cluster_id))
}

/// An event of the bootstrap, before there is a quorum.
#[derive(Debug)]
pub enum BootstrapEvent {
    /// A name resolved to these addresses.
    Resolved(String, Vec<SocketAddr>),
    /// A server introduced itself.
    Introduced(Introduction),
    /// A cluster admitted this server.
    Joined(Joined),
}
