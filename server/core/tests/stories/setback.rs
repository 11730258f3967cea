//! Disks that are set back (restored over themselves): other servers remember more than the server
//! holds, and it stays silent.

use crate::members::{Cluster, Server};
use lockmesh_core::raft::TICK;
use lockmesh_core::setback::{LogPosition, SetBack};
use lockmesh_core::{Input, ServerRequest};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Three servers, the leader, and a follower whose disk was set back to before some acknowledged
/// writes.
fn with_a_follower_set_back() -> (Cluster, ServerId, ServerId) {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let follower = other_than(&cluster, &[leader]);
    cluster.put("before");
    cluster.run(SECOND);
    let copy = cluster.servers[&follower].disk.clone();
    (0..20).for_each(|number| cluster.put(&format!("after-{number}")));
    cluster.run(SECOND);
    cluster.servers.insert(follower, Server::open(follower, copy));
    (cluster, leader, follower)
}

fn other_than(cluster: &Cluster, not: &[ServerId]) -> ServerId {
    let mut others = cluster.servers.keys().filter(|id| !not.contains(id));
    *others.next().expect("there are three")
}

#[test]
fn a_follower_that_holds_less_than_it_acknowledged_is_silent_and_says_what_to_do() {
    let (mut cluster, leader, follower) = with_a_follower_set_back();
    cluster.run(SECOND);
    let set_back = *cluster.servers[&follower].core.set_back().expect("the leader's heartbeat reveals it");
    assert_eq!((set_back.server, set_back.by), (follower, leader));
    assert!(set_back.to_string().contains("empty its data folder"), "{set_back}");
    assert_eq!(cluster.servers[&follower].core.leader(), None, "it follows no leader");
    let token = cluster.ask(follower, |token| Input::Read(token, Consistency::Stale));
    assert!(cluster.servers[&follower].unreadable.contains(&token), "it sends no replies");
    cluster.put("the others continue");
}

#[test]
fn a_server_that_is_silent_votes_for_nobody() {
    let (mut cluster, leader, follower) = with_a_follower_set_back();
    cluster.run(SECOND);
    let term = cluster.servers[&follower].core.log_status().term;
    cluster.down.insert(leader);
    cluster.run(5 * SECOND);
    let third = other_than(&cluster, &[leader, follower]);
    assert!(!cluster.servers[&third].core.is_serving(), "it would need a vote of the one that forgot");
    assert_eq!(cluster.servers[&follower].core.log_status().term, term);
    cluster.down.clear();
    cluster.run(5 * SECOND);
    cluster.put("two that remember continue");
}

#[test]
fn an_emptied_folder_is_the_way_back() {
    let (mut cluster, _, follower) = with_a_follower_set_back();
    cluster.run(SECOND);
    let node =
        cluster.servers[&cluster.leader()].core.state().server(follower).expect("a row").node.to_string();
    cluster.servers.remove(&follower);
    let id = cluster.join(&node, "emptied");
    cluster.run(15 * SECOND);
    assert!(cluster.voters().contains(&id.0) && !cluster.voters().contains(&follower.0));
    let remembers = |id: &ServerId| cluster.servers[id].core.peer_memory().of(follower).is_some();
    assert!(!cluster.servers.keys().any(remembers), "a removed id is no longer remembered");
}

#[test]
fn a_server_remembers_how_far_the_others_had_come() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    (0..5).for_each(|number| cluster.put(&format!("key-{number}")));
    cluster.run(5 * TICK);
    let leads = cluster.servers[&leader].core.log_position();
    for id in cluster.servers.keys().filter(|id| **id != leader) {
        let server = &cluster.servers[id].core;
        assert_eq!(cluster.servers[&leader].core.peer_memory().of(*id), Some(leads), "all was acknowledged");
        let of_leader = server.peer_memory().of(leader).expect("it leads");
        assert_eq!(
            of_leader,
            LogPosition { term: leads.term, last_index: LogIndex(0) },
            "it voted for itself"
        );
    }
}

#[test]
fn a_leader_whose_disk_was_set_back_leads_no_more() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let by = other_than(&cluster, &[leader]);
    let known = LogPosition { term: Term(99), last_index: LogIndex(0) };
    cluster.ask(leader, |_| Input::SetBack(by, LogPosition::default()));
    assert!(cluster.servers[&leader].core.is_serving(), "it holds that much");
    cluster.ask(leader, |_| Input::SetBack(by, known));
    let core = &cluster.servers[&leader].core;
    assert!(!core.is_serving());
    let expected = SetBack { server: leader, known, by, holds: core.log_position() };
    assert_eq!(core.set_back(), Some(&expected));
    let token = cluster.ask(leader, |token| Input::Servers(ServerRequest::RemoveServer(token, by)));
    let refused = cluster.answer(leader, token);
    assert!(matches!(refused, Response::Unavailable(Unavailable::NotLeader { .. })), "{refused:?}");
    cluster.run(5 * SECOND);
    assert_ne!(cluster.leader(), leader);
    cluster.put("the others continue");
}
