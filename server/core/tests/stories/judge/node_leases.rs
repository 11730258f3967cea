//! The status of node leases: the leader reports only the renewals that it received itself.

use super::{Fleet, SECOND, agent};
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::lease::{HealthWindow, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
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
    fn lease_of(&mut self, node: &str) -> NodeLease {
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
fn the_leader_tells_when_it_heard_a_node_and_when_its_silence_counts() {
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
fn many_leases_are_told_in_parts_and_each_of_them_once() {
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

#[test]
fn whoever_does_not_lead_says_nothing_but_who_does() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    let follower = fleet.cluster.follower();
    let answer = fleet.cluster.ask(follower, &agent("h1"), Request::NodeLeases(EVERYBODY));
    let is_hint = matches!(answer, Response::Unavailable(Unavailable::NotLeader { leader: Some(_) }));
    assert!(is_hint, "{answer:?}");
    // A leader that is cut off does not know that it was deposed: it replies only after a round.
    let former = fleet.cluster.leader();
    fleet.cluster.cut_off.insert(former);
    let call = fleet.cluster.call(former, &agent("h1"), Request::NodeLeases(EVERYBODY));
    fleet.run(2 * SECOND);
    let answer = fleet.cluster.answer(former, call);
    let is_refused = matches!(answer, Some(Response::Unavailable(Unavailable::NotLeader { .. })));
    assert!(is_refused, "{answer:?}");
}

#[test]
fn a_new_leader_has_heard_nobody_and_says_so() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.host("h2");
    fleet.run(SECOND);
    fleet.kill("h2");
    fleet.depose();
    fleet.run(SECOND);
    assert!(fleet.lease_of("h1").heard_ago.is_some());
    let lease = fleet.lease_of("h2");
    assert_eq!(lease.heard_ago, None);
    assert!(lease.ends_in.is_some(), "its silence counts from when this one began to lead");
}

#[test]
fn a_silent_node_is_told_with_those_who_suspect_it_and_still_when_it_has_failed() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.host("h2");
    fleet.run(SECOND);
    fleet.kill("h2");
    let accused = fleet.hosts["h2"].lease;
    let leader = fleet.cluster.leader();
    fleet.cluster.ask(leader, &agent("h1"), Request::Accuse(vec![accused]));
    fleet.run(SECOND);
    let lease = fleet.lease_of("h2");
    assert_eq!(lease.suspected_by, ["h1".into()]);
    assert!(lease.heard_ago.is_some_and(|ago| ago > SECOND), "{lease:?}");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h2") == MemberStatus::Failed);
    fleet.run(20 * SECOND);
    let lease = fleet.lease_of("h2");
    assert!(lease.heard_ago.is_some_and(|ago| ago > 26 * SECOND), "{lease:?}");
    assert_eq!((lease.ends_in, lease.suspected_by.len()), (None, 0), "nothing more ends by its silence");
    // Another process begins another lease, without renewals so far.
    fleet.register("h2", super::process(2, 2));
    let lease = fleet.lease_of("h2");
    assert!(lease.lease != accused && lease.heard_ago.is_none() && lease.ends_in.is_some(), "{lease:?}");
}

#[test]
fn of_a_node_that_restarts_there_is_no_deadline_and_of_one_that_left_there_is_nothing() {
    let mut fleet = Fleet::start();
    fleet.host("h1");
    fleet.run(SECOND);
    assert!(fleet.announce(1, 1));
    let lease = fleet.lease_of("h1");
    assert!(lease.ends_in.is_none() && lease.heard_ago.is_some(), "{lease:?}");
    fleet.leave("h1");
    assert!(fleet.leases_of("h1").is_empty());
    fleet.host("h1");
    assert_eq!(fleet.lease_of("h1").heard_ago, None);
}
