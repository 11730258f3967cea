//! Leader election: the holder of the lock leads, and the key's value identifies the leader.

use crate::backoff::{Backoff, Jitter};
use crate::client::Client;
use crate::driver::random_seed;
use crate::error::Error;
use crate::lock::{Lock, LockGuard};
use crate::read::Read;
use crate::session_options::SessionOptions;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::sleep;

/// The wait of one blocking query for a change of leaders.
const WATCH_WAIT_TIME: Duration = Duration::from_secs(60);

/// A leadership: the guard of the lock. `release` resigns; `lost` reports the loss of leadership.
pub type Leadership = LockGuard;

/// An election with at most one leader at a time.
///
/// ```no_run
/// # async fn example(client: lockmesh_client::Client) -> Result<(), lockmesh_client::Error> {
/// let office = lockmesh_client::Election::new(&client, "service/reports/leader");
/// let office = office.candidate("host-17");
/// let leadership = office.campaign().await?;
/// println!("leading, fence {:?}", leadership.fence());
/// println!("leading no longer: {}", leadership.lost().await);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    key: String,
    lock: Lock,
}

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session that holds the lock.
    pub session: String,
    /// The value that the leader published about itself.
    pub value: Bytes,
    /// The number of grants of the lock since the key was created.
    pub lock_index: u64,
}

impl Election {
    /// Creates an election on `key`.
    pub fn new(client: &Client, key: impl Into<String>) -> Self {
        let key = key.into();
        let lock = Lock::new(client, key.clone()).session(SessionOptions::named("Lockmesh election"));
        Self { client: client.clone(), key, lock }
    }

    /// Sets the value that this candidate publishes once it leads.
    #[must_use]
    pub fn candidate(self, value: impl Into<Bytes>) -> Self {
        Self { lock: self.lock.value(value), ..self }
    }

    /// Sets the options of the candidate's session.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { lock: self.lock.session(options), ..self }
    }

    /// Sets other flags than [`crate::LOCK_FLAGS`], for an election whose other candidates use
    /// other flags.
    #[must_use]
    pub fn flags(self, flags: u64) -> Self {
        Self { lock: self.lock.flags(flags), ..self }
    }

    /// Campaigns until this candidate leads.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        self.lock.acquire().await
    }

    /// Campaigns for about `limit`; `None` if this candidate does not lead then.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign_within(&self, limit: Duration) -> Result<Option<Leadership>, Error> {
        self.lock.acquire_within(limit).await
    }

    /// Becomes the leader if there is none.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.lock.try_acquire().await
    }

    /// Returns the current leader; `None` without one.
    ///
    /// # Errors
    /// The errors of the request.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.observer().next().await
    }

    /// Returns an observer of the leadership.
    pub fn observer(&self) -> Observer {
        Observer { client: self.client.clone(), key: self.key.clone(), index: 0, last: None }
    }
}

/// An observer that returns the current leader, then each change.
#[derive(Clone, Debug)]
pub struct Observer {
    client: Client,
    key: String,
    index: u64,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader: at once on the first call, later after each change. Rapid successive
    /// changes may be reported as one.
    ///
    /// # Errors
    /// The errors of the request; call again to continue. [`Observer::next_surely`] does so
    /// automatically.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let read = Read::default().newer_than(self.index, WATCH_WAIT_TIME);
            let answer = self.client.kv().get(&self.key, &read).await?;
            self.index = answer.index;
            let leader = answer.value.and_then(|entry| {
                let session = entry.session?;
                Some(Leader { session, value: entry.value, lock_index: entry.lock_index })
            });
            // A query also ends when its wait expires, or after a change that does not affect the
            // leader.
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
            // Without an index the query does not block, so this pause limits the rate.
            if self.index == 0 {
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Like [`Observer::next`], but retries after transient errors.
    ///
    /// # Errors
    /// A refusal.
    pub async fn next_surely(&mut self) -> Result<Option<Leader>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut jitter = Jitter::new(random_seed());
        loop {
            match self.next().await {
                Err(error) if error.is_transient() => sleep(backoff.failed(&mut jitter)).await,
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Fault};

    #[tokio::test(start_paused = true)]
    async fn observers_see_each_leader() {
        let fake = Fake::start();
        let office = Election::new(&fake.client(), "chair");
        let mut observer = office.observer();
        assert_eq!(observer.next().await.expect("an answer"), None);
        let first = office.clone().candidate("a").campaign().await.expect("vacant");
        let leader = observer.next().await.expect("an answer").expect("a leader");
        assert_eq!((leader.value, leader.session.as_str()), (Bytes::from("a"), first.session()));
        assert!(office.try_campaign().await.expect("no error").is_none());
        let rival = office.clone().candidate("b");
        let rival = tokio::spawn(async move { rival.campaign().await.expect("in the end") });
        fake.fail("kv/chair", Fault::Status(500, "No cluster leader"), 2);
        first.release().await.expect("resigned");
        let second = rival.await.expect("no panic");
        let mut seen = observer.next_surely().await.expect("an answer");
        while seen.as_ref().is_none_or(|leader| leader.value != "b") {
            seen = observer.next_surely().await.expect("an answer");
        }
        assert_eq!(office.leader().await.expect("an answer"), seen);
        drop(second);
        assert_eq!(observer.next_surely().await.expect("an answer"), None);
    }
}
