//! Stories of an agent that meets servers of another cluster, or an older copy of its own.

use super::*;
use lockmesh_agent_core::leader_tracker::LeaderTracker;

const RAISE: u64 = 1 << 32;

fn mismatches(story: &Story) -> Vec<&str> {
    let texts = story.notices.iter().filter_map(|notice| match notice {
        Notice::ClusterMismatch(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn overs(story: &Story) -> usize {
    story.notices.iter().filter(|notice| **notice == Notice::ClusterMismatchOver).count()
}

fn pins(story: &Story) -> Vec<Pin> {
    let pins = story.notices.iter().filter_map(|notice| match notice {
        Notice::Pinned(pin) => Some(pin.clone()),
        _ => None,
    });
    pins.collect()
}

fn pin(cluster_id: &str, index_base: u64) -> Pin {
    Pin { cluster_id: cluster_id.into(), index_base }
}

/// An agent pinned to the cluster `c` by an earlier process; B is a separate cluster.
fn pinned(servers: &[&str]) -> Story {
    let mut story = Story::begin_in(servers, ClusterChoice::First, Some(pin("c", 0)));
    story.clusters.insert(B, ("d", 0));
    story
}

#[test]
fn first_registration_pins_cluster() {
    let story = Story::at_rest();
    assert_eq!(pins(&story), [pin("c", 0)]);
    assert!(mismatches(&story).is_empty());
}

#[test]
fn mixed_servers_block_first_registration() {
    for servers in [[A, B], [B, A]] {
        let mut story = Story::begin_with(&servers);
        story.clusters.insert(A, ("x", 0));
        story.clusters.insert(B, ("y", 0));
        let token = story.propose("k");
        story.pass(60 * SECOND);
        assert!(story.registered_at.is_empty(), "{servers:?}: {:?}", story.registered_at);
        let texts = mismatches(&story);
        assert!(!texts.is_empty() && texts.len() <= 2, "not with each try: {texts:?}");
        let last = texts.last().expect("one");
        for part in [A, B, "cluster x", "cluster y", "`upstream.servers`"] {
            assert!(last.contains(part), "{part} in {last}");
        }
        assert!(
            matches!(story.take_answer(token), Err(Unavailable::NotAdmitted(why)) if why.contains("cluster x"))
        );
        assert!(matches!(story.client.not_ready().first(), Some(NotReady::NotAdmitted(_))));
        assert!(story.client.load().refused_servers == 2 && pins(&story).is_empty());
        // Attempts at each server are seconds apart.
        assert!(story.dials.values().all(|dials| *dials <= 13), "{:?}", story.dials);
        // B was emptied and joined the other cluster.
        story.clusters.insert(B, ("x", 0));
        story.clusters.remove(A);
        story.clusters.clear();
        story.pass(60 * SECOND);
        assert_eq!((overs(&story), story.registered_at.len(), pins(&story)), (1, 1, vec![pin("c", 0)]));
    }
}

#[test]
fn pinned_agent_rejects_other_cluster() {
    let mut story = pinned(&[B, A]);
    story.down.insert(A);
    let token = story.propose("k");
    story.pass(60 * SECOND);
    assert!(story.registered_at.is_empty() && story.asked.is_empty());
    assert_eq!(mismatches(&story).len(), 1, "once: {:?}", story.notices);
    let text = mismatches(&story)[0];
    assert!(text.contains("cluster c") && text.contains("b:1 belongs to the cluster d"), "{text}");
    assert!(
        matches!(story.take_answer(token), Err(Unavailable::NotAdmitted(why)) if why.contains("cluster d"))
    );
    assert!(
        matches!(story.client.not_ready().first(), Some(NotReady::NotAdmitted(why)) if why.contains("cluster d"))
    );
    assert!(story.dials[B] <= 13, "{:?}", story.dials);
    story.down.clear();
    story.pass(10 * SECOND);
    assert_eq!(story.registered_at, [A]);
    // Its own cluster serves, and the list is still wrong.
    let not_ready = story.client.not_ready();
    let [NotReady::MixedServers(why)] = not_ready.as_slice() else { panic!("{not_ready:?}") };
    assert!(why.contains("cluster c,") && why.contains("b:1 belongs to the cluster d"), "{why}");
}

#[test]
fn renewals_never_reach_other_cluster() {
    // Whether the agent has rejected it before, or is connected and waits for its first status.
    for is_known in [true, false] {
        let mut story = pinned(&[A, B]);
        if !is_known {
            story.down.insert(B);
            story.mute.insert(B);
        }
        story.pass(5 * SECOND);
        assert_eq!(story.registered_at, [A]);
        story.down.clear();
        // C is of its cluster too, and would acknowledge every renewal.
        story.mute.extend([A, C]);
        story.pass(60 * SECOND);
        [A, C].into_iter().for_each(|server| story.kill(server));
        story.pass(60 * SECOND);
        assert!(story.dials[B] > 1, "the agent connected to it");
        let elsewhere = story.renewals.iter().filter(|(_, asked)| asked.server == B).count();
        assert_eq!(elsewhere, 0, "it would reply that there is no such lease");
    }
}

#[test]
fn mixed_servers_detected_within_minute() {
    let mut story = pinned(&[A, B]);
    // The agent prefers its own cluster's servers, the only ones in the roster.
    story.down.insert(B);
    story.pass(5 * SECOND);
    assert_eq!((story.registered_at.as_slice(), mismatches(&story).len()), ([A].as_slice(), 0));
    story.down.clear();
    story.pass(60 * SECOND);
    assert_eq!(mismatches(&story).len(), 1, "{:?}", story.notices);
    assert!(mismatches(&story)[0].contains("a:1"), "it names both: {:?}", mismatches(&story));
    assert!(matches!(story.client.not_ready().as_slice(), [NotReady::MixedServers(_)]));
    assert_eq!(story.client.load().refused_servers, 1);
    story.clusters.clear();
    story.pass(60 * SECOND);
    assert_eq!((overs(&story), story.client.load().refused_servers), (1, 0));
    assert_eq!(story.client.not_ready(), []);
}

#[test]
fn older_copy_rejected_lagging_follower_accepted() {
    let mut story = Story::begin_in(&SERVERS, ClusterChoice::First, Some(pin("c", RAISE)));
    for server in [B, C] {
        story.clusters.insert(server, ("c", RAISE));
    }
    story.clusters.insert(A, ("c", 0));
    story.down.extend([B, C]);
    story.pass(10 * SECOND);
    assert!(story.registered_at.is_empty());
    assert!(mismatches(&story)[0].contains("older copy") && mismatches(&story)[0].contains("4294967296"));
    // It has caught up.
    story.clusters.insert(A, ("c", RAISE));
    story.pass(30 * SECOND);
    assert_eq!((story.registered_at.as_slice(), overs(&story)), ([A].as_slice(), 1));

    let mut lags = Story::begin_in(&[A], ClusterChoice::First, Some(pin("c", RAISE)));
    lags.clusters.insert(A, ("c", 0));
    lags.pass(2 * SECOND);
    lags.clusters.insert(A, ("c", RAISE));
    lags.pass(2 * SECOND);
    assert_eq!((lags.registered_at.as_slice(), mismatches(&lags).len()), ([A].as_slice(), 0));
}

#[test]
fn rebuilt_cluster_is_repinned() {
    let mut story = Story::begin_in(&[A], ClusterChoice::First, Some(pin("c", 0)));
    story.term = 40;
    story.pass(5 * SECOND);
    // Its terms and its log restart.
    story.clusters.insert(A, ("c", RAISE));
    (story.term, story.generation) = (1, None);
    story.kill(A);
    story.down.clear();
    story.pass(5 * SECOND);
    assert_eq!(story.registered_at, [A, A]);
    assert_eq!(pins(&story).last(), Some(&pin("c", RAISE)));
}

#[test]
fn cluster_choice_switches_clusters() {
    let mut story = pinned(&[A, B]);
    story.pass(5 * SECOND);
    assert_eq!(story.registered_at, [A]);
    story.handle_input(Input::ChooseCluster(ClusterChoice::Id("d".into())));
    story.generation = None;
    story.pass(60 * SECOND);
    assert_eq!((story.registered_at.last(), pins(&story).last()), (Some(&B), Some(&pin("d", 0))));
    assert!(mismatches(&story).last().is_some_and(|text| text.contains("a:1 belongs to the cluster c")));

    let mut any = Story::begin_in(&[A, B], ClusterChoice::Any, None);
    any.clusters.insert(B, ("d", 0));
    any.down.insert(B);
    any.pass(5 * SECOND);
    any.kill(A);
    any.down.remove(B);
    any.pass(60 * SECOND);
    assert_eq!((any.registered_at.as_slice(), mismatches(&any).len()), ([A, B].as_slice(), 0));
    assert!(pins(&any).is_empty());
}

#[test]
fn foreign_roster_never_replaces_own() {
    let status = |cluster: &str, server: u64, address: &str| Status {
        cluster_id: cluster.into(),
        server: ServerId(server),
        leader: Some(ServerId(server)),
        term: Term(99),
        applied_index: LogIndex(1_000),
        servers: vec![ServerStatus { id: ServerId(server), address: address.into(), ..row_of_nothing() }],
        ..Status::default()
    };
    let seeds = [A.to_owned(), B.to_owned()];
    let tracker = LeaderTracker::new("web-1", &seeds, 7, Time(0));
    let mut tracker = tracker.with_cluster(ClusterChoice::First, Some(pin("c", 0)), Time(0));
    let (ours, theirs) = (lockmesh_agent_core::servers::Slot(1), lockmesh_agent_core::servers::Slot(2));
    for (slot, said) in [(ours, status("c", 1, A)), (theirs, status("d", 1, "elsewhere:1"))] {
        tracker.connected(slot);
        tracker.index_heard(slot, LogIndex(1_000));
        tracker.record_status(slot, &said, Time(1));
    }
    let actions = tracker.actions(Time(2));
    assert_eq!((actions.leader, actions.refuse.as_slice()), (Some(ours), [theirs].as_slice()));
    assert_eq!(tracker.slots().count(), 2, "the other roster named a third address");
}

fn row_of_nothing() -> ServerStatus {
    ServerStatus {
        id: ServerId(0),
        node_id: String::new(),
        node: String::new(),
        address: String::new(),
        voter: true,
        last_index: LogIndex(0),
        last_contact: None,
        healthy: true,
        stable_since: None,
        version: String::new(),
    }
}
