//! The status of node leases as the leader knows it, for operators. It changes nothing.

use super::Judge;
use crate::state::State;
use lockmesh_protocol::lease::{HealthWindow, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::time::Time;

/// The maximum number of agents per reply, so that renewals are processed in between.
const PART: usize = 256;

impl Judge {
    /// Returns the status of one node's lease, or one page of all leases.
    pub(crate) fn node_leases(&self, now: Time, state: &State, query: &NodeLeaseQuery) -> NodeLeases {
        let told = |agent: &Agent| self.node_lease(now, state, agent);
        match query {
            NodeLeaseQuery::Of(node) => {
                let lease = state.member(&node.folded()).and_then(|agent| told(agent));
                NodeLeases { leases: lease.into_iter().collect(), next: None }
            }
            NodeLeaseQuery::From(first) => {
                let mut agents = state.agents_since(*first);
                let leases = agents.by_ref().take(PART).filter_map(|agent| told(agent)).collect();
                NodeLeases { leases, next: agents.next().map(|agent| agent.number) }
            }
        }
    }

    /// `None` for an agent that left, or whose node belongs to another agent.
    fn node_lease(&self, now: Time, state: &State, agent: &Agent) -> Option<NodeLease> {
        let lease = agent.lease();
        let is_failed = agent.status == MemberStatus::Failed;
        let window = self.windows.member(agent.number).filter(|window| window.lease == lease);
        let renewed = self.windows.renewed(lease);
        if window.is_none() && !(is_failed && renewed.is_some()) {
            return None;
        }
        // During an announced restart, silence ends no session.
        let window = window.filter(|_| agent.restart_announced.is_none());
        let end = |class| window.map(|window| window.end(class, self.is_braking()).since(now));
        let [fast, default, safe] = HealthWindow::ALL.map(end);
        // The leader itself if no renewals arrive or if probes have failed for long, and the
        // reporters.
        let reporters = self.suspected_by(lease.agent).iter().cloned();
        Some(NodeLease {
            lease,
            shortest: state.shortest_window(&agent.node),
            heard_ago: renewed.map(|at| now.since(at)),
            ends_in: fast.zip(default).zip(safe).map(|((fast, default), safe)| [fast, default, safe]),
            suspected_by: self.reachability.reports(lease).chain(reporters).collect(),
        })
    }
}
