//! Scenarios of semaphores, in paused time.

use super::*;
use crate::fake::{Fake, Fault};
use crate::holder::SEMAPHORE_FLAGS;
use crate::loss::Loss;
use tokio::time::sleep;

const NEVER: Moment = Moment::from_nanos(u64::MAX);

fn semaphore(fake: &Fake) -> Semaphore {
    Semaphore::new(&fake.client(), "pool/", 2)
}

fn holders(fake: &Fake) -> usize {
    fake.value("pool/.lock").map_or(0, |list| list.matches("true").count())
}

#[tokio::test(start_paused = true)]
async fn admits_up_to_slot_count() {
    let fake = Fake::start();
    let first = semaphore(&fake).acquire().await.expect("a free slot");
    let second = semaphore(&fake).acquire().await.expect("a free slot");
    assert_eq!(holders(&fake), 2);
    assert!(semaphore(&fake).try_acquire().await.expect("no error").is_none());
    assert!(semaphore(&fake).acquire_within(Duration::from_secs(1)).await.expect("no error").is_none());
    assert_eq!(fake.sessions(), 2, "giving up leaves no session behind");
    let waiting = semaphore(&fake);
    let third = tokio::spawn(async move { waiting.acquire().await.expect("in the end") });
    sleep(Duration::from_secs(200)).await;
    assert!(!third.is_finished() && first.is_held() && second.is_held());
    assert!(first.release().await.expect("released"));
    let third = third.await.expect("no panic");
    assert!(third.fence() > second.fence());
    assert!(!semaphore(&fake).remove().await.expect("no error"), "slots are held");
    second.release().await.expect("released");
    third.release().await.expect("released");
    assert!(semaphore(&fake).remove().await.expect("removed"));
    assert_eq!((fake.value("pool/.lock"), fake.sessions()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn the_dead_are_struck_off() {
    let fake = Fake::start();
    let list = r#"{"Limit":2,"Holders":{"dead":true,"gone":true}}"#;
    fake.write("pool/.lock", list, SEMAPHORE_FLAGS, "");
    let guard = semaphore(&fake).try_acquire().await.expect("no error").expect("dead holders do not count");
    let expected = format!(r#"{{"Limit":2,"Holders":{{"{}":true}}}}"#, guard.session());
    assert_eq!(fake.value("pool/.lock"), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn release_keeps_other_holders() {
    let fake = Fake::start();
    let first = semaphore(&fake).acquire().await.expect("a free slot");
    let second = semaphore(&fake).acquire().await.expect("a free slot");
    first.release().await.expect("released");
    sleep(Duration::from_secs(120)).await;
    assert!(second.is_held() && holders(&fake) == 1);
}

#[tokio::test(start_paused = true)]
async fn every_slot_loss_cause_reported() {
    let fake = Fake::start();
    let guard = semaphore(&fake).acquire().await.expect("a free slot");
    fake.write("pool/.lock", r#"{"Limit":2,"Holders":{}}"#, SEMAPHORE_FLAGS, "");
    assert_eq!(guard.lost().await, Loss::Unlisted);
    drop(guard);

    let guard = semaphore(&fake).acquire().await.expect("a free slot");
    fake.delete("pool/.lock");
    assert_eq!(guard.lost().await, Loss::Deleted);
    drop(guard);

    let guard = semaphore(&fake).acquire().await.expect("a free slot");
    fake.fail("", Fault::Silence, usize::MAX);
    assert_eq!(guard.lost().await, Loss::Deadline);
}

#[tokio::test(start_paused = true)]
async fn lost_entry_reply_recovered() {
    let fake = Fake::start();
    fake.fail("cas=", Fault::DoneUnheard, 1);
    let guard = semaphore(&fake).acquire().await.expect("at the second try");
    assert_eq!(holders(&fake), 1);
    guard.release().await.expect("released");
    assert_eq!(holders(&fake), 0);
}

#[tokio::test(start_paused = true)]
async fn different_limit_or_use_rejected() {
    let fake = Fake::start();
    let _guard = semaphore(&fake).acquire().await.expect("a free slot");
    let other = Semaphore::new(&fake.client(), "pool", 3);
    assert!(matches!(other.acquire().await, Err(Error::SlotCount { stored: 2, wanted: 3, .. })));
    assert_eq!((fake.keys("pool/"), fake.sessions()), (2, 1), "only the holder and the list remain");
    assert!(!other.remove().await.expect("no error"), "a slot is held");
    fake.write("plain/.lock", "x", 0, "");
    let other = Semaphore::new(&fake.client(), "plain", 2);
    assert!(matches!(other.acquire().await, Err(Error::Conflict { .. })));
    assert_eq!((fake.keys("plain/"), fake.sessions()), (1, 1), "only the key of others remains");
}

#[tokio::test(start_paused = true)]
async fn new_limit_accepted_without_holders() {
    let fake = Fake::start();
    semaphore(&fake).acquire().await.expect("a free slot").release().await.expect("released");
    let other = Semaphore::new(&fake.client(), "pool", 3);
    let guard = other.acquire().await.expect("no holder uses the old number");
    assert!(fake.value("pool/.lock").expect("a list").starts_with(r#"{"Limit":3,"#));
    assert!(matches!(semaphore(&fake).acquire().await, Err(Error::SlotCount { stored: 3, wanted: 2, .. })));
    guard.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn dead_process_slot_released_alone() {
    let fake = Fake::start();
    let dead = semaphore(&fake).acquire().await.expect("a free slot");
    let other = semaphore(&fake).acquire().await.expect("a free slot");
    assert!(semaphore(&fake).give_back(dead.session(), NEVER).await.expect("given back"));
    assert_eq!((holders(&fake), fake.sessions()), (1, 1));
    assert_eq!(fake.value(&format!("pool/{}", dead.session())), None);
    assert!(other.is_held() && semaphore(&fake).try_acquire().await.expect("no error").is_some());
    assert!(!semaphore(&fake).give_back(dead.session(), NEVER).await.expect("no error"));
}
