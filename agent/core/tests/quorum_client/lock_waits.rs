//! Lock waits: how they end, and the release of undelivered grants.

use super::*;
use lockmesh_protocol::command::{CatalogVerb, KvVerb, NewEntry, TxnKv, TxnOp};
use lockmesh_protocol::id::Fence;
use lockmesh_protocol::record::{Check, CheckStatus, Entry, Lock};

const WAIT: Duration = Duration::from_secs(30);

impl Story {
    fn acquire(&mut self) -> CallToken {
        self.acquire_keys(&["job"])
    }

    fn acquire_keys(&mut self, keys: &[&str]) -> CallToken {
        let locks = keys.iter().map(|key| entry(key).into()).collect();
        self.call(LocalCall::Acquire { locks, session: session(), wait: WAIT })
    }

    /// A wait in the queue, from the command at 20, and its parked query.
    fn queued(&mut self) -> (CallToken, Asked) {
        let token = self.acquire();
        let enqueue = self.only();
        assert!(matches!(&enqueue.request, Request::Propose(_, Command::Kv(KvCommand::Enqueue { .. }))));
        self.answer(&enqueue, applied(20, Reply::Queued { queue_position: LogIndex(18) }));
        let parked = self.only();
        let Request::Read {
            query: Query::QueuePosition { queue_position, enqueued_at_index, .. },
            blocking: Some(blocking),
            ..
        } = &parked.request
        else {
            panic!("no query of a position: {parked:?}")
        };
        assert_eq!(
            (*queue_position, *enqueued_at_index, blocking.index),
            (LogIndex(18), LogIndex(20), LogIndex(18))
        );
        assert_eq!(parked.server, A, "the leader knows first");
        (token, parked)
    }

    /// A wait that ended with a grant that the client has not confirmed.
    fn granted_unheard() -> (Self, CallToken) {
        let mut story = Self::at_rest();
        let (token, parked) = story.queued();
        story.answer(&parked, place(25, granted()));
        story.heard_acquired(token);
        (story, token)
    }

    /// An enqueue whose caller is gone, as is the leader that may have applied it.
    fn enqueue_unresolved() -> Self {
        let mut story = Self::at_rest();
        let token = story.acquire();
        story.only();
        story.handle_input(Input::Cancel(token));
        story.leader = None;
        story.kill(A);
        story
    }

    #[track_caller]
    fn leaves(&self) -> Asked {
        let asked = self.only();
        let Request::Propose(_, Command::Kv(KvCommand::Leave { enqueued_at_index, .. })) = &asked.request
        else {
            panic!("it does not leave: {asked:?}")
        };
        assert_eq!(*enqueued_at_index, LogIndex(20));
        asked
    }

    #[track_caller]
    fn stops_waiting(&self) -> Asked {
        let asked = self.only();
        let Request::Propose(_, Command::Kv(KvCommand::StopWaiting { enqueued_at_index, .. })) =
            &asked.request
        else {
            panic!("it does not stop waiting: {asked:?}")
        };
        assert_eq!(*enqueued_at_index, LogIndex(20));
        asked
    }

    /// Answers the read of the lock's entry.
    #[track_caller]
    fn holder_is(&mut self, holder: Option<SessionId>) {
        let asked = self.only();
        assert!(
            matches!(&asked.request, Request::Read { query: Query::Entry(_), blocking: None, .. }),
            "the entry is not read: {asked:?}"
        );
        let lock = Lock { session: holder, ..Lock::default() };
        let entry = Entry {
            key: "job".into(),
            value: Vec::new().into(),
            flags: 0,
            lock,
            create_index: LogIndex(1),
            modify_index: LogIndex(30),
        };
        self.answer(&asked, answer(30, Rows::Entries(vec![entry.into()])));
    }

    /// A wait whose position was granted to another request of its session, after a third of the
    /// wait, and its second enqueue.
    fn superseded() -> (Self, CallToken, Asked) {
        let mut story = Self::at_rest();
        let (token, parked) = story.queued();
        story.pass(WAIT / 3);
        story.answer(&parked, place(25, Reply::Succeeded(false)));
        story.holder_is(Some(session()));
        let again = story.only();
        let Request::Propose(_, Command::Kv(KvCommand::Enqueue { wait, .. })) = &again.request else {
            panic!("not acquired again: {again:?}")
        };
        assert_eq!(*wait, WAIT - WAIT / 3, "the rest of the wait");
        assert!(story.answers.is_empty());
        (story, token, again)
    }

    #[track_caller]
    fn heard_acquired(&mut self, token: CallToken) -> (u64, Applied) {
        match self.take_answer(token) {
            Ok(Answered::Acquired(enqueued_at_index, applied)) => (enqueued_at_index.0, applied),
            other => panic!("no wait for a lock ended: {other:?}"),
        }
    }
}

fn granted() -> Reply {
    Reply::Granted { fence: Fence(3) }
}

fn place(index: u64, reply: Reply) -> Response {
    answer(index, Rows::QueuePosition(reply))
}

#[test]
fn free_lock_granted_immediately() {
    let mut story = Story::at_rest();
    let token = story.acquire();
    story.answer(&story.only(), applied(20, granted()));
    assert_eq!(story.heard_acquired(token), (20, Applied { index: LogIndex(20), reply: granted() }));
    story.handle_input(Input::Heard(token));
    assert!(story.asked.is_empty());
}

#[test]
fn grant_carries_both_indexes() {
    let mut story = Story::at_rest();
    let (token, parked) = story.queued();
    story.answer(&parked, place(25, granted()));
    assert_eq!(story.heard_acquired(token), (20, Applied { index: LogIndex(25), reply: granted() }));
    story.handle_input(Input::Heard(token));
    story.handle_input(Input::Cancel(token));
    assert!(story.asked.is_empty(), "a confirmed grant is kept");
}

#[test]
fn queued_reply_repeats_query() {
    let mut story = Story::at_rest();
    let (token, parked) = story.queued();
    story.answer(&parked, place(21, Reply::Queued { queue_position: LogIndex(18) }));
    assert!(story.asked.is_empty());
    let again = story.until_asked();
    assert_eq!(again.request, parked.request);
    story.answer(&again, place(25, Reply::Succeeded(false)));
    story.holder_is(None);
    assert_eq!(
        story.heard_acquired(token).1,
        Applied { index: LogIndex(20), reply: Reply::Succeeded(false) }
    );
}

/// Public report R18: two waits of one session at two agents; the lock was granted to the session,
/// and one of them received *no*.
#[test]
fn sibling_grant_ends_superseded_wait() {
    let (mut story, token, again) = Story::superseded();
    story.answer(&again, applied(31, granted()));
    assert_eq!(story.heard_acquired(token), (31, Applied { index: LogIndex(31), reply: granted() }));
    story.handle_input(Input::Heard(token));
    assert!(story.asked.is_empty());
}

/// The other request's client was gone, and its agent released the grant.
#[test]
fn sibling_release_continues_superseded_wait() {
    let (mut story, token, again) = Story::superseded();
    story.answer(&again, applied(20, Reply::Queued { queue_position: LogIndex(18) }));
    let parked = story.only();
    story.pass(WAIT - WAIT / 3);
    assert_eq!(story.only(), parked);
    story.pass(SECOND + MS);
    let stop = story.stops_waiting();
    story.answer(&stop, applied(40, Reply::Succeeded(true)));
    story.answer(&story.only(), place(40, Reply::Succeeded(false)));
    story.holder_is(None);
    assert_eq!(story.heard_acquired(token).1.reply, Reply::Succeeded(false));
}

#[test]
fn cancelled_superseded_wait_holds_nothing() {
    let (mut story, token, again) = Story::superseded();
    story.handle_input(Input::Cancel(token));
    story.answer(&again, applied(20, granted()));
    let leave = story.leaves();
    story.apply(&leave, 40);
    assert!(story.asked.is_empty() && story.answers.is_empty());
}

/// A wait that timed out, and the last query of its position.
fn waited_long_enough(story: &mut Story) -> (CallToken, Asked) {
    let (token, parked) = story.queued();
    story.pass(WAIT + SECOND - MS);
    assert_eq!(story.only(), parked, "the servers' own clock may end it first");
    story.pass(2 * MS);
    let stop = story.stops_waiting();
    assert!(story.answers.is_empty());
    story.answer(&stop, applied(40, Reply::Succeeded(true)));
    let asked = story.only();
    assert!(
        matches!(&asked.request, Request::Read { query: Query::QueuePosition { .. }, blocking: None, .. }),
        "not queried once more: {asked:?}"
    );
    (token, asked)
}

#[test]
fn timeout_stops_wait_before_reply() {
    let mut story = Story::at_rest();
    let (token, asked) = waited_long_enough(&mut story);
    assert!(story.answers.is_empty());
    story.answer(&asked, place(40, Reply::Succeeded(false)));
    story.holder_is(None);
    assert_eq!(
        story.heard_acquired(token),
        (20, Applied { index: LogIndex(20), reply: Reply::Succeeded(false) })
    );
    assert!(story.asked.is_empty());
}

#[test]
fn cancel_during_stop_holds_nothing() {
    let mut story = Story::at_rest();
    let (token, _) = story.queued();
    story.pass(WAIT + SECOND + MS);
    let stop = story.stops_waiting();
    story.handle_input(Input::Cancel(token));
    story.answer(&stop, applied(40, Reply::Succeeded(false)));
    let leave = story.leaves();
    story.apply(&leave, 41);
    assert!(story.asked.is_empty() && story.answers.is_empty());
}

#[test]
fn denied_stop_leaves_queue() {
    let mut story = Story::at_rest();
    let (token, _) = story.queued();
    story.pass(WAIT + SECOND + MS);
    let stop = story.stops_waiting();
    story.answer(&stop, Response::Unavailable(Unavailable::Denied("no".into())));
    let leave = story.leaves();
    story.apply(&leave, 41);
    assert!(matches!(story.take_answer(token), Err(Unavailable::Denied(_))));
}

/// Chaos with 64 clients and a stopped agent: the agent released the grants that had come
/// meanwhile, and replied *no* to their callers.
#[test]
fn grant_at_timeout_is_returned() {
    let mut story = Story::at_rest();
    let (token, asked) = waited_long_enough(&mut story);
    story.answer(&asked, place(25, granted()));
    assert_eq!(story.heard_acquired(token), (20, Applied { index: LogIndex(25), reply: granted() }));
    story.handle_input(Input::Heard(token));
    assert!(story.asked.is_empty());
}

#[test]
fn grant_released_on_hurry_is_unknown() {
    let mut story = Story::at_rest();
    let (token, _) = story.queued();
    story.handle_input(Input::Hurry);
    story.answer(&story.leaves(), applied(40, Reply::Done));
    assert!(matches!(story.take_answer(token), Err(Unavailable::Unknown(_))));
}

#[test]
fn hurry_leaves_queue() {
    let mut story = Story::at_rest();
    let (token, _) = story.queued();
    story.handle_input(Input::Hurry);
    let leave = story.leaves();
    story.apply(&leave, 40);
    assert_eq!(story.heard_acquired(token).1.reply, Reply::Succeeded(false));
}

#[test]
fn failed_leave_has_unknown_outcome() {
    let mut story = Story::at_rest();
    let (token, _) = story.queued();
    story.leader = None;
    story.kill(A);
    story.pass(WAIT + SECOND + 2 * HOLD - 10 * MS);
    assert!(story.answers.is_empty(), "it is tried twice to leave");
    story.pass(SECOND);
    assert!(story.heard_unknown(token).contains("No cluster leader"));
}

#[test]
fn denied_query_leaves_queue() {
    let mut story = Story::at_rest();
    let (token, parked) = story.queued();
    story.answer(&parked, Response::Unavailable(Unavailable::Denied("no".into())));
    let leave = story.leaves();
    story.apply(&leave, 40);
    assert_eq!(story.take_answer(token), Err(Unavailable::Denied("no".into())));
}

#[test]
fn cancel_leaves_queue() {
    let mut story = Story::at_rest();
    let (token, parked) = story.queued();
    story.handle_input(Input::Cancel(token));
    assert_eq!(story.cancelled, [(parked.connection, parked.call)]);
    let leave = story.leaves();
    story.apply(&leave, 40);
    assert!(story.answers.is_empty() && story.asked.is_empty());
}

/// The grant and the cancellation cross each other: the lock must not stay with a client that never
/// received the grant.
#[test]
fn undelivered_grant_is_released() {
    let (mut story, token) = Story::granted_unheard();
    story.handle_input(Input::Cancel(token));
    let leave = story.leaves();
    story.apply(&leave, 40);
    assert!(story.asked.is_empty());
}

/// The servers may be overloaded at that moment.
#[test]
fn undelivered_grant_release_is_retried() {
    let (mut story, token) = Story::granted_unheard();
    story.handle_input(Input::Cancel(token));
    for _ in 0..5 {
        let leave = story.leaves();
        let busy = Unavailable::Overloaded("4 writes wait for their commit".into());
        story.answer(&leave, Response::Unavailable(busy));
        assert!(story.asked.is_empty(), "not at once");
        story.pass(SECOND);
    }
    let leave = story.leaves();
    story.apply(&leave, 40);
    story.pass(10 * SECOND);
    assert!(story.asked.is_empty());
    let said = story.notices.iter().filter(|notice| matches!(notice, Notice::MayStayGranted(..))).count();
    assert_eq!(said, 1, "{:?}", story.notices);
}

#[test]
fn cancel_during_enqueue_holds_nothing() {
    let mut story = Story::at_rest();
    for reply in [granted(), Reply::Queued { queue_position: LogIndex(18) }] {
        let token = story.acquire();
        let enqueue = story.only();
        story.handle_input(Input::Cancel(token));
        assert_eq!(story.only(), enqueue, "what was sent may take effect");
        story.answer(&enqueue, applied(20, reply));
        let leave = story.leaves();
        story.apply(&leave, 40);
        assert!(story.answers.is_empty() && story.asked.is_empty());
    }
}

#[test]
fn cancelled_unresolved_enqueue_is_reported() {
    let mut story = Story::enqueue_unresolved();
    story.notices.clear();
    story.pass(2 * HOLD);
    let said = |notice: &Notice| matches!(notice, Notice::MayStayGranted(key, ..) if *key == "job".into());
    assert_eq!(story.notices.iter().filter(|notice| said(notice)).count(), 1, "{:?}", story.notices);
    assert!(story.answers.is_empty());
}

#[test]
fn failed_release_is_reported() {
    let (mut story, token) = Story::granted_unheard();
    story.leader = None;
    story.kill(A);
    story.handle_input(Input::Cancel(token));
    story.pass(HOLD + SECOND);
    let is_said =
        |notice: &Notice| matches!(notice, Notice::MayStayGranted(key, _, _) if key.as_str() == "job");
    assert!(story.notices.iter().any(is_said), "{:?}", story.notices);
}

/// `cargo sim 2069`: the enqueue was given up after the hold timeout and took effect later. The
/// session was shared and renewed, so the lock was held for no caller, without an end.
#[test]
fn grant_after_hold_timeout_released() {
    let one = (&["job"][..], granted());
    let several = (&["job", "report"][..], Reply::GrantedAll(vec![Fence(3), Fence(1)]));
    for ((keys, reply), is_cancelled) in
        [(one.clone(), true), (one, false), (several.clone(), true), (several, false)]
    {
        let mut story = Story::at_rest();
        let token = story.acquire_keys(keys);
        let sent = story.only();
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
        story.elect(B);
        let again = story.until_asked();
        let id = |asked: &Asked| match &asked.request {
            Request::Propose(
                Some(id),
                Command::Kv(KvCommand::Enqueue { .. }) | Command::AcquireLocks { .. },
            ) => id.sequence,
            other => panic!("not an enqueue: {other:?}"),
        };
        assert_eq!(id(&again), id(&sent), "the servers know it as the same request");
        story.answer(&again, applied(20, reply));
        let leave = story.leaves();
        story.apply(&leave, 40);
        assert!(story.asked.is_empty() && story.answers.is_empty());
    }
}

fn entry(key: &str) -> NewEntry {
    NewEntry { key: key.into(), value: Vec::new().into(), flags: 0 }
}

fn release() -> LocalCall {
    LocalCall::Propose(Command::Kv(KvCommand::Release(entry("job"), session())))
}

fn release_in_transaction() -> LocalCall {
    let NewEntry { key, value, flags } = entry("job");
    let (verb, session) = (KvVerb::Unlock, Some(session().to_string()));
    let unlock = TxnKv { verb, key, value, flags, index: LogIndex(0), session };
    let check = Check::of("n1".into(), "disk".into(), CheckStatus::Passing);
    let check = TxnOp::Check { verb: CatalogVerb::Set, check, expected: LogIndex(0) };
    LocalCall::Propose(Command::Txn(vec![TxnOp::Kv(unlock), check]).restricted())
}

fn is_release(asked: &Asked) -> bool {
    matches!(
        &asked.request,
        Request::Propose(_, Command::Kv(KvCommand::Release(..)) | Command::Restricted(_))
    )
}

/// `cargo sim 70232`: a release overtook the retried enqueue of its own session. The enqueue was
/// granted afterwards, and the agent stopped before it could give the lock back.
#[test]
fn release_follows_enqueue_outcome() {
    let outcomes = [(granted(), true), (granted(), false), (Reply::Succeeded(false), true)];
    let releases = [release(), release_in_transaction()];
    for ((outcome, is_gone), release) in
        outcomes.into_iter().flat_map(|outcome| releases.iter().map(move |call| (outcome.clone(), call)))
    {
        let mut story = Story::at_rest();
        let token = story.acquire();
        let enqueue = story.only();
        // The agent may notice the end of the first caller's connection later than the release.
        let released = story.call(release.clone());
        if is_gone {
            story.handle_input(Input::Cancel(token));
        }
        assert_eq!(story.only(), enqueue, "the release waits");
        let is_left = is_gone && matches!(outcome, Reply::Granted { .. });
        story.answer(&enqueue, applied(20, outcome));
        if is_left {
            let leave = story.leaves();
            story.apply(&leave, 40);
        }
        let sent = story.only();
        assert!(is_release(&sent), "{sent:?}");
        story.apply(&sent, 50);
        if !is_gone {
            story.heard_acquired(token);
        }
        assert!(story.take_answer(released).is_ok());
    }
}

#[test]
fn release_after_unresolved_enqueue_unknown() {
    let mut story = Story::enqueue_unresolved();
    let released = story.call(release());
    story.pass(2 * HOLD);
    let reason = story.heard_unknown(released);
    assert!(reason.contains("release it again"), "{reason}");
}

#[test]
fn release_bypasses_queued_wait() {
    let mut story = Story::at_rest();
    story.queued();
    story.call(release());
    assert!(story.asked.iter().any(is_release), "{:?}", story.asked);
}
