//! The servers of the quorum: who they are and where they are reached. Who votes is the log's own
//! matter.
//!
//! **Invariants:** an id is given once and never again. A server that asks twice to be admitted
//! gets one id.

use super::State;
use super::rows::TABLES;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Fence, LogIndex, NodeName, ServerId};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::{Autopilot, NewServer, Server};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;

/// How many servers a roster may hold.
pub const SERVERS_MAX: usize = 64;

/// How far indexes and fencing tokens of a cluster that is rebuilt under the old id begin above 0:
/// as far as a recovery raises them.
const REBUILD_JUMP: u64 = 1 << 32;

/// `true` if a cluster's id was configured. A drawn one is the instance id of the founder that
/// proposed it; both are UUIDs.
fn is_given(cluster_id: &str, founders: &[Server]) -> bool {
    let is_uuid = cluster_id.len() == 36 && cluster_id.bytes().filter(|byte| *byte == b'-').count() == 4;
    is_uuid && founders.iter().all(|founder| founder.instance_id != cluster_id)
}

impl Step<'_> {
    /// The first command of a cluster's life.
    pub(super) fn bootstrap(&mut self, cluster_id: &str, servers: &[Server], lease_key: LeaseKey) -> Reply {
        // Each new leader that finds no cluster says it; only the first one counts.
        if self.state.cluster_id.is_empty() {
            if is_given(cluster_id, servers) {
                self.begin_above_the_old_cluster();
            }
            self.set(Change::ClusterId(cluster_id.into()));
            let formats = servers.iter().map(|server| server.format);
            self.set(Change::Format(formats.min().unwrap_or(format::FIRST)));
            self.set(Change::LeaseKey(lease_key));
            for server in servers {
                self.set(Change::Server(server.id, Some(Arc::new(server.clone()))));
            }
            // Ids that were given at the bootstrap must not be given again.
            if let Some(last) = servers.iter().map(|server| server.id).max() {
                self.set(Change::LastServer(last));
            }
        }
        Reply::Done
    }

    /// The cluster is founded under the id of one that is lost: indexes and fencing tokens begin
    /// above all that the lost one can have given. Agents that are pinned to it know the new one by
    /// its index base.
    fn begin_above_the_old_cluster(&mut self) {
        self.set(Change::IndexBase(REBUILD_JUMP));
        self.set(Change::Fence(Fence(REBUILD_JUMP)));
        self.index = LogIndex(self.log_index.0 + REBUILD_JUMP);
        // An answer's index counts the base only after its table has changed.
        for table in TABLES {
            self.touch(table);
        }
    }

    pub(super) fn admit_server(&mut self, new: &NewServer) -> Reply {
        if let Err(why) = self.reads_our_format(&new.node, new.format) {
            return refused(&why);
        }
        // The same instance id is the same data folder: a retry, or a server that was admitted and
        // not yet taken in.
        let known = self.state.servers().find(|server| server.instance_id == new.instance_id).cloned();
        if let Some(known) = known {
            self.set_server(&known, new.with_id(known.id));
            return Reply::Server(known.id);
        }
        if self.state.cluster_id.is_empty() {
            return refused("the cluster has not begun: its first servers have no ids yet");
        }
        if new.node.as_str().is_empty() || new.address.is_empty() || new.instance_id.is_empty() {
            return refused("a server needs a node, an address and an instance id");
        }
        if self.state.servers.len() >= SERVERS_MAX {
            return refused(&format!("the roster holds {SERVERS_MAX} servers: remove one first"));
        }
        // From a counter that never goes back, since an id without a row counts as removed.
        let id = self.state.last_server.next();
        self.set(Change::LastServer(id));
        self.set(Change::Server(id, Some(Arc::new(new.with_id(id)))));
        Reply::Server(id)
    }

    /// The cluster goes on to a format that every one of its servers reads. From then on there may
    /// be bytes that an older build cannot read, so this never goes back.
    pub(super) fn raise_format(&mut self, format: u8) -> Reply {
        let is_newer = format > self.state.format();
        let may_rise = is_newer && self.state.servers().all(|server| server.format >= format);
        if may_rise {
            self.set(Change::Format(format));
        }
        Reply::Succeeded(may_rise)
    }

    /// Whether a server's build reads what the cluster writes.
    fn reads_our_format(&self, node: &NodeName, format: u8) -> Result<(), String> {
        let ours = self.state.format();
        if format >= ours {
            return Ok(());
        }
        Err(format!(
            "server {node} reads formats up to {format}, but the cluster is at {ours}: install a newer lockmesh there"
        ))
    }

    pub(super) fn update_server(&mut self, server: &Server) -> Reply {
        let Some(known) = self.state.server(server.id).cloned() else {
            return refused(&format!("server {} is not of this quorum", server.id));
        };
        if server.node.as_str().is_empty() || server.address.is_empty() {
            return refused("a server needs a node and an address");
        }
        if let Err(why) = self.reads_our_format(&server.node, server.format) {
            return refused(&why);
        }
        self.set_server(&known, Server { instance_id: known.instance_id.clone(), ..server.clone() });
        Reply::Done
    }

    pub(super) fn forget_server(&mut self, id: ServerId) -> Reply {
        if self.state.server(id).is_some() {
            self.set(Change::Server(id, None));
        }
        Reply::Done
    }

    pub(super) fn configure_autopilot(&mut self, autopilot: &Autopilot, expected: Option<LogIndex>) -> Reply {
        let taken = expected.is_none_or(|index| index == self.state.autopilot_index);
        if taken {
            self.set(Change::Autopilot(autopilot.clone(), self.index));
        }
        Reply::Succeeded(taken)
    }

    fn set_server(&mut self, known: &Server, server: Server) {
        if *known != server {
            self.set(Change::Server(server.id, Some(Arc::new(server))));
        }
    }
}

impl State {
    /// The servers of the quorum, in order of their ids.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// One server.
    pub fn server(&self, id: ServerId) -> Option<&Arc<Server>> {
        self.servers.get(&id)
    }

    /// The id given to a server last. One that is not above it and has no row was removed.
    pub fn last_server(&self) -> ServerId {
        self.last_server
    }

    /// The version of the format that the cluster is at.
    pub fn format(&self) -> u8 {
        self.format.max(format::FIRST)
    }

    /// How the leader looks after the servers, and the index at which somebody said so; 0 for the
    /// default.
    pub fn autopilot(&self) -> (&Autopilot, LogIndex) {
        (&self.autopilot, self.autopilot_index)
    }
}

fn refused(why: &str) -> Reply {
    Reply::Refused(Refusal::Roster(why.into()))
}
