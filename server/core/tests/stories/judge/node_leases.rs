//! The status of node leases: the leader reports only the renewals that it received itself.

use super::{Fleet, SECOND, agent};
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::lease::{HealthWindow, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::rpc::{Request, Response};
use std::time::Duration;

/// All leases, from the first page on.
const EVERYBODY: NodeLeaseQuery = NodeLeaseQuery::From(AgentNumber(0));

impl Fleet {
    fn leases(&mut self, query: NodeLeaseQuery) -> NodeLeases {
        let leader = self.cluster.leader();
        match self.cluster.ask(leader, &agent("h1"), Request::NodeLeases(query)) {
            Response::NodeLeases(leases) => leases,
            other => panic!("the leader returns no leases: {other:?}"),
        }
    }

    pub(super) fn leases_of(&mut self, node: &str) -> Vec<NodeLease> {
        self.leases(NodeLeaseQuery::Of(node.into())).leases
    }

    /// The status of one node's lease.
    pub(super) fn lease_of(&mut self, node: &str) -> NodeLease {
        let mut leases = self.leases_of(node);
        assert_eq!(leases.len(), 1, "{leases:?}");
        leases.remove(0)
    }
}

/// The length of a window, counted from the node's last renewal.
fn length(lease: &NodeLease, window: HealthWindow) -> Duration {
    lease.ends_in(window).expect("silence counts") + lease.heard_ago.expect("it has renewed")
}

#[test]
fn reports_last_contact_and_deadlines() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.host("h2");
    fleet.session("s1", "h2", HealthWindow::Fast);
    fleet.run(SECOND);
    let lease = fleet.lease_of("H2");
    assert_eq!((lease.lease, lease.shortest), (fleet.hosts["h2"].lease, Some(HealthWindow::Fast)));
    assert!(lease.heard_ago.is_some_and(|ago| ago <= SECOND / 2), "{lease:?}");
    for window in HealthWindow::ALL {
        assert_eq!(length(&lease, window), window.validity(), "{lease:?}");
    }
    assert!(lease.suspected_by.is_empty());
    assert_eq!(fleet.lease_of("h1").shortest, None);
    let told = fleet.leases(EVERYBODY);
    let all: Vec<_> = told.leases.iter().map(|lease| lease.lease).collect();
    assert_eq!(all, [fleet.hosts["h1"].lease, fleet.hosts["h2"].lease]);
    assert_eq!(told.next, None);
    assert!(fleet.leases_of("nobody").is_empty());
}

#[test]
fn pages_cover_each_lease_once() {
    let mut fleet = Fleet::start();
    (0..600).for_each(|number| fleet.host(&format!("h{number}")));
    let (mut told, mut parts, mut next) = (Vec::new(), 0, Some(AgentNumber(0)));
    while let Some(first) = next {
        let part = fleet.leases(NodeLeaseQuery::From(first));
        assert!(part.leases.len() <= 256, "{}", part.leases.len());
        told.extend(part.leases.iter().map(|lease| lease.lease));
        (parts, next) = (parts + 1, part.next);
    }
    let mut all: Vec<_> = fleet.hosts.values().map(|host| host.lease).collect();
    all.sort();
    assert_eq!((told, parts), (all, 3));
}

crate::script::stories! { Fleet, "node_leases.txt",
    follower_and_deposed_leader_redirect last_contact_unset_after_election
    suspicions_listed_until_node_fails restart_clears_deadline_leave_removes_lease
}
