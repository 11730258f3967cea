//! A leader's guarantees for lock waits in virtual time: lower and upper bounds.

use crate::solo::{Solo, entry};
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::reply::Reply;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

impl Solo {
    fn enqueue(&mut self, session: &SessionId, wait: Duration) -> Reply {
        let command = KvCommand::Enqueue { new: entry("job"), session: *session, wait };
        self.command(Command::Kv(command))
    }

    fn release(&mut self, session: &SessionId) {
        let reply = self.command(Command::Kv(KvCommand::Release(entry("job"), *session)));
        assert_eq!(reply, Reply::Succeeded(true));
    }

    fn holder(&self) -> Option<SessionId> {
        self.entry("job").and_then(|entry| entry.lock.session)
    }

    fn waiting(&self) -> usize {
        self.core.state().waiters().count()
    }

    /// Runs until no session waits; returns the elapsed time, at most a minute.
    fn time_until_nobody_waits(&mut self) -> Duration {
        let began = self.now;
        while self.waiting() > 0 && self.now.since(began) < 60 * SECOND {
            self.run(TICK);
        }
        self.now.since(began)
    }
}

/// A server with a lock that the first of three sessions holds.
fn held() -> (Solo, [SessionId; 3]) {
    let mut solo = Solo::start();
    let sessions = ["1", "2", "3"].map(|name| solo.session(name, Duration::ZERO, Duration::ZERO));
    assert!(matches!(solo.acquire("job", &sessions[0]), Reply::Granted { .. }));
    (solo, sessions)
}

#[test]
fn a_wait_of_five_seconds_is_five_seconds() {
    let (mut solo, [first, second, third]) = held();
    assert!(matches!(solo.enqueue(&second, 5 * SECOND), Reply::Queued { .. }));
    let waited = solo.time_until_nobody_waits();
    assert!((5 * SECOND..=5 * SECOND + 2 * TICK).contains(&waited), "{waited:?}");
    assert_eq!(solo.holder(), Some(first));
    assert!(matches!(solo.enqueue(&third, 5 * SECOND), Reply::Queued { .. }));
    solo.run(4 * SECOND);
    solo.release(&first);
    assert_eq!((solo.holder(), solo.waiting()), (Some(third), 0));
    solo.run(60 * SECOND);
    assert_eq!(solo.holder(), Some(third), "the end of a wait that came true ends nothing");
}

#[test]
fn who_asks_again_waits_anew_in_the_same_place() {
    let (mut solo, [first, second, third]) = held();
    let place = solo.enqueue(&second, 5 * SECOND);
    solo.enqueue(&third, 60 * SECOND);
    solo.run(4 * SECOND);
    assert_eq!(solo.enqueue(&second, 5 * SECOND), place);
    solo.run(4 * SECOND);
    assert_eq!(solo.waiting(), 2);
    solo.release(&first);
    assert_eq!(solo.holder(), Some(second));
}

#[test]
fn a_wait_survives_a_restart_in_full() {
    let (mut solo, [first, second, third]) = held();
    solo.enqueue(&second, 10 * SECOND);
    solo.enqueue(&third, 20 * SECOND);
    solo.run(9 * SECOND);
    solo.crash();
    solo.run(9 * SECOND);
    assert_eq!(solo.waiting(), 2, "never shortened by a restart");
    solo.run(SECOND + 3 * TICK);
    assert_eq!(solo.waiting(), 1);
    solo.release(&first);
    assert_eq!(solo.holder(), Some(third));
}

#[test]
fn a_server_that_did_not_run_ends_no_wait_for_it() {
    let (mut solo, [_, second, _]) = held();
    solo.enqueue(&second, 5 * SECOND);
    solo.pause(100 * SECOND);
    solo.run(4 * SECOND);
    assert_eq!(solo.waiting(), 1);
    solo.run(SECOND + 3 * TICK);
    assert_eq!(solo.waiting(), 0);
}

#[test]
fn a_lock_whose_holder_expires_passes_on_when_its_delay_is_over() {
    let mut solo = Solo::start();
    let holder = solo.session("1", 10 * SECOND, 15 * SECOND);
    let next = solo.session("2", Duration::ZERO, Duration::ZERO);
    solo.acquire("job", &holder);
    solo.enqueue(&next, 60 * SECOND);
    while solo.lives(&holder) {
        solo.run(TICK);
    }
    assert_eq!(solo.holder(), None);
    solo.run(15 * SECOND - TICK);
    assert_eq!((solo.holder(), solo.waiting()), (None, 1), "the delay is a lower bound");
    solo.run(3 * TICK);
    assert_eq!((solo.holder(), solo.waiting()), (Some(next), 0));
}

#[test]
fn a_wait_that_lasts_too_long_is_an_hour_at_most() {
    let (mut solo, [_, second, _]) = held();
    solo.enqueue(&second, Duration::MAX);
    solo.run(3599 * SECOND);
    assert_eq!(solo.waiting(), 1);
    solo.run(SECOND + 2 * TICK);
    assert_eq!(solo.waiting(), 0);
}

#[test]
fn a_wait_counts_where_it_ends_with_the_lock_and_not_where_it_is_given_up() {
    let (mut solo, [first, second, third]) = held();
    assert!(matches!(solo.enqueue(&second, 60 * SECOND), Reply::Queued { .. }));
    assert!(matches!(solo.enqueue(&third, SECOND), Reply::Queued { .. }));
    solo.run(3 * SECOND);
    assert_eq!((solo.waiting(), solo.core.take_observed().lock_waits), (1, Vec::new()), "the third gave up");
    assert_eq!(solo.core.state().waiter_count(), 1);
    solo.release(&first);
    let waits = solo.core.take_observed().lock_waits;
    assert!(matches!(waits[..], [wait] if (3 * SECOND..4 * SECOND).contains(&wait)), "{waits:?}");
    assert_eq!((solo.core.state().holder(&"job".into()), solo.core.state().held_count()), (Some(&second), 1));
}
