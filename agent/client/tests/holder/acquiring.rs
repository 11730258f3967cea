//! Acquiring a lock, turn by turn.

use super::*;

fn until(story_time: Duration) -> WaitLimit {
    WaitLimit::Until(Moment::default() + SECOND + story_time)
}

#[test]
fn free_lock_read_then_acquired() {
    let story = Story::holding();
    assert_eq!(story.log, ["create", "get", "acquire", "get"]);
    assert_eq!(story.remaining(), BELIEF);
}

#[test]
fn queued_acquire_repeated_each_minute() {
    let mut story = Story::wanting(WaitLimit::Endless);
    for _ in 0..3 {
        story.answer("get", job_held_by("S2", 8));
        let Request::Acquire(_, session, queue_for) = story.request("acquire") else { unreachable!() };
        assert_eq!((session.as_str(), *queue_for), ("S1", Some(60 * SECOND)));
        story.pass(60 * SECOND);
        story.answer("acquire", refused(None));
    }
    story.answer("get", job_held_by("S2", 8));
    story.pass(SECOND);
    story.answer("acquire", granted(9));
    assert!(story.is_held());
}

#[test]
fn blocking_read_replaces_missing_queue() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.answer("get", job_held_by("S2", 8));
    story.answer("acquire", refused(None));
    story.pass(SECOND);
    // From here on it knows that there are no queues.
    story.answer("get", job_held_by("S2", 8));
    let Request::Get(_, read) = story.request("get") else { unreachable!() };
    assert_eq!((read.index, read.wait), (8, Some(60 * SECOND)));
    story.answer("get", job_held_by("", 9));
    assert!(matches!(story.request("acquire"), Request::Acquire(_, _, None)));
    // Another client was faster.
    story.answer("acquire", refused(None));
    story.answer("get", job_held_by("S3", 10));
    let Request::Get(_, read) = story.request("get") else { unreachable!() };
    assert_eq!(read.index, 10);
}

#[test]
fn retries_when_lock_delay_ends() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.answer("get", nothing_there());
    story.answer("acquire", refused(Some(15 * SECOND)));
    story.pass(15 * SECOND - MS);
    assert_eq!(story.asked(), [] as [&str; 0]);
    story.pass(201 * MS);
    assert_eq!(story.asked(), ["get"]);
}

#[test]
fn single_attempt_fails_during_lock_delay() {
    let mut story = Story::wanting(WaitLimit::Once);
    story.answer("get", nothing_there());
    story.answer("acquire", refused(None));
    story.answer("get", job_held_by("", 8));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
}

#[test]
fn one_turn_is_one_turn() {
    let mut story = Story::wanting(WaitLimit::Once);
    story.answer("get", job_held_by("S2", 8));
    assert_eq!(story.asked(), ["destroy"]);
    assert_eq!(story.told_acquired().map(Result::is_ok), None, "not before everything is released");
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    let mut story = Story::wanting(WaitLimit::Once);
    story.answer("get", Err(not_done()));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Err(Error::Unavailable { .. }))));
}

#[test]
fn transient_errors_retried_after_session_creation() {
    let mut story = Story::wanting(WaitLimit::Endless);
    for _ in 0..10 {
        story.answer("get", Err(not_done()));
        story.pass(2 * SECOND);
    }
    story.grant(5);
    assert!(story.is_held());
}

#[test]
fn undelivered_grant_released() {
    let mut story = Story::wanting(until(3 * SECOND));
    story.answer("get", nothing_there());
    story.pass(2 * SECOND);
    story.answer("acquire", Err(unheard()));
    // A failed attempt proves nothing about the earlier one.
    story.pass(500 * MS);
    story.answer("get", nothing_there());
    story.pass(500 * MS);
    story.answer("acquire", Err(not_done()));
    assert_eq!(story.asked(), ["release"]);
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
}

#[test]
fn certainly_failed_acquire_not_released() {
    let mut story = Story::wanting(until(3 * SECOND));
    story.answer("get", nothing_there());
    story.pass(3 * SECOND);
    story.answer("acquire", Err(not_done()));
    assert_eq!(story.asked(), ["destroy"]);
}

#[test]
fn dropped_acquire_cleans_up() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.answer("get", job_held_by("S2", 8));
    assert_eq!(story.asked(), ["acquire"]);
    story.handle_input(Input::Drop(JOB));
    assert_eq!(story.asked(), ["release"], "a possible grant is released");
    story.handle_input(Input::Abandon);
    story.answer("release", Ok(Response::Verdict(false)));
    story.answer("destroy", Ok(Response::Done));
    assert!(story.holder.is_done());
    assert!(story.told_acquired().is_none());
    // Without a session there is nothing to release.
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    assert!(story.asked().is_empty() && story.holder.is_done());
}

#[test]
fn shared_session_retries_undelivered_grant_release() {
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, wanted(until(SECOND))));
    story.answer("get", nothing_there());
    story.pass(SECOND);
    story.answer("acquire", Err(unheard()));
    assert_eq!(story.asked(), ["release"]);
    story.answer("release", Err(not_done()));
    assert!(matches!(story.told_acquired(), Some(Ok(None))), "the caller need not wait for the release");
    for _ in 0..20 {
        assert!(story.holder.is_tidying());
        story.pass(2 * SECOND);
        story.answer("release", Err(not_done()));
    }
    story.pass(2 * SECOND);
    story.answer("release", Ok(Response::Verdict(true)));
    assert!(!story.holder.is_tidying() && story.asked().is_empty());
}

#[test]
fn session_lost_while_waiting_replaced() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.answer("get", job_held_by("S2", 8));
    story.answer("acquire", Err(invalid_session()));
    story.answer("destroy", Ok(Response::Done));
    story.pass(SECOND);
    story.answer("create", Ok(Response::Created("S3".into())));
    story.answer("get", nothing_there());
    story.answer("acquire", granted(9));
    assert!(matches!(story.told_acquired(), Some(Ok(Some(grant))) if grant.session == "S3"));
    // A shared session is not replaced.
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.answer("get", nothing_there());
    story.answer("acquire", Err(invalid_session()));
    assert!(matches!(story.told_acquired(), Some(Err(Error::Refused { .. }))));
}

#[test]
fn grant_to_expired_session_ignored() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.renews = false;
    story.answer("get", job_held_by("S2", 8));
    story.pass(BELIEF + SECOND);
    assert_eq!(story.asked(), ["acquire", "give up"]);
    story.answer("acquire", granted(5));
    assert!(story.told_acquired().is_none() && !story.is_held());
    story.answer("create", Ok(Response::Created("S3".into())));
    story.grant(9);
    assert!(story.is_held());
}

#[test]
fn non_lock_key_untouched() {
    let mut story = Story::wanting(WaitLimit::Endless);
    let entry = Entry { key: "job".into(), flags: 42, ..Entry::default() };
    story.answer("get", Ok(Response::Entries(vec![entry], 8)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Err(Error::Conflict { .. }))));
    assert!(!story.log.contains(&"acquire"));
}

#[test]
fn reacquire_waits_for_pending_release() {
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.grant(5);
    story.handle_input(Input::Drop(JOB));
    let next = HoldId(2);
    story.handle_input(Input::Acquire(next, wanted(WaitLimit::Once)));
    assert_eq!(story.asked(), ["release"], "it would end the new hold as well");
    story.answer("release", Err(unheard()));
    story.pass(SECOND);
    assert_eq!(story.asked(), ["release"]);
    story.answer("release", Ok(Response::Verdict(false)));
    story.pass(100 * MS);
    story.grant(9);
    assert!(story.holder.is_held(next, story.now));
}
