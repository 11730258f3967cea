//! A read-only view of a server, and the replies that describe the server and its quorum.

use super::FrontendConfig;
use super::leaders::LeaderHistory;
use super::servers::{Eligibility, ProgramVersions};
use super::stalls::WriteHealth;
use super::views::Views;
use crate::core::Core;
use lockmesh_protocol::bootstrap::{Introduction, Standing};
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::record::{NewServer, Server};
use lockmesh_protocol::rpc::{Response, ServerStatus, Status, Unavailable};
use lockmesh_protocol::time::Time;

/// A server at one time, read-only.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusView<'a> {
    pub(super) now: Time,
    pub(super) core: &'a Core,
    pub(super) config: &'a FrontendConfig,
    pub(super) eligibility: &'a Eligibility,
    pub(super) leaders: &'a LeaderHistory,
    pub(super) versions: &'a ProgramVersions,
    pub(super) write_health: &'a WriteHealth,
    /// The number of parked blocking queries.
    pub(super) watches: usize,
    pub(super) views: &'a Views,
    /// The time since which this server needs another one's snapshot.
    pub(super) behind_since: Option<Time>,
}

/// Returns the cluster's autopilot configuration, with its index.
pub(super) fn autopilot(core: &Core) -> Response {
    let (autopilot, index) = core.replica().state().autopilot();
    Response::Autopilot(autopilot.clone(), index)
}

/// Returns this server's introduction, for servers that do not belong to a quorum yet.
pub(super) fn introduction(view: &StatusView<'_>) -> Introduction {
    let Server { id: server, node, node_id, address, instance_id, format } = view.config.own_record.clone();
    let cluster_id = view.config.cluster_id.clone();
    let others = view.core.replica().state().servers().filter(|row| row.id != server);
    Introduction {
        server: NewServer { node, node_id, address, instance_id, format },
        expect: 0,
        standing: Standing::Member { cluster_id, server },
        knows: others.map(|row| row.address.clone()).collect(),
    }
}

/// Returns the quorum's status as seen by this server.
pub(super) fn status(view: &StatusView<'_>, caller: &NodeName) -> Status {
    let log = view.core.replica().log_status();
    let caller = caller.folded();
    let mut agents = view.core.replica().state().agents();
    Status {
        cluster_id: view.core.replica().state().cluster_id().to_string(),
        server: view.config.own_record.id,
        leader: view.core.replica().leader(),
        last_contact: view
            .core
            .replica()
            .leader()
            .and_then(|leader| view.core.last_contact(view.now, leader)),
        term: log.term,
        last_index: log.last_index,
        commit_index: log.commit_index,
        applied_index: log.applied_index,
        first_index: log.first_index,
        membership_index: log.membership_index,
        servers: server_statuses(view),
        agents: agents.len() as u64,
        caller: agents.find(|agent| agent.node.folded() == caller).map(|agent| agent.number),
    }
}

fn server_statuses(view: &StatusView<'_>) -> Vec<ServerStatus> {
    let autopilot = view.core.autopilot(view.now);
    let status = |id: ServerId| {
        let row = view.core.replica().state().server(id);
        let is_me = id == view.config.own_record.id;
        let own_index = is_me.then(|| view.core.replica().log_status().last_index);
        let matched = view.core.replica().progress(id).map(|progress| progress.matched);
        ServerStatus {
            id,
            node_id: row.map(|row| row.node_id.clone()).unwrap_or_default(),
            node: row.map(|row| row.node.to_string()).unwrap_or_default(),
            address: row.map(|row| row.address.clone()).unwrap_or_default(),
            voter: view.core.replica().membership().voters.contains(&id),
            last_index: own_index.or(matched).unwrap_or_default(),
            last_contact: view.core.last_contact(view.now, id),
            healthy: autopilot.is_healthy(id),
            stable_since: autopilot.stable_since(id),
            version: view.versions.get(id).cloned().unwrap_or_default(),
        }
    };
    view.core.replica().membership().all().into_iter().map(status).collect()
}

/// Returns the status of nodes' leases, after a round that confirmed this server's leadership. It
/// is in the leader's memory, so only the leader replies.
pub(super) fn node_leases(core: &Core, now: Time, query: &NodeLeaseQuery) -> Response {
    core.node_leases(now, query)
        .map_or_else(|| Response::Unavailable(leader_hint(core)), Response::NodeLeases)
}

/// Returns the rejection of a request that only the leader can serve, with the leader's address as
/// far as this server knows it.
pub(super) fn leader_hint(core: &Core) -> Unavailable {
    let leader = core.replica().leader().and_then(|id| core.replica().state().server(id));
    let leader = leader.map(|row| row.address.clone());
    Unavailable::NotLeader { leader }
}

/// Adds the leader's address to a rejection that has none.
pub(super) fn with_leader_hint(core: &Core, response: Response) -> Response {
    match response {
        Response::Unavailable(Unavailable::NotLeader { .. }) => Response::Unavailable(leader_hint(core)),
        other => other,
    }
}
