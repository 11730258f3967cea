//! Bad histories, one for each guarantee: each is detected, and the operations that show it are
//! named.

use crate::story::{
    NO, Story, YES, acquire, cas, destroy, granted, key, lasting, locked, release, seen, set, with_ttl,
};
use lockmesh_tests::history::operation::{Query, Reply, SessionWish, TxnStep, Write};
use lockmesh_tests::history::{Bounds, check_within};
use std::time::Duration;

const MODEL: &str = "answers agree with the model";
const NEWEST: &str = "a read shows the newest state";
const ONCE: &str = "whatever is seen was written once";

#[test]
fn an_acknowledged_write_is_lost() {
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((2, 3), set("a", "2"), 6, YES)
        .read((4, 5), key("a"), 5, &[seen("a", "1", 5, 5)])
        .breaks(NEWEST, &[2, 3]);
    Story::new().write((0, 1), set("a", "1"), 5, YES).read((4, 5), key("a"), 5, &[]).breaks(MODEL, &[1, 2]);
    Story::new().write((0, 1), set("a", "1"), 5, YES).read((4, 5), key("a"), 1, &[]).breaks(NEWEST, &[1, 2]);
}

#[test]
fn a_read_goes_back() {
    // The write is pending all the time, but the second read began after the first had seen the
    // write.
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((10, 50), set("a", "2"), 6, YES)
        .read((11, 12), key("a"), 6, &[seen("a", "2", 5, 6)])
        .read((13, 14), key("a"), 5, &[seen("a", "1", 5, 5)])
        .breaks(NEWEST, &[3, 4]);
}

#[test]
fn read_regresses_behind_other_key() {
    Story::new()
        .write((0, 50), set("a", "1"), 5, YES)
        .write((0, 50), set("b", "1"), 6, YES)
        .read((11, 12), key("b"), 6, &[seen("b", "1", 6, 6)])
        .read((13, 14), key("a"), 1, &[])
        .breaks(NEWEST, &[3, 4]);
}

#[test]
fn listing_mixes_two_states() {
    Story::new()
        .write((0, 50), set("a", "1"), 5, YES)
        .write((0, 50), set("b", "1"), 6, YES)
        .read((11, 12), Query::Prefix(String::new()), 6, &[seen("b", "1", 6, 6)])
        .breaks(MODEL, &[2, 3]);
    Story::new()
        .write((0, 50), set("p/a", "1"), 5, YES)
        .write((0, 50), set("p/b", "1"), 6, YES)
        .read((11, 12), Query::Prefix("p/".into()), 6, &[seen("p/b", "1", 6, 6)])
        .breaks(NEWEST, &[3]);
}

#[test]
fn stale_read_shows_nonexistent_state() {
    let rule = "a stale read shows a state that was there";
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((2, 3), set("b", "1"), 6, YES)
        .stale((4, 5), Query::Prefix(String::new()), 6, &[seen("b", "1", 6, 6)])
        .breaks(MODEL, &[2, 3]);
    Story::new()
        .write((0, 1), set("p/a", "1"), 5, YES)
        .write((2, 3), set("p/b", "1"), 6, YES)
        .stale((4, 5), Query::Prefix("p/".into()), 6, &[seen("p/b", "1", 6, 6)])
        .breaks(rule, &[3]);
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .stale((2, 3), key("a"), 6, &[seen("a", "2", 5, 6)])
        .write((4, 5), set("a", "2"), 6, YES)
        .breaks(rule, &[2]);
}

#[test]
fn a_write_takes_effect_twice() {
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((2, 3), set("a", "2"), 6, YES)
        .read((4, 5), key("a"), 8, &[seen("a", "1", 5, 8)])
        .breaks(ONCE, &[1, 3]);
    Story::new()
        .unknown((0, 1), set("a", "1"))
        .read((2, 3), key("a"), 5, &[seen("a", "1", 5, 5)])
        .write((4, 5), set("a", "2"), 6, YES)
        .read((6, 7), key("a"), 8, &[seen("a", "1", 5, 8)])
        .breaks(ONCE, &[1, 4]);
}

#[test]
fn failed_write_is_visible() {
    Story::new()
        .not_done((0, 1), set("a", "1"))
        .read((2, 3), key("a"), 5, &[seen("a", "1", 5, 5)])
        .breaks(ONCE, &[1, 2]);
}

#[test]
fn write_visible_before_request() {
    Story::new()
        .read((0, 1), key("a"), 5, &[seen("a", "1", 5, 5)])
        .unknown((2, 3), set("a", "1"))
        .breaks(ONCE, &[1, 2]);
}

#[test]
fn unknown_write_precedes_completed_write() {
    Story::new()
        .write((0, 1), set("b", "1"), 9, YES)
        .unknown((2, 3), set("a", "1"))
        .read((4, 5), key("a"), 9, &[seen("a", "1", 7, 7)])
        .breaks(ONCE, &[2, 3]);
}

#[test]
fn duplicate_write_index() {
    let rule = "every acknowledged write has an index of its own";
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((2, 3), set("b", "2"), 5, YES)
        .breaks(rule, &[1, 2]);
}

#[test]
fn the_log_contradicts_real_time() {
    Story::new()
        .write((0, 1), set("a", "1"), 6, YES)
        .write((2, 3), set("b", "2"), 5, YES)
        .breaks("the log has the order of real time", &[1, 2]);
}

#[test]
fn a_condition_is_judged_wrong() {
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((2, 3), set("a", "2"), 6, YES)
        .write((4, 5), cas("a", "3", 5), 7, YES)
        .breaks(MODEL, &[3]);
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((4, 5), cas("a", "3", 5), 7, NO)
        .breaks(MODEL, &[2]);
}

#[test]
fn a_lock_has_two_holders() {
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .session((0, 1), "t", lasting(), 3)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .write((4, 5), acquire("l", "t1", "t"), 5, granted(2))
        .breaks(MODEL, &[4]);
}

#[test]
fn non_holder_releases_lock() {
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .session((0, 1), "t", lasting(), 3)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .write((4, 5), release("l", "t1", "t"), 5, YES)
        .breaks(MODEL, &[4]);
}

#[test]
fn destroyed_session_acquires_lock() {
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .write((2, 3), destroy("s"), 3, YES)
        .write((4, 5), acquire("l", "s1", "s"), 4, granted(1))
        .breaks(MODEL, &[3]);
}

#[test]
fn fencing_token_repeats_or_decreases() {
    let rule = "fencing tokens only grow";
    let story = |second: u64| {
        Story::new()
            .session((0, 1), "s", lasting(), 2)
            .write((2, 3), acquire("l", "s1", "s"), 4, granted(7))
            .write((4, 5), release("l", "s2", "s"), 5, YES)
            .write((6, 7), acquire("m", "s3", "s"), 6, granted(second))
    };
    story(6).breaks(rule, &[2, 4]);
    story(7).breaks(rule, &[2, 4]);
    story(8).verdict().expect_clean();
    // The same hold keeps its token.
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(7))
        .write((4, 5), acquire("l", "s2", "s"), 5, granted(8))
        .breaks(MODEL, &[3]);
}

#[test]
fn a_session_dies_too_early() {
    let story = |wish: SessionWish, at: u64| {
        Story::new()
            .session((0, 1), "s", wish, 2)
            .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
            .alive((50, 51), "s", true)
            .read((at, at + 1), key("l"), 9, &[locked(seen("l", "s1", 4, 9), 1, None)])
    };
    story(with_ttl(100), 148).breaks(ONCE, &[4]);
    story(with_ttl(100), 149).verdict().expect_clean();
    story(lasting(), 100_000).breaks(ONCE, &[4]);
    let rule = "a session lives until its end";
    Story::new().session((0, 1), "s", with_ttl(100), 2).alive((50, 51), "s", false).breaks(rule, &[2]);
}

#[test]
fn a_session_comes_back() {
    let rule = "a session that ended stays ended";
    Story::new()
        .session((0, 1), "s", with_ttl(10), 2)
        .alive((50, 51), "s", false)
        .alive((52, 53), "s", true)
        .breaks(rule, &[2, 3]);
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .write((2, 3), destroy("s"), 3, YES)
        .alive((4, 5), "s", true)
        .breaks(rule, &[2, 3]);
}

#[test]
fn lock_delay_ends_early() {
    let delayed = SessionWish { lock_delay_ms: 50, ..SessionWish::default() };
    let story = |ended: u64| {
        Story::new()
            .session((0, 1), "s", delayed.clone(), 2)
            .session((0, 1), "t", lasting(), 3)
            .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
            .write((10, 11), destroy("s"), 5, YES)
            .write((12, ended), acquire("l", "t1", "t"), 6, granted(2))
    };
    story(59).breaks(MODEL, &[5]);
    story(60).verdict().expect_clean();
}

#[test]
fn lock_delay_without_lost_lock() {
    Story::new()
        .session((0, 1), "s", lasting(), 2)
        .write((2, 3), acquire("l", "s1", "s"), 4, Reply::Delayed)
        .breaks(MODEL, &[2]);
}

#[test]
fn a_transaction_is_torn() {
    let pair = Write::Txn(vec![TxnStep::Write(set("a", "1")), TxnStep::Write(set("b", "1"))]);
    Story::new()
        .unknown((0, 1), pair)
        .read((2, 3), key("a"), 5, &[seen("a", "1", 5, 5)])
        .read((4, 5), key("b"), 5, &[])
        .breaks(ONCE, &[2, 3]);
}

#[test]
fn a_version_has_two_contents() {
    Story::new()
        .write((0, 9), set("a", "1"), 5, YES)
        .stale((2, 3), key("a"), 5, &[seen("a", "1", 5, 5)])
        .stale((2, 3), key("a"), 5, &[seen("a", "2", 5, 5)])
        .breaks("a version has one content", &[2, 3]);
}

#[test]
fn watch_regresses_or_misses_change() {
    Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .watch((2, 3), "a", 9, 5, &[seen("a", "1", 5, 5)])
        .breaks("a watch never goes back", &[2]);
    let history = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .watch((2, 900), "a", 5, 6, &[seen("a", "2", 5, 6)])
        .write((10, 11), set("a", "2"), 6, YES)
        .history();
    let limit =
        |milliseconds| Bounds { wake_limit: Duration::from_millis(milliseconds), ..Bounds::default() };
    check_within(&history, &limit(889)).expect_clean();
    let found = check_within(&history, &limit(888)).violations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].rule, found[0].operations.as_slice()), ("a watch sees the change", &[3, 2][..]));
}
