//! The servers of the quorum: their identities and addresses. The log itself defines the voters.
//!
//! **Invariants:** an id is never reused. A server that requests admission twice gets one id.

use super::State;
use super::error::RosterError;
use super::rows::TABLES;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Fence, LogIndex, NodeName, ServerId};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::record::{Autopilot, NewServer, Server};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

/// The maximum number of servers in the roster.
pub const SERVERS_MAX: usize = 64;

/// The start of indexes and fencing tokens in a cluster rebuilt under an old id: the same increase
/// as in a recovery.
const REBUILD_JUMP: u64 = 1 << 32;

/// `true` if a cluster's id was configured. A drawn one is the instance id of the founder that
/// proposed it; both are UUIDs.
fn is_given(cluster_id: &str, founders: &[Server]) -> bool {
    let is_uuid = cluster_id.len() == 36 && cluster_id.bytes().filter(|byte| *byte == b'-').count() == 4;
    is_uuid && founders.iter().all(|founder| founder.instance_id != cluster_id)
}

/// The first command of a cluster.
pub(super) fn bootstrap(
    step: &mut Step<'_>,
    cluster_id: &str,
    servers: &[Server],
    lease_key: LeaseKey,
) -> Reply {
    // Each new leader without a cluster proposes it; only the first one counts.
    if step.state.cluster_id.is_empty() {
        if is_given(cluster_id, servers) {
            begin_above_the_old_cluster(step);
        }
        step.set(Change::ClusterId(cluster_id.into()));
        let formats = servers.iter().map(|server| server.format);
        step.set(Change::Format(formats.min().unwrap_or(format::FIRST)));
        step.set(Change::LeaseKey(lease_key));
        for server in servers {
            step.set(Change::Server(server.id, Some(Arc::new(server.clone()))));
        }
        // Ids assigned at bootstrap must not be assigned again.
        if let Some(last) = servers.iter().map(|server| server.id).max() {
            step.set(Change::LastServer(last));
        }
    }
    Reply::Done
}

/// Starts a cluster under the id of a lost one: indexes and fencing tokens begin above all that
/// the lost one can have assigned. Agents pinned to it recognize the new one by its index base.
fn begin_above_the_old_cluster(step: &mut Step<'_>) {
    step.set(Change::IndexBase(REBUILD_JUMP));
    step.set(Change::Fence(Fence(REBUILD_JUMP)));
    step.index = LogIndex(step.log_index.0 + REBUILD_JUMP);
    // An answer's index includes the base only after its table has changed.
    for table in TABLES {
        step.touch(table);
    }
}

pub(super) fn admit_server(step: &mut Step<'_>, new: &NewServer) -> Result<Reply, RosterError> {
    reads_our_format(step, &new.node, new.format)?;
    // The same instance id is the same data folder: a retry, or a server that was admitted and
    // not yet added.
    let known = step.state.servers().find(|server| server.instance_id == new.instance_id).cloned();
    if let Some(known) = known {
        set_server(step, &known, new.with_id(known.id));
        return Ok(Reply::Server(known.id));
    }
    if step.state.cluster_id.is_empty() {
        return Err(RosterError::NotBegun);
    }
    if new.node.as_str().is_empty() || new.address.is_empty() || new.instance_id.is_empty() {
        return Err(RosterError::NoIdentity);
    }
    if step.state.servers.len() >= SERVERS_MAX {
        return Err(RosterError::Full);
    }
    // From a counter that never goes back, because an id without a row counts as removed.
    let id = step.state.last_server.next();
    step.set(Change::LastServer(id));
    step.set(Change::Server(id, Some(Arc::new(new.with_id(id)))));
    Ok(Reply::Server(id))
}

/// Raises the cluster's format to one that all its servers read. From then on an older build
/// may be unable to read the data, so the format never goes back.
pub(super) fn raise_format(step: &mut Step<'_>, format: u8) -> Reply {
    let is_newer = format > step.state.format();
    let may_rise = is_newer && step.state.servers().all(|server| server.format >= format);
    if may_rise {
        step.set(Change::Format(format));
    }
    Reply::Succeeded(may_rise)
}

/// Checks that a server's build reads the cluster's format.
fn reads_our_format(step: &Step<'_>, node: &NodeName, format: u8) -> Result<(), RosterError> {
    let ours = step.state.format();
    if format >= ours {
        return Ok(());
    }
    Err(RosterError::OldFormat { node: node.clone(), theirs: format, ours })
}

pub(super) fn update_server(step: &mut Step<'_>, server: &Server) -> Result<Reply, RosterError> {
    let Some(known) = step.state.server(server.id).cloned() else {
        return Err(RosterError::Unknown(server.id));
    };
    if server.node.as_str().is_empty() || server.address.is_empty() {
        return Err(RosterError::NoAddress);
    }
    reads_our_format(step, &server.node, server.format)?;
    set_server(step, &known, Server { instance_id: known.instance_id.clone(), ..server.clone() });
    Ok(Reply::Done)
}

pub(super) fn forget_server(step: &mut Step<'_>, id: ServerId) -> Reply {
    if step.state.server(id).is_some() {
        step.set(Change::Server(id, None));
    }
    Reply::Done
}

pub(super) fn configure_autopilot(
    step: &mut Step<'_>,
    autopilot: &Autopilot,
    expected: Option<LogIndex>,
) -> Reply {
    let taken = expected.is_none_or(|index| index == step.state.autopilot_index);
    if taken {
        step.set(Change::Autopilot(autopilot.clone(), step.index));
    }
    Reply::Succeeded(taken)
}

fn set_server(step: &mut Step<'_>, known: &Server, server: Server) {
    if *known != server {
        step.set(Change::Server(server.id, Some(Arc::new(server))));
    }
}

impl State {
    /// The servers of the quorum, ordered by id.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// The server with this id.
    pub fn server(&self, id: ServerId) -> Option<&Arc<Server>> {
        self.servers.get(&id)
    }

    /// The newest server id. An id up to this one without a row was removed.
    pub fn last_server(&self) -> ServerId {
        self.last_server
    }

    /// The cluster's format version.
    pub fn format(&self) -> u8 {
        self.format.max(format::FIRST)
    }

    /// The autopilot configuration, and the index of its last change; 0 for the default.
    pub fn autopilot(&self) -> (&Autopilot, LogIndex) {
        (&self.autopilot, self.autopilot_index)
    }
}
