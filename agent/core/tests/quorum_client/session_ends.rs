//! Ends of sessions that the agent completes: retried until the servers report them done, and named
//! in the replies to challenges.

use super::*;
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_protocol::given_up::{GivenUp, GivenUpSession, MAX_GIVEN_UP};
use lockmesh_protocol::lease::Challenge;

impl Story {
    fn end(&mut self, session: SessionId, reason: EndReason) -> CallToken {
        self.call(LocalCall::EndSession { session, reason })
    }

    /// The given-up sessions in the agent's reply to a challenge.
    fn named(&mut self) -> Option<GivenUp> {
        let lease = self.client.registered_lease().expect("it is registered");
        self.last_token += 1;
        let token = CallToken(self.last_token);
        self.handle_input(Input::Challenge(token, Challenge { lease, nonce: 77 }));
        let Ok(Answered::Response(response)) = self.take_answer(token) else { panic!("it does not answer") };
        let answer = response.node_answer().expect("it lives");
        assert_eq!(answer.renewal.nonce, 77);
        let secret = LeaseKey::default().secret(lease);
        assert!(answer.given_up.is_none_or(|given_up| secret.made_list(&given_up)));
        answer.given_up
    }
}

fn numbered(number: u8) -> SessionId {
    SessionId::from_random([number; 16])
}

#[test]
fn abandoned_session_reported_until_acknowledged() {
    let mut story = Story::at_rest();
    story.leader = None;
    story.kill(A);
    let token = story.end(session(), EndReason::GivenUp(None));
    assert_eq!(story.take_answer(token), Ok(Answered::Response(Response::Done)));
    story.pass(3 * HOLD);
    let named = story.named().expect("it is named");
    let [GivenUpSession { session: of, silent_for: Some(silent_for) }] = named.sessions.as_slice() else {
        panic!("not what was given up: {named:?}")
    };
    assert_eq!(*of, session());
    assert!(*silent_for < 10 * SECOND, "as long as when it was given up: {silent_for:?}");
    story.elect(B);
    let sent = story.until_asked();
    let Request::Propose(_, command) = &sent.request else { panic!("no command: {sent:?}") };
    let give_up = Command::GiveUpSession { session: session(), silent_for: *silent_for };
    assert_eq!(*command, give_up.restricted(), "every user of the host can request it");
    story.answer(&sent, applied(40, Reply::Done));
    assert_eq!(story.named(), None);
    assert_eq!(story.client.session_ends(), 0);
}

/// The agent is received, and receives nothing.
#[test]
fn overdue_renewal_names_given_up() {
    let mut story = Story::at_rest();
    story.acknowledges = false;
    story.end(session(), EndReason::GivenUp(Some(SECOND)));
    story.renewals.clear();
    story.pass(5 * SECOND);
    let lists = |(_, asked): &(Time, Asked)| match &asked.request {
        Request::RenewGivingUp(answer) => Some(answer.given_up.expect("it is not empty").sessions),
        _ => None,
    };
    let renewals = &story.renewals;
    assert_eq!(lists(&renewals[0]), None, "it is on time");
    let [GivenUpSession { session: named, .. }] = *lists(&renewals[1]).expect("it is overdue").as_slice()
    else {
        panic!("not what was given up: {renewals:?}")
    };
    assert_eq!(named, session());
    let secret = LeaseKey::default().secret(story.client.registered_lease().expect("it is registered"));
    assert!(renewals[1..].iter().all(|(_, asked)| match &asked.request {
        Request::RenewGivingUp(answer) => secret.made_list(&answer.given_up.expect("it is not empty")),
        _ => false,
    }));
}

#[test]
fn process_end_never_listed() {
    let mut story = Story::at_rest();
    story.acknowledges = false;
    story.end(session(), EndReason::ProcessExited);
    story.end(numbered(9), EndReason::GivenUp(Some(SECOND)));
    let listed = story.named().expect("one is named");
    assert_eq!(
        listed.sessions.as_slice().iter().map(|listed| listed.session).collect::<Vec<_>>(),
        [numbered(9)]
    );
}

#[test]
fn claimed_silence_capped_by_agent() {
    let mut story = Story::at_rest();
    for (reason, expected) in [
        (EndReason::GivenUp(Some(Duration::from_millis(1))), Some(true)),
        (EndReason::GivenUp(Some(3600 * SECOND)), Some(true)),
        (EndReason::Unconfirmed, None),
    ] {
        story.pass(SECOND);
        let token = story.end(session(), reason);
        assert_eq!(story.take_answer(token), Ok(Answered::Response(Response::Done)));
        let named = story.named().expect("it is named");
        let is_short = named.sessions.as_slice()[0].silent_for.map(|silent_for| silent_for < 10 * SECOND);
        assert_eq!(is_short, expected, "{reason:?}");
        let sent = story.until_asked();
        story.answer(&sent, applied(40, Reply::Done));
    }
}

#[test]
fn session_end_survives_lost_client() {
    for is_cancelled in [true, false] {
        let mut story = Story::at_rest();
        let token = story.end(session(), EndReason::Closed);
        story.only();
        if is_cancelled {
            story.handle_input(Input::Cancel(token));
        }
        story.leader = None;
        story.kill(A);
        story.pass(2 * HOLD);
        match is_cancelled {
            true => assert!(story.answers.is_empty()),
            false => assert!(story.heard_unknown(token).contains("unknown whether")),
        }
        let named = story.named().expect("it is named");
        assert_eq!(named.sessions.as_slice(), [GivenUpSession { session: session(), silent_for: None }]);
        story.elect(B);
        let again = story.until_asked();
        let Request::Propose(_, command) = &again.request else { panic!("no command: {again:?}") };
        assert_eq!(*command, Command::DestroySession(session()).restricted());
        story.answer(&again, applied(40, Reply::Done));
        assert!(story.answers.is_empty() && story.named().is_none());
    }
}

#[test]
fn overloaded_servers_are_retried() {
    let mut story = Story::at_rest();
    let token = story.end(session(), EndReason::Closed);
    for _ in 0..5 {
        let sent = story.until_asked();
        let busy = Unavailable::Overloaded("4 writes wait for their commit".into());
        story.answer(&sent, Response::Unavailable(busy));
        assert!(story.asked.is_empty(), "not at once");
        story.pass(5 * SECOND);
    }
    assert!(matches!(story.take_answer(token), Err(Unavailable::Overloaded(_))));
    let sent = story.until_asked();
    story.answer(&sent, applied(40, Reply::Done));
    assert_eq!(story.client.session_ends(), 0);
}

#[test]
fn excess_abandoned_sessions_take_turns() {
    let mut story = Story::at_rest();
    story.leader = None;
    story.kill(A);
    let count = MAX_GIVEN_UP as u8 * 2 + 3;
    for number in 1..=count {
        story.end(numbered(number), EndReason::GivenUp(Some(SECOND)));
    }
    let mut named = BTreeSet::new();
    for _ in 0..3 {
        let list = story.named().expect("they are named");
        assert_eq!(list.sessions.as_slice().len(), MAX_GIVEN_UP);
        named.extend(list.sessions.as_slice().iter().map(|listed| listed.session));
    }
    assert_eq!(named.len(), usize::from(count));
}

#[test]
fn duplicate_ends_send_one_command() {
    let mut story = Story::at_rest();
    let given_up = story.end(session(), EndReason::GivenUp(Some(SECOND)));
    let closed = story.end(session(), EndReason::Closed);
    assert_eq!(story.take_answer(given_up), Ok(Answered::Response(Response::Done)));
    let sent = story.only();
    story.answer(&sent, applied(40, Reply::Done));
    assert_eq!(story.heard_applied(closed), 40);
}
