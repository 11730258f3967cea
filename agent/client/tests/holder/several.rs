//! Several locks at once.

use super::*;
use lockmesh_client::holder::{KeysRead, Write};

const KEYS: [&str; 2] = ["a", "b"];
const FENCES: [u64; 2] = [5, 6];

fn locks(is_shared: bool, wait_limit: WaitLimit) -> Acquisition {
    let value = Bytes::from("me");
    let goal = |key: &str| LockGoal { key: key.into(), value: value.clone(), flags: LOCK_FLAGS, is_shared };
    Acquisition { goal: Goal::Locks(KEYS.map(goal).into()), wait_limit, watch_retries: None }
}

fn wanting(wait_limit: WaitLimit) -> Story {
    let mut story = Story::begin(SessionUse::OneHold);
    story.handle_input(Input::Acquire(JOB, locks(false, wait_limit)));
    story.answer("create", Ok(Response::Created("S1".into())));
    story
}

fn holding() -> Story {
    let mut story = wanting(WaitLimit::Endless);
    story.grant_all();
    story
}

/// Starts a scenario in which the locks are held under a shared session.
fn keeping() -> Story {
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, locks(false, WaitLimit::Endless)));
    story.grant_all();
    story
}

/// A read in which each key has this holder, and this token.
fn seen(holders: [(&str, u64); 2]) -> Result<Response, Error> {
    let entries = KEYS.into_iter().zip(holders).map(|(key, (session, fence))| {
        let session = Some(session.to_owned()).filter(|session| !session.is_empty());
        Entry { key: key.into(), flags: LOCK_FLAGS, session, fence: Some(fence), ..Entry::default() }
    });
    Ok(Response::Entries(entries.collect(), 9))
}

impl Story {
    fn grant_all(&mut self) {
        self.answer("get", nothing_there());
        self.answer("acquire", Ok(Response::AcquiredAll(FENCES.into())));
        assert!(matches!(self.told_acquired(), Some(Ok(Some(grant))) if grant.fences == FENCES));
        self.events.clear();
    }

    fn read(&self, what: &str) -> &KeysRead {
        let Request::GetAll(wanted) = self.request(what) else { panic!("{:?}", self.request(what)) };
        assert_eq!((&wanted.keys[..], wanted.session.as_str()), (&KEYS.map(String::from)[..], "S1"));
        wanted
    }

    /// Returns the keys of the release in flight.
    fn releases(&self) -> Vec<&str> {
        let Request::ReleaseAll(writes, _) = self.request("release") else { panic!("{:?}", self.asked) };
        writes.iter().map(|Write { key, .. }| key.as_str()).collect()
    }
}

#[test]
fn several_locks_requested_at_once() {
    let mut story = wanting(WaitLimit::Endless);
    assert_eq!(story.read("get").read, Read::default());
    story.answer("get", seen([("S2", 3), ("", 0)]));
    let Request::AcquireAll(request, wait) = story.request("acquire") else { panic!("{:?}", story.asked) };
    let modes = request.locks.iter().map(|lock| (lock.key.as_str(), lock.mode.as_str()));
    assert_eq!(modes.collect::<Vec<_>>(), [("a", "exclusive"), ("b", "exclusive")]);
    assert_eq!((request.session.as_str(), *wait), ("S1", Some(60 * SECOND)));
    // Their queues exist: an early refusal, as after a restore, does not end the waiting there.
    story.answer("acquire", refused(None));
    story.pass(SECOND);
    story.answer("get", nothing_there());
    let Request::AcquireAll(_, wait) = story.request("acquire") else { panic!("{:?}", story.asked) };
    assert!(wait.is_some());
    story.answer("acquire", Ok(Response::AcquiredAll(FENCES.into())));
    assert!(story.is_held());
}

#[test]
fn single_try_needs_all_locks() {
    let mut story = wanting(WaitLimit::Once);
    story.answer("get", seen([("", 0), ("S2", 3)]));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    assert!(!story.log.contains(&"acquire"), "{:?}", story.log);
    let mut story = wanting(WaitLimit::Once);
    story.answer("get", nothing_there());
    let Request::AcquireAll(_, None) = story.request("acquire") else { panic!("{:?}", story.asked) };
    // A key that is no lock is left alone.
    let mut story = wanting(WaitLimit::Endless);
    let entry = Entry { key: "b".into(), flags: 1, ..Entry::default() };
    story.answer("get", Ok(Response::Entries(vec![entry], 9)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_acquired(), Some(Err(Error::Conflict { key, .. })) if key == "b"));
}

#[test]
fn losing_any_lock_ends_hold() {
    let gone = Ok(Response::Entries(
        vec![Entry { key: "a".into(), session: Some("S1".into()), fence: Some(5), ..Entry::default() }],
        9,
    ));
    let cases = [
        (gone, Loss::Deleted),
        (seen([("S1", 5), ("", 0)]), Loss::Released),
        (seen([("S2", 7), ("S1", 6)]), Loss::Taken("S2".into())),
        // Its session was granted the lock again.
        (seen([("S1", 5), ("S1", 7)]), Loss::Released),
    ];
    for (read, loss) in cases {
        let mut story = holding();
        story.answer("get", seen([("S1", 5), ("S1", 6)]));
        assert!(story.is_held());
        assert_eq!(story.read("get").fences, FENCES, "it waits until one is not current");
        assert_eq!(story.read("get").read, Read::consistent().newer_than(9, 60 * SECOND));
        story.answer("get", read);
        assert!(!story.is_held(), "immediately");
        story.answer("find", Ok(Response::Found(true)));
        assert_eq!(story.told_loss(), Some(&loss));
    }
}

#[test]
fn shared_locks_read_every_10s() {
    let mut story = Story::keeping();
    story.handle_input(Input::Acquire(JOB, locks(true, WaitLimit::Endless)));
    story.answer("get", seen([("S2", 3), ("S3", 4)]));
    let Request::AcquireAll(request, _) = story.request("acquire") else { panic!("{:?}", story.asked) };
    assert!(request.locks.iter().all(|lock| lock.mode == "shared"));
    story.answer("acquire", Ok(Response::AcquiredAll(FENCES.into())));
    story.answer("get", seen([("S1", 5), ("S1", 6)]));
    assert_eq!(story.read("get").read.wait, Some(10 * SECOND));
    story.answer("get", seen([("S1", 5), ("S2", 6)]));
    assert!(!story.is_held());
}

#[test]
fn release_frees_all_locks() {
    let mut story = holding();
    story.handle_input(Input::Written(JOB, Bytes::from("done")));
    story.handle_input(Input::Release(JOB));
    assert_eq!((story.asked(), story.releases()), (vec!["release"], KEYS.to_vec()));
    let Request::ReleaseAll(writes, _) = story.request("release") else { panic!("{:?}", story.asked) };
    assert!(writes.iter().all(|write| write.value == "done" && write.flags == LOCK_FLAGS));
    story.answer("release", Ok(Response::Verdict(true)));
    story.answer("destroy", Ok(Response::Done));
    assert!(matches!(story.told_release(), Some(Ok(true))));
}

#[test]
fn unanswered_release_of_several_retried() {
    for (holders, told) in [([("", 0), ("S2", 8)], true), ([("S1", 5), ("", 0)], false)] {
        let mut story = keeping();
        story.handle_input(Input::Release(JOB));
        story.answer("release", Err(unheard()));
        story.pass(SECOND);
        story.answer("release", Ok(Response::Verdict(false)));
        story.pass(SECOND);
        story.answer("get", seen(holders));
        if !told {
            assert_eq!(story.releases(), ["a"], "the first release was not done: it is all or none");
            story.answer("release", Ok(Response::Verdict(true)));
        }
        assert!(matches!(story.told_release(), Some(Ok(released)) if *released == told));
    }
}

#[test]
fn partial_loss_releases_other_locks() {
    // Before the watch shows the loss, and after it.
    for is_told in [false, true] {
        let mut story = keeping();
        if is_told {
            story.answer("get", seen([("S1", 5), ("S1", 9)]));
            story.answer("find", Ok(Response::Found(true)));
            story.handle_input(Input::Release(JOB));
        } else {
            story.handle_input(Input::Release(JOB));
            story.answer("release", Ok(Response::Verdict(false)));
            story.pass(SECOND);
        }
        assert_eq!(story.read("get").read, Read::consistent());
        story.answer("get", seen([("S1", 5), ("S1", 9)]));
        assert_eq!(story.releases(), ["a"], "a later hold of the same session stays");
        story.answer("release", Ok(Response::Verdict(true)));
        assert!(matches!(story.told_release(), Some(Ok(false))));
    }
    // A session that ends releases them.
    let mut story = holding();
    story.answer("get", seen([("S1", 5), ("", 0)]));
    story.answer("find", Ok(Response::Found(true)));
    story.handle_input(Input::Release(JOB));
    assert_eq!(story.asked(), ["destroy"]);
}

#[test]
fn undelivered_grant_of_several_released() {
    let mut story = wanting(WaitLimit::Until(Moment::default() + 5 * SECOND));
    story.answer("get", nothing_there());
    story.pass(4_200 * MS);
    assert_eq!(story.releases(), KEYS);
    assert!(matches!(story.told_acquired(), Some(Ok(None))));
    story.answer("release", Ok(Response::Verdict(true)));
    assert_eq!(story.asked(), ["destroy"]);
}

#[test]
fn lost_grant_of_several_recognized() {
    let mut story = wanting(WaitLimit::Endless);
    story.answers_checks = false;
    story.answer("get", nothing_there());
    story.pass(4 * SECOND);
    story.answer("check", seen([("S1", 5), ("S2", 3)]));
    assert_eq!(story.asked(), ["acquire"], "one of them is held by another session");
    story.pass(4 * SECOND);
    story.answer("check", seen([("S1", 5), ("S1", 6)]));
    assert_eq!(story.asked(), ["acquire", "acquire"]);
    let confirms = |(_, request): &&(HolderRequest, Request)| matches!(request, Request::AcquireAll(_, None));
    let (number, _) = story.asked.iter().find(confirms).expect("it confirms").clone();
    story.asked.retain(|(asked, _)| *asked != number);
    story.handle_input(Input::Answered(number, Ok(Response::AcquiredAll(FENCES.into()))));
    assert!(story.is_held());
}

#[test]
fn acquire_waits_for_overlapping_release() {
    let mut story = keeping();
    story.handle_input(Input::Release(JOB));
    let goal = LockGoal { key: "b".into(), value: Bytes::new(), flags: LOCK_FLAGS, is_shared: false };
    let wanted = Acquisition { goal: Goal::Lock(goal), ..locks(false, WaitLimit::Endless) };
    story.handle_input(Input::Acquire(HoldId(2), wanted));
    assert_eq!(story.asked(), ["release"]);
    story.answer("release", Ok(Response::Verdict(true)));
    story.pass(SECOND);
    assert_eq!(story.asked(), ["get"]);
}
