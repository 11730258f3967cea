//! Scenarios of kept sessions, in paused time.

use super::*;
use crate::fake::{Fake, Fault};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(10);

async fn kept(fake: &Fake) -> SessionKeeper {
    let options = SessionOptions { ttl: Some(TTL), ..SessionOptions::named("test") };
    SessionKeeper::create(&fake.client(), &options).await.expect("a session")
}

#[tokio::test(start_paused = true)]
async fn session_renewed_while_kept() {
    let fake = Fake::start();
    let keeper = kept(&fake).await;
    for _ in 0..600 {
        sleep(Duration::from_secs(1)).await;
        assert!(keeper.remaining() > TTL / 2, "{:?}", keeper.remaining());
    }
    assert!(fake.count("renew") >= 150);
    keeper.close().await.expect("closed");
    assert_eq!(fake.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn survives_outage_shorter_than_lease() {
    let fake = Fake::start();
    let keeper = kept(&fake).await;
    sleep(Duration::from_secs(3)).await;
    // A lost request costs its timeout in addition to the outage.
    let outages = [
        (Fault::Status(500, "No cluster leader"), 5),
        (Fault::Silence, 3),
        (Fault::Status(429, "slow down"), 5),
    ];
    for (fault, seconds) in outages {
        fake.fail("renew", fault, usize::MAX);
        sleep(Duration::from_secs(seconds)).await;
        assert!(keeper.is_alive(), "{fault:?}");
        fake.heal();
        sleep(Duration::from_secs(4)).await;
        assert!(keeper.remaining() > TTL / 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_exactly_at_deadline() {
    let fake = Fake::start();
    let begun = Instant::now();
    let keeper = kept(&fake).await;
    fake.fail("renew", Fault::Silence, usize::MAX);
    assert_eq!(keeper.lost().await, Loss::Deadline);
    let lasted = begun.elapsed();
    assert!(lasted >= Duration::from_millis(9_500) && lasted < TTL, "{lasted:?}");
    assert!(!keeper.is_alive());
    // The session is ended, so that no client waits for a lost hold.
    timeout(Duration::from_secs(60), async {
        while fake.sessions() > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("destroyed");
}

#[tokio::test(start_paused = true)]
async fn lost_when_cluster_ends_session() {
    let fake = Fake::start();
    let keeper = kept(&fake).await;
    fake.end_session(keeper.id(), Duration::ZERO);
    assert_eq!(keeper.lost().await, Loss::SessionGone);
    assert_eq!(keeper.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ends_with_its_last_handle() {
    let fake = Fake::start();
    let keeper = kept(&fake).await;
    let other = keeper.clone();
    drop(keeper);
    sleep(Duration::from_secs(30)).await;
    assert!(other.is_alive());
    drop(other);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn missing_agent_reported_as_unreachable() {
    let fake = Fake::start();
    let client = fake.client();
    drop(fake);
    let error = SessionKeeper::create(&client, &SessionOptions::default()).await.expect_err("no agent");
    assert!(matches!(error, Error::Unreachable { .. }) && error.certainly_not_done(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn invalid_ttl_rejected_before_request() {
    let fake = Fake::start();
    for ttl in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401)] {
        let options = SessionOptions { ttl: Some(ttl), ..SessionOptions::named("test") };
        let refused = SessionKeeper::create(&fake.client(), &options).await.expect_err("it makes no sense");
        assert!(matches!(refused, Error::Settings(_)), "{refused}");
        // A lock's acquire returns the error too, instead of retrying forever.
        let lock = crate::Lock::new(&fake.client(), "a").session(options);
        assert!(matches!(lock.acquire().await, Err(Error::Settings(_))));
    }
    assert_eq!((fake.count("create"), fake.sessions()), (0, 0));
}
