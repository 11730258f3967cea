//! The results of watching a hold while its session is alive.

use super::*;

/// Returns the loss reported for the result of one read and the reply about the session.
fn looked(look: Result<Response, Error>, session: Result<Response, Error>) -> Loss {
    let mut story = Story::holding();
    story.answer("get", look);
    assert!(!story.is_held(), "no longer held");
    assert_eq!(story.told_loss(), None, "the reason is being queried");
    assert!(
        matches!(story.request("find"), Request::FindSession(id, limit) if id == "S1" && *limit <= SECOND)
    );
    story.answer("find", session);
    assert!(!story.is_held());
    story.told_loss().expect("a reported loss").clone()
}

#[test]
fn deletion_release_or_takeover_ends_hold() {
    let alive = || Ok(Response::Found(true));
    assert_eq!(looked(nothing_there(), alive()), Loss::Deleted);
    assert_eq!(looked(job_held_by("", 8), alive()), Loss::Released);
    assert_eq!(looked(job_held_by("S2", 8), alive()), Loss::Taken("S2".into()));
    assert_eq!(looked(job_held_by("S2", 8), Err(unheard())), Loss::Taken("S2".into()));
    assert_eq!(looked(job_held_by("", 8), Ok(Response::Found(false))), Loss::SessionGone);
}

#[test]
fn watch_continues_from_last_index() {
    let mut story = Story::holding();
    for index in [0, 7, 9] {
        let Request::Get(key, read) = story.request("get").clone() else { unreachable!() };
        assert_eq!((key.as_str(), read.index), ("job", index));
        assert_eq!(read.consistency, lockmesh_client::Consistency::Consistent);
        let next = if index == 0 { 7 } else { 9 };
        story.answer("get", job_held_by("S1", next));
    }
    assert!(story.is_held());
}

#[test]
fn missing_index_polls_every_second() {
    let mut story = Story::holding();
    story.answer("get", job_held_by("S1", 0));
    assert_eq!(story.asked(), [] as [&str; 0]);
    story.pass(SECOND);
    assert_eq!(story.asked(), ["get"]);
}

#[test]
fn renewed_hold_survives_watch_failures() {
    let mut story = Story::holding();
    for _ in 0..100 {
        story.answer("get", Err(not_done()));
        assert!(story.is_held());
        story.pass(SECOND);
    }
    story.answer("get", job_held_by("S1", 9));
    assert!(story.is_held());
}

#[test]
fn exhausted_watch_retries_end_hold() {
    let mut story = Story::wanting(WaitLimit::Endless);
    story.handle_input(Input::Drop(JOB));
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(
        JOB,
        Acquisition { watch_retries: Some(2), ..wanted(WaitLimit::Endless) },
    ));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.grant(5);
    story.answer("get", Err(not_done()));
    story.pass(SECOND);
    // A successful read resets the count.
    story.answer("get", job_held_by("S1", 9));
    for _ in 0..2 {
        story.answer("get", Err(not_done()));
        assert!(story.is_held());
        story.pass(SECOND);
    }
    story.answer("get", Err(not_done()));
    assert!(!story.is_held());
    assert!(matches!(story.told_loss(), Some(Loss::Unwatched(_))));
}

#[test]
fn denied_watch_ends_hold() {
    let mut story = Story::holding();
    story.answer("get", Err(Error::Refused { status: 403, text: "Permission denied".into() }));
    assert!(!story.is_held());
    assert!(matches!(story.told_loss(), Some(Loss::Unwatched(_))));
}

#[test]
fn the_first_reason_stands() {
    let mut story = Story::holding();
    story.renews = false;
    story.answer("get", job_held_by("S2", 8));
    story.pass(BELIEF);
    assert_eq!(story.told_loss(), Some(&Loss::Deadline), "while it was asked for the reason");
    assert_eq!(story.asked(), ["give up"]);
    story.answer("give up", Ok(Response::Done));
    assert_eq!(story.events.iter().filter(|event| matches!(event, Event::Lost(..))).count(), 1);
}
