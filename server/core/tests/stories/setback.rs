//! Disks that are set back (restored over themselves): other servers remember more than the server
//! holds, and it stays silent.

use crate::members::Cluster;
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::log::LogPosition;
use lockmesh_core::{Input, ServerRequest};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn other_than(cluster: &Cluster, not: &[ServerId]) -> ServerId {
    let mut others = cluster.servers.keys().filter(|id| !not.contains(id));
    *others.next().expect("there are three")
}

#[test]
fn peer_positions_are_remembered() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    (0..5).for_each(|number| cluster.put(&format!("key-{number}")));
    cluster.run(5 * TICK);
    let leads = cluster.servers[&leader].core.replica().log_position();
    for id in cluster.servers.keys().filter(|id| **id != leader) {
        let server = &cluster.servers[id].core;
        assert_eq!(
            cluster.servers[&leader].core.replica().peer_memory().of(*id),
            Some(leads),
            "all was acknowledged"
        );
        let of_leader = server.replica().peer_memory().of(leader).expect("it leads");
        assert_eq!(
            of_leader,
            LogPosition { term: leads.term, last_index: LogIndex(0) },
            "it voted for itself"
        );
    }
}

#[test]
fn set_back_leader_steps_down() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let by = other_than(&cluster, &[leader]);
    let known = LogPosition { term: Term(99), last_index: LogIndex(0) };
    cluster.ask(leader, |_| Input::SetBack(by, LogPosition::default()));
    assert!(cluster.servers[&leader].core.replica().is_serving(), "it holds that much");
    cluster.ask(leader, |_| Input::SetBack(by, known));
    let core = &cluster.servers[&leader].core;
    assert!(!core.replica().is_serving());
    let expected = SetBack { server: leader, known, by, holds: core.replica().log_position() };
    assert_eq!(core.replica().set_back(), Some(&expected));
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::RemoveServer(token, by)));
    let refused = cluster.answer(leader, token);
    assert!(matches!(refused, Response::Unavailable(Unavailable::NotLeader { .. })), "{refused:?}");
    cluster.run(5 * SECOND);
    assert_ne!(cluster.leader(), leader);
    cluster.put("the others continue");
}

crate::script::stories! { crate::members::words::Quorum, "setback.txt",
    set_back_follower_stops_replying set_back_server_never_votes emptied_set_back_server_rejoins
}
