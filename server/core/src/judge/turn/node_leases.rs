//! What the leader knows of nodes' leases, for whoever asks: people, who want to know how a host
//! stands and who says so. It changes nothing.

use crate::core::Core;
use lockmesh_protocol::lease::{HealthWindow, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::record::{Agent, MemberStatus};
use lockmesh_protocol::time::Time;

/// So many agents are looked at for one answer: renewals are taken between two of them.
const PART: usize = 256;

impl Core {
    /// How the lease of a node stands, or a part of those of all nodes; none where this server does
    /// not lead: then it knows nothing of them.
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

    /// None of an agent that left, or whose node is another one's by now.
    fn node_lease(&self, now: Time, agent: &Agent) -> Option<NodeLease> {
        let lease = agent.lease();
        let is_failed = agent.status == MemberStatus::Failed;
        let window = self.judge.windows.member(agent.number).filter(|window| window.lease == lease);
        let renewed = self.judge.windows.renewed(lease);
        if window.is_none() && !(is_failed && renewed.is_some()) {
            return None;
        }
        // No silence ends anything before the time of an announced restart is over.
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
