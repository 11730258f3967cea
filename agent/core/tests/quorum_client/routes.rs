//! Connections, registration, and the leader that the client follows.

use super::*;
use lockmesh_protocol::gossip::roster::RosterDigest;

#[test]
fn requests_wait_for_registration() {
    let mut story = Story::begin();
    story.registers = false;
    let token = story.propose("k");
    story.pass(SECOND);
    let registration = story.only();
    assert!(matches!(registration.request, Request::Propose(None, Command::RegisterAgent(_))));
    story.registers = true;
    story.answer(&registration, Response::Unavailable(Unavailable::Overloaded("full".into())));
    story.pass(SECOND);
    assert_eq!(story.registrations, 1);
    story.apply(&story.only(), 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn denied_registration_fails_requests() {
    let mut story = Story::begin();
    story.registers = false;
    let held = story.propose("k");
    story.pass(SECOND);
    let denied = Response::Unavailable(Unavailable::Denied("another node has its name".into()));
    story.answer(&story.only(), denied);
    assert_eq!(story.take_answer(held), Err(Unavailable::NotAdmitted("another node has its name".into())));
    let late = story.propose("k");
    assert_eq!(story.take_answer(late), Err(Unavailable::NotAdmitted("another node has its name".into())));
    story.registers = true;
    story.asked.clear();
    story.pass(SECOND);
    story.propose("k");
    assert_eq!(story.only().server, A);
}

#[test]
fn unadmitted_agent_reports_and_retries() {
    let mut story = Story::begin();
    story.is_stranger = true;
    let held = story.propose("k");
    story.pass(SECOND);
    assert_eq!(story.take_answer(held), Err(Unavailable::NotAdmitted("a stranger".into())));
    let late = story.propose("k");
    assert_eq!(story.take_answer(late), Err(Unavailable::NotAdmitted("a stranger".into())));
    story.is_stranger = false;
    story.pass(5 * SECOND);
    assert_eq!(story.registrations, 1, "by now it is believed");
}

#[test]
fn unreachable_server_redialled_and_reported_once() {
    let mut story = Story::begin();
    story.down.insert(A);
    story.leader = None;
    story.pass(60 * SECOND);
    let dials = story.dials[A];
    // Pauses of 125 to 250 ms: this server reports a small fleet.
    assert!((200..500).contains(&dials), "{dials}");
    let failures = story.notices.iter().filter(|notice| matches!(notice, Notice::ConnectionFailed(_)));
    assert_eq!(failures.count(), 1);
    assert_eq!(story.client.counts().reconnects, u64::from(dials - 1));
}

#[test]
fn named_leader_replaces_stale_dial() {
    for age in [50 * MS, SECOND] {
        let mut story = Story::at_rest();
        story.frozen.extend(SERVERS);
        SERVERS.into_iter().for_each(|server| story.kill(server));
        story.down.clear();
        story.pass(SECOND);
        // All are dialled, the leader last.
        story.handle_input(Input::Ended(story.dialling[A], ConnectionEnd::Lost("no answer".into())));
        let dials = story.dials[A];
        while story.dials[A] == dials {
            story.pass(MS);
        }
        story.pass(age);
        story.frozen.clear();
        story.notices.clear();
        story.connections.insert(story.dialling[B], B);
        story.handle_input(Input::Connected(story.dialling[B]));
        // An attempt that has just begun is not replaced.
        let is_anew = age > 300 * MS;
        assert_eq!(story.dials[A], dials + 1 + u32::from(is_anew), "{age:?}");
        let is_found = story.notices.contains(&Notice::LeaderFound(A.into()));
        assert_eq!(is_found, is_anew, "{age:?}: {:?}", story.notices);
    }
}

#[test]
fn ignores_replies_of_closed_connection() {
    let mut story = Story::at_rest();
    story.propose("lost");
    let lost = story.only();
    story.kill(A);
    story.down.clear();
    let again = story.until_asked();
    let token = story.propose("k");
    let asked = story.asked[1].clone();
    assert_eq!((again.server, asked.server), (A, A));
    story.handle_input(Input::Ended(lost.connection, ConnectionEnd::Lost("it died again".into())));
    story.handle_input(Input::Connected(lost.connection));
    story.handle_input(Input::Answers(
        lost.connection,
        vec![(asked.call, applied(5, Reply::Succeeded(true)))],
    ));
    assert!(story.answers.is_empty());
    story.apply(&asked, 6);
    assert_eq!(story.heard_applied(token), 6);
}

#[test]
fn unanswered_call_queries_other_servers() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let questions = story.client.counts().questions;
    story.pass(99 * MS);
    assert_eq!(story.client.counts().questions, questions);
    story.elect(B);
    story.mute.insert(A);
    story.pass(SECOND);
    assert!(story.client.counts().questions > questions);
    let moved = story.asked.iter().find(|asked| matches!(asked.request, Request::Propose(..))).cloned();
    let moved = moved.expect("it was sent again");
    assert_eq!(moved.server, B);
    story.apply(&moved, 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn readers_leave_silent_home() {
    let mut story = Story::at_rest();
    story.read(Consistency::Default, blocking(3, 60 * SECOND));
    let parked = story.only();
    story.mute.insert(parked.server);
    for received in 1..=12 {
        let connections: Vec<_> = story.connections.iter().map(|(id, server)| (*id, *server)).collect();
        for (connection, server) in connections {
            let count = if server == parked.server { 1 } else { received };
            story.handle_input(Input::Received(connection, count));
        }
        story.pass(500 * MS);
    }
    let moved = story.asked.iter().find(|asked| matches!(asked.request, Request::Read { .. }));
    assert_ne!(moved.expect("it waits elsewhere").server, parked.server);
}

#[test]
fn silent_home_request_fails_soon() {
    let mut story = Story::at_rest();
    story.read(Consistency::Default, blocking(3, 60 * SECOND));
    story.mute.insert(story.only().server);
    let token = story.call(LocalCall::AskHome(Request::Status));
    story.pass(SECOND);
    let told = story.heard_unknown(token);
    assert!(told.contains("the servers were lost before they answered"), "{told}");
}

#[test]
fn gossip_requests_keep_silent_connections() {
    let mut story = Story::at_rest();
    let before = story.connections.clone();
    story.mute.extend([A, B, C]);
    for _ in 0..8 {
        story.call(LocalCall::AskHome(Request::SyncMesh(RosterDigest(Vec::new()))));
        story.call(LocalCall::AskHome(Request::Suspect(Vec::new())));
        before.keys().for_each(|connection| story.handle_input(Input::Received(*connection, 1)));
        story.pass(500 * MS);
    }
    assert_eq!(story.connections, before);
}

#[test]
fn new_leader_registers_forgotten_agent() {
    let mut story = Story::at_rest();
    story.generation = None;
    story.elect(B);
    story.kill(A);
    story.pass(SECOND);
    assert_eq!(story.registrations, 2);
    story.propose("k");
    assert_eq!((story.only().server, story.only().id().generation), (B, Generation(2)));
}

#[test]
fn equal_inputs_have_equal_outcomes() {
    let life = || {
        let mut story = Story::at_rest();
        for key in ["a", "b", "c"] {
            story.propose(key);
            story.read(Consistency::Default, blocking(3, SECOND));
        }
        story.elect(C);
        story.kill(A);
        story.pass(20 * SECOND);
        format!("{:?} {:?} {:?} {:?}", story.asked, story.answers, story.dials, story.client)
    };
    assert_eq!(life(), life());
}

#[test]
fn readiness_needs_registration_and_leader() {
    let mut story = Story::begin();
    assert_eq!(story.client.not_ready(), [NotReady::NotRegistered, NotReady::NoLeader]);
    story.pass(5 * SECOND);
    assert_eq!(story.client.not_ready(), []);
    SERVERS.into_iter().for_each(|server| story.kill(server));
    assert_eq!(story.client.not_ready(), [NotReady::NoLeader]);
    story.handle_input(Input::Close);
    assert_eq!(story.client.not_ready().first(), Some(&NotReady::Stopping));

    let mut stranger = Story::begin();
    stranger.is_stranger = true;
    stranger.pass(5 * SECOND);
    assert!(stranger.client.not_ready().contains(&NotReady::NotAdmitted("a stranger".into())));
}
