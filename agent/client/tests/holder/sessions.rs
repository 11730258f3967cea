//! Session deadlines.

use super::*;

#[test]
fn creation_counts_from_send_time() {
    let mut story = Story::begin(SessionUse::OneHold);
    story.renews = false;
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    // The reply to the creation arrives two seconds after it was sent.
    story.pass(2 * SECOND);
    story.answer("create", Ok(Response::Created("S1".into())));
    story.grant(5);
    assert_eq!(story.remaining(), BELIEF - 2 * SECOND);
    story.pass(2 * SECOND);
    assert_eq!(story.asked(), ["get", "renew"]);
    let sent = story.now;
    story.pass(SECOND);
    story.answer("renew", Ok(Response::Found(true)));
    assert!(story.remaining() < BELIEF && story.remaining() > BELIEF - (story.now.since(sent) + SECOND));
}

#[test]
fn renewal_counts_from_send_time() {
    let mut story = Story::holding();
    story.renews = false;
    story.pass(4 * SECOND);
    assert_eq!(story.asked(), ["get", "renew"]);
    story.pass(2 * SECOND);
    let before = story.remaining();
    story.answer("renew", Ok(Response::Found(true)));
    // It was sent after 3.0 to 3.7 s, so it adds that time, not six seconds.
    let added = story.remaining() - before;
    assert!(added >= 3 * SECOND && added <= 3_700 * MS, "{added:?}");
}

#[test]
fn lost_renewals_retried_until_deadline() {
    let mut story = Story::holding();
    story.renews = false;
    let begun = story.now;
    let mut tries = 0;
    while story.is_held() {
        story.pass(100 * MS);
        if story.asked().contains(&"renew") {
            tries += 1;
            story.answer("renew", Err(unheard()));
        }
    }
    assert!(tries >= 6, "{tries}");
    assert_eq!(story.now.since(begun), BELIEF);
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
    assert!(matches!(&story.events[..], [Event::SessionLost(Loss::Deadline), Event::Lost(JOB, _)]));
    assert_eq!(story.asked(), ["give up"], "and the watch has ended");
    assert!(story.notices.contains(&Notice::DeadlinePassed("S1".into(), vec!["job".into()])));
}

#[test]
fn silent_agent_ends_hold_at_deadline() {
    let mut story = Story::holding();
    story.renews = false;
    story.pass(BELIEF - MS);
    assert!(story.is_held() && story.told_loss().is_none());
    story.pass(MS);
    assert!(!story.is_held());
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
}

#[test]
fn renewal_reply_after_deadline_ignored() {
    let mut story = Story::holding();
    story.renews = false;
    story.pass(4 * SECOND);
    assert_eq!(story.asked(), ["get", "renew"]);
    // The timer is late and the reply comes first; its promise would extend beyond the present.
    story.suspend(6 * SECOND);
    story.answer("renew", Ok(Response::Found(true)));
    assert!(!story.is_held());
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
    story.pass(60 * SECOND);
    assert!(!story.is_held() && !story.asked().contains(&"renew"));
}

#[test]
fn host_sleep_past_deadline_loses_hold() {
    let mut story = Story::holding();
    story.pass(2 * SECOND);
    story.suspend(3_600 * SECOND);
    assert!(!story.is_held(), "before any input");
    // The first input is arbitrary: here the watch reports that the lock is held.
    story.renews = false;
    story.answer("get", job_held_by("S1", 9));
    assert!(!story.is_held());
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
}

#[test]
fn a_short_sleep_costs_nothing() {
    let mut story = Story::holding();
    story.suspend(8 * SECOND);
    assert!(story.is_held());
    story.handle_input(Input::Tick);
    story.pass(SECOND);
    assert!(story.remaining() > 8 * SECOND, "renewed on waking up: {:?}", story.remaining());
}

#[test]
fn missing_session_lost_immediately() {
    let mut story = Story::holding();
    story.renews = false;
    story.pass(4 * SECOND);
    story.answer("renew", Ok(Response::Found(false)));
    assert!(!story.is_held());
    assert_eq!(story.told_loss(), Some(&Loss::SessionGone));
    assert_eq!(story.asked(), [] as [&str; 0], "there is nothing to destroy");
}

#[test]
fn lost_session_gets_five_destroy_attempts() {
    let mut story = Story::holding();
    story.renews = false;
    story.pass(BELIEF);
    for _ in 0..5 {
        assert_eq!(story.asked(), ["give up"]);
        story.answer("give up", Err(unheard()));
        story.pass(3 * SECOND);
    }
    assert_eq!(story.asked(), [] as [&str; 0]);
    assert!(matches!(story.notices.last(), Some(Notice::NotDestroyed(session, _)) if session == "S1"));
    assert!(!story.holder.is_tidying());
}

#[test]
fn session_created_after_ttl_discarded() {
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.pass(20 * SECOND);
    story.answer("create", Ok(Response::Created("S1".into())));
    assert_eq!(story.asked(), ["give up", "create"]);
    story.answer("create", Ok(Response::Created("S2".into())));
    story.grant(5);
    assert!(story.is_held());
}

#[test]
fn shared_session_outlives_and_ends_holds() {
    let mut story = Story::keeping();
    for id in [1, 2] {
        story.handle_input(Input::Acquire(HoldId(id), wanted(WaitLimit::Endless)));
        story.grant(id);
    }
    story.handle_input(Input::Release(HoldId(2)));
    story.answer("release", Ok(Response::Verdict(true)));
    assert!(matches!(story.events[..], [Event::Released(HoldId(2), Ok(true))]));
    story.events.clear();
    story.pass(60 * SECOND);
    assert!(story.is_held());
    story.handle_input(Input::Close);
    assert!(!story.is_held());
    assert!(matches!(&story.events[..], [Event::SessionLost(Loss::Closed), Event::Lost(JOB, Loss::Closed)]));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.events[2..], [Event::Closed(Ok(()))]));
    // Nothing can be acquired under it any more.
    story.events.clear();
    story.handle_input(Input::Acquire(HoldId(3), wanted(WaitLimit::Endless)));
    assert!(matches!(story.events[..], [Event::Acquired(HoldId(3), Err(Error::SessionLost(Loss::Closed)))]));
}

#[test]
fn dropped_keeper_ends_session() {
    let mut story = Story::keeping();
    story.handle_input(Input::Abandon);
    assert_eq!(story.asked(), ["destroy"]);
    assert!(story.holder.is_tidying() && !story.holder.is_done());
    story.answer("destroy", Err(not_done()));
    story.pass(SECOND);
    story.answer("destroy", Ok(Response::Done));
    assert!(story.holder.is_done() && !story.holder.is_tidying());
    assert_eq!(story.holder.wakes_at(), None);
}

#[test]
fn creation_failure_reported() {
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.answer("create", Err(not_done()));
    assert!(matches!(story.told_acquired(), Some(Err(Error::Unavailable { .. }))));
    assert_eq!(story.asked(), [] as [&str; 0]);
    let mut story = Story::begin(SessionUse::Shared);
    story.handle_input(Input::Keep);
    story.answer("create", Err(not_done()));
    assert!(matches!(story.events[..], [Event::Kept(Err(_))]));
    story.handle_input(Input::Abandon);
    assert!(story.holder.is_done());
}

/// A session of an agent that reports its window.
fn created(id: &str, window: HealthWindow) -> Result<Response, Error> {
    Ok(Response::Created(CreatedSession { id: id.into(), window: Some(window) }))
}

/// A holder that wants a lock, with a session of this TTL and window.
fn wanting_with(ttl: Option<Duration>, health_window: Option<HealthWindow>) -> Story {
    let options = SessionOptions::named("story").ttl(ttl).health_window(health_window);
    let mut story = Story::with_options(options, SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story
}

/// Returns the TTL of the creation in flight.
fn asked_ttl(story: &Story) -> Duration {
    let asked = story.asked.iter().find_map(|(_, request)| match request {
        Request::CreateSession(options) => options.ttl,
        _ => None,
    });
    asked.unwrap_or_else(|| panic!("no session is created: {:?}", story.asked))
}

#[test]
fn guard_survives_outage_within_window() {
    for window in HealthWindow::ALL {
        let mut story = wanting_with(None, Some(window));
        story.renews = false;
        let ttl = asked_ttl(&story);
        story.answer("create", created("S1", window));
        story.grant(5);
        // The latest renewal is due after 37 % of the TTL; nothing is acknowledged from then on.
        story.pass(ttl * 37 / 100 + window.duration());
        assert!(story.is_held(), "{window:?}");
    }
}

#[test]
fn agent_default_window_sets_ttl() {
    let mut story = wanting_with(None, None);
    assert_eq!(asked_ttl(&story), 15 * SECOND);
    story.answer("create", created("S1", HealthWindow::Safe));
    assert_eq!(story.asked(), ["destroy", "create"]);
    assert_eq!(asked_ttl(&story), 30 * SECOND);
    story.answer("create", created("S2", HealthWindow::Safe));
    story.answer("destroy", Ok(Response::Done));
    story.grant(5);
    assert_eq!(story.holder.session(), Some("S2"));
    assert_eq!(story.remaining(), 30 * SECOND * 95 / 100);
}

#[test]
fn ttl_below_default_window_minimum_rejected() {
    let mut story = wanting_with(Some(15 * SECOND), None);
    story.answer("create", created("S1", HealthWindow::Safe));
    assert_eq!(story.asked(), ["destroy"]);
    let refused = match &story.events[..] {
        [Event::Acquired(JOB, Err(error @ Error::Settings(_)))] => error.to_string(),
        events => panic!("not refused: {events:?}"),
    };
    assert!(
        refused.contains("`session.default_health_window`") && refused.contains("26s or more"),
        "{refused}"
    );
    // Only the safe window needs more.
    for window in [HealthWindow::Fast, HealthWindow::Default] {
        let mut story = wanting_with(Some(10 * SECOND), None);
        story.answer("create", created("S1", window));
        story.grant(5);
    }
}
