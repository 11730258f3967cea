//! Good histories: no violation is found, and unanswered operations are placed where they must have
//! happened.

use crate::story::{
    NO, Story, YES, acquire, cas, delete, destroy, granted, key, lasting, locked, release, seen, set,
    with_ttl,
};
use lockmesh_tests::history::History;
use lockmesh_tests::history::operation::{KvWrite, Query, Reply, SessionWish, TxnStep, Write};

#[test]
fn overlapping_writes_take_any_order() {
    let story = Story::new()
        .write((0, 10), set("a", "1"), 6, YES)
        .write((0, 10), set("a", "2"), 5, YES)
        .read((11, 12), key("a"), 6, &[seen("a", "1", 5, 6)]);
    story.verdict().expect_clean();
}

#[test]
fn overlapping_read_sees_either_value() {
    let story = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((10, 20), set("a", "2"), 6, YES)
        .read((11, 12), key("a"), 6, &[seen("a", "2", 5, 6)])
        .stale((13, 14), key("a"), 5, &[seen("a", "1", 5, 5)]);
    story.verdict().expect_clean();
    let story = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .write((10, 20), set("a", "2"), 6, YES)
        .read((11, 12), key("a"), 5, &[seen("a", "1", 5, 5)]);
    story.verdict().expect_clean();
}

#[test]
fn unknown_write_placed_by_read() {
    let verdict = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .unknown((2, 3), set("a", "2"))
        .unknown((4, 5), set("a", "3"))
        .write((20, 21), cas("a", "4", 9), 12, YES)
        .read((30, 31), key("a"), 12, &[seen("a", "4", 5, 12)])
        .read((10, 11), key("a"), 9, &[seen("a", "2", 5, 9)])
        .verdict();
    verdict.expect_clean();
    assert_eq!((verdict.counts.unknown, verdict.counts.unknown_placed), (2, 1));
}

#[test]
fn unread_delete_explains_recreated_key() {
    // Another client must have deleted the key: it was created again.
    let verdict = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .unknown((2, 3), delete("a"))
        .write((10, 11), set("a", "2"), 8, YES)
        .read((12, 13), key("a"), 8, &[seen("a", "2", 8, 8)])
        .verdict();
    verdict.expect_clean();
    assert_eq!(verdict.counts.unknown_placed, 1);
}

#[test]
fn unknown_tree_delete_is_placed() {
    let tree = |prefix: &str| KvWrite::DeleteTree { prefix: prefix.into() };
    let verdict = Story::new()
        .write((0, 1), set("p/a", "1"), 5, YES)
        .write((0, 1), set("p/b", "1"), 6, YES)
        .write((0, 1), set("q", "1"), 7, YES)
        .unknown((2, 3), tree("p/"))
        .stale((4, 5), Query::Prefix("p/".into()), 9, &[])
        .verdict();
    verdict.expect_clean();
    assert_eq!(verdict.counts.unknown_placed, 1);
}

#[test]
fn unknown_release_frees_lock() {
    let verdict = Story::new()
        .session((0, 1), "s", lasting(), 3)
        .session((0, 1), "t", lasting(), 4)
        .write((2, 3), acquire("l", "s1", "s"), 5, granted(1))
        .write((4, 5), acquire("l", "t1", "t"), 6, NO)
        .unknown((6, 7), release("l", "s2", "s"))
        .write((8, 9), acquire("l", "t2", "t"), 9, granted(2))
        .write((10, 11), acquire("l", "t3", "t"), 10, granted(2))
        .write((12, 13), release("l", "t4", "t"), 11, YES)
        .read((14, 15), key("l"), 11, &[locked(seen("l", "t4", 5, 11), 2, None)])
        .verdict();
    verdict.expect_clean();
    assert_eq!((verdict.counts.unknown_placed, verdict.counts.grants), (1, 2));
}

#[test]
fn unknown_acquire_and_release_counted() {
    let verdict = Story::new()
        .session((0, 1), "s", lasting(), 3)
        .write((2, 3), set("l", "0"), 4, YES)
        .unknown((4, 5), acquire("l", "s1", "s"))
        .unknown((6, 7), release("l", "s2", "s"))
        .write((8, 9), acquire("l", "s3", "s"), 9, granted(2))
        .read((10, 11), key("l"), 9, &[locked(seen("l", "s3", 4, 9), 2, Some("s"))])
        .verdict();
    verdict.expect_clean();
    assert_eq!(verdict.counts.unknown_placed, 2);
}

#[test]
fn wrong_guess_is_backtracked() {
    // Either of two unanswered acquires explains the refusal; only the second explains the rest.
    let verdict = Story::new()
        .session((0, 1), "s", lasting(), 2)
        .session((0, 1), "t", lasting(), 3)
        .session((0, 1), "u", lasting(), 4)
        .unknown((2, 3), acquire("l", "s1", "s"))
        .unknown((2, 3), acquire("l", "t1", "t"))
        .write((4, 5), acquire("l", "u1", "u"), 9, NO)
        .write((6, 7), release("l", "t2", "t"), 10, YES)
        .read((8, 9), key("l"), 10, &[locked(seen("l", "t2", 7, 10), 1, None)])
        .verdict();
    verdict.expect_clean();
}

/// At each of `guesses` indexes either of two unanswered writes may have happened, and none of them
/// matters. A lock that was acquired and released behind them without a reply must turn out to have
/// been held `holds` times.
fn lock_behind_guesses(guesses: u64, holds: u64) -> Story {
    let name = |guess: u64| format!("guess/{guess}");
    let mut story = Story::new().session((0, 1), "s", lasting(), 3).write((2, 3), set("l", "0"), 4, YES);
    for guess in 0..guesses {
        story = story.unknown((4, 5), set(&name(guess), "1")).unknown((4, 5), set(&name(guess), "1"));
    }
    for guess in 0..guesses {
        let (index, at) = (5 + guess, 10 + guess);
        story = story.read((at, at), key(&name(guess)), index, &[seen(&name(guess), "1", index, index)]);
    }
    story
        .unknown((40, 41), acquire("l", "s1", "s"))
        .unknown((42, 43), release("l", "s2", "s"))
        .write((44, 45), acquire("l", "s3", "s"), 40, granted(2))
        .read((46, 47), key("l"), 40, &[locked(seen("l", "s3", 4, 40), holds, Some("s"))])
}

#[test]
fn unseen_pair_found_within_step_limit() {
    let verdict = lock_behind_guesses(20, 2).verdict();
    verdict.expect_clean();
    // There are a million ways to guess, and 45 indexes at most.
    assert!(verdict.counts.steps < 12_000, "{:?}", verdict.counts);
    lock_behind_guesses(6, 3).breaks("answers agree with the model", &[23, 24]);
}

#[test]
fn expired_session_frees_locks() {
    let verdict = Story::new()
        .session((0, 1), "s", with_ttl(100), 2)
        .session((0, 1), "t", lasting(), 3)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .write((2, 3), acquire("m", "s2", "s"), 5, granted(2))
        .alive((50, 51), "s", true)
        .read((300, 301), key("l"), 9, &[locked(seen("l", "s1", 4, 9), 1, None)])
        .read((302, 303), key("m"), 9, &[locked(seen("m", "s2", 5, 9), 1, None)])
        .write((304, 305), acquire("l", "t1", "t"), 12, granted(3))
        .alive((310, 311), "s", false)
        .read(
            (312, 313),
            Query::Prefix(String::new()),
            12,
            &[locked(seen("l", "t1", 4, 12), 2, Some("t")), locked(seen("m", "s2", 5, 9), 1, None)],
        )
        .verdict();
    verdict.expect_clean();
    assert_eq!((verdict.counts.ends_inferred, verdict.counts.unread_at_end), (1, 0));
}

#[test]
fn lock_delay_holds_then_ends() {
    let delayed = SessionWish { lock_delay_ms: 50, deletes: true, ..SessionWish::default() };
    let story = Story::new()
        .session((0, 1), "s", delayed, 2)
        .session((0, 1), "t", lasting(), 3)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .write((10, 11), destroy("s"), 5, YES)
        .write((12, 13), acquire("l", "t1", "t"), 6, Reply::Delayed)
        .read((14, 15), key("l"), 5, &[])
        .write((55, 61), acquire("l", "t2", "t"), 8, granted(2));
    story.verdict().expect_clean();
}

#[test]
fn transactions_are_atomic() {
    let pair = |value: &str| {
        Write::Txn(vec![
            TxnStep::Write(set("a", &format!("{value}a"))),
            TxnStep::Write(set("b", &format!("{value}b"))),
        ])
    };
    let shown = |key: &str, created, modified| {
        let bare = seen(key, "", created, modified);
        lockmesh_tests::history::operation::Seen { value: None, ..bare }
    };
    let failing = Write::Txn(vec![
        TxnStep::Write(set("a", "never")),
        TxnStep::CheckIndex { key: "b".into(), index: 3 },
        TxnStep::Write(cas("c", "never", 7)),
    ]);
    let verdict = Story::new()
        .write((0, 1), pair("1"), 5, Reply::Txn(vec![shown("a", 5, 5), shown("b", 5, 5)]))
        .write((2, 3), failing, 6, Reply::TxnFailed(vec![1, 2]))
        .unknown((4, 5), pair("2"))
        .read(
            (6, 7),
            Query::Together(vec!["a".into(), "b".into()]),
            9,
            &[seen("a", "2a", 5, 9), seen("b", "2b", 5, 9)],
        )
        .verdict();
    verdict.expect_clean();
    assert_eq!(verdict.counts.unknown_placed, 1);
}

#[test]
fn watches_wake_with_newest_state() {
    let story = Story::new()
        .write((0, 1), set("a", "1"), 5, YES)
        .watch((2, 20), "a", 5, 6, &[seen("a", "2", 5, 6)])
        .write((10, 15), set("a", "2"), 6, YES)
        .watch((21, 90), "a", 6, 6, &[seen("a", "2", 5, 6)])
        .write((91, 92), KvWrite::DeleteTree { prefix: "a".into() }, 9, YES)
        .watch((93, 94), "a", 6, 9, &[]);
    story.verdict().expect_clean();
}

#[test]
fn history_file_round_trip() {
    let history = Story::new()
        .session((0, 1), "s", with_ttl(100), 2)
        .write((2, 3), acquire("l", "s1", "s"), 4, granted(1))
        .unknown((4, 5), destroy("s"))
        .not_done((6, 7), set("l", "x"))
        .watch((8, 9), "l", 4, 4, &[locked(seen("l", "s1", 4, 4), 1, Some("s"))])
        .history();
    let mut file = Vec::new();
    history.write(&mut file).expect("writing to a vector succeeds");
    assert_eq!(file.iter().filter(|byte| **byte == b'\n').count(), 5);
    assert_eq!(History::read(file.as_slice()).expect("just written"), history);
}
