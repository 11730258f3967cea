//! The status of node leases as the leader knows it, for operators. It changes nothing.

use crate::core::Core;
use lockmesh_protocol::lease::{HealthWindow, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::time::Time;

/// The maximum number of agents per reply, so that renewals are processed in between.
const PART: usize = 256;

impl Core {
    /// Returns the status of one node's lease, or one page of all leases; `None` if this server is
    /// not the leader, which alone knows them.
    pub(crate) fn node_leases(&self, now: Time, query: &NodeLeaseQuery) -> Option<NodeLeases> {
        self.serving?;
        let told = |agent: &Agent| self.node_lease(now, agent);
        match query {
            NodeLeaseQuery::Of(node) => {
                let lease = self.state.member(&node.folded()).and_then(|agent| told(agent));
                Some(NodeLeases { leases: lease.into_iter().collect(), next: None })
            }
            NodeLeaseQuery::From(first) => {
                let mut agents = self.state.agents_since(*first);
                let leases = agents.by_ref().take(PART).filter_map(|agent| told(agent)).collect();
                Some(NodeLeases { leases, next: agents.next().map(|agent| agent.number) })
            }
        }
    }

    /// `None` for an agent that left, or whose node belongs to another agent.
    fn node_lease(&self, now: Time, agent: &Agent) -> Option<NodeLease> {
        let lease = agent.lease();
        let is_failed = agent.status == MemberStatus::Failed;
        let window = self.judge.windows.member(agent.number).filter(|window| window.lease == lease);
        let renewed = self.judge.windows.renewed(lease);
        if window.is_none() && !(is_failed && renewed.is_some()) {
            return None;
        }
        // During an announced restart, silence ends no session.
        let window = window.filter(|_| agent.restart_announced.is_none());
        let end = |class| window.map(|window| window.end(class, self.judge.is_braking()).since(now));
        let [fast, default, safe] = HealthWindow::ALL.map(end);
        Some(NodeLease {
            lease,
            shortest: self.state.shortest_window(&agent.node),
            heard_ago: renewed.map(|at| now.since(at)),
            ends_in: fast.zip(default).zip(safe).map(|((fast, default), safe)| [fast, default, safe]),
            suspected_by: self.suspicions(lease),
        })
    }
}
