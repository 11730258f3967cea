//! A server is removed during a power failure: whatever the disks held then, the remaining servers
//! continue.

use crate::frontend::{Cluster, agent};
use lockmesh_core::Input;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A cluster of this size. The leader was asked to remove a follower, and this many messages were
/// delivered since; the flag is set if the removal was acknowledged.
fn in_the_middle_of_a_removal(servers: u64, messages: usize) -> (Cluster, ServerId, bool) {
    let mut cluster = Cluster::start(servers);
    let (leader, goes) = (cluster.leader(), cluster.follower());
    let call = cluster.begin(leader, &agent("a1"), Request::RemoveServer(goes));
    for _ in 0..messages {
        cluster.deliver_one();
    }
    let answer = cluster.answer(leader, call);
    assert!(matches!(answer, None | Some(Response::Done)), "{answer:?}");
    let is_done = answer.is_some();
    (cluster, goes, is_done)
}

/// The number of messages until a removal is acknowledged.
fn messages_of_a_removal(servers: u64) -> usize {
    (0..1_000).find(|messages| in_the_middle_of_a_removal(servers, *messages).2).expect("it is done at last")
}

#[test]
fn power_failure_keeps_quorum() {
    for messages in 0..=messages_of_a_removal(2) + 1 {
        let (mut cluster, goes, _) = in_the_middle_of_a_removal(2, messages);
        cluster.power_failure();
        cluster.run(10 * SECOND);
        cluster.put("after");
        let leader = cluster.leader();
        if cluster.servers[&leader].frontend.core().replica().membership().contains(goes) {
            assert!(!cluster.servers[&goes].is_removed, "after {messages} messages");
        } else {
            assert!(cluster.servers[&goes].is_removed, "it knows of its removal, after {messages} messages");
        }
    }
}

#[test]
fn acknowledged_removal_is_durable() {
    let (mut cluster, goes, is_done) = in_the_middle_of_a_removal(4, messages_of_a_removal(4));
    assert!(is_done);
    let leader = cluster.leader();
    assert!(
        cluster.servers[&leader].frontend.core().replica().state().server(goes).is_none(),
        "it is forgotten"
    );
    // The fourth is down, so two of three are enough.
    let lost = *cluster.servers.keys().find(|id| ![leader, goes].contains(id)).expect("there are four");
    cluster.down = [goes, lost].into();
    cluster.power_failure();
    cluster.run(10 * SECOND);
    cluster.put("after");
}

#[test]
fn applied_removal_rejects_agents_keeps_vote() {
    let mut cluster = Cluster::start(3);
    let (leader, goes) = (cluster.leader(), cluster.follower());
    cluster.call(leader, &agent("a1"), Request::RemoveServer(goes));
    let removed = &cluster.servers[&goes];
    assert!(!removed.frontend.core().replica().membership().contains(goes) && !removed.is_removed);
    let answer = cluster.ask(goes, &agent("a1"), Request::RemoveServer(goes));
    assert_eq!(answer, Response::Unavailable(Unavailable::Removed));
    // A server that has not applied the removal may need this vote.
    let candidate = *cluster.servers.keys().find(|id| ![leader, goes].contains(id)).expect("there are three");
    cluster.down = [leader, candidate].into();
    cluster.run(SECOND);
    let (term, last) = (Term(99), cluster.servers[&goes].frontend.core().replica().log_status().last_index);
    let request = PeerMessage {
        term,
        log_term: term,
        index: last.next(),
        ..PeerMessage::new(MessageKind::RequestVote, candidate, goes)
    };
    cluster.turn(goes, Some(Event::Core(Input::Peer(candidate, request))));
    assert_eq!(cluster.servers[&goes].disk.vote(), candidate);
    cluster.down.clear();
    cluster.run(SECOND);
    assert!(cluster.servers[&goes].is_removed, "the others have forgotten it, and closed its streams");
}

#[test]
fn overlapping_membership_change_is_denied() {
    let (mut cluster, goes, _) = in_the_middle_of_a_removal(4, 0);
    let leader = cluster.leader();
    let next = *cluster.servers.keys().find(|id| ![leader, goes].contains(id)).expect("there are four");
    let mut refused = 0;
    loop {
        let call = cluster.begin(leader, &agent("a1"), Request::RemoveServer(next));
        let Some(answer) = cluster.answer(leader, call) else { break };
        let Response::Unavailable(Unavailable::Denied(why)) = answer else { panic!("{answer:?}") };
        assert!(why.contains("another change of the membership is under way"), "{why}");
        refused += 1;
        assert!(cluster.deliver_one(), "the removal never ends");
    }
    assert!(refused > 0);
    let core = cluster.servers[&leader].frontend.core();
    let (voters, changed) =
        (&core.replica().membership().voters, core.replica().log_status().membership_index);
    let on_disk = voters.iter().filter(|id| cluster.servers[id].disk.commit() >= changed).count();
    assert!(on_disk > voters.len() / 2, "{on_disk} of {voters:?} have it on disk as committed");
}
