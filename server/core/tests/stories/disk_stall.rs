//! Stalled disks: a leader whose own disk stalls hands over, and all indicators of a stall agree.

use crate::frontend::{Cluster, agent, put};
use lockmesh_core::frontend::NotReady;
use lockmesh_core::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::{Request, Response};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

impl Cluster {
    /// Sends a write to a server without waiting for its reply.
    fn write_through(&mut self, id: ServerId) {
        let proposal = self.proposal(put("k"));
        self.call(id, &agent("a1"), proposal);
    }

    fn is_serving(&self, id: ServerId) -> bool {
        self.servers[&id].frontend.core().is_serving()
    }

    fn term(&self, id: ServerId) -> u64 {
        self.servers[&id].frontend.core().log_status().term.0
    }

    /// The servers that `by` reports as unhealthy.
    fn unhealthy(&mut self, by: ServerId) -> Vec<ServerId> {
        let call = self.call(by, &agent("a1"), Request::Status);
        let Some(Response::Status(status)) = self.answer(by, call) else {
            panic!("the status was requested")
        };
        status.servers.iter().filter(|server| !server.healthy).map(|server| server.id).collect()
    }
}

#[test]
fn a_leader_with_a_stalled_disk_hands_over_within_two_seconds() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    cluster.stall(leader);
    cluster.write_through(leader);
    cluster.run(SECOND * 9 / 10);
    assert!(cluster.is_serving(leader), "writes may be slow");
    cluster.run(SECOND * 11 / 10);
    let new = cluster.leader();
    assert!(new != leader && !cluster.is_serving(leader));
    assert!(matches!(cluster.not_ready(leader).as_slice(), [NotReady::DiskStalled(age)] if *age >= SECOND));
    assert_eq!(cluster.not_ready(new), []);
    cluster.put("k");
    cluster.run(2 * SECOND);
    assert_eq!(cluster.unhealthy(new), [leader], "it acknowledges nothing");
    cluster.let_write(leader);
    cluster.run(SECOND);
    assert_eq!((cluster.unhealthy(new), cluster.not_ready(leader)), (vec![], vec![]));
}

/// Its heartbeats show no trouble: only the missing acknowledgements do.
#[test]
fn a_follower_with_a_stalled_disk_is_unhealthy() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let follower = *cluster.servers.keys().find(|id| **id != leader).expect("there are three");
    cluster.put("k");
    cluster.run(SECOND);
    assert_eq!(cluster.unhealthy(leader), []);
    cluster.stall(follower);
    cluster.put("k");
    cluster.run(2 * SECOND);
    assert_eq!((cluster.unhealthy(leader), cluster.leader()), (vec![follower], leader));
    cluster.let_write(follower);
    cluster.run(SECOND);
    assert_eq!(cluster.unhealthy(leader), []);
}

#[test]
fn a_stalled_disk_that_no_write_waits_for_changes_nothing() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    cluster.run(SECOND);
    cluster.stall(leader);
    // Shorter than the agent's timeout, which the leader would record in the log.
    cluster.run(4 * SECOND);
    assert_eq!((cluster.leader(), cluster.not_ready(leader)), (leader, vec![]));
}

#[test]
fn a_leader_stays_if_no_other_majority_can_write() {
    for servers in [1, 3] {
        let mut cluster = Cluster::start(servers);
        let (leader, term) = (cluster.leader(), cluster.term(cluster.leader()));
        for id in cluster.servers.keys().copied().collect::<Vec<_>>() {
            cluster.stall(id);
        }
        cluster.write_through(leader);
        cluster.run(60 * SECOND);
        assert_eq!((cluster.leader(), cluster.term(leader)), (leader, term));
        assert!(matches!(cluster.not_ready(leader).as_slice(), [NotReady::DiskStalled(_)]));
    }
}

#[test]
fn a_leader_steps_down_when_no_voter_takes_over() {
    let mut cluster = Cluster::start(3);
    let (leader, term) = (cluster.leader(), cluster.term(cluster.leader()));
    cluster.lost = Some(MessageKind::TimeoutNow);
    cluster.stall(leader);
    cluster.write_through(leader);
    // Two attempts of one election timeout each, and an election.
    cluster.run(SECOND * 13 / 10);
    assert_eq!((cluster.leader(), cluster.term(leader)), (leader, term), "it still tries");
    cluster.run(SECOND);
    assert_ne!(cluster.leader(), leader);
}

#[test]
fn a_process_that_did_not_run_does_not_blame_its_disk() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    cluster.stall(leader);
    cluster.write_through(leader);
    cluster.run(SECOND / 2);
    cluster.pause(30 * SECOND);
    cluster.run(SECOND / 4);
    cluster.let_write(leader);
    cluster.run(SECOND);
    assert_eq!(cluster.leader(), leader);
}

#[test]
fn after_a_stall_a_server_is_elected_last() {
    let mut cluster = Cluster::start(3);
    let stalled = cluster.leader();
    cluster.stall(stalled);
    cluster.write_through(stalled);
    cluster.run(2 * SECOND);
    cluster.let_write(stalled);
    cluster.run(SECOND);
    assert!(cluster.figures(stalled).has_lowered_priority);
    let third = |cluster: &Cluster, leader| {
        *cluster.servers.keys().find(|id| **id != leader && **id != stalled).expect("there are three")
    };
    // The longest timeout of the third server ends before the shortest one of the stalled server.
    for _ in 0..4 {
        let leader = cluster.leader();
        let next = third(&cluster, leader);
        cluster.down = [leader].into();
        cluster.run(SECOND);
        assert_eq!(cluster.leader(), next);
        cluster.down.clear();
        cluster.run(SECOND);
    }
    // An operator may choose it nevertheless.
    let leader = cluster.leader();
    cluster.call(leader, &agent("a1"), Request::TransferLeader(Some(stalled)));
    cluster.run(SECOND);
    assert_eq!(cluster.leader(), stalled);
    cluster.run(30 * SECOND);
    assert!(!cluster.figures(stalled).has_lowered_priority);
}
