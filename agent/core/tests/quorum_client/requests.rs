//! Requests: the server that each is sent to, retries and their ids, and the replies to callers.

use super::*;
use lockmesh_agent_core::request_ids::MAX_SPAN;
use lockmesh_protocol::command::RestoreStep;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::lease::{LeaseId, LeaseKey};
use lockmesh_protocol::reply::Refusal;
use lockmesh_protocol::rpc::VIEW_WAIT;

#[test]
fn leader_replies_reach_their_callers() {
    let mut story = Story::at_rest();
    let [one, two] = ["one", "two"].map(|key| story.propose(key));
    let [first, second] = [story.asked[0].clone(), story.asked[1].clone()];
    assert_eq!((first.server, second.server), (A, A));
    assert_eq!((first.id().sequence, second.id().sequence, second.id().lowest), (1, 2, 1));
    story.apply(&second, 12);
    story.apply(&first, 11);
    assert_eq!((story.heard_applied(one), story.heard_applied(two)), (11, 12));
    story.apply(&first, 13);
    assert_eq!(story.client.load().calls, 0);
    let three = story.propose("three");
    assert_eq!((story.only().id().sequence, story.only().id().lowest), (3, 3));
    story.apply(&story.only(), 14);
    assert_eq!(story.heard_applied(three), 14);
}

#[test]
fn retry_at_successor_keeps_id() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let first = story.only();
    story.elect(B);
    story.kill(A);
    let second = story.until_asked();
    assert_eq!((second.server, second.request == first.request), (B, true));
    story.apply(&second, 5);
    assert_eq!(story.heard_applied(token), 5);
    assert_eq!(story.registrations, 1);
}

#[test]
fn deposed_leader_hint_is_followed() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let refused = story.only();
    story.elect(C);
    story.answer(&refused, not_leader(Some(C)));
    let asked = story.until_asked();
    assert_eq!((asked.server, asked.id().sequence), (C, refused.id().sequence));
    story.apply(&asked, 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn hold_timeout_distinguishes_unsent_from_sent() {
    let mut story = Story::at_rest();
    let sent = story.propose("sent");
    story.leader = None;
    story.kill(A);
    let held = story.propose("held");
    story.pass(HOLD - SECOND);
    assert!(story.answers.is_empty());
    story.pass(2 * SECOND);
    assert_eq!(story.take_answer(held), Err(Unavailable::NotLeader { leader: None }));
    assert!(story.heard_unknown(sent).contains("unknown whether"));
    assert_eq!(story.client.load().command_span, 0, "the sequences were released");
}

#[test]
fn rejection_final_unless_earlier_attempt_sent() {
    let full = || Response::Unavailable(Unavailable::Overloaded("full".into()));
    let mut story = Story::at_rest();
    let token = story.propose("k");
    story.answer(&story.only(), full());
    assert_eq!(story.take_answer(token), Err(Unavailable::Overloaded("full".into())));
    let token = story.propose("k");
    story.answer(&story.only(), Response::Unavailable(Unavailable::Unknown("deposed".into())));
    let again = story.until_asked();
    story.answer(&again, full());
    let third = story.until_asked();
    assert_eq!(third.id().sequence, again.id().sequence);
    story.apply(&third, 9);
    assert_eq!(story.heard_applied(token), 9);
}

#[test]
fn forgotten_agent_reregisters_before_retry() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let forgotten = story.only();
    story.registers = false;
    story.answer(&forgotten, applied(4, Reply::Refused(Refusal::Forgotten)));
    story.pass(SECOND);
    let registration = story.only();
    assert!(matches!(registration.request, Request::Propose(None, Command::RegisterAgent(_))));
    story.registers = true;
    story.answer(&registration, Response::Unavailable(Unavailable::Overloaded("full".into())));
    let again = story.until_asked();
    assert_eq!(story.registrations, 2);
    assert_eq!((again.id().generation, again.id().sequence), (Generation(2), 1));
    story.apply(&again, 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn reregistration_makes_sent_command_unknown() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    story.generation = None;
    story.elect(B);
    story.kill(A);
    story.pass(SECOND);
    assert_eq!((story.registrations, story.asked.len()), (2, 0));
    assert!(story.heard_unknown(token).contains("register again"));
}

#[test]
fn list_timeout_includes_view_wait() {
    let mut story = Story::at_rest();
    let list = |story: &mut Story| {
        let query = Query::Entries("".into());
        let read = Request::ReadParts { query, consistency: Consistency::Default };
        (story.call(LocalCall::Ask(read)), story.only())
    };
    let dials = story.dials.clone();
    let (refused, asked) = list(&mut story);
    story.pass(VIEW_WAIT);
    assert_eq!(story.dials, dials, "its server is not slow");
    let busy = Unavailable::Overloaded("8 long answers are being read here".into());
    story.answer(&asked, Response::Unavailable(busy.clone()));
    assert_eq!(story.take_answer(refused), Err(busy.clone()));
    let (redirected, asked) = list(&mut story);
    story.pass(VIEW_WAIT - SECOND);
    story.answer(&asked, Response::Unavailable(Unavailable::NotLeader { leader: None }));
    story.pass(SECOND);
    let again = story.only();
    assert!(again != asked, "the next leader has the rest of the time");
    story.answer(&again, Response::Unavailable(busy.clone()));
    assert_eq!(story.take_answer(redirected), Err(busy));
    let (late, _) = list(&mut story);
    story.pass(VIEW_WAIT + HOLD - MS);
    assert_eq!((story.answers.len(), story.asked.len()), (0, 1), "it is not sent again either");
    story.pass(2 * MS);
    assert!(story.heard_unknown(late).contains("no server has answered for 17.0 s"));
}

#[test]
fn caller_cancellation_ends_call() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let asked = story.only();
    story.handle_input(Input::Cancel(token));
    assert_eq!(story.cancelled, [(asked.connection, asked.call)]);
    story.apply(&asked, 5);
    assert!(story.answers.is_empty());
    assert_eq!((story.client.load().calls, story.client.load().command_span), (0, 0));
}

#[test]
fn silent_server_times_out_request() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let asked = story.only();
    story.pass(HOLD - MS);
    assert!(story.cancelled.is_empty());
    story.pass(2 * MS);
    assert_eq!(story.cancelled, [(asked.connection, asked.call)]);
    let why = story.heard_unknown(token);
    assert!(why.contains("no server has answered for 7.0 s (last: "), "{why}");
}

#[test]
fn hold_timeout_returns_leader_reason() {
    let why = "the leader's disk has not taken a write for 6.0 s";
    let requests = [
        LocalCall::Propose(command("k")),
        LocalCall::Read {
            query: Query::Entry("k".into()),
            consistency: Consistency::Default,
            blocking: None,
        },
        LocalCall::Ask(Request::Renew(SessionId::from_random([7; 16]))),
    ];
    for request in requests {
        let mut story = Story::at_rest();
        let token = story.call(request);
        story.pass(6 * SECOND);
        story.answer(&story.only(), Response::Unavailable(Unavailable::Unknown(why.into())));
        assert_eq!(story.until_asked().server, A, "it may still be answered in time");
        story.pass(SECOND);
        assert_eq!(story.take_answer(token), Err(Unavailable::Unknown(why.into())));
        assert_eq!((story.asked.len(), story.client.load().calls), (0, 0));
    }
}

/// Disks that are full everywhere, and a leader that died: no server can record its vote.
#[test]
fn full_disks_explain_missing_leader() {
    let (mut story, full) = Story::with_full_disk();
    story.leader = None;
    story.kill(A);
    let reason = story.refused_write();
    assert!(reason.certainly_not_done() && reason.to_string().contains(full), "{reason}");
}

/// A write that succeeded, or the election of a leader, shows that disks accept writes again.
#[test]
fn recovered_disk_not_blamed() {
    let (mut story, _) = Story::with_full_disk();
    let token = story.propose("k");
    story.apply(&story.only(), 5);
    story.heard_applied(token);
    story.leader = None;
    story.kill(A);
    assert_eq!(story.refused_write(), Unavailable::NotLeader { leader: None });

    let (mut story, _) = Story::with_full_disk();
    story.elect(B);
    story.kill(A);
    story.pass(SECOND);
    story.leader = None;
    story.kill(B);
    assert_eq!(story.refused_write(), Unavailable::NotLeader { leader: None });
}

impl Story {
    /// A leader that rejected a write because its disk is full, and its report.
    fn with_full_disk() -> (Self, &'static str) {
        let mut story = Self::at_rest();
        let full = "no space left on device on server s1";
        let token = story.propose("k");
        story.answer(&story.only(), Response::Unavailable(Unavailable::Disk(full.into())));
        assert_eq!(story.take_answer(token), Err(Unavailable::Disk(full.into())));
        (story, full)
    }

    /// The failure of a write that no server accepts within the hold timeout.
    fn refused_write(&mut self) -> Unavailable {
        let token = self.propose("k");
        self.pass(HOLD + SECOND);
        self.take_answer(token).unwrap_err()
    }
}

#[test]
fn restore_may_exceed_hold_timeout() {
    let mut story = Story::at_rest();
    let commit = RestoreStep::Commit { id: 1, parts: 1 };
    let token = story.call(LocalCall::Propose(Command::Restore(commit)));
    story.pass(5 * HOLD);
    story.apply(&story.only(), 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn unrepeatable_request_not_retried() {
    let mut story = Story::at_rest();
    let token = story.call(LocalCall::Ask(Request::TransferLeader(None)));
    assert_eq!(story.only().server, A);
    story.elect(B);
    story.kill(A);
    assert!(story.heard_unknown(token).contains("unknown whether"));
    story.pass(SECOND);
    assert!(story.asked.is_empty());
}

#[test]
fn renewal_retried_at_next_leader() {
    let mut story = Story::at_rest();
    let token = story.call(LocalCall::Ask(Request::Renew(session())));
    story.elect(B);
    story.kill(A);
    let asked = story.until_asked();
    assert_eq!((asked.server, &asked.request), (B, &Request::Renew(session())));
    story.answer(&asked, Response::Renewed(None));
    assert_eq!(story.take_answer(token), Ok(Answered::Response(Response::Renewed(None))));
}

#[test]
fn deposed_leader_status_is_ignored() {
    let mut story = Story::at_rest();
    story.mute.insert(A);
    let token = story.call(LocalCall::Ask(Request::Status));
    let asked = story.only();
    story.elect(B);
    story.answer(&asked, Response::Status(story.status(A)));
    let status = story.heard_after(token, SECOND);
    assert!(
        matches!(status, Ok(Answered::Response(Response::Status(status))) if status.server == ServerId(2))
    );
}

#[test]
fn home_queried_once_if_connected() {
    let mut story = Story::begin();
    let token = story.call(LocalCall::AskHome(Request::Status));
    assert_eq!(story.take_answer(token), Err(Unavailable::NotLeader { leader: None }));
    story.pass(SECOND);
    let token = story.call(LocalCall::AskHome(Request::Status));
    assert!(matches!(story.take_answer(token), Ok(Answered::Response(Response::Status(_)))));
}

#[test]
fn home_denial_keeps_home() {
    let mut story = Story::at_rest();
    let token = story.call(LocalCall::AskHome(Request::SyncMesh(RosterDigest(Vec::new()))));
    let asked = story.only();
    let why = Unavailable::Denied("this server knows of no living agent: ask again soon".into());
    story.answer(&asked, Response::Unavailable(why.clone()));
    assert_eq!(story.take_answer(token), Err(why));
    story.call(LocalCall::AskHome(Request::SyncMesh(RosterDigest(Vec::new()))));
    assert_eq!(story.only().server, asked.server);
}

#[test]
fn oversized_request_is_denied() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let asked = story.only();
    story.handle_input(Input::Unsendable(asked.connection, asked.call, "too long".into()));
    assert_eq!(story.take_answer(token), Err(Unavailable::Denied("too long".into())));
}

#[test]
fn backlog_holds_commands_in_order() {
    let mut story = Story::at_rest();
    let connection = *story.connections.iter().find(|(_, server)| **server == A).expect("the leader").0;
    story.handle_input(Input::Backlog(connection, true));
    let [_, gone, _] = ["one", "two", "three"].map(|key| story.propose(key));
    story.handle_input(Input::Cancel(gone));
    assert!(story.asked.is_empty());
    story.handle_input(Input::Backlog(connection, false));
    let sequences: Vec<_> = story.asked.iter().map(|asked| asked.id().sequence).collect();
    assert_eq!(sequences, [1, 3]);
}

#[test]
fn waiting_commands_sent_in_batches() {
    let mut story = Story::begin();
    story.registers = false;
    (0..200).for_each(|_| _ = story.propose("k"));
    story.pass(SECOND);
    let registration = story.only();
    let mut outbox = Outbox::default();
    let lease = LeaseId { agent: AgentNumber(1), began: LogIndex(1) };
    let secret = LeaseKey::default().secret(lease);
    let agent = Reply::Agent { number: lease.agent, generation: Generation(1), lease, secret };
    let answers = vec![(registration.call, applied(1, agent))];
    story.asked.clear();
    story.client.handle(story.now, Input::Answers(registration.connection, answers), &mut outbox);
    assert!(outbox.calls.len() < 200 && story.client.has_more(), "{}", outbox.calls.len());
    story.carry_out(outbox);
    story.handle_input(Input::Tick);
    assert_eq!(story.asked.len(), 200);
    assert!(story.asked.is_sorted_by_key(|asked| asked.id().sequence));
}

#[test]
fn full_command_span_delays_next() {
    let mut story = Story::at_rest();
    story.propose("stuck");
    let stuck = story.only();
    story.asked.clear();
    for _ in 1..MAX_SPAN {
        story.propose("k");
        let asked = story.only();
        story.apply(&asked, 5);
    }
    assert_eq!(story.client.load().command_span, MAX_SPAN);
    let [gone, next] = ["gone", "next"].map(|key| story.propose(key));
    assert!(story.asked.is_empty());
    story.handle_input(Input::Cancel(gone));
    story.apply(&stuck, 6);
    let first = MAX_SPAN as u64 + 1;
    assert_eq!((story.only().id().sequence, story.only().id().lowest), (first, first));
    story.apply(&story.only(), 7);
    assert_eq!(story.heard_applied(next), 7);
    assert_eq!(story.client.load().command_span, 0, "all were released");
}

#[test]
fn closing_leaves_outcome_unknown() {
    let mut story = Story::at_rest();
    let sent = story.propose("k");
    let reads = story.read(Consistency::Default, blocking(3, 60 * SECOND));
    story.handle_input(Input::Close);
    assert!(story.heard_unknown(sent).contains("shutting down"));
    assert!(story.heard_unknown(reads).contains("shutting down"));
    assert!(story.connections.is_empty() && story.client.wakes_at().is_none());
    let late = story.propose("k");
    assert!(story.heard_unknown(late).contains("shutting down"));
}

impl Story {
    fn heard_after(&mut self, token: CallToken, duration: Duration) -> Result<Answered, Unavailable> {
        self.pass(duration);
        self.take_answer(token)
    }
}
