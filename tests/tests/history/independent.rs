//! The independent third-party checker on histories that ours is not asked about: indexes are made
//! up, so that only times and values count.

use crate::story::{
    NO, Story, YES, acquire, cas, destroy, granted, key, lasting, locked, release, seen, set, with_ttl,
};
use lockmesh_tests::history::operation::{KvWrite, Query, TxnStep, Write};

/// Returns `true` if the independent checker, and only that one, rejects a story.
#[track_caller]
fn is_refused(story: Story) -> bool {
    let verdict = story.verdict();
    assert!(
        verdict.counts.keys_checked_independently > 0 && verdict.counts.keys_too_long == 0,
        "{verdict:?}"
    );
    verdict.violations.iter().any(|violation| violation.rule == "the history of a key is linearizable")
}

#[test]
fn overlapping_writes_may_reorder() {
    let story = || Story::new().write((0, 10), set("a", "1"), 5, YES).write((0, 10), set("a", "2"), 6, YES);
    let read = |at, value| (at, value);
    let then = |story: Story, (at, value): (u64, &str)| {
        story.read((at, at + 1), key("a"), 9, &[seen("a", value, 9, 9)])
    };
    assert!(!is_refused(then(then(story(), read(2, "1")), read(5, "2"))));
    assert!(!is_refused(then(then(story(), read(2, "2")), read(5, "1"))));
    // Once one was seen after both had ended, the other is gone.
    assert!(is_refused(then(then(story(), read(12, "2")), read(15, "1"))));
}

#[test]
fn a_register_loses_a_write() {
    let story = Story::new().write((0, 1), set("a", "1"), 5, YES).write((2, 3), set("a", "2"), 6, YES);
    assert!(is_refused(story.read((4, 5), key("a"), 5, &[seen("a", "1", 5, 5)])));
    let story = Story::new().write((0, 1), set("a", "1"), 5, YES);
    assert!(is_refused(story.read((4, 5), key("a"), 5, &[])));
}

#[test]
fn unanswered_write_applies_late_once() {
    let story = || {
        Story::new()
            .unknown((0, 1), set("a", "1"))
            .write((2, 3), set("a", "2"), 5, YES)
            .read((4, 5), key("a"), 5, &[seen("a", "2", 5, 5)])
            .read((6, 7), key("a"), 6, &[seen("a", "1", 5, 6)])
    };
    assert!(!is_refused(story()));
    let again = story().write((8, 9), set("a", "3"), 7, YES);
    assert!(is_refused(again.read((10, 11), key("a"), 8, &[seen("a", "1", 5, 8)])));
}

#[test]
fn cas_reply_must_match_version() {
    let story = |expected, reply| {
        Story::new()
            .write((0, 1), set("a", "1"), 5, YES)
            .read((2, 3), key("a"), 5, &[seen("a", "1", 5, 5)])
            .write((4, 5), set("a", "2"), 6, YES)
            .read((6, 7), key("a"), 6, &[seen("a", "2", 5, 6)])
            .write((8, 9), cas("a", "3", expected), 7, reply)
    };
    assert!(!is_refused(story(6, YES)) && !is_refused(story(5, NO)));
    assert!(is_refused(story(5, YES)) && is_refused(story(6, NO)));
}

#[test]
fn a_lock_has_one_holder() {
    let story = || {
        Story::new().session((0, 1), "s", lasting(), 2).session((0, 1), "t", lasting(), 3).write(
            (2, 3),
            acquire("l", "s1", "s"),
            4,
            granted(1),
        )
    };
    assert!(is_refused(story().write((4, 5), acquire("l", "t1", "t"), 5, granted(2))));
    assert!(is_refused(story().write((4, 5), release("l", "t1", "t"), 5, YES)));
    let given_back = || story().unknown((4, 5), release("l", "s2", "s"));
    assert!(!is_refused(given_back().write((6, 7), acquire("l", "t1", "t"), 9, granted(2))));
    let ended = || story().write((4, 5), destroy("s"), 5, YES);
    assert!(!is_refused(ended().write((6, 7), acquire("l", "t1", "t"), 9, granted(2))));
    assert!(is_refused(ended().read((6, 7), key("l"), 5, &[locked(seen("l", "s1", 4, 4), 1, Some("s"))])));
}

#[test]
fn ttl_session_may_end_anytime() {
    let story = Story::new()
        .session((0, 1), "s", with_ttl(10), 2)
        .session((0, 1), "t", lasting(), 3)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .write((50, 51), acquire("l", "t1", "t"), 5, granted(2));
    assert!(!is_refused(story));
}

#[test]
fn txn_and_tree_affect_every_key() {
    let story = || {
        let pair = Write::Txn(vec![TxnStep::Write(set("a", "1")), TxnStep::Write(set("b", "1"))]);
        let shown = |name: &str| {
            let bare = seen(name, "", 5, 5);
            lockmesh_tests::history::operation::Seen { value: None, ..bare }
        };
        let reply = lockmesh_tests::history::operation::Reply::Txn(vec![shown("a"), shown("b")]);
        Story::new().write((0, 1), pair, 5, reply)
    };
    assert!(is_refused(story().read((2, 3), key("b"), 5, &[])));
    assert!(is_refused(story().read((2, 3), Query::Prefix(String::new()), 5, &[seen("a", "1", 5, 5)])));
    let emptied = || story().write((2, 3), KvWrite::DeleteTree { prefix: String::new() }, 6, YES);
    assert!(!is_refused(emptied().read((4, 5), Query::Prefix(String::new()), 6, &[])));
    assert!(is_refused(emptied().read((4, 5), key("a"), 5, &[seen("a", "1", 5, 5)])));
}
