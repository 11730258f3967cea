//! How servers become a quorum: they find each other, promise, and begin; or a server that comes later is taken in.
//!
//! ```text
//! free ── all are here, or one of them asks ──> promised ── all have promised ──> member: Raft begins
//!   └──── a member is here ── AddServer ──────> admitted ───────────────────────> member: it follows
//! ```
//!
//! | file | is |
//! |---|---|
//! | `meeting.rs` | what follows from who is here; start with it |
//! | `record.rs` | what is never forgotten of that |
//! | `lobby.rs` | the driver's stand-in until there is a quorum |
//! | `callers.rs` | the tasks that look for other servers and introduce this one |
//! | `joining.rs` | the tasks that ask a quorum for something: to take this server in, or to note where it is |

mod callers;
mod joining;
mod lobby;
mod meeting;
mod record;

pub(crate) use joining::announce;
pub(crate) use lobby::Lobby;
pub use record::RecordError;
pub(crate) use record::{Membership, Place, Record};

use lockmesh_protocol::forming::Introduction;
use lockmesh_protocol::rpc::Joined;
use std::net::SocketAddr;

/// What was heard while there is no quorum yet.
#[derive(Debug)]
pub enum News {
    /// A name stands for these addresses now.
    Resolved(String, Vec<SocketAddr>),
    /// A server said who it is.
    Met(Introduction),
    /// A cluster took this server in.
    Joined(Joined),
}
