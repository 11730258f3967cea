//! Requests: the server that each is sent to, retries and their ids, and the replies to callers.

use super::*;
use lockmesh_agent_core::request_ids::MAX_SPAN;
use lockmesh_protocol::command::RestoreStep;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::lease::{LeaseId, LeaseKey};
use lockmesh_protocol::reply::Refusal;
use lockmesh_protocol::rpc::VIEW_WAIT;

#[test]
fn a_command_goes_to_the_leader_and_its_answer_to_its_caller() {
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
fn what_a_lost_leader_left_unanswered_goes_to_the_next_one_under_the_same_id() {
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
fn a_leader_that_was_deposed_is_left_by_its_hint() {
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
fn what_was_never_sent_is_not_done_when_no_leader_comes_and_what_was_is_unknown() {
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
fn a_refusal_that_no_other_attempt_changes_is_told_unless_an_earlier_one_was_sent() {
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
fn a_forgotten_agent_registers_again_before_its_command_goes_on() {
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
fn a_command_that_may_have_been_done_is_not_sent_under_another_registration() {
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
fn a_list_may_wait_for_a_view_at_its_server_before_it_is_late() {
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
fn a_caller_that_goes_away_cancels() {
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
fn a_server_that_keeps_silent_is_given_up_with_the_hold_timeout() {
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
fn the_reason_that_a_leader_gives_is_told_when_the_hold_timeout_is_over() {
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
fn full_disks_are_the_reason_that_there_is_no_leader() {
    let (mut story, full) = Story::with_full_disk();
    story.leader = None;
    story.kill(A);
    let reason = story.refused_write();
    assert!(reason.certainly_not_done() && reason.to_string().contains(full), "{reason}");
}

/// A write that succeeded, or the election of a leader, shows that disks accept writes again.
#[test]
fn a_full_disk_of_the_past_is_no_reason() {
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
fn a_restore_may_take_longer_than_requests_are_held() {
    let mut story = Story::at_rest();
    let commit = RestoreStep::Commit { id: 1, parts: 1 };
    let token = story.call(LocalCall::Propose(Command::Restore(commit)));
    story.pass(5 * HOLD);
    story.apply(&story.only(), 5);
    assert_eq!(story.heard_applied(token), 5);
}

#[test]
fn what_cannot_be_repeated_is_not() {
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
fn a_renewal_is_asked_of_the_next_leader() {
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
fn whoever_is_asked_as_the_leader_and_leads_no_more_is_not_believed() {
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
fn home_is_asked_once_and_only_if_it_is_there() {
    let mut story = Story::begin();
    let token = story.call(LocalCall::AskHome(Request::Status));
    assert_eq!(story.take_answer(token), Err(Unavailable::NotLeader { leader: None }));
    story.pass(SECOND);
    let token = story.call(LocalCall::AskHome(Request::Status));
    assert!(matches!(story.take_answer(token), Ok(Answered::Response(Response::Status(_)))));
}

#[test]
fn what_home_denies_is_told_at_once_and_changes_nothing_of_what_is_known_of_the_servers() {
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
fn what_fits_no_frame_is_denied() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let asked = story.only();
    story.handle_input(Input::Unsendable(asked.connection, asked.call, "too long".into()));
    assert_eq!(story.take_answer(token), Err(Unavailable::Denied("too long".into())));
}

#[test]
fn no_more_is_sent_while_too_much_waits_and_then_goes_in_order() {
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
fn many_that_wait_for_a_leader_are_sent_a_turn_after_the_other() {
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
fn whoever_waits_for_a_sequence_goes_on_when_one_is_over_and_who_has_gone_holds_nobody_up() {
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
fn whoever_is_told_that_the_agent_stops_knows_not_what_became_of_its_command() {
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
