//! Histories of waiters for a lock: good ones pass, and every bad one is detected.

use crate::story::{
    NO, Story, YES, acquire, destroy, granted, granted_at, key, lasting, locked, release, seen, set, wait,
};
use lockmesh_tests::history::operation::{KvWrite, Reply, SessionWish};

const MODEL: &str = "answers agree with the model";

/// Three sessions; the first holds the lock.
fn held_by(first: SessionWish) -> Story {
    Story::new()
        .session((0, 1), "s", first, 2)
        .session((0, 1), "t", lasting(), 3)
        .session((0, 1), "u", lasting(), 4)
        .write((2, 3), acquire("l", "s1", "s"), 5, granted(1))
}

fn held() -> Story {
    held_by(lasting())
}

#[test]
fn freeing_command_grants_next_waiter() {
    let verdict = held()
        .write((4, 31), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((5, 51), wait("l", "u1", "u"), 7, granted_at(10, 3))
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .read((40, 41), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .write((50, 51), destroy("t"), 10, YES)
        .read((60, 61), key("l"), 10, &[locked(seen("l", "u1", 5, 10), 3, Some("u"))])
        .write((62, 63), wait("m", "u2", "u"), 11, granted(4))
        .verdict();
    verdict.expect_clean();
    assert_eq!(verdict.counts.grants, 4);
}

/// A release during the wait gave up the position.
#[test]
fn detects_grant_after_position_released() {
    held()
        .write((4, 35), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((6, 7), release("l", "t2", "t"), 7, NO)
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .read((40, 41), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .breaks(MODEL, &[8]);
}

#[test]
fn waiter_granted_after_delay_or_delete() {
    let delayed = SessionWish { lock_delay_ms: 50, ..SessionWish::default() };
    held_by(delayed)
        .write((4, 95), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((30, 31), destroy("s"), 7, YES)
        .read((96, 97), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .write((98, 120), wait("l", "u1", "u"), 9, granted_at(10, 3))
        .write((110, 120), KvWrite::Delete { key: "l".into() }, 10, YES)
        .read((121, 122), key("l"), 10, &[locked(seen("l", "u1", 10, 10), 1, Some("u"))])
        .verdict()
        .expect_clean();
}

#[test]
fn lock_delay_end_grants_unanswered_waiter() {
    let delayed = SessionWish { lock_delay_ms: 50, ..SessionWish::default() };
    held_by(delayed)
        .unknown((4, 40), wait("l", "t1", "t"))
        .write((30, 31), destroy("s"), 7, YES)
        .read((96, 97), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .verdict()
        .expect_clean();
}

#[test]
fn unanswered_destroy_grants_unanswered_waiter() {
    let delayed = SessionWish { lock_delay_ms: 50, ..SessionWish::default() };
    held_by(delayed)
        .unknown((4, 40), wait("l", "t1", "t"))
        .unknown((30, 31), destroy("s"))
        .read((96, 97), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .verdict()
        .expect_clean();
}

#[test]
fn timed_out_waiter_is_skipped() {
    held()
        .write((4, 20), wait("l", "t1", "t"), 6, NO)
        .write((5, 31), wait("l", "u1", "u"), 7, granted_at(9, 2))
        .write((30, 31), release("l", "s2", "s"), 9, YES)
        .verdict()
        .expect_clean();
}

#[test]
fn undelivered_grant_passes_to_waiter() {
    let story = |first: Story| {
        first
            .write((5, 41), wait("l", "u1", "u"), 7, granted_at(9, 3))
            .write((30, 31), release("l", "s2", "s"), 8, YES)
            .read((42, 43), key("l"), 9, &[locked(seen("l", "u1", 5, 9), 3, Some("u"))])
            .verdict()
            .expect_clean();
    };
    story(held().write((4, 45), wait("l", "t1", "t"), 6, NO));
    story(held().unknown((4, 4), wait("l", "t1", "t")));
}

#[test]
fn undelivered_grant_without_waiters_freed() {
    held()
        .write((4, 45), wait("l", "t1", "t"), 6, NO)
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .read((46, 47), key("l"), 9, &[locked(seen("l", "t1", 5, 9), 2, None)])
        .verdict()
        .expect_clean();
}

/// A lock is closed while two sessions wait for it until they time out; its next holder sees the
/// number of undelivered grants.
fn granted_unheard(times: u64) -> Story {
    let delayed = SessionWish { lock_delay_ms: 50, ..SessionWish::default() };
    held_by(delayed)
        .write((4, 100), wait("l", "t1", "t"), 6, NO)
        .write((5, 101), wait("l", "u1", "u"), 7, NO)
        .write((30, 31), destroy("s"), 8, YES)
        .write((110, 111), set("m", "1"), 20, YES)
        .write((112, 113), wait("l", "t2", "t"), 21, granted(9))
        .read((114, 115), key("l"), 21, &[locked(seen("l", "t2", 5, 21), times + 2, Some("t"))])
}

#[test]
fn undelivered_grants_once_per_waiter() {
    for times in 0..=2 {
        granted_unheard(times).verdict().expect_clean();
    }
    granted_unheard(3).breaks(MODEL, &[9, 10]);
}

#[test]
fn leave_command_gives_up_position() {
    let leave = KvWrite::Leave { key: "l".into(), session: "t".into(), asked: 6 };
    held()
        .write((4, 5), wait("l", "t1", "t"), 6, Reply::Queued)
        .write((6, 7), leave, 7, YES)
        .write((8, 9), release("l", "s2", "s"), 8, YES)
        .read((10, 11), key("l"), 8, &[locked(seen("l", "s2", 5, 8), 1, None)])
        .verdict()
        .expect_clean();
}

#[test]
fn detects_out_of_order_grant() {
    held()
        .write((4, 60), wait("l", "t1", "t"), 6, granted_at(10, 3))
        .write((5, 31), wait("l", "u1", "u"), 7, granted_at(8, 2))
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .write((50, 51), release("l", "u2", "u"), 10, YES)
        .breaks(MODEL, &[6, 7]);
}

#[test]
fn detects_acquire_overtaking_waiter() {
    held()
        .write((4, 60), wait("l", "t1", "t"), 6, granted_at(10, 3))
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .write((40, 41), acquire("l", "u1", "u"), 9, granted(2))
        .write((50, 51), release("l", "u2", "u"), 10, YES)
        .breaks(MODEL, &[7]);
}

#[test]
fn detects_two_holders() {
    held()
        .write((4, 31), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((30, 31), set("a", "1"), 8, YES)
        .breaks(MODEL, &[5, 6]);
}

#[test]
fn detects_grant_after_wait_timeout() {
    held()
        .write((4, 20), wait("l", "t1", "t"), 6, NO)
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .read((40, 41), key("l"), 8, &[locked(seen("l", "t1", 5, 8), 2, Some("t"))])
        .breaks(MODEL, &[6, 7]);
}

#[test]
fn detects_grant_to_ended_session() {
    held()
        .write((4, 41), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((20, 21), destroy("t"), 7, YES)
        .write((30, 31), release("l", "s2", "s"), 8, YES)
        .breaks(MODEL, &[7]);
}

#[test]
fn detects_grant_during_lock_delay() {
    let delayed = SessionWish { lock_delay_ms: 500, ..SessionWish::default() };
    held_by(delayed)
        .write((4, 95), wait("l", "t1", "t"), 6, granted_at(8, 2))
        .write((30, 31), destroy("s"), 7, YES)
        .breaks("whatever is seen was written once", &[5]);
}
