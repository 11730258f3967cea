//! Scenarios of locks, in paused time.

use super::*;
use crate::fake::{Fake, Fault};
use crate::holder::GuardState;
use crate::loss::Loss;
use crate::outcome::Outcome;
use tokio::time::{Instant, sleep};

const NEVER: Moment = Moment::from_nanos(u64::MAX);

fn lock(fake: &Fake) -> Lock {
    Lock::new(&fake.client(), "job").value("me")
}

#[tokio::test(start_paused = true)]
async fn acquire_hold_and_release() {
    let fake = Fake::start();
    let guard = lock(&fake).acquire().await.expect("free");
    assert_eq!(fake.holder("job").as_deref(), Some(guard.session()));
    assert_eq!((guard.fence(), fake.value("job").as_deref()), (Some(1), Some("me")));
    assert!(guard.is_held() && guard.remaining() > Duration::from_secs(10));
    sleep(Duration::from_secs(300)).await;
    assert!(guard.is_held());
    assert!(guard.release().await.expect("released"));
    assert_eq!((fake.holder("job"), fake.sessions()), (None, 0));
    assert!(lock(&fake).remove().await.expect("removed"));
    assert_eq!(fake.value("job"), None);
}

#[tokio::test(start_paused = true)]
async fn fence_increases_with_next_holder() {
    let fake = Fake::start();
    let first = lock(&fake).acquire().await.expect("free");
    assert!(lock(&fake).try_acquire().await.expect("no error").is_none());
    assert!(!lock(&fake).remove().await.expect("no error"), "a held lock is not removed");
    let begun = Instant::now();
    assert!(lock(&fake).acquire_within(Duration::from_millis(250)).await.expect("no error").is_none());
    assert!(begun.elapsed() >= Duration::from_millis(250) && begun.elapsed() < Duration::from_secs(1));
    assert_eq!(fake.sessions(), 1, "giving up leaves no session behind");
    let waiting = lock(&fake);
    let second = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(100)).await;
    assert!(!second.is_finished());
    let fence = first.fence();
    first.release().await.expect("released");
    let second = second.await.expect("no panic");
    assert!(second.fence() > fence && second.is_held());
}

#[tokio::test(start_paused = true)]
async fn queued_acquire_repeated_each_minute() {
    let fake = Fake::start();
    let first = lock(&fake).acquire().await.expect("free");
    let waiting = lock(&fake);
    let second = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(150)).await;
    assert_eq!(fake.count("acquire=session-2&wait=60s"), 3);
    assert_eq!(fake.count("job?index="), 0, "no blocking reads while it waits in the queue");
    assert!((35..=37).contains(&fake.count("job?stale")), "a read every 4 s");
    first.release().await.expect("released");
    assert!(second.await.expect("no panic").is_held());
}

#[tokio::test(start_paused = true)]
async fn blocking_read_replaces_missing_queue() {
    let fake = Fake::start();
    fake.forget_queues();
    let first = lock(&fake).acquire().await.expect("free");
    let waiting = lock(&fake);
    let second = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(150)).await;
    assert!(fake.count("acquire=") <= 3, "a held lock is not polled constantly");
    first.release().await.expect("released");
    let second = second.await.expect("no panic");
    fake.end_session(second.session(), Duration::from_secs(15));
    let begun = Instant::now();
    let _third = lock(&fake).acquire().await.expect("after the delay");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(16), "{waited:?}");
    assert!(fake.count("acquire=") <= 8, "a lock-delay is not polled constantly");
}

#[tokio::test(start_paused = true)]
async fn lock_delay_waited_out_exactly() {
    let fake = Fake::start();
    let first = lock(&fake).acquire().await.expect("free");
    fake.end_session(first.session(), Duration::from_secs(15));
    let begun = Instant::now();
    let _second = lock(&fake).acquire().await.expect("after the delay");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(16), "{waited:?}");
    assert!(fake.count("acquire=") <= 5, "a lock-delay is not polled constantly");
    assert_eq!(first.lost().await, Loss::SessionGone);
}

#[tokio::test(start_paused = true)]
async fn every_loss_cause_reported() {
    let fake = Fake::start();
    let guard = lock(&fake).acquire().await.expect("free");
    fake.delete("job");
    assert_eq!(guard.lost().await, Loss::Deleted);
    assert!(!guard.is_held() && !guard.release().await.expect("no error"));

    let guard = lock(&fake).acquire().await.expect("free");
    fake.write("job", "", LOCK_FLAGS, "");
    assert_eq!(guard.lost().await, Loss::Released);
    drop(guard);
    sleep(Duration::from_secs(1)).await;

    let guard = lock(&fake).acquire().await.expect("free");
    fake.write("job", "", LOCK_FLAGS, "thief");
    assert_eq!(guard.lost().await, Loss::Taken("thief".into()));
    fake.delete("job");

    let guard = lock(&fake).acquire().await.expect("free");
    fake.fail("", Fault::Silence, usize::MAX);
    let begun = Instant::now();
    assert_eq!(guard.lost().await, Loss::Deadline);
    assert!(begun.elapsed() < crate::DEFAULT_TTL);
}

#[tokio::test(start_paused = true)]
async fn transient_errors_keep_wait_and_hold() {
    let fake = Fake::start();
    fake.fail("kv/job", Fault::Status(500, "No cluster leader"), 3);
    let guard = lock(&fake).acquire().await.expect("after three failures");
    fake.fail("kv/job", Fault::Status(500, "No cluster leader"), usize::MAX);
    fake.write("other", "", 0, "");
    sleep(Duration::from_secs(120)).await;
    assert!(guard.is_held(), "the session is renewed all the while");
    fake.heal();
    fake.fail("release=", Fault::DoneUnheard, 1);
    assert!(guard.release().await.expect("at the second try"));
    assert_eq!((fake.holder("job"), fake.sessions()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn lost_acquire_reply_recovered() {
    let fake = Fake::start();
    fake.fail("acquire=", Fault::DoneUnheard, 1);
    let guard = lock(&fake).acquire().await.expect("at the second try");
    assert_eq!((guard.fence(), fake.holder("job").as_deref()), (Some(1), Some(guard.session())));

    // A contender that gives up after a lost reply leaves nothing held.
    guard.release().await.expect("released");
    fake.fail("acquire=", Fault::DoneUnheard, 1);
    let error = lock(&fake).try_acquire().await.expect_err("the answer is lost");
    assert!(!error.certainly_not_done());
    assert_eq!((fake.holder("job"), fake.sessions()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_attempt_keeps_earlier_outcome_unknown() {
    let fake = Fake::start();
    let keeper = SessionKeeper::create(&fake.client(), &SessionOptions::default()).await.expect("a session");
    fake.fail("acquire=", Fault::DoneUnheard, 1);
    fake.fail("acquire=", Fault::Outcome(500, Outcome::NotDone, "No cluster leader"), usize::MAX);
    let waiting = lock(&fake).shared_session(&keeper);
    assert!(waiting.acquire_within(Duration::from_secs(3)).await.expect("no error").is_none());
    assert_eq!(fake.holder("job"), None, "the first attempt was granted");
}

#[tokio::test(start_paused = true)]
async fn refusal_ends_wait() {
    let fake = Fake::start();
    fake.fail("acquire=", Fault::Outcome(500, Outcome::Refused, "an unknown text"), usize::MAX);
    let error = lock(&fake).acquire().await.expect_err("refused");
    assert!(matches!(error, Error::Refused { status: 500, .. }), "{error}");
    assert_eq!((fake.count("acquire="), fake.sessions()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn dropped_wait_cleans_up() {
    let fake = Fake::start();
    fake.fail("acquire=", Fault::Silence, 1);
    let client = fake.client();
    let waiting = Lock::new(&client, "job");
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(|_| ()) });
    sleep(Duration::from_secs(1)).await;
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    client.settled().await;
    assert_eq!((fake.holder("job"), fake.sessions()), (None, 0));
    assert_eq!(fake.count("release="), 1, "a possible grant is released");
}

#[tokio::test(start_paused = true)]
async fn session_lost_while_waiting_replaced() {
    let fake = Fake::start();
    fake.write("job", "", LOCK_FLAGS, "another");
    let waiting = lock(&fake);
    let waiting = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(5)).await;
    fake.end_session("session-1", Duration::ZERO);
    sleep(Duration::from_secs(60)).await;
    fake.write("job", "", LOCK_FLAGS, "");
    let guard = waiting.await.expect("no panic");
    assert_eq!(guard.session(), "session-2");
}

#[tokio::test(start_paused = true)]
async fn shared_session_outlives_locks() {
    let fake = Fake::start();
    let keeper = SessionKeeper::create(&fake.client(), &SessionOptions::default()).await.expect("a session");
    let guard = lock(&fake).shared_session(&keeper).acquire().await.expect("free");
    assert!(guard.release().await.expect("released"));
    assert!(keeper.is_alive() && fake.sessions() == 1);
    let guard = lock(&fake).shared_session(&keeper).acquire().await.expect("free again");
    keeper.close().await.expect("closed");
    assert_eq!(guard.lost().await, Loss::Closed);
    let keeper = SessionKeeper::create(&fake.client(), &SessionOptions::default()).await.expect("a session");
    fake.end_session(keeper.id(), Duration::ZERO);
    keeper.lost().await;
    let error = lock(&fake).shared_session(&keeper).acquire().await.expect_err("its session is gone");
    assert!(matches!(error, Error::SessionLost(Loss::SessionGone)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn non_lock_key_untouched() {
    let fake = Fake::start();
    fake.write("job", "precious", 42, "");
    let error = lock(&fake).acquire().await.expect_err("not a lock");
    let text = "\"job\" is a key with flags 0x2a, not a lock: choose another name, or remove it";
    assert!(matches!(error, Error::Conflict { .. }) && error.to_string() == text, "{error}");
    assert_eq!((fake.value("job").as_deref(), fake.sessions()), (Some("precious"), 0));
}

#[tokio::test(start_paused = true)]
async fn watch_retry_limit_ends_hold() {
    let fake = Fake::start();
    let guard = lock(&fake).watch_retries(Some(2)).acquire().await.expect("free");
    fake.fail("consistent", Fault::Status(500, "No cluster leader"), usize::MAX);
    fake.write("job", "", LOCK_FLAGS, guard.session());
    let begun = Instant::now();
    assert!(matches!(guard.lost().await, Loss::Unwatched(_)));
    assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() < Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn holder_updates_value() {
    let fake = Fake::start();
    let mut guard = lock(&fake).acquire().await.expect("free");
    guard.update("busy").await.expect("still held");
    assert_eq!(fake.value("job").as_deref(), Some("busy"));
    guard.release().await.expect("released");
    assert_eq!(fake.value("job").as_deref(), Some("busy"));
}

/// The remaining time of a node lease with the default window that was just renewed.
const PROMISE: Duration = Duration::from_millis(4_750);

#[tokio::test(start_paused = true)]
async fn hold_bounded_by_node_lease() {
    let fake = Fake::start();
    fake.renew_node_lease(PROMISE);
    let guard = lock(&fake).acquire().await.expect("free");
    assert!(guard.remaining() <= PROMISE);
    for _ in 0..10 {
        sleep(PROMISE / 3).await;
        fake.renew_node_lease(PROMISE);
    }
    let safe = guard.state();
    assert!(matches!(safe, GuardState::Safe { .. }), "{safe:?}");
    let begun = Instant::now();
    let jeopardy = guard.changed(&safe).await;
    assert!(matches!(jeopardy, GuardState::Jeopardy { .. }) && guard.is_held(), "{jeopardy:?}");
    // Renewals of the session itself succeed all the time.
    let suspended = guard.changed(&jeopardy).await;
    let lasted = begun.elapsed();
    assert_eq!((suspended.clone(), guard.is_held()), (GuardState::Suspended, false));
    assert!(lasted > PROMISE - Duration::from_millis(50) && lasted <= PROMISE, "{lasted:?}");
    assert_eq!(guard.lost().await, Loss::NodeDeadline);
    assert_eq!(fake.holder("job").as_deref(), Some(guard.session()), "it may come back");
    fake.renew_node_lease(PROMISE);
    assert!(matches!(guard.changed(&suspended).await, GuardState::Safe { .. }));
    assert!(guard.release().await.expect("released"));
    assert_eq!((fake.holder("job"), fake.sessions()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn dead_agent_suspends_then_reports_loss() {
    let fake = Fake::start();
    fake.renew_node_lease(PROMISE);
    let guard = lock(&fake).acquire().await.expect("free");
    fake.renew_node_lease(PROMISE);
    fake.fail("events", Fault::DoneUnheard, usize::MAX);
    let begun = Instant::now();
    assert_eq!(guard.lost().await, Loss::NodeDeadline);
    assert!(begun.elapsed() <= PROMISE);
    fake.end_session(guard.session(), Duration::from_secs(15));
    fake.heal();
    let lost = guard.changed(&GuardState::Suspended).await;
    assert_eq!(lost, GuardState::Lost(Loss::Ended("destroyed".into())));
    assert!(!guard.release().await.expect("no error"));
}

#[tokio::test(start_paused = true)]
async fn dead_process_lock_released_without_delay() {
    let fake = Fake::start();
    let dead = lock(&fake).acquire().await.expect("free");
    fake.fail("release=", Fault::DoneUnheard, 1);
    fake.fail("/v1/session/destroy/", Fault::Status(500, "No cluster leader"), 3);
    let begun = Instant::now();
    assert!(lock(&fake).value("over").give_back(dead.session(), NEVER).await.expect("given back"));
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!((fake.holder("job"), fake.value("job").as_deref()), (None, Some("over")));
    assert_eq!(fake.sessions(), 0);
    assert!(lock(&fake).try_acquire().await.expect("no error").is_some());
    assert!(!lock(&fake).give_back(dead.session(), NEVER).await.expect("no error"));
}

/// The wait in the queue is granted, and a proxy swallows the reply.
#[tokio::test(start_paused = true)]
async fn unreported_grant_found_by_read() {
    let fake = Fake::start();
    let first = lock(&fake).acquire().await.expect("free");
    fake.fail("acquire=session-2", Fault::DoneSilently, 1);
    let waiting = lock(&fake);
    let second = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(10)).await;
    first.release().await.expect("released");
    let begun = Instant::now();
    let second = second.await.expect("no panic");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((fake.holder("job").as_deref(), second.fence()), (Some(second.session()), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn wait_limit_applies_without_replies() {
    let fake = Fake::start();
    fake.fail("", Fault::Silence, usize::MAX);
    let begun = Instant::now();
    let acquired = lock(&fake).acquire_within(Duration::from_secs(2)).await;
    assert!(acquired.expect("no error").is_none());
    assert!(begun.elapsed() <= Duration::from_millis(2_205), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn client_tracks_guard_sessions() {
    let fake = Fake::start();
    let client = fake.client();
    let guard = Lock::new(&client, "job").acquire().await.expect("free");
    let session = guard.session().to_owned();
    assert!(client.clone().has_session(&session) && !fake.client().has_session(&session));
    guard.release().await.expect("released");
    assert!(!client.has_session(&session));
}

#[tokio::test(start_paused = true)]
async fn run_drops_work_at_loss() {
    let fake = Fake::start();
    let guard = lock(&fake).acquire().await.expect("free");
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let loss = async {
        sleep(Duration::from_secs(1)).await;
        fake.delete("job");
    };
    let (stopped, ()) = tokio::join!(guard.run(sleep(Duration::from_secs(60))), loss);
    assert_eq!(stopped, Err(Loss::Deleted));
    let begun = Instant::now();
    assert_eq!(guard.run(async { 7 }).await, Err(Loss::Deleted), "no step of it runs");
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
