//! Deadlines in virtual time: they pass at the exact moment of a request, and not before a late
//! tick is handled.

use crate::solo::Disk;
use lockmesh_core::frontend::{Actions, Event, Frontend, FrontendConfig, Storage};
use lockmesh_core::raft::TICK;
use lockmesh_core::{Core, Input};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{ServerId, WallTime};
use lockmesh_protocol::record::{LockDelay, NewServer};
use lockmesh_protocol::time::Time;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

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
fn leader_wakes_for_next_deadline() {
    let (mut frontend, mut actions, mut now) = leading_with_a_delay();
    turn(&mut frontend, now, &mut actions);
    assert!(frontend.core().replica().is_serving(), "a server that is alone leads at once");
    let ends = now + TICK + 7 * MILLISECOND;
    for expected in [now + TICK, ends] {
        assert_eq!(frontend.wakes_at(), expected);
        assert_eq!(frontend.core().replica().state().delays().count(), 1, "a delay is a lower bound");
        now = expected;
        turn(&mut frontend, now, &mut actions);
    }
    assert_eq!(frontend.core().replica().state().delays().count(), 0);
    assert_eq!(frontend.wakes_at(), Time(0) + 2 * TICK);
}

crate::script::stories! { crate::single::Single, "deadlines.txt",
    millisecond_lock_delay_is_exact enqueue_after_lock_delay_granted_immediately
    transaction_locks_after_lock_delay lock_granted_after_reported_delay
    restore_delays_held_lock_longest_window remaining_delay_at_request_never_zero
    timed_out_wait_reports_remaining_delay deadlines_fire_between_ticks
    deadlines_between_ticks_are_bounded pause_shifts_deadlines_before_expiry
}
