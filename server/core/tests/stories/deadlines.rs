//! Deadlines in virtual time: they pass at the exact moment of a request, and not before a late
//! tick is handled.

use crate::solo::{Disk, Solo, entry};
use lockmesh_core::frontend::{Actions, Event, Frontend, FrontendConfig, Storage};
use lockmesh_core::raft::TICK;
use lockmesh_core::{CallToken, Core, Input};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, RestoreStep, TxnKv, TxnOp};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId, WallTime};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{LockDelay, NewServer};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A server with a lock that a delay closes from now on, and a session that requests it.
fn closed_for(delay: Duration) -> (Solo, SessionId) {
    let mut solo = Solo::start();
    let holder = solo.session("1", Duration::ZERO, delay);
    let next = solo.session("2", Duration::ZERO, Duration::ZERO);
    assert!(matches!(solo.acquire("job", &holder), Reply::Granted { .. }));
    solo.command(Command::DestroySession(holder));
    (solo, next)
}

impl Solo {
    /// Advances time without a tick.
    fn wait(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    fn deadline_comes(&mut self) {
        self.input(Input::Deadline(WallTime(1)));
    }

    fn remaining_delay(&self, queue_position: CallToken) -> Option<Duration> {
        match self.replies.get(&queue_position) {
            Some(Response::Applied(Applied { reply: Reply::Delayed { remaining }, .. })) => Some(*remaining),
            _ => None,
        }
    }
}

fn acquire(session: &SessionId) -> Command {
    Command::Kv(KvCommand::Acquire(entry("job"), *session))
}

fn enqueue(session: &SessionId, wait: Duration) -> Command {
    Command::Kv(KvCommand::Enqueue { new: entry("job"), session: *session, wait })
}

fn lock_in_txn(session: &SessionId) -> Command {
    let lock = TxnKv {
        verb: KvVerb::Lock,
        key: "job".into(),
        value: Default::default(),
        flags: 0,
        index: LogIndex(0),
        session: Some(session.to_string()),
    };
    Command::Txn(vec![TxnOp::Kv(lock)])
}

#[test]
fn a_lock_delay_of_a_millisecond_lasts_a_millisecond() {
    let (mut solo, next) = closed_for(MILLISECOND);
    assert_eq!(solo.acquire("job", &next), Reply::Delayed { remaining: MILLISECOND });
    solo.wait(MILLISECOND);
    assert!(matches!(solo.acquire("job", &next), Reply::Granted { .. }), "no tick was needed");
}

#[test]
fn a_wait_for_a_lock_whose_delay_is_over_is_no_wait() {
    let (mut solo, next) = closed_for(5 * MILLISECOND);
    solo.wait(5 * MILLISECOND);
    assert!(matches!(solo.command(enqueue(&next, SECOND)), Reply::Granted { .. }));
}

#[test]
fn a_transaction_takes_a_lock_whose_delay_is_over() {
    let (mut solo, next) = closed_for(5 * MILLISECOND);
    assert!(matches!(solo.command(lock_in_txn(&next)), Reply::TxnFailed(_)));
    solo.wait(5 * MILLISECOND);
    assert!(matches!(solo.command(lock_in_txn(&next)), Reply::Txn(_)));
}

#[test]
fn whoever_waits_as_long_as_he_is_told_gets_the_lock() {
    for delay in [MILLISECOND, 7 * MILLISECOND, TICK, TICK + MILLISECOND, SECOND] {
        let (mut solo, next) = closed_for(delay);
        let began = solo.now;
        let Reply::Delayed { remaining } = solo.acquire("job", &next) else { panic!("it is closed") };
        if remaining > 2 * TICK {
            solo.run(remaining);
        } else {
            solo.wait(remaining);
        }
        assert!(matches!(solo.acquire("job", &next), Reply::Granted { .. }), "after {delay:?}");
        assert_eq!(solo.now.since(began), delay, "the delay is a lower bound");
    }
}

/// The holder of a lock that a restore removes may learn of it late, and rely on it until the
/// longest window has ended.
#[test]
fn a_lock_that_was_held_until_a_restore_is_closed_for_the_longest_window() {
    let mut solo = Solo::start();
    let [believer, next] = ["1", "2"].map(|name| solo.session(name, Duration::ZERO, Duration::ZERO));
    let rows: Vec<Change> = solo.core.state().rows().collect();
    assert!(matches!(solo.acquire("job", &believer), Reply::Granted { .. }));
    for step in [
        RestoreStep::Begin { id: 1 },
        RestoreStep::Part { id: 1, number: 0, rows },
        RestoreStep::Commit { id: 1, parts: 1 },
    ] {
        assert_eq!(solo.command(Command::Restore(step)), Reply::Done);
    }
    let longest = HealthWindow::Safe.validity();
    solo.run(longest - SECOND);
    assert!(matches!(solo.acquire("job", &next), Reply::Delayed { .. }));
    assert!(matches!(solo.command(enqueue(&next, 2 * longest)), Reply::Queued { .. }));
    // The next leader does not know the elapsed time, and restarts it.
    solo.crash();
    solo.run(longest - SECOND);
    assert_eq!(solo.entry("job"), None);
    solo.run(3 * SECOND);
    let holder = solo.entry("job").and_then(|entry| entry.lock.session);
    assert_eq!(holder, Some(next), "the waiter holds the lock");
}

#[test]
fn what_is_left_of_a_delay_is_told_as_of_the_request_and_is_never_nothing() {
    let (mut solo, next) = closed_for(TICK - MILLISECOND);
    solo.flushes = false;
    let early = solo.propose(acquire(&next));
    solo.wait(12 * MILLISECOND);
    let late = solo.propose(acquire(&next));
    solo.run(10 * TICK);
    solo.sync();
    assert_eq!(solo.remaining_delay(early), Some(TICK - MILLISECOND));
    assert_eq!(solo.remaining_delay(late), Some(TICK - 13 * MILLISECOND));

    let (mut solo, next) = closed_for(TICK);
    solo.wait(TICK - Duration::from_micros(1));
    assert_eq!(solo.acquire("job", &next), Reply::Delayed { remaining: MILLISECOND });
}

#[test]
fn a_wait_that_ends_with_the_delay_is_told_when_to_ask_again() {
    let (mut solo, next) = closed_for(TICK);
    let Reply::Queued { queue_position } = solo.command(enqueue(&next, 15 * MILLISECOND)) else {
        panic!("it is closed")
    };
    solo.wait(15 * MILLISECOND);
    solo.deadline_comes();
    solo.wait(5 * MILLISECOND);
    let place = Query::QueuePosition {
        key: "job".into(),
        session: next,
        queue_position,
        enqueued_at_index: queue_position,
    };
    let (_, rows) = solo.core.query(solo.now, &place);
    assert_eq!(rows, Rows::QueuePosition(Reply::Delayed { remaining: MILLISECOND }));
}

#[test]
fn deadlines_pass_between_ticks_when_the_shell_says_so() {
    let (mut solo, next) = closed_for(7 * MILLISECOND);
    let began = solo.now;
    assert!(matches!(solo.command(enqueue(&next, SECOND)), Reply::Queued { .. }));
    let due = solo.core.next_deadline().expect("the delay ends");
    assert_eq!(due, began + 7 * MILLISECOND);
    solo.now = due;
    solo.deadline_comes();
    assert_eq!(solo.entry("job").and_then(|entry| entry.lock.session), Some(next));
    assert_eq!(solo.core.next_deadline(), None);
}

#[test]
fn no_more_deadlines_pass_between_two_ticks_than_others_can_wait_for() {
    const LOCKS: usize = 225;
    let mut solo = Solo::start();
    let holder = solo.session("1", Duration::ZERO, 10 * MILLISECOND);
    for number in 0..LOCKS {
        assert!(matches!(solo.acquire(&format!("lock-{number}"), &holder), Reply::Granted { .. }));
    }
    solo.command(Command::DestroySession(holder));
    solo.now = solo.core.next_deadline().expect("the delays end");
    for _ in 0..10 {
        solo.deadline_comes();
    }
    assert_eq!(solo.core.state().delays().count(), LOCKS - 200);
    assert_eq!(solo.core.next_deadline(), None, "the rest is the next tick's");
    solo.run(2 * TICK);
    assert_eq!(solo.core.state().delays().count(), 0);
}

#[test]
fn a_server_that_did_not_run_moves_its_deadlines_before_anything_passes() {
    let (mut solo, next) = closed_for(SECOND);
    let sleeper = solo.session("3", SECOND, Duration::ZERO);
    solo.pause(100 * SECOND);
    solo.deadline_comes();
    assert!(matches!(solo.acquire("job", &next), Reply::Delayed { .. }), "the tick comes first");
    assert!(solo.lives(&sleeper), "no client could renew meanwhile");
    solo.run(500 * MILLISECOND);
    assert!(matches!(solo.acquire("job", &next), Reply::Delayed { .. }));
    solo.run(SECOND);
    assert!(matches!(solo.acquire("job", &next), Reply::Granted { .. }));
}

/// A single leader with a lock-delay in its snapshot, which it counts from now on.
fn leading_with_a_delay() -> (Frontend, Actions, Time) {
    let (mut disk, id) = (Disk::new(Core::bootstrap_snapshot(&[ServerId(1)])), ServerId(1));
    let (mark, mut state) = disk.snapshot();
    let delay = LockDelay { started_at_index: mark.index, duration: TICK + 7 * MILLISECOND };
    state.load(Change::ClusterId("c1".into()));
    state.load(Change::LockDelay("job".into(), Some(delay)));
    disk.keep_checkpoint(mark, state);
    let new = NewServer {
        node: "s1".into(),
        node_id: String::new(),
        address: "s1:8300".into(),
        instance_id: "s1".into(),
        format: format::NEWEST,
    };
    let config = FrontendConfig {
        own_record: new.with_id(id),
        cluster_id: "c1".into(),
        max_watches: 10,
        checkpoint_interval: SECOND,
        checkpoint_changes: 1000,
        corrupt: false,
    };
    let frontend = Frontend::new(config, disk.open(id, 7), Time(0), WallTime(0));
    (frontend, Actions::default(), Time(0))
}

fn turn(frontend: &mut Frontend, now: Time, actions: &mut Actions) {
    frontend.advance(now, WallTime(1), 0, actions);
    loop {
        frontend.decide(now, actions);
        frontend.settle(now, actions);
        let written = actions.storage.drain(..).filter_map(|action| match action {
            Storage::Write(write) => Some(write.number),
            _ => None,
        });
        let Some(last) = { written }.next_back() else { return };
        frontend.handle(now, Event::Core(Input::Persisted(last)), actions);
    }
}

#[test]
fn a_leader_wakes_up_for_its_next_deadline_and_not_only_for_ticks() {
    let (mut frontend, mut actions, mut now) = leading_with_a_delay();
    turn(&mut frontend, now, &mut actions);
    assert!(frontend.core().is_serving(), "a server that is alone leads at once");
    let ends = now + TICK + 7 * MILLISECOND;
    for expected in [now + TICK, ends] {
        assert_eq!(frontend.wakes_at(), expected);
        assert_eq!(frontend.core().state().delays().count(), 1, "a delay is a lower bound");
        now = expected;
        turn(&mut frontend, now, &mut actions);
    }
    assert_eq!(frontend.core().state().delays().count(), 0);
    assert_eq!(frontend.wakes_at(), Time(0) + 2 * TICK);
}
