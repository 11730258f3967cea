//! The node lease: when and through which servers it is renewed, and the validity that guards rely
//! on.

use super::*;
use lockmesh_agent_core::lease::{RESTART_BELIEF, margin};
use lockmesh_agent_core::request_ids::Registration;
use lockmesh_protocol::lease::{Challenge, LeaseEnd, RESTORED};

/// The longest wait for the status of a server that was silent.
const ANSWER: Duration = Duration::from_secs(3);

/// A third of the default window.
const INTERVAL: Duration = Duration::from_micros(1_666_666);

impl Story {
    /// At rest, right after a renewal was acknowledged, without a record of earlier ones.
    fn just_renewed() -> Self {
        let mut story = Self::at_rest();
        let count = story.renewals.len();
        while story.renewals.len() == count {
            story.pass(MS);
        }
        story.renewals.clear();
        story
    }

    /// Lets time pass until a renewal is sent; returns its time and the call.
    fn until_renewed(&mut self) -> (Time, Asked) {
        for _ in 0..20_000 {
            if !self.renewals.is_empty() {
                return self.renewals.remove(0);
            }
            self.pass(MS);
        }
        panic!("no renewal: {:?}", self.client);
    }

    fn acknowledge(&mut self, asked: &Asked) {
        let response = self.acknowledgement(renewal(asked));
        self.answer(asked, response);
    }

    fn home(&mut self) -> &'static str {
        self.renewals.clear();
        let home = self.until_renewed().1.server;
        self.renewals.clear();
        home
    }

    /// The lease of the newest registration.
    fn lease_id(&self) -> LeaseId {
        self.client.registration().expect("it is registered").lease
    }

    fn end_lease(&mut self, why: LeaseEnd) {
        self.acknowledges = false;
        self.renewals.clear();
        let (_, asked) = self.until_renewed();
        let lease = renewal(&asked).lease;
        self.acknowledges = true;
        self.answer(&asked, Response::LeaseEnded(lease, why));
    }

    fn create(&mut self, new: SessionSpec) -> CallToken {
        self.call(LocalCall::Propose(Command::CreateSession(new)))
    }

    /// Counts the renewals during this time.
    fn renewals_in(&mut self, duration: Duration) -> usize {
        self.renewals.clear();
        self.pass(duration);
        self.renewals.len()
    }

    fn challenge(&mut self, challenge: Challenge) -> Response {
        self.last_token += 1;
        let token = CallToken(self.last_token);
        self.handle_input(Input::Challenge(token, challenge));
        match self.take_answer(token) {
            Ok(Answered::Response(response)) => response,
            other => panic!("no answer to a challenge: {other:?}"),
        }
    }
}

#[track_caller]
fn renewal(asked: &Asked) -> &Renewal {
    asked.request.renewal().unwrap_or_else(|| panic!("no renewal: {asked:?}"))
}

#[test]
fn deadline_counts_from_renewal_send() {
    let mut story = Story::just_renewed();
    let before = story.client.lease().renewed;
    story.acknowledges = false;
    let (sent, asked) = story.until_renewed();
    story.pass(80 * MS);
    assert_eq!(story.client.lease().renewed, before, "an unacknowledged renewal does not count");
    story.acknowledge(&asked);
    assert_eq!(story.client.lease().renewed, Some(sent));
    for window in HealthWindow::ALL {
        let until = sent + (window.validity() - margin(window));
        assert_eq!(story.client.lease().deadline(window), Some(until));
    }
    assert_eq!(story.client.lease().ended, None);
}

#[test]
fn renewed_on_registration_then_every_third() {
    let mut story = Story::begin();
    assert_eq!(story.client.lease().deadline(HealthWindow::Default), None);
    let (first, asked) = story.until_renewed();
    assert!(first < Time(0) + SECOND, "{first:?}");
    let secret = story.client.registration().expect("it is registered").secret;
    assert!(secret.made(renewal(&asked)) && renewal(&asked).nonce == 0 && renewal(&asked).sequence == 1);
    let (second, asked) = story.until_renewed();
    assert_eq!((second.since(first), renewal(&asked).sequence), (INTERVAL, 2));
    assert_eq!(story.renewals_in(50 * SECOND), 30, "also without other requests");
    assert_eq!(story.client.counts().renewals, story.client.counts().renewals_acknowledged);
}

#[test]
fn renewal_retried_elsewhere_after_100_ms() {
    let mut story = Story::just_renewed();
    let home = story.home();
    story.mute.insert(home);
    let (first, asked) = story.until_renewed();
    assert_eq!(asked.server, home);
    let (second, other) = story.until_renewed();
    assert_ne!(other.server, home);
    assert_eq!(second.since(first), 100 * MS);
    assert_eq!(story.client.lease().renewed, Some(second));
    let (third, asked) = story.until_renewed();
    assert_eq!((asked.server, third.since(first)), (home, INTERVAL));
}

#[test]
fn failed_renewal_rerouted_immediately() {
    let refusals = [
        not_leader(Some(B)),
        not_leader(None),
        Response::Unavailable(Unavailable::Unknown("a verdict is in flight".into())),
        Response::Unavailable(Unavailable::Overloaded("full".into())),
        Response::Unavailable(Unavailable::Denied("it is not known here".into())),
        Response::Done,
    ];
    for refusal in refusals {
        let mut story = Story::just_renewed();
        let home = story.home();
        story.acknowledges = false;
        let (first, asked) = story.until_renewed();
        story.acknowledges = true;
        story.answer(&asked, refusal);
        let (second, other) = story.until_renewed();
        assert!(other.server != home && second.since(first) < 5 * MS, "{other:?}");
    }
    let mut story = Story::just_renewed();
    let home = story.home();
    story.acknowledges = false;
    let (first, _) = story.until_renewed();
    story.acknowledges = true;
    story.kill(home);
    let (second, other) = story.until_renewed();
    assert!(other.server != home && second.since(first) < 5 * MS, "{other:?}");
}

#[test]
fn acknowledgement_reveals_new_leader() {
    let mut story = Story::just_renewed();
    story.home();
    (story.leader, story.term) = (Some(C), 2);
    story.notices.clear();
    story.pass(2 * INTERVAL);
    assert!(story.notices.contains(&Notice::LeaderFound(C.into())), "{:?}", story.notices);
}

#[test]
fn late_acknowledgement_never_shortens_deadline() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (first, one) = story.until_renewed();
    let (second, two) = story.until_renewed();
    story.pass(SECOND);
    story.acknowledge(&two);
    assert_eq!(story.client.lease().renewed, Some(second));
    story.acknowledge(&one);
    assert_eq!(story.client.lease().renewed, Some(second), "an overtaken one has no effect");
    assert!(first < second);
    let deadline = story.client.lease().deadline(HealthWindow::Default);
    let (_, late) = story.until_renewed();
    story.pass(10 * SECOND);
    assert_eq!(story.client.lease().deadline(HealthWindow::Default), deadline);
    story.acknowledge(&late);
    let renewed = story.client.lease().deadline(HealthWindow::Default).expect("it was renewed");
    assert!(renewed < story.now, "it came when its window was over: {renewed:?}");
}

#[test]
fn kept_session_index_per_lease() {
    let mut story = Story::just_renewed();
    assert_eq!(story.client.lease().keeps_from, LogIndex(0));
    story.keeps_from = LogIndex(40);
    story.until_renewed();
    story.pass(MS);
    assert_eq!(story.client.lease().keeps_from, LogIndex(40));
    // An acknowledgement that was overtaken has no effect; another lease starts over.
    story.keeps_from = LogIndex(0);
    story.until_renewed();
    story.pass(MS);
    assert_eq!(story.client.lease().keeps_from, LogIndex(40));
    story.end_lease(LeaseEnd::Failed);
    story.pass(5 * SECOND);
    assert_eq!(story.client.lease().keeps_from, LogIndex(0));
    assert!(story.client.lease().renewed.is_some());
}

#[test]
fn forged_acknowledgement_is_ignored() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (_, asked) = story.until_renewed();
    let before = story.client.lease().clone();
    let forged = Renewal { sequence: renewal(&asked).sequence + 7, ..*renewal(&asked) };
    let foreign =
        Renewal { lease: LeaseId { began: LogIndex(99), ..renewal(&asked).lease }, ..*renewal(&asked) };
    for wrong in [forged, foreign] {
        story.answer(&asked, story.acknowledgement(&wrong));
    }
    assert_eq!(*story.client.lease(), before);
}

#[test]
fn unacknowledged_renewals_paced_across_servers() {
    let mut story = Story::just_renewed();
    let before = story.client.lease().clone();
    story.mute.extend(SERVERS);
    let count = story.renewals_in(20 * SECOND);
    let servers: BTreeSet<_> = story.renewals.iter().map(|(_, asked)| asked.server).collect();
    assert!((20..120).contains(&count) && servers.len() >= 2, "{count} through {servers:?}");
    assert_eq!(*story.client.lease(), before);
    story.mute.clear();
    story.renewals.clear();
    let (sent, _) = story.until_renewed();
    assert_eq!(story.client.lease().renewed, Some(sent));
}

#[test]
fn denied_renewals_back_off_silently() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    story.notices.clear();
    for _ in 0..1_000 {
        story.pass(10 * MS);
        for (_, asked) in std::mem::take(&mut story.renewals) {
            story.answer(&asked, Response::Unavailable(Unavailable::Denied("not known here".into())));
        }
    }
    let sent = story.client.counts().renewals;
    assert!((10..60).contains(&sent), "{sent} in ten seconds and some");
    assert_eq!(story.notices, []);
    assert_eq!(story.client.load().calls, 0);
}

#[test]
fn renewal_waits_for_connection() {
    let mut story = Story::just_renewed();
    SERVERS.into_iter().for_each(|server| story.kill(server));
    assert_eq!(story.renewals_in(10 * SECOND), 0);
    story.down.clear();
    story.pass(3 * SECOND);
    let (sent, _) = story.renewals.last().expect("there is a way again");
    assert_eq!(story.client.lease().renewed, Some(*sent));
}

#[test]
fn renewal_follows_first_server_status() {
    let mut story = Story::just_renewed();
    SERVERS.into_iter().for_each(|server| story.kill(server));
    story.pass(20 * SECOND);
    // All are connected, and none reports its status.
    story.down.clear();
    story.mute.extend(SERVERS);
    story.pass(SECOND);
    story.mute.clear();
    story.renewals.clear();
    let before = story.now;
    let (sent, _) = story.until_renewed();
    let heard = story.notices.iter().any(|notice| matches!(notice, Notice::LeaderFound(_)));
    assert!(heard && sent.since(before) <= ANSWER, "{:?} after {before:?}", sent.since(before));
}

#[test]
fn new_leader_ends_renewal_backoff() {
    let mut story = Story::just_renewed();
    (story.leader, story.acknowledges) = (None, false);
    for _ in 0..1_000 {
        story.pass(10 * MS);
        for (_, asked) in std::mem::take(&mut story.renewals) {
            story.answer(&asked, Response::Unavailable(Unavailable::NotLeader { leader: None }));
        }
    }
    (story.leader, story.acknowledges) = (Some(B), true);
    story.term += 1;
    story.notices.clear();
    while story.notices.is_empty() {
        story.pass(MS);
    }
    assert_eq!(story.notices, [Notice::LeaderFound(B.into())]);
    let renewed = story.client.lease().renewed.expect("it was renewed before");
    assert!(story.now.since(renewed) <= MS, "in the turn in which it was found");
}

#[test]
fn renewals_bypass_call_backlog() {
    let mut story = Story::just_renewed();
    for connection in story.connections.keys().copied().collect::<Vec<_>>() {
        story.handle_input(Input::Backlog(connection, true));
    }
    story.propose("held");
    assert!(story.asked.is_empty());
    assert_eq!(story.renewals_in(10 * SECOND), 6);
    assert_eq!(story.client.counts().renewals, story.client.counts().renewals_acknowledged);
}

#[test]
fn end_reported_once_and_reregistered() {
    let reasons = [LeaseEnd::Unknown, LeaseEnd::Superseded, LeaseEnd::Failed, LeaseEnd::Left];
    for why in reasons {
        let mut story = Story::just_renewed();
        story.registers = false;
        let (first, before) = (story.lease_id(), story.client.lease().renewed);
        story.end_lease(why);
        assert_eq!(story.client.lease().ended, Some(why));
        assert_eq!(story.client.lease().renewed, before, "nothing later than what was reported");
        let lost = |notice: &&Notice| matches!(notice, Notice::LeaseLost(_));
        assert_eq!(story.notices.iter().filter(lost).collect::<Vec<_>>(), [&Notice::LeaseLost(why)]);
        let registration = story.until_asked();
        assert!(matches!(registration.request, Request::Propose(None, Command::RegisterAgent(_))));
        assert_eq!(story.renewals_in(3 * SECOND), 0, "there is no lease to renew");
        story.registers = true;
        story.answer(&registration, Response::Unavailable(Unavailable::Overloaded("full".into())));
        story.pass(SECOND);
        assert_eq!(story.registrations, 2);
        assert_ne!(story.lease_id(), first);
        let (sent, asked) = (story.renewals[0].0, story.renewals[0].1.clone());
        assert_eq!((renewal(&asked).lease, renewal(&asked).sequence), (story.lease_id(), 1));
        assert_eq!((story.client.lease().renewed, story.client.lease().ended), (Some(sent), None));
        assert_eq!(story.notices.iter().filter(lost).count(), 1);
    }
}

/// The same lease continues: the servers only lacked the node.
#[test]
fn late_end_ignored_after_reregistration() {
    let mut story = Story::just_renewed();
    (story.acknowledges, story.registers) = (false, false);
    let (_, late) = story.until_renewed();
    let (_, asked) = story.until_renewed();
    let known = story.client.registration().expect("it is registered");
    let ended = Response::LeaseEnded(known.lease, LeaseEnd::Unknown);
    story.answer(&asked, ended.clone());
    let registration = story.until_asked();
    let Registration { number, generation, lease, secret } = known;
    let reply = Reply::Agent { number, generation, lease, secret };
    story.answer(&registration, Response::Applied(Applied { index: LogIndex(9), reply }));
    story.answer(&late, ended);
    story.acknowledges = true;
    story.pass(SECOND);
    assert_eq!((story.client.lease().ended, story.client.registered_lease()), (None, Some(lease)));
    assert!(story.client.lease().renewed.is_some());
}

#[test]
fn a_renewal_reports_a_restore() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (_, asked) = story.until_renewed();
    story.answer(&asked, Response::Unavailable(Unavailable::Denied(RESTORED.into())));
    assert_eq!(story.notices.iter().filter(|notice| **notice == Notice::Restored).count(), 1);
    let answered = story.now;
    let (sent, again) = story.until_renewed();
    assert_eq!(sent, answered, "its lease waits for nothing");
    story.acknowledge(&again);
    assert_eq!((story.client.lease().ended, story.registrations), (None, 1));
}

#[test]
fn replies_for_former_lease_ignored() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (_, late) = story.until_renewed();
    let former = renewal(&late).lease;
    story.end_lease(LeaseEnd::Failed);
    story.pass(SECOND);
    let present = story.client.lease().clone();
    assert!(present.renewed.is_some() && present.ended.is_none());
    story.answer(&late, Response::LeaseEnded(former, LeaseEnd::Failed));
    story.acknowledge(&late);
    assert_eq!(story.client.lease().ended, None);
    assert!(story.client.lease().renewed >= present.renewed);
    assert_eq!(story.registrations, 2);
}

#[test]
fn fast_session_speeds_up_renewals() {
    let mut story = Story::just_renewed();
    let token = story.create(SessionSpec { health_window: HealthWindow::Fast, ..new_session() });
    let asked = story.only();
    assert!(story.renewals.is_empty(), "it is not there yet");
    let now = story.now;
    story.acknowledges = false;
    story.answer(&asked, applied(9, Reply::Session(session())));
    assert!(story.answers.contains_key(&token));
    let (sent, asked) = story.until_renewed();
    assert_eq!(sent, now);
    // The leader's reply is from a time when it knew the session.
    (story.acknowledges, story.shortest) = (true, Some(HealthWindow::Fast));
    story.acknowledge(&asked);
    assert_eq!(story.renewals_in(10 * SECOND), 20);
    story.shortest = None;
    story.pass(SECOND);
    assert_eq!(story.renewals_in(10 * SECOND), 6);
}

#[test]
fn stale_acknowledgement_keeps_fast_renewals() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (_, before) = story.until_renewed();
    story.create(SessionSpec { health_window: HealthWindow::Fast, ..new_session() });
    story.answer(&story.only(), Response::Unavailable(Unavailable::Unknown("the leader was deposed".into())));
    let (_, after) = story.until_renewed();
    story.acknowledge(&before);
    assert!(renewal(&after).sequence > renewal(&before).sequence);
    assert!(story.renewals_in(10 * SECOND) > 10, "it may have been created");
}

#[test]
fn unrelated_sessions_keep_renewal_interval() {
    let fast = SessionSpec { health_window: HealthWindow::Fast, ..new_session() };
    let others = [
        SessionSpec { node: "web-2".into(), ..fast.clone() },
        SessionSpec { node_checks: Vec::new(), ..fast.clone() },
        SessionSpec { node_checks: vec!["disk".into()], ..fast },
        SessionSpec { health_window: HealthWindow::Safe, ..new_session() },
        new_session(),
    ];
    for other in others {
        let mut story = Story::just_renewed();
        story.create(other);
        let asked = story.until_asked();
        story.answer(&asked, applied(9, Reply::Session(session())));
        assert_eq!(story.renewals_in(10 * SECOND), 6);
    }
    // A node is judged by the default window even if its sessions may be silent for longer.
    let mut story = Story::just_renewed();
    story.shortest = Some(HealthWindow::Safe);
    assert_eq!(story.renewals_in(10 * SECOND), 6);
}

#[test]
fn accepted_restart_counts_from_first_send() {
    let mut story = Story::just_renewed();
    let (lease, sent) = (story.lease_id(), story.now);
    let token = story.call(LocalCall::Propose(Command::AnnounceRestart(lease)));
    let first = story.only();
    story.pass(50 * MS);
    story.answer(&first, Response::Unavailable(Unavailable::Unknown("the leader was deposed".into())));
    // The servers may have counted from the first attempt.
    let second = story.until_asked();
    story.pass(50 * MS);
    assert_eq!(story.client.lease().announced, None);
    story.answer(&second, applied(9, Reply::Succeeded(true)));
    story.heard_applied(token);
    assert_eq!(story.client.lease().announced, Some(sent));
    for window in HealthWindow::ALL {
        assert_eq!(story.client.lease().deadline(window), Some(sent + RESTART_BELIEF));
    }
}

#[test]
fn unconfirmed_restart_is_ignored() {
    for reply in [Reply::Succeeded(false), Reply::Done] {
        let mut story = Story::just_renewed();
        story.call(LocalCall::Propose(Command::AnnounceRestart(story.lease_id())));
        story.answer(&story.only(), applied(9, reply));
        assert_eq!(story.client.lease().announced, None);
    }
    let mut story = Story::just_renewed();
    let token = story.call(LocalCall::Propose(Command::AnnounceRestart(story.lease_id())));
    let asked = story.only();
    story.handle_input(Input::Cancel(token));
    story.answer(&asked, applied(9, Reply::Succeeded(true)));
    assert_eq!(story.client.lease().announced, None, "the process that announced it continued");
    // The servers end the lease while the announcement is on its way.
    let mut story = Story::just_renewed();
    story.call(LocalCall::Propose(Command::AnnounceRestart(story.lease_id())));
    let asked = story.only();
    story.registers = false;
    story.end_lease(LeaseEnd::Failed);
    story.answer(&asked, applied(9, Reply::Succeeded(true)));
    assert_eq!(story.client.lease().announced, None);
}

#[test]
fn challenge_answered_and_advances_renewal() {
    let mut story = Story::just_renewed();
    story.pass(SECOND);
    let challenge = Challenge { lease: story.lease_id(), nonce: 77 };
    let Response::Alive(answer) = story.challenge(challenge) else { panic!("it lives") };
    let secret = story.client.registration().expect("it is registered").secret;
    assert!(secret.made(&answer) && answer.nonce == 77 && answer.lease == challenge.lease);
    let (sent, asked) = story.until_renewed();
    assert_eq!(sent, story.now, "its acknowledgement comes by a renewal of the agent's own");
    assert!(renewal(&asked).sequence > answer.sequence);
    // Three servers that challenge every 250 ms cause no burst of renewals.
    let before = story.client.counts().renewals;
    for _ in 0..40 {
        story.pass(25 * MS);
        assert!(matches!(story.challenge(challenge), Response::Alive(_)));
    }
    let renewals = story.client.counts().renewals - before;
    assert!(renewals <= 10 && story.client.counts().challenges == 41, "{renewals}");
}

#[test]
fn challenge_flood_keeps_pending_renewal() {
    let mut story = Story::just_renewed();
    story.acknowledges = false;
    let (sent, asked) = story.until_renewed();
    let lease = story.lease_id();
    for nonce in 1..=2_000 {
        assert!(matches!(story.challenge(Challenge { lease, nonce }), Response::Alive(_)));
    }
    story.acknowledge(&asked);
    assert_eq!(story.client.lease().renewed, Some(sent));
}

#[test]
fn challenge_for_unknown_lease_rejected() {
    let mut story = Story::begin();
    let challenge = Challenge { lease: LeaseId { agent: AgentNumber(1), began: LogIndex(7) }, nonce: 1 };
    let ended = Response::LeaseEnded(challenge.lease, LeaseEnd::Unknown);
    assert_eq!(story.challenge(challenge), ended);
    story.pass(5 * SECOND);
    assert_eq!(story.challenge(challenge), ended);
    assert_eq!(story.client.counts().challenges, 0);
    story.registers = false;
    let former = Challenge { lease: story.lease_id(), nonce: 1 };
    story.end_lease(LeaseEnd::Superseded);
    assert_eq!(story.challenge(former), Response::LeaseEnded(former.lease, LeaseEnd::Unknown));
}

#[test]
fn leaving_ends_renewals_silently() {
    let mut story = Story::just_renewed();
    let lease = story.lease_id();
    story.acknowledges = false;
    story.notices.clear();
    let (_, asked) = story.until_renewed();
    story.handle_input(Input::Leave);
    let token = story.propose("leave");
    let leaving = story.only();
    // The reply to the renewal may arrive before the command's.
    story.answer(&asked, Response::LeaseEnded(lease, LeaseEnd::Left));
    assert_eq!(story.client.lease().ended, Some(LeaseEnd::Left));
    story.apply(&leaving, 9);
    assert_eq!(story.heard_applied(token), 9);
    story.pass(10 * SECOND);
    assert_eq!((story.registrations, story.asked.len()), (1, 0));
    assert_eq!(story.renewals_in(10 * SECOND), 0);
    assert_eq!(story.notices, [], "it was meant");
}

#[test]
fn suspended_host_wakes_past_deadline() {
    let mut story = Story::just_renewed();
    let deadline = story.client.lease().deadline(HealthWindow::Safe).expect("it was renewed");
    story.acknowledges = false;
    let (_, asked) = story.until_renewed();
    // The agent was suspended; then the reply is read that had arrived before.
    story.now = story.now + 3600 * SECOND;
    story.acknowledge(&asked);
    let told = story.client.lease().deadline(HealthWindow::Safe).expect("it was renewed");
    assert!(told < story.now && told.since(deadline) <= 2 * SECOND);
    let (sent, asked) = story.until_renewed();
    assert_eq!(sent, story.now, "it renews at once");
    story.acknowledge(&asked);
    assert_eq!(story.client.lease().renewed, Some(story.now));
}

#[test]
fn closing_stops_renewals_and_answers() {
    let mut story = Story::just_renewed();
    let challenge = Challenge { lease: story.lease_id(), nonce: 1 };
    story.handle_input(Input::Close);
    assert_eq!(story.client.wakes_at(), None);
    story.handle_input(Input::Challenge(CallToken(99), challenge));
    assert!(story.heard_unknown(CallToken(99)).contains("shutting down"));
    assert!(story.renewals.is_empty());
}
