//! The agent's reports about its node's lease, and their effect on holds.

use super::*;

/// The time to the deadline in the acknowledgement of a renewal that was just sent.
const WINDOW: Duration = Duration::from_millis(4_750);

impl Story {
    /// Starts a scenario with an agent that has a node lease and has not reported it yet.
    fn with_node_lease(session_use: SessionUse) -> Self {
        Self { has_node_lease: true, ..Self::begin(session_use) }
    }

    /// Starts a scenario with a lock that was just granted under its own session, on a live node.
    fn holding_on_a_node() -> Self {
        let mut story = Self::with_node_lease(SessionUse::OneHold);
        story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
        story.answer("create", Ok(Response::Created("S1".into())));
        story.acknowledged();
        story.grant(5);
        story.answer("get", job_held_by("S1", 9));
        story
    }

    /// The agent reports an acknowledged renewal.
    fn acknowledged(&mut self) {
        let (deadline, jeopardy_at) = (self.now + WINDOW, self.now + WINDOW / 2);
        self.report_node_lease(NodeLeaseState::Until { deadline, jeopardy_at });
    }

    fn report_node_lease(&mut self, state: NodeLeaseState) {
        self.answer("node lease", Ok(Response::NodeLease(NodeLease { state, index: 7 })));
    }

    fn state(&self) -> GuardState {
        self.holder.state(JOB, self.now)
    }
}

#[test]
fn acquire_waits_for_node_lease() {
    let mut story = Story::with_node_lease(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.answer("create", Ok(Response::Created("S1".into())));
    assert_eq!(story.asked(), ["node lease"]);
    assert_eq!(story.holder.session_remaining(story.now), Duration::ZERO);
    // The node's first renewal is not acknowledged yet.
    story.report_node_lease(NodeLeaseState::Suspended);
    assert_eq!(story.asked(), ["node lease"], "and waits for the next report");
    assert!(matches!(story.request("node lease"), Request::NodeLease(_, read) if read.index == 7));
    story.acknowledged();
    assert_eq!(story.asked(), ["get", "node lease"]);
}

#[test]
fn keeper_ready_after_node_lease() {
    let mut story = Story::with_node_lease(SessionUse::Shared);
    story.handle_input(Input::Keep);
    story.answer("create", Ok(Response::Created("S1".into())));
    assert!(story.events.is_empty());
    story.acknowledged();
    assert!(matches!(&story.events[..], [Event::Kept(Ok(id))] if id == "S1"));
    assert_eq!(story.holder.session_remaining(story.now), WINDOW);
}

#[test]
fn unconfirmed_session_times_out() {
    let mut story = Story::with_node_lease(SessionUse::Shared);
    story.handle_input(Input::Keep);
    story.answer("create", Ok(Response::Created("S1".into())));
    story.report_node_lease(NodeLeaseState::Suspended);
    story.pass(9 * SECOND);
    assert!(story.events.is_empty());
    story.pass(SECOND);
    assert!(matches!(&story.events[0], Event::Kept(Err(Error::SessionLost(Loss::NodeDeadline)))));
    assert_eq!(story.asked(), ["give up"]);
}

#[test]
fn earlier_of_ttl_and_lease_wins() {
    let mut story = Story::holding_on_a_node();
    assert_eq!(story.remaining(), WINDOW);
    assert!(matches!(story.state(), GuardState::Safe { deadline } if deadline == story.now + WINDOW));
    story.pass(2 * SECOND);
    story.acknowledged();
    assert_eq!(story.remaining(), WINDOW);
    // From here on the node is renewed but the session is not: the TTL ends first.
    story.renews = false;
    for _ in 0..5 {
        story.pass(2 * SECOND);
        if story.asked().contains(&"node lease") {
            story.acknowledged();
        }
    }
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
}

#[test]
fn window_beyond_ttl_adds_nothing() {
    let mut story = Story::holding_on_a_node();
    let (deadline, jeopardy_at) = (story.now + 60 * SECOND, story.now + 30 * SECOND);
    story.report_node_lease(NodeLeaseState::Until { deadline, jeopardy_at });
    assert_eq!(story.remaining(), BELIEF);
}

#[test]
fn agent_death_keeps_deadline() {
    let mut story = Story::holding_on_a_node();
    story.answer("node lease", Err(unheard()));
    story.pass(WINDOW / 2 - MS);
    assert!(matches!(story.state(), GuardState::Safe { .. }));
    story.pass(MS);
    // Without any report.
    assert!(matches!(story.state(), GuardState::Jeopardy { .. }) && story.is_held());
    while story.is_held() {
        story.pass(10 * MS);
        if story.asked().contains(&"node lease") {
            let refused = Error::Refused { status: 404, text: "an older agent".into() };
            story.answer("node lease", Err(refused));
        }
    }
    assert_eq!(story.state(), GuardState::Suspended);
    assert_eq!((story.remaining(), story.told_loss()), (Duration::ZERO, None));
    assert_eq!(story.holder.loss(JOB), None, "it may be resumed");
    assert!(story.notices.contains(&Notice::Suspended("S1".into(), vec!["job".into()])));
    assert!(!story.asked().contains(&"destroy"));
}

#[test]
fn process_pause_suspends_hold() {
    let mut story = Story::holding_on_a_node();
    story.suspend(WINDOW);
    assert_eq!(story.state(), GuardState::Suspended, "before any report");
    // The pending reply was written before the suspension.
    story.report_node_lease(NodeLeaseState::Until { deadline: story.now, jeopardy_at: story.now });
    assert_eq!(story.state(), GuardState::Suspended);
}

#[test]
fn suspended_hold_needs_confirming_read() {
    let mut story = Story::holding_on_a_node();
    story.pass(WINDOW);
    assert_eq!(story.state(), GuardState::Suspended);
    // The watch that was in flight all the time proves nothing.
    story.answer("get", job_held_by("S1", 10));
    assert_eq!(story.state(), GuardState::Suspended);
    story.acknowledged();
    assert_eq!(story.state(), GuardState::Suspended, "the leader must confirm the hold, too");
    assert!(story.notices.contains(&Notice::Resumed("S1".into(), vec!["job".into()])));
    let Request::Get(_, read) = story.request("get") else { unreachable!() };
    assert_eq!((read.index, read.consistency), (0, lockmesh_client::Consistency::Consistent));
    story.answer("get", job_held_by("S1", 10));
    assert!(matches!(story.state(), GuardState::Safe { .. }));
    assert_eq!(story.remaining(), WINDOW);
}

#[test]
fn failed_confirming_read_repeated() {
    let mut story = Story::holding_on_a_node();
    story.pass(WINDOW);
    story.acknowledged();
    story.answer("get", Err(unheard()));
    assert_eq!(story.state(), GuardState::Suspended);
    story.pass(SECOND);
    story.answer("get", job_held_by("S1", 10));
    assert!(matches!(story.state(), GuardState::Safe { .. }));
}

#[test]
fn suspended_hold_lost_when_taken() {
    let mut story = Story::holding_on_a_node();
    story.pass(WINDOW);
    story.acknowledged();
    story.answer("get", job_held_by("S2", 12));
    story.answer("find", Ok(Response::Found(true)));
    assert_eq!(story.told_loss(), Some(&Loss::Taken("S2".into())));
    assert_eq!(story.state(), GuardState::Lost(Loss::Taken("S2".into())));
}

#[test]
fn suspended_hold_lost_when_regranted() {
    let held = |lock_index| {
        let entry = Entry { key: "job".into(), session: Some("S1".into()), lock_index, ..Entry::default() };
        Ok(Response::Entries(vec![Entry { flags: LOCK_FLAGS, ..entry }], 12))
    };
    let mut story = Story::holding_on_a_node();
    story.answer("get", held(0));
    story.pass(WINDOW);
    story.acknowledged();
    story.answer("get", held(1));
    story.answer("find", Ok(Response::Found(true)));
    assert_eq!(story.told_loss(), Some(&Loss::Released));
}

#[test]
fn agent_reports_session_loss_cause() {
    let mut story = Story::holding_on_a_node();
    story.report_node_lease(NodeLeaseState::Lost("node-failed".into()));
    assert_eq!(story.told_loss(), Some(&Loss::Ended("node-failed".into())));
    assert!(!story.is_held());
    assert_eq!(story.asked(), [] as [&str; 0], "nothing is left to destroy or to watch");
}

#[test]
fn read_awaits_session_loss_cause_briefly() {
    let gone = || {
        let mut story = Story::holding_on_a_node();
        story.answer("get", job_held_by("", 12));
        story.answer("find", Ok(Response::Found(false)));
        assert!(!story.is_held() && story.told_loss().is_none());
        story
    };
    let mut story = gone();
    story.report_node_lease(NodeLeaseState::Lost("destroyed".into()));
    assert_eq!(story.told_loss(), Some(&Loss::Ended("destroyed".into())));
    let mut story = gone();
    story.pass(SECOND);
    assert_eq!(story.told_loss(), Some(&Loss::SessionGone));
}

#[test]
fn suspended_renewal_awaits_loss_cause_briefly() {
    let gone = || {
        let mut story = Story::holding_on_a_node();
        story.renews = false;
        story.pass(WINDOW);
        story.answer("node lease", Err(unheard()));
        while !story.asked().contains(&"renew") {
            story.pass(10 * MS);
        }
        story.answer("renew", Ok(Response::Found(false)));
        assert_eq!((story.state(), story.told_loss()), (GuardState::Suspended, None));
        assert!(story.asked().contains(&"node lease") && !story.asked().contains(&"renew"));
        story
    };
    let mut story = gone();
    story.report_node_lease(NodeLeaseState::Lost("destroyed".into()));
    assert_eq!(story.told_loss(), Some(&Loss::Ended("destroyed".into())));
    let mut story = gone();
    // An agent that still confirms the session does not know of its end yet.
    story.acknowledged();
    assert_eq!(story.state(), GuardState::Suspended);
    story.pass(SECOND);
    assert_eq!(story.told_loss(), Some(&Loss::SessionGone));
    assert!(!story.asked().contains(&"renew"));
}

#[test]
fn unrenewed_agent_keeps_earlier_deadline() {
    let mut story = Story::holding_on_a_node();
    story.pass(SECOND);
    // The agent was restarted, and no renewal of the new process was acknowledged yet.
    story.report_node_lease(NodeLeaseState::Suspended);
    assert!(matches!(story.state(), GuardState::Jeopardy { .. }));
    assert_eq!(story.remaining(), WINDOW - SECOND);
    story.acknowledged();
    assert!(matches!(story.state(), GuardState::Safe { .. }));
}

#[test]
fn announced_agent_restart_suspends_nothing() {
    let mut story = Story::holding_on_a_node();
    let promised = story.now + Duration::from_millis(28_500);
    story.report_node_lease(NodeLeaseState::Until { deadline: promised, jeopardy_at: story.now });
    // Its process exits, and another one starts after 6 s.
    let gone = story.now;
    story.answer("node lease", Err(unheard()));
    while story.now.since(gone) < 6 * SECOND {
        assert!(matches!(story.state(), GuardState::Jeopardy { .. }) && story.is_held());
        story.pass(10 * MS);
        if story.asked().contains(&"node lease") {
            story.answer("node lease", Err(unheard()));
        }
    }
    story.pass(SECOND);
    // The next process recognizes the guard by the index of the promise.
    assert!(matches!(story.request("node lease"), Request::NodeLease(_, read) if read.index == 7));
    story.report_node_lease(NodeLeaseState::Suspended);
    assert!(matches!(story.state(), GuardState::Jeopardy { .. }));
    story.acknowledged();
    assert!(matches!(story.state(), GuardState::Safe { .. }));
    // That process dies, too. The servers keep what it reported, and nothing of the first promise.
    let died = story.now;
    while story.is_held() {
        story.pass(10 * MS);
        if story.asked().contains(&"node lease") {
            story.answer("node lease", Err(unheard()));
        }
        let is_overdue = matches!(story.state(), GuardState::Jeopardy { .. } | GuardState::Suspended);
        assert_eq!(is_overdue, story.now >= died + WINDOW / 2);
    }
    assert_eq!((story.state(), story.now), (GuardState::Suspended, died + WINDOW));
}

#[test]
fn unbound_session_has_only_ttl() {
    let mut story = Story::with_node_lease(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.report_node_lease(NodeLeaseState::Unbound);
    story.grant(5);
    assert_eq!(story.remaining(), BELIEF);
    assert_eq!(story.asked(), ["get"], "there is nothing to follow");
}

#[test]
fn suspended_hold_can_be_released() {
    let mut story = Story::holding_on_a_node();
    story.pass(WINDOW);
    story.handle_input(Input::Release(JOB));
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("give up", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

/// The situation of `lockmesh lock` after an outage: its release waited for servers, the process
/// exited, and the session was never ended.
#[test]
fn dropped_suspended_hold_gives_up_session() {
    let mut story = Story::holding_on_a_node();
    story.pass(WINDOW);
    assert_eq!(story.state(), GuardState::Suspended);
    story.handle_input(Input::Drop(JOB));
    assert!(
        matches!(story.request("give up"), Request::EndSession(id, EndReason::GivenUp(None)) if id == "S1")
    );
    assert!(!story.asked().contains(&"release"));
}

/// The end of a command shortly before the deadline, released after the outage.
#[test]
fn dropped_late_hold_gives_up_session() {
    let late = WINDOW - Duration::from_millis(50);
    for (time, input, is_given_up) in [
        (WINDOW / 4, Input::Drop(JOB), false),
        (late, Input::Drop(JOB), true),
        // The outage ended while the command was being killed.
        (WINDOW / 4, Input::GiveUp(JOB), true),
    ] {
        let mut story = Story::holding_on_a_node();
        story.pass(time);
        story.handle_input(input);
        story.acknowledged();
        story.answer("release", Ok(Response::Verdict(true)));
        assert_eq!(story.asked().contains(&"give up"), is_given_up, "{:?}", story.asked());
    }
}

#[test]
fn unrenewed_session_given_up_with_duration() {
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.grant(5);
    story.renews = false;
    story.pass(BELIEF);
    assert_eq!(story.told_loss(), Some(&Loss::Deadline));
    let Request::EndSession(_, EndReason::GivenUp(Some(silent_for))) = story.request("give up") else {
        panic!("it is not given up: {:?}", story.asked())
    };
    assert!(*silent_for >= BELIEF, "{silent_for:?}");
}

#[test]
fn unanswered_release_retried_after_host_sleep() {
    let mut story = Story::with_node_lease(SessionUse::Shared);
    story.handle_input(Input::Keep);
    story.answer("create", Ok(Response::Created("S1".into())));
    story.acknowledged();
    story.handle_input(Input::Acquire(JOB, wanted(WaitLimit::Endless)));
    story.grant(5);
    story.handle_input(Input::Release(JOB));
    story.suspend(WINDOW);
    story.answer("release", Err(unheard()));
    story.acknowledged();
    story.pass(SECOND);
    assert_eq!(story.asked(), ["node lease", "release"], "otherwise the session keeps an unknown hold");
    story.answer("release", Ok(Response::Verdict(true)));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

#[test]
fn suspended_session_acquire_honors_wait_limit() {
    let suspended = |wait_limit: fn(Moment) -> WaitLimit| {
        let mut story = Story::with_node_lease(SessionUse::Shared);
        story.handle_input(Input::Keep);
        story.answer("create", Ok(Response::Created("S1".into())));
        story.acknowledged();
        story.pass(WINDOW);
        story.handle_input(Input::Acquire(JOB, wanted(wait_limit(story.now))));
        story
    };
    let story = suspended(|_| WaitLimit::Once);
    assert!(matches!(story.told_acquired(), Some(Err(Error::SessionLost(Loss::NodeDeadline)))));
    let mut story = suspended(|now| WaitLimit::Until(now + SECOND));
    story.pass(SECOND + 200 * MS);
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    let mut story = suspended(|_| WaitLimit::Endless);
    story.pass(SECOND);
    assert_eq!(story.asked(), ["node lease"]);
    story.acknowledged();
    assert_eq!(story.asked(), ["get", "node lease"]);
}

#[test]
fn overdue_poll_resent() {
    let mut story = Story::holding_on_a_node();
    let polls = |story: &Story| {
        let is_poll = |request: &Request| matches!(request, Request::NodeLease(_, read) if read.index == 7);
        let polls = story.asked.iter().filter(|(_, request)| is_poll(request));
        polls.map(|(number, _)| *number).collect::<Vec<_>>()
    };
    let first = polls(&story);
    story.pass(WINDOW / 2 - MS);
    assert_eq!(polls(&story), first, "the report is not due yet");
    story.pass(MS);
    assert!(polls(&story).len() == 1 && polls(&story) != first, "it replaces the first");
    story.acknowledged();
    story.pass(WINDOW / 2);
    assert!(matches!(story.state(), GuardState::Jeopardy { .. }));
    // The agent has no news: it is asked once a second.
    story.report_node_lease(NodeLeaseState::Suspended);
    let first = polls(&story);
    story.pass(SECOND - MS);
    assert_eq!(polls(&story), first);
    story.pass(MS);
    assert_ne!(polls(&story), first);
    story.acknowledged();
    assert!(matches!(story.state(), GuardState::Safe { .. }));
}
