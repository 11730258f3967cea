//! The reason why a lock or a slot is not granted: its holders, or the lock-delay that is left.
//!
//! For people only; errors are dropped. A Consul agent does not know the request, and the reason is
//! then missing.

use crate::command::instant;
use crate::command::lock::{held::report, lock_key};
use crate::command::output::printable;
use lockmesh_client::shape::lockmesh::{Lock, Loss};
use lockmesh_client::{Client, Read, Slots};
use lockmesh_protocol::duration;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The time before the first message: most waits are shorter.
const FIRST_MESSAGE_DELAY: Duration = Duration::from_millis(500);

/// The interval between two looks at the holders.
const INTERVAL: Duration = Duration::from_secs(5);

/// The timeout of a look.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// The most holders that a message names.
const NAMED: usize = 3;

/// The lock or slot that a command waits for.
#[derive(Clone, Debug)]
pub(super) enum Awaited {
    /// The locks with these names.
    Locks(Vec<String>),
    /// A slot of the semaphore under this prefix.
    Slot(String),
}

/// The reason why it is not granted at present.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Obstacle {
    /// The sessions that hold it. A new message follows when they change.
    sessions: Vec<String>,
    text: String,
}

impl Awaited {
    /// Prints the holder of the lock, and again when the holder changes. Never returns.
    pub(super) async fn report(&self, client: &Client, name: &str) -> Infallible {
        sleep(FIRST_MESSAGE_DELAY).await;
        let mut last: Option<Vec<String>> = None;
        loop {
            let obstacle = self.obstacle(client).await;
            let sessions = obstacle.as_ref().map(|obstacle| obstacle.sessions.clone());
            if let Some(obstacle) = obstacle.filter(|_| sessions != last) {
                report(&format!("waiting for {name}: {}", obstacle.text));
            }
            last = sessions;
            sleep(INTERVAL).await;
        }
    }

    /// The reason in words, if it is known within `limit`.
    pub(super) async fn reason(&self, client: &Client, limit: Duration) -> Option<String> {
        match timeout(limit, self.found(client)).await {
            Ok(obstacle) => obstacle.map(|obstacle| obstacle.text),
            Err(_) => Some("no answer from the agent or its servers".into()),
        }
    }

    async fn obstacle(&self, client: &Client) -> Option<Obstacle> {
        timeout(TIMEOUT, self.found(client)).await.ok().flatten()
    }

    /// The first obstacle. A grant to this process does not count: it is recognized, or released,
    /// in a moment.
    async fn found(&self, client: &Client) -> Option<Obstacle> {
        let is_own = |session: &String| client.has_session(session);
        let is_other = |obstacle: &Obstacle| !obstacle.sessions.iter().any(is_own);
        match self {
            Self::Locks(names) => {
                for name in names {
                    let Some(found) = Obstacle::of_lock(client, name).await.filter(is_other) else {
                        continue;
                    };
                    let is_single = names.len() == 1;
                    let text = if is_single { found.text } else { format!("{name}: {}", found.text) };
                    return Some(Obstacle { text, ..found });
                }
                None
            }
            Self::Slot(prefix) => Obstacle::of_slot(client, prefix).await.filter(is_other),
        }
    }
}

impl Obstacle {
    async fn of_lock(client: &Client, name: &str) -> Option<Self> {
        let (key, read) = (lock_key(name), Read::default());
        let locks = client.operator().locks(&key, &read).await.ok()?.value;
        let lock = locks.into_iter().find(|lock| lock.key == key)?;
        if !lock.session.is_empty() {
            return Some(Self::held(&lock));
        }
        let losses = client.operator().losses(&read).await.ok()?.value;
        Some(Self::delayed(&lock, &losses, instant::now_ms()))
    }

    async fn of_slot(client: &Client, prefix: &str) -> Option<Self> {
        let read = Read::default();
        let list = client.kv().get(&format!("{prefix}/.lock"), &read).await.ok()?.value?;
        let contenders = client.operator().locks(&format!("{prefix}/"), &read).await.ok()?.value;
        Self::full(&list.value, &contenders)
    }

    fn held(lock: &Lock) -> Self {
        let waiting = if lock.waiters > 1 { format!(", {} waiting", lock.waiters) } else { String::new() };
        Self { sessions: vec![lock.session.clone()], text: format!("held by {}{waiting}", holder(lock)) }
    }

    fn delayed(lock: &Lock, losses: &[Loss], now_ms: u64) -> Self {
        let text = match delay_left(lock, losses, now_ms) {
            Some((loss, left)) => {
                let cause = printable(&loss.in_words());
                format!("lock-delay, about {left}s of {} left (last holder: {cause})", lock.lock_delay)
            }
            None => format!("lock-delay of {}", lock.lock_delay),
        };
        Self { sessions: Vec::new(), text }
    }

    /// A semaphore without a free slot; none if a slot is free.
    fn full(list: &[u8], contenders: &[Lock]) -> Option<Self> {
        let slots = Slots::from_json(list).ok()?;
        let held: Vec<&Lock> = contenders.iter().filter(|lock| slots.holds(&lock.session)).collect();
        if held.len() < slots.limit() {
            return None;
        }
        let mut named: Vec<String> = held.iter().take(NAMED).map(|lock| holder(lock)).collect();
        if held.len() > NAMED {
            named.push(format!("{} more", held.len() - NAMED));
        }
        let count = if slots.limit() == 1 {
            "the slot is".into()
        } else {
            format!("all {} slots are", slots.limit())
        };
        let sessions = held.iter().map(|lock| lock.session.clone()).collect();
        Some(Self { sessions, text: format!("{count} held by {}", named.join(", ")) })
    }
}

/// The loss that began the lock-delay, and the seconds that are left of the delay. The end of the
/// last holder is recorded with its time, so the rest is known as well as the two clocks agree.
/// `None` if the loss is not in the history.
pub(in crate::command) fn delay_left<'a>(
    lock: &Lock,
    losses: &'a [Loss],
    now_ms: u64,
) -> Option<(&'a Loss, u64)> {
    let whole = duration::parse(&lock.lock_delay).unwrap_or_default();
    let loss = losses.iter().find(|loss| loss.keys.iter().any(|lost| lost.key == lock.key))?;
    let since = Duration::from_millis(now_ms.saturating_sub(loss.at_ms));
    // A clock that is ahead must not promise the lock too early.
    let left = whole.saturating_sub(since).max(Duration::from_secs(1)).as_secs();
    Some((loss, left))
}

/// The holder with its node, the time and the fence of its grant.
fn holder(lock: &Lock) -> String {
    let name = if lock.session_name.is_empty() { &lock.session } else { &lock.session_name };
    let since = instant::utc(lock.granted_at_ms);
    format!("\"{}\" on {} since {since} (fence {})", printable(name), lock.node, lock.fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::lockmesh::LostKey;

    const NOW: u64 = 1_795_250_472_000;

    fn held_by(session: &str) -> Lock {
        Lock {
            key: "job/.lock".into(),
            session: session.into(),
            session_name: format!("worker {session}"),
            node: "n1".into(),
            fence: 7,
            granted_at_ms: NOW,
            ..Lock::default()
        }
    }

    #[test]
    fn names_holder_time_and_fence() {
        let obstacle = Obstacle::held(&held_by("s1"));
        assert_eq!(obstacle.text, "held by \"worker s1\" on n1 since 2026-11-21 08:41:12Z (fence 7)");
        let obstacle = Obstacle::held(&Lock { waiters: 2, ..held_by("s1") });
        assert!(obstacle.text.ends_with("(fence 7), 2 waiting"), "{}", obstacle.text);
    }

    #[test]
    fn lock_delay_remainder_counted_from_loss() {
        let lock = Lock { key: "job/.lock".into(), lock_delay: "15s".into(), ..Lock::default() };
        let loss = Loss {
            at_ms: NOW - 4_000,
            cause: "ttl-expired".into(),
            keys: vec![LostKey { key: lock.key.clone(), fence: 7 }],
            ..Loss::default()
        };
        let text = |losses: &[Loss], now| Obstacle::delayed(&lock, losses, now).text;
        let losses = [Loss::default(), loss];
        assert_eq!(text(&losses, NOW), "lock-delay, about 11s of 15s left (last holder: ttl-expired)");
        assert!(text(&losses, NOW + 60_000).starts_with("lock-delay, about 1s of 15s left"));
        assert_eq!(text(&[], NOW), "lock-delay of 15s");
    }

    #[test]
    fn semaphore_holders_distinguished_from_waiters() {
        let list = br#"{"Limit":2,"Holders":{"s1":true,"s2":true}}"#;
        let contenders = ["s1", "s2", "s3"].map(held_by);
        let obstacle = Obstacle::full(list, &contenders).expect("no slot is free");
        assert_eq!(obstacle.sessions, ["s1", "s2"]);
        assert!(obstacle.text.starts_with("all 2 slots are held by \"worker s1\""), "{}", obstacle.text);
        assert_eq!(Obstacle::full(list, &contenders[1..]), None, "the first holder has ended");
        let full = br#"{"Limit":1,"Holders":{"s1":true}}"#;
        assert!(Obstacle::full(full, &contenders).expect("full").text.starts_with("the slot is held by"));
        assert_eq!(Obstacle::full(b"", &contenders), None);
    }
}
