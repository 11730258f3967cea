//! Blocking reads that share one upstream request, and the servers that reads are sent to.

use super::*;

const WAIT: Duration = Duration::from_secs(60);

/// `true` if a server is to answer at once a caller that knows index 3.
fn is_asked_at_once(asked: &Asked) -> bool {
    matches!(&asked.request, Request::Read { blocking, .. } if *blocking == self::blocking(3, Duration::ZERO))
}

#[test]
fn routed_by_consistency_and_blocking() {
    let mut story = Story::at_rest();
    story.read(Consistency::Stale, None);
    let home = story.only().server;
    assert_ne!(home, A, "this agent prefers another one");
    story.asked.clear();
    story.read(Consistency::Default, None);
    assert_eq!(story.only().server, A);
    story.asked.clear();
    story.read(Consistency::Default, blocking(3, WAIT));
    assert_eq!(story.only().server, home);
}

#[test]
fn late_joiner_triggers_fresh_read() {
    let mut story = Story::at_rest();
    let first = story.read(Consistency::Default, blocking(3, WAIT));
    let late: Vec<_> = (0..3).map(|_| story.read(Consistency::Default, blocking(3, WAIT))).collect();
    let other = story.read(Consistency::Default, blocking(4, WAIT));
    assert_eq!((story.client.load().shared_reads, story.client.load().waiters), (2, 5));
    assert_eq!(story.asked.len(), 2);
    let shared = story.asked.remove(0);
    story.answer(&shared, entries(7));
    assert_eq!(story.heard_answer(first), 7);
    assert!(story.answers.is_empty(), "its answer may have left before they joined");
    let again = story.asked.last().expect("it is asked once more").clone();
    assert!(is_asked_at_once(&again));
    story.answer(&again, entries(8));
    for token in late {
        assert_eq!(story.heard_answer(token), 8);
    }
    assert!(!story.answers.contains_key(&other));
}

#[test]
fn read_during_rerun_starts_another() {
    let mut story = Story::at_rest();
    let [_, late] = [(); 2].map(|()| story.read(Consistency::Default, blocking(3, WAIT)));
    story.answer(&story.only(), entries(7));
    let again = story.only();
    let next = story.read(Consistency::Default, blocking(3, WAIT));
    assert_eq!(story.asked.len(), 2);
    story.answer(&again, entries(8));
    assert_eq!(story.heard_answer(late), 8);
    assert!(!story.answers.contains_key(&next), "the read that it waits for began after its call");
    let last = story.only();
    story.answer(&last, entries(9));
    assert_eq!(story.heard_answer(next), 9);
}

#[test]
fn stale_readers_share_one_reply() {
    let mut story = Story::at_rest();
    let tokens = [(); 2].map(|()| story.read(Consistency::Stale, blocking(3, WAIT)));
    story.answer(&story.only(), entries(7));
    assert_eq!(tokens.map(|token| story.heard_answer(token)), [7, 7]);
}

#[test]
fn expired_reader_leaves_others_waiting() {
    let mut story = Story::at_rest();
    let short = story.read(Consistency::Default, blocking(3, SECOND));
    let long = story.read(Consistency::Default, blocking(3, WAIT));
    let shared = story.only();
    story.pass(2 * SECOND);
    let plain = story.asked[1].clone();
    assert!(is_asked_at_once(&plain));
    story.answer(&plain, entries(3));
    assert_eq!(story.heard_answer(short), 3);
    assert_eq!((story.only(), story.cancelled.len()), (shared.clone(), 0));
    story.answer(&shared, entries(4));
    let again = story.only();
    story.answer(&again, entries(5));
    assert_eq!(story.heard_answer(long), 5, "the one that began it has left, so this one joined late");
}

#[test]
fn last_reader_leaving_cancels_call() {
    let mut story = Story::at_rest();
    let tokens = [(); 2].map(|()| story.read(Consistency::Default, blocking(3, WAIT)));
    let shared = story.only();
    story.handle_input(Input::Cancel(tokens[0]));
    assert!(story.cancelled.is_empty());
    story.handle_input(Input::Cancel(tokens[1]));
    assert_eq!(story.cancelled, [(shared.connection, shared.call)]);
    assert_eq!(story.client.load(), Default::default());
}

#[test]
fn hurry_answers_readers_immediately() {
    let mut story = Story::at_rest();
    let before = story.read(Consistency::Default, blocking(3, WAIT));
    story.handle_input(Input::Hurry);
    let after = story.read(Consistency::Default, blocking(3, WAIT));
    for token in [before, after] {
        let asked = story.asked[0].clone();
        assert!(is_asked_at_once(&asked));
        story.answer(&asked, entries(3));
        assert_eq!(story.heard_answer(token), 3);
    }
}

#[test]
fn zero_index_does_not_block() {
    let mut story = Story::at_rest();
    story.read(Consistency::Default, blocking(0, WAIT));
    assert!(matches!(story.only().request, Request::Read { blocking: None, .. }));
}

#[test]
fn parked_read_leaves_lost_home() {
    let mut story = Story::at_rest();
    let token = story.read(Consistency::Default, blocking(3, WAIT));
    let home = story.only().server;
    story.kill(home);
    let asked = story.until_asked();
    assert_ne!(asked.server, home);
    assert!(matches!(asked.request, Request::Read { blocking: Some(_), .. }));
    story.answer(&asked, entries(4));
    assert_eq!(story.heard_answer(token), 4);
}

#[test]
fn leaderless_home_redirects_to_leader() {
    let mut story = Story::at_rest();
    story.read(Consistency::Default, blocking(3, WAIT));
    let at_home = story.only();
    story.answer(&at_home, not_leader(None));
    assert_eq!(story.until_asked().server, A);
}

#[test]
fn serverless_blocking_read_times_out() {
    let mut story = Story::begin();
    story.down = SERVERS.into();
    let token = story.read(Consistency::Stale, blocking(3, SECOND));
    story.pass(SECOND + HOLD - MS);
    assert!(story.answers.is_empty());
    story.pass(2 * MS);
    assert_eq!(story.take_answer(token), Err(Unavailable::NotLeader { leader: None }));
}
