//! Holds of semaphore slots.

use super::*;
use lockmesh_client::holder::{SEMAPHORE_FLAGS, SlotGoal};

/// The list of holders of a semaphore of two slots, with the contenders' own keys.
fn list(holders: &[&str], contenders: &[&str], index: u64) -> Result<Response, Error> {
    let names: Vec<String> = holders.iter().map(|name| format!("\"{name}\":true")).collect();
    let value = format!("{{\"Limit\":2,\"Holders\":{{{}}}}}", names.join(","));
    let entry = |key: String| Entry { key, flags: SEMAPHORE_FLAGS, modify_index: index, ..Entry::default() };
    let own = contenders
        .iter()
        .map(|name| Entry { session: Some((*name).into()), ..entry(format!("pool/{name}")) });
    let list = Entry { value: Bytes::from(value), ..entry("pool/.lock".into()) };
    Ok(Response::Entries(std::iter::once(list).chain(own).collect(), index))
}

/// Starts a scenario in which a slot is wanted, its session was created, and its own key acquired.
fn wanting_slot(wait_limit: WaitLimit) -> Story {
    let mut story = Story::begin(SessionUse::OneHold);
    let goal = Goal::Slot(SlotGoal { prefix: "pool".into(), limit: 2, value: Bytes::new() });
    story.handle_input(Input::Acquire(JOB, Acquisition { goal, wait_limit, watch_retries: None }));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.answer("acquire", granted(4));
    story
}

fn holding_slot() -> Story {
    let mut story = wanting_slot(WaitLimit::Endless);
    story.answer("list", list(&["S2"], &["S1", "S2"], 8));
    story.answer("cas", Ok(Response::Verdict(true)));
    assert!(matches!(story.told_acquired(), Some(Ok(Some(Grant { fences, .. }))) if fences[..] == [4]));
    story
}

#[test]
fn slot_acquire_watch_release() {
    let mut story = holding_slot();
    assert!(story.is_held());
    story.answer("list", list(&["S1", "S2"], &["S1", "S2"], 9));
    story.handle_input(Input::Release(JOB));
    assert!(!story.is_held());
    story.answer("get", list(&["S1", "S2"], &[], 9));
    // Another client changed the list at the same moment.
    story.answer("cas", Ok(Response::Verdict(false)));
    story.pass(SECOND);
    story.answer("get", list(&["S1"], &[], 10));
    let Request::Cas(write, index) = story.request("cas") else { unreachable!() };
    assert_eq!((&write.value[..], *index), (&b"{\"Limit\":2,\"Holders\":{}}"[..], 10));
    story.answer("cas", Ok(Response::Verdict(true)));
    assert!(matches!(story.request("delete"), Request::Delete(key) if key == "pool/S1"));
    story.answer("delete", Ok(Response::Done));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

#[test]
fn waiter_replaces_dead_holder() {
    let mut story = wanting_slot(WaitLimit::Endless);
    story.answer("list", list(&["S2", "S3"], &["S1", "S2", "S3"], 8));
    assert!(
        matches!(story.request("list"), Request::List(prefix, read) if prefix == "pool/" && read.index == 8)
    );
    // The key of a holder is gone: it is dead and frees its slot.
    story.answer("list", list(&["S2", "S3"], &["S1", "S2"], 9));
    let Request::Cas(write, _) = story.request("cas") else { unreachable!() };
    assert_eq!(&write.value[..], b"{\"Limit\":2,\"Holders\":{\"S1\":true,\"S2\":true}}");
}

#[test]
fn next_list_resolves_unknown_cas() {
    let mut story = wanting_slot(WaitLimit::Endless);
    story.answer("list", list(&[], &["S1"], 8));
    story.answer("cas", Err(unheard()));
    story.pass(SECOND);
    story.answer("list", list(&["S1"], &["S1"], 9));
    assert!(story.is_held());
}

#[test]
fn single_attempt_retries_cas_conflict() {
    let mut story = wanting_slot(WaitLimit::Once);
    story.answer("list", list(&[], &["S1"], 8));
    story.answer("cas", Ok(Response::Verdict(false)));
    story.pass(SECOND);
    story.answer("list", list(&["S2"], &["S1", "S2"], 9));
    story.answer("cas", Ok(Response::Verdict(true)));
    assert!(story.is_held());
}

#[test]
fn full_pool_attempt_cleans_up() {
    let mut story = wanting_slot(WaitLimit::Once);
    story.answer("list", list(&["S2", "S3"], &["S1", "S2", "S3"], 8));
    story.answer("get", list(&["S2", "S3"], &[], 8));
    story.answer("delete", Ok(Response::Done));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    assert_eq!(story.log, ["create", "acquire", "list", "get", "delete", "destroy"]);
}

#[test]
fn unlisted_slot_is_lost() {
    for (look, loss) in [
        (list(&["S2"], &["S1", "S2"], 9), Loss::Unlisted),
        (nothing_there(), Loss::Deleted),
        // Its own key is gone: the next contender will remove it.
        (list(&["S1", "S2"], &["S2"], 9), Loss::Unlisted),
    ] {
        let mut story = holding_slot();
        story.answer("list", look);
        assert!(!story.is_held());
        story.answer("find", Ok(Response::Found(true)));
        assert_eq!(story.told_loss(), Some(&loss));
    }
}

#[test]
fn another_limit_is_refused() {
    let mut story = Story::begin(SessionUse::OneHold);
    let goal = Goal::Slot(SlotGoal { prefix: "pool".into(), limit: 3, value: Bytes::new() });
    story.handle_input(Input::Acquire(
        JOB,
        Acquisition { goal, wait_limit: WaitLimit::Endless, watch_retries: None },
    ));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.answer("acquire", granted(4));
    story.answer("list", list(&["S2"], &["S1", "S2"], 8));
    story.answer("get", list(&["S2"], &[], 8));
    assert!(matches!(story.request("delete"), Request::Delete(key) if key == "pool/S1"));
    story.answer("delete", Ok(Response::Done));
    story.answer("destroy", Ok(Response::Done));
    let Some(Err(error)) = story.told_acquired() else { panic!("{:?}", story.events) };
    assert_eq!(
        error.to_string(),
        "the semaphore \"pool\" has 2 slots, not 3: use 2 as the number of slots, as its holders do, or wait until \
         all holders have left"
    );
    assert_eq!(story.log, ["create", "acquire", "list", "get", "delete", "destroy"]);
}

#[test]
fn contender_key_failure_ends_wait() {
    let mut story = Story::begin(SessionUse::OneHold);
    let goal = Goal::Slot(SlotGoal { prefix: "pool".into(), limit: 2, value: Bytes::new() });
    story.handle_input(Input::Acquire(
        JOB,
        Acquisition { goal, wait_limit: WaitLimit::Endless, watch_retries: None },
    ));
    story.answer("create", Ok(Response::Created("S1".into())));
    story.answer("acquire", Err(unheard()));
    assert!(matches!(story.told_acquired(), Some(Err(Error::UnknownOutcome { .. }))));
    // The session's end deletes the key.
    assert_eq!(story.asked(), ["destroy"]);
}

#[test]
fn dead_process_slot_release_retries() {
    let mut story = Story::begin(SessionUse::OneHold);
    let goal = Goal::Slot(SlotGoal { prefix: "pool".into(), limit: 2, value: Bytes::new() });
    story.handle_input(Input::GiveBack(JOB, goal, ("S9".into(), story.now + SECOND * 60)));
    story.answer("get", list(&["S9", "S2"], &[], 9));
    // Another client changed the list at the same moment; later the agent is away.
    story.answer("cas", Ok(Response::Verdict(false)));
    story.pass(SECOND);
    story.answer("get", Err(not_done()));
    story.pass(SECOND);
    story.answer("get", list(&["S9", "S3"], &[], 10));
    let Request::Cas(write, index) = story.request("cas") else { unreachable!() };
    assert_eq!((&write.value[..], *index), (&b"{\"Limit\":2,\"Holders\":{\"S3\":true}}"[..], 10));
    story.answer("cas", Ok(Response::Verdict(true)));
    assert!(matches!(story.request("delete"), Request::Delete(key) if key == "pool/S9"));
    story.answer("delete", Ok(Response::Done));
    assert!(matches!(story.request("destroy"), Request::EndSession(session, _) if session == "S9"));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}
