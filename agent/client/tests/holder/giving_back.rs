//! Releasing holds.

use super::*;

#[test]
fn release_frees_lock_and_ends_session() {
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
fn unanswered_release_retried() {
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
fn unanswered_release_unknown_at_deadline() {
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
fn failed_release_unavailable_at_deadline() {
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
fn release_finding_other_holder_returns_false() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.answer("release", Err(not_done()));
    story.pass(SECOND);
    story.answer("release", Ok(Response::Verdict(false)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(false))));
}

#[test]
fn release_retried_until_deadline() {
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
fn lost_hold_not_released_session_ends() {
    let mut story = Story::holding();
    story.answer("get", job_held_by("S2", 8));
    story.answer("find", Ok(Response::Found(true)));
    story.handle_input(Input::Release(JOB));
    assert_eq!(story.asked(), ["destroy"], "another session's lock is unchanged");
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(false))));
}

#[test]
fn dropped_guard_releases_in_background() {
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
fn abandoned_release_continues() {
    let mut story = Story::holding();
    story.handle_input(Input::Release(JOB));
    story.handle_input(Input::Drop(JOB));
    story.handle_input(Input::Abandon);
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Ok(Response::Done));
    assert!(story.holder.is_done() && story.told_release().is_none());
}

#[test]
fn failed_session_end_keeps_release_outcome() {
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
fn dead_process_hold_released_before_session() {
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
fn dead_process_hold_released_despite_outage() {
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
fn dead_process_hold_left_to_ttl() {
    for (ttl, limit) in [(TTL, 600), (600 * SECOND, 1_200)] {
        let options = SessionOptions::named("story").ttl(ttl);
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
fn dead_process_refused_release_ends_session() {
    let mut story = left_behind(SessionOptions::named("story"), SECOND * 3_600);
    story.answer("release", Err(Error::Refused { status: 403, text: "Permission denied".into() }));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Err(Error::Refused { .. }))));
}
