//! Electing a leader: whoever holds the lock leads, and the key's value says who that is.

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

/// How long one blocking query waits for a change of leaders.
const WATCH: Duration = Duration::from_secs(60);

/// Holding the office: the guard of the lock. `release` resigns, `lost` tells when the office is
/// gone.
pub type Leadership = LockGuard;

/// An office that one candidate at a time holds.
///
/// ```no_run
/// # async fn example(client: lockmesh_client::Client) -> Result<(), lockmesh_client::Error> {
/// let office = lockmesh_client::Election::new(&client, "service/reports/leader").candidate("host-17");
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

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The session that holds the office.
    pub session: String,
    /// What the leader says of itself.
    pub value: Bytes,
    /// How often the office was taken in the key's life.
    pub lock_index: u64,
}

impl Election {
    /// The office behind `key`.
    pub fn new(client: &Client, key: impl Into<String>) -> Self {
        let key = key.into();
        let lock = Lock::new(client, key.clone()).session(SessionOptions::named("Lockmesh election"));
        Self { client: client.clone(), key, lock }
    }

    /// What this candidate says of itself once it leads.
    #[must_use]
    pub fn candidate(self, value: impl Into<Bytes>) -> Self {
        Self { lock: self.lock.value(value), ..self }
    }

    /// What the candidate's session shall be like.
    #[must_use]
    pub fn session(self, options: SessionOptions) -> Self {
        Self { lock: self.lock.session(options), ..self }
    }

    /// Other flags than [`crate::LOCK_FLAGS`], for an office that others run for with other flags.
    #[must_use]
    pub fn flags(self, flags: u64) -> Self {
        Self { lock: self.lock.flags(flags), ..self }
    }

    /// Runs for the office until it is won.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        self.lock.acquire().await
    }

    /// Takes the office if it is vacant.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.lock.try_acquire().await
    }

    /// Who leads now; `None` while the office is vacant.
    ///
    /// # Errors
    /// Whatever the request says.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.observer().next().await
    }

    /// Follows who leads.
    pub fn observer(&self) -> Observer {
        Observer { client: self.client.clone(), key: self.key.clone(), index: 0, last: None }
    }
}

/// Tells who leads, now and after each change.
#[derive(Clone, Debug)]
pub struct Observer {
    client: Client,
    key: String,
    index: u64,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Who leads: at once when called first, later when it has changed. Changes in quick succession
    /// may be told as one.
    ///
    /// # Errors
    /// Whatever the request says; call again to go on. [`Observer::next_surely`] does that by
    /// itself.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let read = Read::default().newer_than(self.index, WATCH);
            let answer = self.client.kv().get(&self.key, &read).await?;
            self.index = answer.index;
            let leader = answer.value.and_then(|entry| {
                let session = entry.session?;
                Some(Leader { session, value: entry.value, lock_index: entry.lock_index })
            });
            // A query ends also when its wait is over, or when nothing changed that is told here.
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
            // Without an index the query does not block, and this alone keeps the pace.
            if self.index == 0 {
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// The same, riding out transient errors.
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
