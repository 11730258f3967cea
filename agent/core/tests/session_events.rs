//! Stories of a session as its guards see it. The story controls the time.

use lockmesh_agent_core::lease::{LeaseState, RESTART_BELIEF, margin};
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_agent_core::session_events::{Input, Renewal, SessionEvents, SessionState, SessionView};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd};
use lockmesh_protocol::time::Time;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = HealthWindow::Default.duration();
/// The time from sending a renewal to the deadline.
const BELIEF: Duration = HealthWindow::Default.validity().saturating_sub(margin(HealthWindow::Default));
const START: Time = Time(1_000_000_000);

const THERE: SessionView = SessionView::Bound(HealthWindow::Default);

struct Story {
    events: SessionEvents,
    now: Time,
}

impl Story {
    /// A session on a node whose newest renewal was sent, acknowledged and read just now.
    fn safe() -> Self {
        let lease = LeaseState { renewed: Some(START), ..LeaseState::default() };
        Self { events: SessionEvents::new(START, lease, START, THERE), now: START }
    }

    fn handle_input(&mut self, input: Input) {
        self.events.handle(self.now, input);
    }

    /// Lets time pass, with every requested wake-up.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.events.wakes_at().filter(|at| *at <= end) {
            assert!(at > self.now, "it wants to be woken in the past");
            self.now = at;
            self.handle_input(Input::Tick);
        }
        self.now = end;
    }

    /// A renewal sent at this time was acknowledged.
    fn renewed(&mut self, sent: Time) {
        self.handle_input(Input::Lease(LeaseState { renewed: Some(sent), ..LeaseState::default() }));
    }

    fn read(&mut self, began: Time, view: SessionView) {
        self.handle_input(Input::Read { began, view });
    }

    fn state(&self) -> SessionState {
        self.events.event().state
    }

    fn reason(&self) -> &str {
        &self.events.event().reason
    }
}

#[test]
fn acknowledgement_extends_deadline() {
    let mut story = Story::safe();
    assert_eq!(story.state(), SessionState::Safe);
    assert_eq!(story.events.event().deadline, Some(START + BELIEF));
    let first = story.events.event().index;
    story.pass(WINDOW / 3);
    let sent = story.now;
    story.pass(20 * MS);
    story.renewed(sent);
    let event = story.events.event().clone();
    assert_eq!((event.state, event.deadline), (SessionState::Safe, Some(sent + BELIEF)));
    assert!(event.index > first);
    // A repeated acknowledgement has no effect, nor has an older one.
    story.renewed(sent);
    story.renewed(START);
    assert_eq!(*story.events.event(), event);
}

#[test]
fn deadline_counts_from_send_per_window() {
    for window in HealthWindow::ALL {
        let lease = LeaseState { renewed: Some(START), ..LeaseState::default() };
        let now = START + 300 * MS;
        let events = SessionEvents::new(now, lease, now, SessionView::Bound(window));
        let event = events.event();
        assert_eq!(event.deadline, Some(START + (window.validity() - margin(window))));
        assert_eq!(event.state, SessionState::Safe);
        let renewal_due = START + window.renewal_interval();
        assert!(event.jeopardy_at > Some(renewal_due + 50 * MS), "{window:?} leaves time for an answer");
    }
}

#[test]
fn overdue_renewal_causes_jeopardy() {
    let mut story = Story::safe();
    let jeopardy_at = story.events.event().jeopardy_at.expect("there is a deadline");
    assert_eq!(jeopardy_at, START + (BELIEF - Duration::from_micros(3_333_333)));
    story.pass(jeopardy_at.since(START) - MS);
    assert_eq!(story.state(), SessionState::Safe);
    story.pass(MS);
    assert_eq!(
        (story.state(), story.events.event().deadline),
        (SessionState::Jeopardy, Some(START + BELIEF))
    );
    assert!(story.reason().contains("overdue"));
    story.renewed(story.now);
    assert_eq!((story.state(), story.reason()), (SessionState::Safe, ""), "nothing else was granted");
    assert!(!story.events.wants_read());
}

#[test]
fn acknowledged_restart_causes_jeopardy() {
    for window in HealthWindow::ALL {
        let lease = LeaseState { renewed: Some(START), ..LeaseState::default() };
        let mut events = SessionEvents::new(START, lease.clone(), START, SessionView::Bound(window));
        let sent = START + SECOND;
        let restarting = LeaseState { announced: Some(sent), ..lease };
        events.handle(sent + 20 * MS, Input::Lease(restarting.clone()));
        let event = events.event().clone();
        assert_eq!((event.state, event.deadline), (SessionState::Jeopardy, Some(sent + RESTART_BELIEF)));
        assert!(
            event.jeopardy_at <= Some(sent + 20 * MS) && event.reason.contains("is restarting"),
            "{event:?}"
        );
        // A renewal that was under way has no effect, and makes nothing safe.
        let renewed = LeaseState { renewed: Some(sent + 10 * MS), ..restarting };
        events.handle(sent + 30 * MS, Input::Lease(renewed));
        assert_eq!(*events.event(), event);
        assert!(!events.wants_read());
    }
    assert_eq!(RESTART_BELIEF, Duration::from_millis(28_500));
}

#[test]
fn restart_keeps_suspended_until_read() {
    let mut story = Story::safe();
    let sent = story.now + (BELIEF - 10 * MS);
    // The reply arrives after the deadline: others may have been granted something.
    story.pass(BELIEF + MS);
    let restarting = LeaseState { renewed: Some(START), announced: Some(sent), ..LeaseState::default() };
    story.handle_input(Input::Lease(restarting));
    assert!(story.state() == SessionState::Suspended && story.events.wants_read());
    story.read(sent, THERE);
    assert_eq!(story.state(), SessionState::Suspended, "it may have been answered before");
    story.read(story.now, THERE);
    assert_eq!(story.state(), SessionState::Jeopardy);
    assert_eq!(story.events.event().deadline, Some(sent + RESTART_BELIEF));
}

#[test]
fn renewal_alone_keeps_suspended() {
    let mut story = Story::safe();
    story.pass(BELIEF);
    assert_eq!(story.state(), SessionState::Suspended);
    assert!(!story.events.wants_read(), "no reply arrives");
    story.pass(SECOND);
    let began = story.now;
    story.pass(MS);
    story.renewed(story.now);
    assert_eq!(story.state(), SessionState::Suspended);
    assert!(story.events.wants_read());
    // This one may have been answered before the session ended.
    story.read(began, THERE);
    assert_eq!(story.state(), SessionState::Suspended);
    assert!(story.events.wants_read());
    story.read(story.now, THERE);
    assert_eq!((story.state(), story.events.wants_read()), (SessionState::Safe, false));
    assert_eq!(story.events.event().deadline, Some(story.now + BELIEF));
}

/// A guard stops at the deadline, and its release is acknowledged only after the recovery.
#[test]
fn recovered_silence_confirms_end_reason() {
    let mut story = Story::safe();
    let reason = |story: &Story, claimed| {
        let renewal = Renewal { at: story.now, ttl: None };
        story.events.event().end_reason(claimed, renewal, story.now)
    };
    assert_eq!(reason(&story, None), EndReason::Unconfirmed);
    story.pass(BELIEF + SECOND);
    assert_eq!(reason(&story, Some(SECOND)), EndReason::GivenUp(Some(SECOND)));
    story.renewed(story.now);
    story.read(story.now, THERE);
    for (claimed, expected) in
        [(None, BELIEF + SECOND), (Some(SECOND), SECOND), (Some(60 * SECOND), BELIEF + SECOND)]
    {
        assert_eq!(reason(&story, claimed), EndReason::Confirmed(expected));
    }
    // A guard that stops shortly before the deadline gives up a session that is never suspended.
    let mut late = Story::safe();
    late.pass(BELIEF - MS);
    late.renewed(late.now);
    assert_eq!((late.state(), reason(&late, None)), (SessionState::Safe, EndReason::Confirmed(BELIEF - MS)));
    // Renewed all the time since.
    for _ in 0..60 {
        story.pass(SECOND);
        story.renewed(story.now);
    }
    assert_eq!(reason(&story, None), EndReason::Unconfirmed);
}

#[test]
fn unrenewed_ttl_confirms_end_reason() {
    let story = Story::safe();
    let reason = |claimed, unrenewed: u64, ttl| {
        let renewal = Renewal { at: Time(START.0 - unrenewed * 1_000_000), ttl };
        story.events.event().end_reason(claimed, renewal, START)
    };
    let confirmed = |seconds| EndReason::Confirmed(seconds * SECOND);
    assert_eq!(reason(Some(9 * SECOND), 8, Some(10 * SECOND)), confirmed(8));
    assert_eq!(reason(Some(5 * SECOND), 8, None), confirmed(5));
    for (claimed, unrenewed, ttl) in
        [(Some(9 * SECOND), 4, Some(10 * SECOND)), (Some(9 * SECOND), 4, None), (None, 8, Some(10 * SECOND))]
    {
        assert_eq!(reason(claimed, unrenewed, ttl), EndReason::Unconfirmed);
    }
}

#[test]
fn late_acknowledgement_suspends() {
    let mut story = Story::safe();
    // The agent was stopped: the timer is late, and the reply comes first.
    story.now = START + BELIEF + MS;
    story.renewed(START + WINDOW / 3);
    assert_eq!(story.state(), SessionState::Suspended);
    assert!(story.events.wants_read());
}

#[test]
fn gone_session_reports_reason() {
    let mut story = Story::safe();
    story.read(story.now, SessionView::Gone("destroyed".into()));
    assert_eq!((story.state(), story.reason()), (SessionState::Lost, "destroyed"));
    assert_eq!(story.events.event().deadline, None);
    assert!(story.events.is_over() && !story.events.wants_end());
    // Any later input.
    let last = story.events.event().clone();
    story.renewed(story.now);
    story.read(story.now, THERE);
    story.pass(60 * SECOND);
    assert_eq!(*story.events.event(), last);
}

#[test]
fn lost_within_two_unrenewed_windows() {
    let mut story = Story::safe();
    let grace = WINDOW - HealthWindow::Default.renewal_interval();
    story.pass(BELIEF + grace - MS);
    assert!(BELIEF + grace < 2 * WINDOW);
    assert_eq!((story.state(), story.events.wants_end()), (SessionState::Suspended, false));
    story.pass(MS);
    assert_eq!((story.state(), story.events.wants_end()), (SessionState::Lost, true));
    assert!(story.reason().starts_with("given-up: "));
    // The guards were notified: it does not come back.
    story.renewed(story.now);
    story.read(story.now, THERE);
    assert_eq!((story.state(), story.events.wants_end()), (SessionState::Lost, true));
    assert!(!story.events.wants_read());
    story.read(story.now, SessionView::Gone("node-failed".into()));
    assert!(story.reason().starts_with("given-up: ") && !story.events.wants_end());
    assert!(story.events.is_over());
}

#[test]
fn ended_lease_keeps_earlier_deadline() {
    let mut story = Story::safe();
    story.pass(SECOND);
    let ended = Some(LeaseEnd::Superseded);
    story.handle_input(Input::Lease(LeaseState { renewed: Some(START), ended, ..LeaseState::default() }));
    assert_eq!(
        (story.state(), story.events.event().deadline),
        (SessionState::Jeopardy, Some(START + BELIEF))
    );
    assert!(story.reason().contains("another process"), "{}", story.reason());
    // It registers again, and the new lease's first renewal is acknowledged.
    story.handle_input(Input::Lease(LeaseState::default()));
    assert_eq!(story.events.event().deadline, Some(START + BELIEF));
    story.renewed(story.now);
    assert_eq!((story.state(), story.events.wants_read()), (SessionState::Jeopardy, true));
    assert_eq!(story.events.event().deadline, Some(START + BELIEF), "the session may have ended");
    story.read(story.now, THERE);
    assert_eq!(story.state(), SessionState::Safe);
    assert_eq!(story.events.event().deadline, Some(story.now + BELIEF));
}

#[test]
fn left_node_loses_sessions() {
    for view in [THERE, SessionView::Unbound] {
        let mut story = Story::safe();
        story.read(story.now, view);
        let left = LeaseState { renewed: Some(story.now), has_left: true, ..LeaseState::default() };
        story.handle_input(Input::Lease(left));
        assert_eq!((story.state(), story.reason()), (SessionState::Lost, "node-left"));
        assert!(story.events.is_over() && !story.events.wants_end());
    }
}

#[test]
fn fresh_agent_starts_suspended() {
    let mut story =
        Story { events: SessionEvents::new(START, LeaseState::default(), START, THERE), now: START };
    assert_eq!((story.state(), story.events.event().deadline), (SessionState::Suspended, None));
    assert!(story.reason().contains("since its agent started"), "{}", story.reason());
    story.pass(60 * SECOND);
    assert!(!story.events.wants_end(), "no deadline was reported that could have passed");
    story.renewed(story.now);
    assert!(story.events.wants_read());
    story.read(story.now, THERE);
    assert_eq!(story.state(), SessionState::Safe);
}

#[test]
fn expired_acknowledgement_wants_no_read() {
    let mut story =
        Story { events: SessionEvents::new(START, LeaseState::default(), START, THERE), now: START };
    story.renewed(START);
    assert!(story.events.wants_read());
    story.now = START + BELIEF;
    story.read(START, THERE);
    assert_eq!((story.state(), story.events.wants_read()), (SessionState::Suspended, false));
    story.renewed(story.now);
    assert!(story.events.wants_read());
}

#[test]
fn unbound_session_has_no_deadline() {
    let lease = LeaseState::default();
    let mut story =
        Story { events: SessionEvents::new(START, lease, START, SessionView::Unbound), now: START };
    let event = story.events.event().clone();
    assert_eq!((event.state, event.deadline), (SessionState::Safe, None));
    assert!(event.reason.contains("TTL"));
    assert_eq!(story.events.wakes_at(), None);
    story.renewed(story.now);
    assert_eq!(*story.events.event(), event, "renewals are no news to it");
    story.read(story.now, SessionView::Gone("ttl-expired".into()));
    assert_eq!(story.state(), SessionState::Lost);
}

#[test]
fn read_before_renewal_keeps_suspended() {
    let mut story = Story::safe();
    story.pass(BELIEF + MS);
    assert_eq!(story.state(), SessionState::Suspended);
    let before = story.now;
    story.pass(SECOND);
    story.renewed(story.now);
    story.read(before, THERE);
    assert_eq!(story.state(), SessionState::Suspended, "the session may have ended after this read");
    assert!(story.events.wants_read());
    story.read(story.now, THERE);
    assert_eq!(story.state(), SessionState::Safe);
}
