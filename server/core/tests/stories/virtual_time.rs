//! A single server's time guarantees in virtual time: lower and upper bounds.

use crate::solo::{Solo, entry};
use lockmesh_core::Input;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::{Command, Deregistration, KvCommand, NewEntry};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Runs until the session has ended; returns the elapsed time, at most `limit`.
fn time_until_gone(solo: &mut Solo, session: &lockmesh_protocol::id::SessionId, limit: Duration) -> Duration {
    let began = solo.now;
    while solo.lives(session) && solo.now.since(began) < limit {
        solo.run(TICK);
    }
    solo.now.since(began)
}

#[test]
fn a_session_of_ten_seconds_lives_ten_and_is_gone_after_twenty() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    solo.run(10 * SECOND);
    assert!(solo.lives(&session), "the TTL is a lower bound");
    let rest = time_until_gone(&mut solo, &session, 60 * SECOND);
    assert!(rest <= 10 * SECOND + 2 * TICK, "gone {rest:?} after its TTL");
}

#[test]
fn a_renewal_postpones_the_end_by_a_whole_window() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    for _ in 0..10 {
        solo.run(9 * SECOND);
        assert_eq!(solo.renew(&session), Some(true));
    }
    let rest = time_until_gone(&mut solo, &session, 60 * SECOND);
    assert!(rest >= 10 * SECOND && rest <= 20 * SECOND + 2 * TICK, "gone after {rest:?}");
    assert_eq!(solo.renew(&session), Some(false));
}

#[test]
fn a_session_without_a_ttl_lives_on() {
    let mut solo = Solo::start();
    let session = solo.session("1", Duration::ZERO, Duration::ZERO);
    solo.run(1000 * SECOND);
    assert!(solo.lives(&session));
}

#[test]
fn a_restart_gives_every_session_its_window_again() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    solo.run(19 * SECOND);
    solo.crash();
    solo.run(10 * SECOND);
    assert!(solo.lives(&session), "the TTL is a lower bound after a restart too");
    let rest = time_until_gone(&mut solo, &session, 60 * SECOND);
    assert!(rest <= 10 * SECOND + 5 * TICK, "gone {rest:?} after its TTL");
}

#[test]
fn a_server_that_did_not_run_expires_nobody_for_it() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    solo.run(5 * SECOND);
    solo.pause(100 * SECOND);
    solo.run(14 * SECOND);
    assert!(solo.lives(&session), "the time of the pause does not count");
    solo.run(2 * SECOND);
    assert!(!solo.lives(&session));
}

#[test]
fn a_renewal_after_a_pause_counts_from_its_arrival() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    solo.run(5 * SECOND);
    solo.pause(100 * SECOND);
    // It was unread, and is handled before the tick.
    assert_eq!(solo.renew(&session), Some(true));
    solo.run(19 * SECOND);
    assert!(solo.lives(&session));
    solo.run(2 * SECOND);
    assert!(!solo.lives(&session), "its deadline does not move by the pause");
}

#[test]
fn a_renewal_counts_once_its_expiry_is_proposed_no_more() {
    let mut solo = Solo::start();
    let session = solo.session("1", 10 * SECOND, Duration::ZERO);
    solo.flushes = false;
    solo.run(21 * SECOND);
    assert!(solo.lives(&session), "the expiry is not durable yet");
    assert_eq!(solo.renew(&session), None, "neither yes nor no");
    solo.sync();
    assert!(!solo.lives(&session));
}

#[test]
fn a_lock_delay_of_one_second_is_one_second() {
    let mut solo = Solo::start();
    let first = solo.session("1", Duration::ZERO, SECOND);
    let second = solo.session("2", Duration::ZERO, SECOND);
    assert!(matches!(solo.acquire("job", &first), Reply::Granted { .. }));
    solo.command(Command::DestroySession(first));
    assert_eq!(solo.acquire("job", &second), Reply::Delayed { remaining: SECOND });
    solo.run(Duration::from_millis(600));
    assert_eq!(solo.acquire("job", &second), Reply::Delayed { remaining: Duration::from_millis(400) });
    solo.run(Duration::from_millis(300));
    assert!(matches!(solo.acquire("job", &second), Reply::Delayed { .. }));
    solo.run(Duration::from_millis(100) + TICK);
    assert!(matches!(solo.acquire("job", &second), Reply::Granted { .. }));
}

#[test]
fn a_lock_delay_of_ninety_seconds_acts_as_sixty() {
    let mut solo = Solo::start();
    let first = solo.session("1", Duration::ZERO, 90 * SECOND);
    let second = solo.session("2", Duration::ZERO, SECOND);
    solo.acquire("job", &first);
    solo.command(Command::DestroySession(first));
    solo.run(59 * SECOND);
    assert!(matches!(solo.acquire("job", &second), Reply::Delayed { .. }));
    assert_eq!(solo.command(Command::Kv(KvCommand::Set(entry("job")))), Reply::Succeeded(true));
    assert_eq!(solo.command(Command::Kv(KvCommand::Delete(entry("job").key))), Reply::Succeeded(true));
    assert!(matches!(solo.acquire("job", &second), Reply::Delayed { .. }), "a delete does not end the delay");
    solo.run(SECOND + 2 * TICK);
    assert!(matches!(solo.acquire("job", &second), Reply::Granted { .. }));
}

#[test]
fn a_lock_delay_survives_a_restart_in_full() {
    let mut solo = Solo::start();
    let first = solo.session("1", Duration::ZERO, 10 * SECOND);
    let second = solo.session("2", Duration::ZERO, SECOND);
    solo.acquire("job", &first);
    solo.command(Command::DestroySession(first));
    solo.run(9 * SECOND);
    solo.crash();
    solo.run(9 * SECOND);
    assert!(matches!(solo.acquire("job", &second), Reply::Delayed { .. }), "never shortened by a restart");
    solo.run(SECOND + 3 * TICK);
    assert!(matches!(solo.acquire("job", &second), Reply::Granted { .. }));
}

#[test]
fn tombstones_are_forgotten_after_a_quarter_of_an_hour_and_no_sooner() {
    let mut solo = Solo::start();
    solo.command(Command::Kv(KvCommand::Set(entry("gone"))));
    solo.command(Command::Kv(KvCommand::Delete(entry("gone").key)));
    solo.run(14 * 60 * SECOND);
    assert!(solo.core.state().tombstones().count() == 1);
    solo.run(90 * SECOND);
    assert!(solo.core.state().tombstones().count() == 0);
}

#[test]
fn nothing_is_answered_before_it_is_durable() {
    let mut solo = Solo::start();
    solo.flushes = false;
    let token = solo.propose(Command::Kv(KvCommand::Set(entry("a"))));
    solo.run(SECOND);
    assert!(!solo.replies.contains_key(&token));
    solo.sync();
    assert!(matches!(solo.replies.get(&token), Some(Response::Applied(_))));
}

#[test]
fn what_was_answered_is_there_after_a_crash_and_what_was_not_may_be_gone() {
    let mut solo = Solo::start();
    solo.command(Command::Kv(KvCommand::Set(entry("kept"))));
    solo.flushes = false;
    let token = solo.propose(Command::Kv(KvCommand::Set(entry("lost"))));
    assert!(!solo.replies.contains_key(&token));
    solo.crash();
    assert!(solo.has("kept") && !solo.has("lost"));
}

#[test]
fn proposals_of_one_turn_share_one_write() {
    let mut solo = Solo::start();
    solo.flushes = false;
    let mut outbox = lockmesh_core::Outbox::default();
    for number in 0..100 {
        let command = Command::Kv(KvCommand::Set(entry(&format!("key-{number}"))));
        let proposal =
            lockmesh_core::Proposal { request: None, at: lockmesh_protocol::id::WallTime(1), command };
        let token = solo.token();
        solo.core.handle(solo.now, Input::Propose(token, proposal), &mut outbox);
    }
    solo.core.settle(solo.now, &mut outbox);
    assert_eq!(outbox.writes.len(), 1);
    assert_eq!(outbox.writes[0].entries.len(), 100);
}

#[test]
fn a_leader_that_is_alone_reads_at_once() {
    let mut solo = Solo::start();
    assert!(solo.may_read(Consistency::Default));
    assert!(solo.may_read(Consistency::Consistent));
    assert!(solo.may_read(Consistency::Stale));
}

#[test]
fn a_command_that_no_frame_could_carry_is_refused_and_the_others_of_its_turn_are_taken() {
    let mut solo = Solo::start();
    let long = NewEntry { value: vec![0; 5 << 20].into(), ..entry("long") };
    let token = solo.propose(Command::Kv(KvCommand::Set(long)));
    assert!(matches!(solo.replies.get(&token), Some(Response::Unavailable(Unavailable::Denied(_)))));
    assert_eq!(solo.command(Command::Kv(KvCommand::Set(entry("short")))), Reply::Succeeded(true));
    solo.crash();
    assert!(solo.has("short") && !solo.has("long"));
}

#[test]
fn a_session_may_have_the_longest_ttl_there_is() {
    let mut solo = Solo::start();
    let session = solo.session("1", Duration::MAX, SECOND);
    solo.run(10 * SECOND);
    assert_eq!(solo.renew(&session), Some(true));
    solo.crash();
    assert!(solo.lives(&session));
}

#[test]
fn the_delays_of_very_many_locks_last_in_full_and_end_bit_by_bit() {
    const LOCKS: usize = 700;
    let mut solo = Solo::start();
    for number in 0..LOCKS {
        let id = solo.session(&format!("lock-{number}"), 60 * SECOND, 5 * SECOND);
        assert!(matches!(solo.acquire(&format!("lock-{number}"), &id), Reply::Granted { .. }));
    }
    let node = Deregistration { node: "n1".into(), service: None, check: None };
    assert_eq!(solo.command(Command::Deregister(node)), Reply::Done);
    assert_eq!(solo.core.state().sessions().count(), 0, "all at once");
    solo.run(5 * SECOND - TICK);
    assert_eq!(solo.core.state().delays().count(), LOCKS);
    solo.run(2 * TICK);
    assert!(solo.core.state().delays().next().is_some(), "not all in one turn, which would delay others");
    solo.run(10 * TICK);
    assert_eq!(solo.core.state().delays().count(), 0);
}
