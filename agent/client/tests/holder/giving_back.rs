//! Releasing holds.

use super::*;

#[test]
fn a_release_gives_the_lock_back_and_ends_its_session() {
    let mut story = Story::holding();
    story.handle_input(Input::Written(JOB, Bytes::from("done")));
    story.handle_input(Input::Release(JOB));
    assert!(!story.is_held(), "immediately");
    assert_eq!(story.asked(), ["release"], "otherwise the watch would report a loss");
    assert!(
        matches!(story.request("release"), Request::Release(write, session) if write.value == "done" && session == "S1")
    );
    story.answer("release", Ok(Response::Verdict(true)));
    assert_eq!(story.asked(), ["destroy"]);
    assert!(story.told_release().is_none());
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    assert!(story.holder.is_done());
}

#[test]
fn a_release_whose_answer_was_not_heard_is_tried_again() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.answer("release", Err(unheard()));
    story.pass(SECOND);
    // Nothing is left to release: the first release succeeded.
    story.answer("release", Ok(Response::Verdict(false)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

/// Neither *released* nor *lost before* would be true: the outcome is unknown.
#[test]
fn a_release_that_was_not_heard_before_the_deadline_is_told_as_unknown() {
    let shared = || {
        let mut story = Story::keeping();
        story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Once)));
        story.grant(7);
        story
    };
    for mut story in [Story::holding(), shared()] {
        story.handle_input(Input::Release(JOB));
        story.answer("release", Err(unheard()));
        story.suspend(20 * SECOND);
        story.handle_input(Input::Tick);
        assert!(matches!(story.told_release(), Some(Err(Error::UnknownOutcome { .. }))));
    }
    // A failed second try proves nothing about the first.
    for mut story in [Story::holding(), shared()] {
        story.renews = false;
        story.handle_input(Input::Release(JOB));
        story.answer("release", Err(unheard()));
        story.pass(SECOND);
        story.suspend(20 * SECOND);
        story.answer("release", Err(not_done()));
        assert!(matches!(story.told_release(), Some(Err(Error::UnknownOutcome { .. }))));
    }
}

/// The deadline may pass in any of its steps.
#[test]
fn a_release_that_did_not_get_through_before_the_deadline_says_why() {
    for is_asking in [false, true] {
        let mut story = Story::holding();
        story.handle_input(Input::Release(JOB));
        story.answer("release", Err(not_done()));
        if is_asking {
            story.pass(SECOND);
            story.suspend(20 * SECOND);
            story.answer("release", Err(not_done()));
        } else {
            story.suspend(20 * SECOND);
            story.handle_input(Input::Tick);
        }
        assert!(matches!(story.told_release(), Some(Err(Error::Unavailable { .. }))));
    }
}

#[test]
fn a_release_that_finds_another_holder_says_so() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.answer("release", Err(not_done()));
    story.pass(SECOND);
    story.answer("release", Ok(Response::Verdict(false)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(false))));
}

#[test]
fn a_release_is_tried_until_the_deadline() {
    let mut story = Story::holding();
    story.renews = false;
    story.handle_input(Input::Release(JOB));
    while story.told_release().is_none() {
        story.pass(SECOND);
        for what in ["release", "destroy", "renew"] {
            if story.asked().contains(&what) {
                story.answer(what, Err(not_done()));
            }
        }
    }
    assert!(matches!(story.told_release(), Some(Err(Error::Unavailable { .. }))));
    assert!(story.log.iter().filter(|word| **word == "release").count() >= 8);
}

#[test]
fn what_was_lost_is_not_released_and_its_session_ends() {
    let mut story = Story::holding();
    story.answer("get", job_held_by("S2", 8));
    story.answer("find", Ok(Response::Found(true)));
    story.handle_input(Input::Release(JOB));
    assert_eq!(story.asked(), ["destroy"], "another session's lock is unchanged");
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(false))));
}

#[test]
fn a_guard_that_is_dropped_gives_back_in_the_background() {
    let mut story = Story::holding();
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    assert!(!story.is_held() && story.holder.is_tidying());
    story.answer("release", Err(unheard()));
    story.pass(SECOND);
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Err(unheard()));
    story.pass(SECOND);
    story.answer("destroy", Ok(Response::Done));
    assert!(story.holder.is_done());
    assert!(story.told_release().is_none() && story.told_loss().is_none());
}

#[test]
fn a_release_that_nobody_waits_for_any_more_goes_on() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Ok(Response::Done));
    assert!(story.holder.is_done() && story.told_release().is_none());
}

#[test]
fn a_session_that_cannot_be_ended_leaves_the_release_as_it_was() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.answer("release", Err(Error::Refused { status: 403, text: "Permission denied".into() }));
    story.answer("destroy", Err(not_done()));
    assert!(matches!(story.told_release(), Some(Err(Error::Refused { .. }))));
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Err(not_done()));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

fn left_behind(options: SessionOptions, overdue_in: Duration) -> Story {
    let mut story = Story::with_options(options, SessionUse::OneHold);
    let goal = wanted(WaitLimit::Once).goal;
    let overdue_at = story.now + overdue_in;
    story.handle_input(Input::GiveBack(JOB, goal, ("S9".into(), overdue_at)));
    story
}

#[test]
fn hold_of_dead_process_is_released_before_its_session_ends() {
    for (was_held, answered_in, end) in [(true, 0, "destroy"), (false, 0, "destroy"), (true, 60, "give up")] {
        let mut story = left_behind(SessionOptions::named("story"), SECOND * 60);
        story.pass(SECOND * answered_in);
        assert!(
            matches!(story.request("release"), Request::Release(write, session) if write.value == "me" && session == "S9")
        );
        assert!(!story.is_held() && story.holder.is_tidying());
        story.answer("release", Ok(Response::Verdict(was_held)));
        assert!(matches!(story.request(end), Request::EndSession(session, _) if session == "S9"));
        assert!(story.told_release().is_none());
        story.answer(end, Ok(Response::Done));
        assert!(matches!(story.told_release(), Some(Ok(held)) if *held == was_held));
        story.handle_input(Input::Abandon);
        story.pass(600 * SECOND);
        assert!(story.holder.is_done() && !story.holder.is_tidying());
        assert_eq!(story.log, ["release", end], "the session is not used otherwise");
    }
}

/// Both requests fail for four minutes; then both are answered within a second.
#[test]
fn hold_of_dead_process_is_released_when_agent_returns() {
    let mut story = left_behind(SessionOptions::named("story"), SECOND * 3_600);
    // The supervisor stops waiting for it.
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    for (what, done) in [("release", Response::Verdict(false)), ("destroy", Response::Done)] {
        for second in 0..240 {
            assert!(story.asked().contains(&what), "{what} after {second} s");
            story.answer(what, Err(if second == 100 { unheard() } else { not_done() }));
            story.pass(SECOND);
        }
        assert!(story.holder.is_tidying() && !story.holder.is_done());
        story.answer(what, Ok(done));
    }
    assert!(story.holder.is_done() && story.told_release().is_none());
}

/// The limits are 10 minutes and two TTLs.
#[test]
fn hold_of_dead_process_is_left_to_its_ttl_at_limit() {
    for (ttl, limit) in [(TTL, 600), (600 * SECOND, 1_200)] {
        let options = SessionOptions { ttl: Some(ttl), ..SessionOptions::named("story") };
        let mut story = left_behind(options, SECOND * 3_600);
        let began = story.now;
        while story.told_release().is_none() {
            for what in ["release", "destroy"] {
                if story.asked().contains(&what) {
                    story.answer(what, Err(unheard()));
                }
            }
            story.pass(MS * 500);
        }
        let tried = story.now.since(began);
        assert!(tried >= SECOND * limit && tried < SECOND * (limit + 3), "{tried:?}");
        assert!(matches!(story.told_release(), Some(Err(Error::UnknownOutcome { .. }))));
        assert!(matches!(story.notices.last(), Some(Notice::NotGivenBack(..))));
        story.handle_input(Input::Abandon);
        assert!(story.holder.is_done());
    }
}

#[test]
fn refused_release_of_dead_process_still_ends_its_session() {
    let mut story = left_behind(SessionOptions::named("story"), SECOND * 3_600);
    story.answer("release", Err(Error::Refused { status: 403, text: "Permission denied".into() }));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Err(Error::Refused { .. }))));
}
