//! Replies that never arrive, and the time limit of an acquisition.

use super::*;
use lockmesh_client::holder::SlotGoal;

/// Starts a scenario in which a lock is awaited in its queue; checks show the holder S2.
fn queued(wait_limit: WaitLimit) -> Story {
    let mut story = Story::wanting(wait_limit);
    story.answer("get", job_held_by("S2", 8));
    story
}

fn until(seconds: u32) -> WaitLimit {
    WaitLimit::Until(Moment::default() + SECOND + SECOND * seconds)
}

/// Answers the acquire that confirms a check.
fn confirm(story: &mut Story, result: Result<Response, Error>) {
    let is_confirmation = |(_, request): &(_, Request)| matches!(request, Request::Acquire(_, _, None));
    let at = story.asked.iter().position(is_confirmation).expect("the grant is confirmed");
    let (number, request) = story.asked.remove(at);
    assert!(
        matches!(request, Request::Acquire(write, session, None) if session == "S1" && write.value == "me")
    );
    story.handle_input(Input::Answered(number, result));
}

#[test]
fn lost_grant_reply_detected_within_5s() {
    for granted_at in [1, 3_999, 4_001, 7_500] {
        let mut story = queued(WaitLimit::Endless);
        story.pass(MS * granted_at);
        story.seen_holder = "S1";
        let granted_at = story.now;
        while story.asked() != ["acquire", "acquire"] {
            story.pass(MS);
            assert!(story.now.since(granted_at) < 5 * SECOND);
        }
        confirm(&mut story, granted(7));
        assert!(matches!(story.told_acquired(), Some(Ok(Some(grant))) if grant.fences[..] == [7]));
        assert!(story.is_held());
        assert_eq!(story.asked(), ["get"], "the watch; the request in the queue is cancelled");
    }
}

#[test]
fn waiter_only_reads_while_lock_held() {
    let mut story = queued(WaitLimit::Endless);
    story.pass(59 * SECOND);
    assert_eq!(story.log, ["create", "get", "acquire"]);
    assert_eq!(story.checks, 14, "one every 4 s");
    story.answer("acquire", granted(7));
    story.pass(60 * SECOND);
    assert_eq!(story.checks, 14, "the watch reads the key from here on");
}

/// The grant was lost in silence, and ended before a read showed it.
#[test]
fn free_lock_is_requested_again() {
    let mut story = queued(WaitLimit::Endless);
    story.seen_holder = "";
    story.pass(15 * SECOND);
    assert_eq!(story.asked(), ["acquire"], "it may be a lock-delay");
    story.pass(SECOND);
    assert_eq!(story.asked(), ["acquire", "acquire"]);
    confirm(&mut story, refused(Some(SECOND)));
    story.pass(16 * SECOND);
    confirm(&mut story, granted(7));
    assert!(story.is_held());
}

#[test]
fn check_without_reply_is_replaced() {
    let mut story = queued(WaitLimit::Endless);
    story.answers_checks = false;
    story.pass(9 * SECOND);
    assert_eq!((story.asked(), story.checks), (vec!["acquire", "check"], 2));
    story.answer("check", job_held_by("S1", 9));
    // The confirmation is lost too, then refused: only the key decides.
    story.pass(4 * SECOND);
    assert_eq!(story.asked(), ["acquire", "check"]);
    story.answer("check", job_held_by("S1", 9));
    confirm(&mut story, refused(None));
    assert!(story.told_acquired().is_none());
    story.answers_checks = true;
    story.seen_holder = "S1";
    story.pass(4 * SECOND);
    confirm(&mut story, granted(9));
    assert!(story.is_held());
}

#[test]
fn failed_check_retried_after_1s() {
    let mut story = queued(WaitLimit::Endless);
    story.answers_checks = false;
    story.pass(4 * SECOND);
    for _ in 0..3 {
        story.answer("check", Err(not_done()));
        story.pass(SECOND - MS);
        assert_eq!(story.asked(), ["acquire"]);
        story.pass(MS);
    }
    story.answer("check", job_held_by("S1", 9));
    confirm(&mut story, Err(unheard()));
    story.pass(SECOND);
    assert_eq!(story.asked(), ["acquire", "check"]);
}

#[test]
fn queued_reply_ends_pending_check() {
    let mut story = queued(WaitLimit::Endless);
    story.answers_checks = false;
    story.pass(5 * SECOND);
    story.answer("acquire", granted(7));
    assert_eq!(story.asked(), ["get"]);
    assert!(story.is_held());
}

/// In each state the last request is never answered.
#[test]
fn wait_limit_applies_in_every_state() {
    let slot = Goal::Slot(SlotGoal { prefix: "pool".into(), limit: 2, value: Bytes::new() });
    let lock = || wanted(WaitLimit::Once).goal;
    let create: fn(&mut Story) = |story| story.answer("create", Ok(Response::Created("S1".into())));
    let states = [
        ("create", lock(), (|_| {}) as fn(&mut Story)),
        ("node lease", lock(), |story| {
            story.has_node_lease = true;
            story.answer("create", Ok(Response::Created("S1".into())));
        }),
        ("get", lock(), create),
        ("acquire", lock(), |story| {
            story.answer("create", Ok(Response::Created("S1".into())));
            story.answer("get", job_held_by("S2", 8));
        }),
        ("acquire", slot, create),
    ];
    for (last, goal, begin) in states {
        let mut story = Story::begin(SessionUse::OneHold);
        story.handle_input(Input::Acquire(JOB, Acquisition { goal, ..wanted(until(2)) }));
        begin(&mut story);
        assert_eq!(story.asked(), [last]);
        story.pass(2 * SECOND);
        assert!(story.told_acquired().is_none(), "{last}: the last reply may be on its way");
        story.pass(200 * MS);
        assert!(matches!(story.told_acquired(), Some(Ok(None))), "{last}");
        // Nothing is answered any more: soon only the end of the session is in flight.
        story.pass(100 * MS);
        let left: &[&str] = if last == "create" { &[] } else { &["destroy"] };
        assert_eq!(story.asked(), left, "{last}");
        assert_eq!(story.log.iter().filter(|word| **word == "create").count(), 1, "{last}");
        story.handle_input(Input::Abandon);
        if !left.is_empty() {
            story.answer("destroy", Ok(Response::Done));
        }
        assert!(story.holder.is_done(), "{last}");
    }
}

#[test]
fn unanswered_acquire_released_before_destroy() {
    let mut story = queued(until(2));
    story.pass(2 * SECOND + 200 * MS);
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    assert_eq!(story.asked(), ["release"], "before the end of the session, which begins a lock-delay");
    story.answer("release", Ok(Response::Verdict(true)));
    assert_eq!(story.asked(), ["destroy"]);
}

#[test]
fn grant_shortly_after_limit_counts() {
    let mut story = queued(until(2));
    story.pass(2 * SECOND + 199 * MS);
    story.answer("acquire", granted(7));
    assert!(story.is_held());
}

/// The queue replies in time; then the leader is lost, and nothing is answered any more.
#[test]
fn limit_does_not_await_session_destroy() {
    for is_unknown in [false, true] {
        let mut story = queued(until(2));
        story.pass(2 * SECOND);
        story.answer("acquire", if is_unknown { Err(unheard()) } else { refused(None) });
        assert!(story.told_acquired().is_none());
        story.pass(200 * MS);
        assert!(matches!(story.told_acquired(), Some(Ok(None))));
        assert_eq!(story.asked(), ["destroy"]);
    }
}

#[test]
fn shared_session_retries_release_after_limit() {
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, wanted(until(2))));
    story.answer("get", job_held_by("S2", 8));
    story.pass(2 * SECOND + 200 * MS);
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    story.pass(10 * SECOND);
    assert_eq!(story.asked(), ["release"], "the session goes on, so the release does too");
    story.answer("release", Err(unheard()));
    story.pass(SECOND);
    story.answer("release", Ok(Response::Verdict(true)));
    assert!(!story.holder.is_tidying());
}

#[test]
fn silent_wait_replaces_lost_session() {
    let mut story = queued(WaitLimit::Endless);
    story.renews = false;
    story.pass(BELIEF);
    assert!(story.asked().contains(&"acquire"), "its reply says that the session is lost, if it arrives");
    story.pass(4 * SECOND);
    assert_eq!(story.asked(), ["give up", "create"]);
    story.answer("create", Ok(Response::Created("S2".into())));
    assert_eq!(story.asked(), ["give up", "get"]);
}

#[test]
fn outdated_check_reads_from_leader() {
    let mut story = queued(WaitLimit::Endless);
    story.answers_checks = false;
    story.pass(4 * SECOND);
    story.answer("check", Ok(Response::Outdated));
    story.answer("get", job_held_by("S1", 9));
    confirm(&mut story, granted(7));
    assert!(story.is_held());
}
