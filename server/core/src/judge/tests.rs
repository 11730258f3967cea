//! The exchange between a leader's checks and a juror: the reports that count, and the silence that
//! is no evidence.

use super::checks::Checks;
use super::juror::Juror;
use super::messages::{ASK_INTERVAL, CheckList, CheckOrder, JurorReport, JurorReports, LeaseAnswer};
use super::relay::{Relay, Relayed};
use super::windows::Windows;
use super::{Judge, JudgeInput};
use crate::cluster::{ClusterView, SampleCluster};
use crate::input::CallToken;
use crate::proposal::Proposal;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, Term, WallTime};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseAck, LeaseId, LeaseKey, Renewal};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::Serialize;
use std::time::Duration;

const NODE: AgentNumber = AgentNumber(1);
const WINDOW: Duration = Duration::from_secs(5);
const TERM: Term = Term(1);
const CHALLENGE: Challenge = Challenge { lease: LeaseId { agent: NODE, began: LogIndex(7) }, nonce: 42 };

fn at(millis: u64) -> Time {
    Time(0) + Duration::from_millis(millis)
}

fn list(number: u64, challenge: Challenge, age: Duration) -> CheckList {
    let address = Some("10.0.0.1:8301".into());
    let order = CheckOrder { challenge, node: "h1".into(), address, age, window: WINDOW };
    CheckList { number, checks: vec![order] }
}

fn renewal(challenge: Challenge) -> Renewal {
    LeaseKey::default().secret(challenge.lease).renewal(challenge.lease, 1, challenge.nonce)
}

/// A juror that receives its list every 250 ms, and whose challenges get no answer.
struct Unheard {
    juror: Juror,
    now: Time,
    number: u64,
}

impl Unheard {
    fn start() -> Self {
        let mut unheard = Self { juror: Juror::default(), now: at(10_000), number: 0 };
        unheard.receive_order(CHALLENGE, Duration::ZERO);
        unheard
    }

    fn receive_order(&mut self, challenge: Challenge, age: Duration) {
        self.number += 1;
        self.juror.receive_list(self.now, TERM, &list(self.number, challenge, age));
    }

    fn challenges(&mut self, count: usize) {
        for _ in 0..count {
            self.receive_order(CHALLENGE, Duration::ZERO);
            assert_eq!(self.juror.ask(self.now).len(), 1);
            self.now = self.now + ASK_INTERVAL;
            assert!(self.juror.challenged(self.now, CHALLENGE, None));
        }
    }

    fn report(&self) -> JurorReport {
        self.juror.report(self.now, NODE).expect("its check is open")
    }
}

#[test]
fn juror_counts_unanswered_challenges() {
    let mut unheard = Unheard::start();
    unheard.challenges(2);
    let report = unheard.report();
    assert_eq!((report.unanswered, report.abstains, report.answer), (2, false, None));
}

#[test]
fn isolated_juror_abstains() {
    // Its lists stopped for more than 600 ms.
    let mut unheard = Unheard::start();
    unheard.challenges(2);
    unheard.now = unheard.now + Duration::from_millis(350);
    unheard.receive_order(CHALLENGE, Duration::ZERO);
    assert!(!unheard.report().abstains, "one list was late");
    unheard.now = unheard.now + Duration::from_millis(601);
    unheard.receive_order(CHALLENGE, Duration::ZERO);
    let report = unheard.report();
    assert!(report.abstains && report.unanswered == 0);
    unheard.now = unheard.now + (WINDOW - Duration::from_millis(1));
    assert!(unheard.report().abstains, "for the window");
    unheard.now = unheard.now + Duration::from_millis(1);
    assert!(!unheard.report().abstains);
    // It hears late of a check that was opened long ago.
    for (age, abstains) in [(600, false), (601, true)] {
        let mut juror = Juror::default();
        juror.receive_list(at(10_000), TERM, &list(1, CHALLENGE, Duration::from_millis(age)));
        assert_eq!(juror.report(at(10_000), NODE).unwrap().abstains, abstains, "{age} ms");
    }
}

#[test]
fn juror_ignores_outdated_check_list() {
    let mut juror = Juror::default();
    let other = Challenge { nonce: 43, ..CHALLENGE };
    juror.receive_list(at(10_000), Term(2), &list(2, other, Duration::ZERO));
    juror.receive_list(at(10_100), Term(2), &list(1, CHALLENGE, Duration::ZERO));
    juror.receive_list(at(10_200), Term(1), &list(3, CHALLENGE, Duration::ZERO));
    assert_eq!(juror.report(at(10_200), NODE).unwrap().challenge, other);
    juror.receive_list(at(10_300), Term(3), &list(1, CHALLENGE, Duration::ZERO));
    assert_eq!(juror.report(at(10_300), NODE).unwrap().challenge, CHALLENGE, "a new leader counts anew");
}

#[test]
fn old_unanswered_count_is_discarded() {
    let mut unheard = Unheard::start();
    unheard.challenges(3);
    unheard.now = unheard.now + Duration::from_secs(2);
    assert_eq!(unheard.report().unanswered, 3);
    unheard.now = unheard.now + Duration::from_millis(1);
    assert_eq!(unheard.report().unanswered, 0, "it may be unable to send challenges");
}

#[test]
fn answer_or_renewal_resets_juror_count() {
    let mut unheard = Unheard::start();
    unheard.challenges(2);
    unheard.juror.note_renewal(LeaseId { began: LogIndex(6), ..CHALLENGE.lease });
    assert_eq!(unheard.report().unanswered, 2, "a renewal of a former lease says nothing");
    unheard.juror.note_renewal(CHALLENGE.lease);
    assert_eq!(unheard.report().unanswered, 0);
    unheard.challenges(2);
    unheard.juror.ask(unheard.now);
    unheard.juror.challenged(unheard.now, CHALLENGE, Some(renewal(CHALLENGE)));
    let report = unheard.report();
    assert_eq!((report.unanswered, report.answer), (0, Some(renewal(CHALLENGE))));
}

#[test]
fn only_fresh_matching_report_confirms_silence() {
    let good = JurorReport { challenge: CHALLENGE, unanswered: 2, abstains: false, answer: None };
    let other = Challenge { nonce: 43, ..CHALLENGE };
    for (what, report, list, age, counts) in [
        ("two challenges without an answer", good, 1, 500, true),
        ("a report on an old list", good, 1, 501, false),
        ("a report on a list of another process", good, 9, 0, false),
        ("a report on another check", JurorReport { challenge: other, ..good }, 1, 0, false),
        ("one challenge without an answer", JurorReport { unanswered: 1, ..good }, 1, 0, false),
        ("a juror that abstains", JurorReport { abstains: true, ..good }, 1, 0, false),
        ("an answer", JurorReport { answer: Some(renewal(CHALLENGE)), ..good }, 1, 0, false),
    ] {
        let mut checks = Checks::default();
        checks.open(at(10_000), CHALLENGE);
        let list_sent = checks.next_list(at(10_000), &State::default(), &Windows::default());
        assert_eq!(list_sent, Some(CheckList { number: 1, checks: Vec::new() }));
        checks.receive_reports(ServerId(2), &JurorReports { number: list, reports: vec![report] });
        let me = (ServerId(1), &Juror::default());
        let confirmed_by = checks.confirmed_by(at(10_000 + age), NODE, me, true);
        assert_eq!(confirmed_by, if counts { vec![ServerId(2)] } else { Vec::new() }, "{what}");
    }
}

#[test]
fn relayed_reply_must_match_renewal() {
    let relayed = renewal(CHALLENGE);
    let ack = LeaseAck {
        lease: relayed.lease,
        sequence: relayed.sequence,
        shortest: None,
        keeps_from: LogIndex(0),
        leader: ServerId(1),
        term: TERM,
    };
    let token = CallToken(5);
    let mut relay = Relay::new(0);
    let number = relay.gather(relayed);
    relay.waiting.insert(number, Relayed { came: at(0), token, renewal: relayed });
    for stale in [
        LeaseAck { sequence: 0, ..ack },
        LeaseAck { lease: LeaseId { began: LogIndex(6), ..ack.lease }, ..ack },
    ] {
        assert_eq!(relay.take(number, &LeaseAnswer::Renewed(stale)), None, "{stale:?}");
    }
    assert_eq!(relay.take(number + 1, &LeaseAnswer::Renewed(ack)), None);
    assert_eq!(relay.take(number, &LeaseAnswer::Renewed(ack)), Some(token));
    assert_eq!(relay.take(number, &LeaseAnswer::Renewed(ack)), None, "once");
}

#[test]
fn relayed_renewals_rejected_on_leader_change() {
    let (token, renewal) = (CallToken(5), renewal(CHALLENGE));
    let mut relay = Relay::new(0);
    assert!(relay.refused(at(0), Some(ServerId(2))).is_empty());
    let number = relay.gather(renewal);
    relay.waiting.insert(number, Relayed { came: at(0), token, renewal });
    assert!(relay.refused(at(999), Some(ServerId(2))).is_empty());
    assert_eq!(relay.refused(at(999), Some(ServerId(3))), [token]);
    assert!(relay.gathered.is_empty() && relay.waiting.is_empty());
    let number = relay.gather(renewal);
    relay.waiting.insert(number, Relayed { came: at(1_000), token, renewal });
    assert_eq!(relay.refused(at(2_000), Some(ServerId(3))), [token], "nor for longer than a second");
}

// Windows.

/// Applies a command to a state.
fn apply(state: &mut State, index: u64, command: Command) {
    let proposal = Proposal::new(None, WallTime(0), command);
    state.apply(LogIndex(index), TERM, &proposal, &mut Vec::new());
}

fn registration() -> Command {
    let node = Node::of("h1".into(), "5a0f2b6e-3c60-4d3f-9d5c-000000000001".into(), "10.0.0.1");
    Command::RegisterAgent(AgentRegistration::of(node))
}

/// A state with one registered agent.
fn with_agent() -> State {
    let mut state = State::default();
    apply(&mut state, 7, registration());
    assert!(state.agent_of(CHALLENGE.lease).is_some());
    state
}

#[test]
fn leader_pause_postpones_every_window() {
    let (mut windows, state) = (Windows::default(), with_agent());
    windows.restart(at(0), &state);
    let end = windows.member(NODE).unwrap().end(HealthWindow::Default, false);
    windows.postpone(Duration::from_secs(3));
    let member = windows.member(NODE).unwrap();
    assert_eq!(member.end(HealthWindow::Default, false), end + Duration::from_secs(3));
    assert_eq!((member.heard, member.renewed), (at(3_000), at(3_000)));
    let overdue = at(3_000) + super::windows::overdue_after(HealthWindow::Default);
    assert_eq!(windows.overdue(overdue).collect::<Vec<_>>(), [NODE]);
    let before = Time(overdue.0 - 1);
    assert_eq!(windows.overdue(before).count(), 0);
}

#[test]
fn verdict_delay_capped_by_longest_window() {
    let (mut windows, state) = (Windows::default(), with_agent());
    windows.restart(at(0), &state);
    windows.come_into_use(at(10_000), NODE, HealthWindow::Fast);
    let member = windows.member(NODE).unwrap();
    assert_eq!(member.end(HealthWindow::Fast, false), at(10_000) + HealthWindow::Fast.validity());
    // The brake gives every window the length of the longest.
    assert_eq!(member.end(HealthWindow::Fast, true), at(0) + HealthWindow::Safe.validity());
}

#[test]
fn restart_announcement_and_return_refresh_contact() {
    let (mut windows, mut state) = (Windows::default(), with_agent());
    windows.restart(at(0), &state);
    apply(&mut state, 8, Command::AnnounceRestart(CHALLENGE.lease));
    windows.follow(at(4_000), &state, NODE);
    assert_eq!(windows.member(NODE).unwrap().heard, at(4_000));
    apply(&mut state, 9, registration());
    windows.follow(at(9_000), &state, NODE);
    assert_eq!(windows.member(NODE).unwrap().heard, at(9_000));
    // Another change of its row is none.
    windows.follow(at(11_000), &state, NODE);
    assert_eq!(windows.member(NODE).unwrap().heard, at(9_000));
}

// Messages.

#[test]
fn messages_count_only_from_followed_leader() {
    for (leader, counts) in [(None, false), (Some(ServerId(3)), false), (Some(ServerId(2)), true)] {
        let mut judge = Judge::new(1, Duration::from_secs(3600));
        let said_by_two = |kind: MessageKind, said: Bytes, judge: &mut Judge| {
            let message = PeerMessage::new(kind, ServerId(2), ServerId(1));
            let message = PeerMessage { term: TERM, context: said, ..message };
            let mut decisions = Vec::new();
            with_view(leader, |view| {
                judge.handle(view, at(10), JudgeInput::Message(&message), &mut decisions);
            });
            decisions.len()
        };
        let list = encoded(&list(1, CHALLENGE, Duration::ZERO));
        assert_eq!(said_by_two(MessageKind::CheckNodes, list, &mut judge), usize::from(counts));
        assert_eq!(judge.juror.report(at(10), NODE).is_some(), counts, "a check was opened");
        let number = judge.relay.gather(renewal(CHALLENGE));
        let relayed = Relayed { came: at(10), token: CallToken(5), renewal: renewal(CHALLENGE) };
        judge.relay.waiting.insert(number, relayed);
        let why = LeaseAnswer::Unavailable(crate::outbox::not_leader());
        let answers = encoded(&vec![(number, why)]);
        assert_eq!(said_by_two(MessageKind::LeaseAnswers, answers, &mut judge), usize::from(counts));
    }
}

/// The first of three servers, which follows this leader.
fn with_view(leader: Option<ServerId>, handle: impl FnOnce(&ClusterView<'_>)) {
    let cluster = SampleCluster { leader, serving: None, ..SampleCluster::of(&[1, 2, 3]) };
    handle(&cluster.view());
}

fn encoded(said: &impl Serialize) -> Bytes {
    wire::encode(said).into()
}
