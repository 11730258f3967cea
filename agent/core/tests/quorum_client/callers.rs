//! The callers of requests: clients with different tokens share nothing, and what the agent does on
//! its own account carries no token. It ends the wait of a client that lost its right to.

use super::*;
use bytes::Bytes;
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_protocol::acl::SecretHash;
use lockmesh_protocol::acl::rights::NoAccess;
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::reply::Refusal;

const ANONYMOUS: Caller = Caller::Anonymous;

fn token() -> Caller {
    Caller::Token(SecretHash::of("t"))
}

fn blocking_read() -> LocalCall {
    let blocking = blocking(7, 60 * SECOND);
    LocalCall::Read { query: Query::Entry("k".into()), consistency: Consistency::Default, blocking }
}

fn refused() -> Response {
    Response::Unavailable(Unavailable::NoAccess(NoAccess::UnknownToken))
}

fn end() -> LocalCall {
    LocalCall::EndSession { session: session(), reason: EndReason::Closed }
}

#[test]
fn reads_shared_by_equal_callers_only() {
    let mut story = Story::at_rest();
    let calls = [token(), ANONYMOUS, token()].map(|caller| story.call_as(caller, blocking_read()));
    let asked = story.asked.clone();
    assert_eq!(asked.iter().map(|asked| asked.caller.clone()).collect::<Vec<_>>(), [token(), ANONYMOUS]);
    story.answer(&asked[1], refused());
    assert_eq!(story.take_answer(calls[1]), Err(Unavailable::NoAccess(NoAccess::UnknownToken)));
    assert!(story.answers.is_empty(), "the others wait on");
}

#[test]
fn filter_mark_of_answer_kept() {
    let mut story = Story::at_rest();
    let call = story.call_as(token(), blocking_read());
    let Response::Answer(answer) = entries(8) else { panic!("an answer") };
    story.answer(&story.only(), Response::FilteredAnswer(answer));
    let heard = story.take_answer(call);
    assert!(matches!(&heard, Ok(Answered::Shared(answer)) if answer.is_filtered), "{heard:?}");
}

#[test]
fn wait_left_as_caller_then_as_agent() {
    let mut story = Story::at_rest();
    let lock = NewEntry { key: "k".into(), value: Bytes::new(), flags: 0 };
    let locks = vec![lock.into()];
    let call = story.call_as(token(), LocalCall::Acquire { locks, session: session(), wait: SECOND });
    let enqueue = story.only();
    assert_eq!(enqueue.caller, token());
    story.answer(&enqueue, applied(9, Reply::Queued { queue_position: LogIndex(9) }));
    assert_eq!(story.only().caller, Caller::Agent, "its outcome");
    story.handle_input(Input::Cancel(call));
    let leave = story.until_asked();
    assert!(matches!(leave.request, Request::Propose(..)), "{leave:?}");
    assert_eq!(leave.caller, token(), "the session may be of another node");
    story.answer(&leave, applied(10, Reply::Refused(Refusal::NoAccess(NoAccess::UnknownToken))));
    assert_eq!(story.until_asked().caller, Caller::Agent, "the token was deleted meanwhile");
}

#[test]
fn session_ends_judged_by_caller() {
    let mut story = Story::at_rest();
    let [stranger, owner] = [ANONYMOUS, token()].map(|caller| story.call_as(caller, end()));
    let asked = story.asked.clone();
    assert_eq!(asked.iter().map(|asked| asked.caller.clone()).collect::<Vec<_>>(), [ANONYMOUS, token()]);
    story.answer(&asked[0], refused());
    assert!(story.take_answer(stranger).is_err());
    story.apply(&asked[1], 9);
    assert_eq!(story.heard_applied(owner), 9);
}
