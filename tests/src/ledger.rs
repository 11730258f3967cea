//! A record of the replies that clients received, compared with the server's state after a kill.
//!
//! Writers increment keys, set pairs of keys in transactions, and acquire and release locks. After
//! a kill every acknowledged change must exist, a change in flight may exist, and no other change
//! may. There are no exceptions: a client that received `true` is always right.

use crate::http::{Answer, Client, Connection};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The numbers of clients that write and that contend for locks.
const WRITERS: usize = 4;
const CONTENDERS: usize = 6;
/// The number of locks.
const LOCKS: usize = 2;

/// The knowledge of all clients, across restarts of the server.
pub struct Ledger {
    writers: Vec<Writer>,
    contenders: Vec<Contender>,
    common: Common,
    /// The number of verifications so far.
    verified: u64,
}

/// Replies shared by all clients.
#[derive(Default)]
struct Common {
    acknowledged: AtomicU64,
    highest_index: AtomicU64,
    fences: Mutex<BTreeSet<u64>>,
    inside: [AtomicU64; LOCKS],
}

/// A client that increments a key and sets a pair of keys in one transaction.
#[derive(Default)]
struct Writer {
    number: usize,
    acknowledged: u64,
    attempted: u64,
    /// The highest index observed for its key.
    seen: u64,
}

/// A client that contends for a lock.
struct Contender {
    lock: usize,
    session: String,
    hold: Hold,
}

/// A contender's knowledge of its hold.
#[derive(Debug, PartialEq)]
enum Hold {
    /// The contender does not hold the lock.
    None,
    /// An acquire or a release was sent, and the reply is missing.
    Unknown,
    /// The server reported that the contender holds the lock, with this fence.
    Held(u64),
}

impl Ledger {
    /// Returns the total number of acknowledged writes, grants and releases.
    pub fn acknowledged(&self) -> u64 {
        self.common.acknowledged.load(Ordering::Relaxed)
    }

    /// Creates clients without any replies yet, and a session for each contender.
    pub fn begin(client: &Client) -> Self {
        let writers = (0..WRITERS).map(|number| Writer { number, ..Writer::default() }).collect();
        let contender =
            |number| Contender { lock: number % LOCKS, session: client.session(), hold: Hold::None };
        Self {
            writers,
            contenders: (0..CONTENDERS).map(contender).collect(),
            common: Common::default(),
            verified: 0,
        }
    }

    /// Writes and locks until the server stops replying.
    pub fn load(&mut self, client: &Client) {
        let common = &self.common;
        thread::scope(|scope| {
            // A kill of the server breaks every connection, and that ends the load.
            for writer in &mut self.writers {
                scope.spawn(|| writer.write(client, common).expect_err("it writes until the server is gone"));
            }
            for contender in &mut self.contenders {
                scope.spawn(|| contender.contend(client, common).expect_err("until the server is gone"));
            }
        });
    }

    /// Compares the server's state with all replies that clients received.
    pub fn verify(&mut self, client: &Client) {
        for writer in &mut self.writers {
            writer.verify(client);
        }
        for contender in &mut self.contenders {
            contender.verify(client, &self.common);
        }
        let highest = self.common.highest_index.load(Ordering::SeqCst);
        // A write of an unchanged value is a no-op, and nothing may have been acknowledged since
        // the last verification. The value is therefore new each time.
        self.verified += 1;
        client.set("kill/index", &self.verified.to_string());
        let index = client.get("/v1/kv/kill/index").index();
        assert!(index > highest, "a new write has index {index}, but {highest} had been seen");
        let all = client.get("/v1/kv/kill/?recurse").expect(200).expect_meta();
        assert_eq!(all.index(), index, "the newest entry of all");
    }
}

impl Common {
    fn fences(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn write(&mut self, client: &Client, common: &Common) -> io::Result<()> {
        let mut connection = client.connect()?;
        let path = format!("/v1/kv/kill/count/{}", self.number);
        loop {
            self.attempted = self.acknowledged + 1;
            let answer = match self.attempted % 2 {
                0 => connection.ask("PUT", &path, &[], self.attempted.to_string().as_bytes())?,
                _ => connection.ask("PUT", "/v1/txn", &[], self.pair().as_bytes())?,
            };
            assert_eq!(answer.status, 200, "{answer:?}");
            self.acknowledged = self.attempted;
            common.acknowledged.fetch_add(1, Ordering::Relaxed);
            if self.acknowledged.is_multiple_of(8) {
                self.seen = connection.ask("GET", &path, &[], b"")?.index();
                common.highest_index.fetch_max(self.seen, Ordering::SeqCst);
            }
        }
    }

    /// Returns a transaction that sets the count and its twin.
    fn pair(&self) -> String {
        let value = base64(&self.attempted.to_string());
        let set = |name: &str| json!({"KV": {"Verb": "set", "Key": format!("kill/{name}/{}", self.number), "Value": value}});
        json!([set("count"), set("twin")]).to_string()
    }

    fn verify(&mut self, client: &Client) {
        let count = self.read(client, "count");
        let (least, most) = (self.acknowledged, self.attempted);
        assert!(
            (least..=most).contains(&count),
            "{count} is stored, {least} was acknowledged, {most} attempted"
        );
        let twin = self.read(client, "twin");
        let last_pair = count - (count + 1) % 2;
        assert_eq!(twin, if count == 0 { 0 } else { last_pair }, "half a transaction: the count is {count}");
        (self.acknowledged, self.attempted) = (count, count);
        let index = client.get(&format!("/v1/kv/kill/count/{}", self.number)).index();
        assert!(index >= self.seen, "index {index} after {} had been seen", self.seen);
    }

    fn read(&self, client: &Client, name: &str) -> u64 {
        let answer = client.get(&format!("/v1/kv/kill/{name}/{}?raw", self.number));
        match answer.status {
            404 => 0,
            _ => answer.expect(200).text().parse().expect("a count"),
        }
    }
}

impl Contender {
    fn contend(&mut self, client: &Client, common: &Common) -> io::Result<()> {
        let mut connection = client.connect()?;
        loop {
            if self.hold != Hold::None || self.acquire(&mut connection, common)? {
                self.release(&mut connection, &common.inside)?;
                common.acknowledged.fetch_add(2, Ordering::Relaxed);
            }
        }
    }

    fn acquire(&mut self, connection: &mut Connection, common: &Common) -> io::Result<bool> {
        self.hold = Hold::Unknown;
        let before = common.fences().last().copied();
        let path = format!("/v1/kv/kill/lock/{}?acquire={}", self.lock, self.session);
        let answer = connection.ask("PUT", &path, &[], self.session.as_bytes())?;
        if !said_true(&answer) {
            self.hold = Hold::None;
            return Ok(false);
        }
        let fence = answer.header("X-Lockmesh-Fence").expect("a grant carries a fence");
        let fence = fence.parse().expect("a fence is a number");
        assert!(Some(fence) > before, "fence {fence} came after {before:?}");
        assert!(common.fences().insert(fence), "fence {fence} was granted twice");
        assert_eq!(common.inside[self.lock].fetch_add(1, Ordering::SeqCst), 0, "two hold lock {}", self.lock);
        self.hold = Hold::Held(fence);
        Ok(true)
    }

    fn release(&mut self, connection: &mut Connection, inside: &[AtomicU64; LOCKS]) -> io::Result<()> {
        let path = format!("/v1/kv/kill/lock/{}?release={}", self.lock, self.session);
        // From here on another contender may acquire the lock.
        inside[self.lock].fetch_sub(1, Ordering::SeqCst);
        self.hold = Hold::Unknown;
        let answer = connection.ask("PUT", &path, &[], b"")?;
        assert!(said_true(&answer), "the holder cannot release: {answer:?}");
        self.hold = Hold::None;
        Ok(())
    }

    /// Compares the contender's knowledge of its hold with the server's state, and resolves unknown
    /// outcomes.
    fn verify(&mut self, client: &Client, common: &Common) {
        assert!(client.session_info(&self.session).is_some(), "an acknowledged session is gone");
        let entry = client.get(&format!("/v1/kv/kill/lock/{}", self.lock));
        let holder = match entry.status {
            404 => Value::Null,
            _ => entry.entry()["Session"].clone(),
        };
        let holds = holder == json!(self.session);
        match &self.hold {
            Hold::None => assert!(!holds, "{} holds what it was refused or gave back", self.session),
            Hold::Held(fence) => {
                assert!(holds, "{} received a grant of the lock", self.session);
                let path = format!("/v1/kv/kill/lock/{}?acquire={}", self.lock, self.session);
                let again = client.put(&path, &self.session).expect(200);
                assert_eq!(
                    again.header("X-Lockmesh-Fence"),
                    Some(fence.to_string().as_str()),
                    "the same hold"
                );
            }
            Hold::Unknown => {}
        }
        if self.hold == Hold::Unknown && holds {
            assert!(client.release(&format!("kill/lock/{}", self.lock), &self.session));
        }
        if !matches!(self.hold, Hold::Held(_)) {
            self.hold = Hold::None;
        }
        let inside = common.inside[self.lock].load(Ordering::SeqCst);
        assert!(inside <= 1, "{inside} hold lock {}", self.lock);
    }
}

fn said_true(answer: &Answer) -> bool {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text().trim_end() == "true"
}

/// Encodes text as standard padded base64.
pub fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |number: u32, place: u32| char::from(DIGITS[(number >> (18 - 6 * place)) as usize & 63]);
    let encode = |chunk: &[u8]| -> String {
        let byte = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let number = byte(0) << 16 | byte(1) << 8 | byte(2);
        (0..4).map(|place| if place as usize > chunk.len() { '=' } else { digit(number, place) }).collect()
    };
    text.as_bytes().chunks(3).map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_padded() {
        let pairs = [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("hello", "aGVsbG8=")];
        for (text, encoded) in pairs {
            assert_eq!(base64(text), encoded);
        }
    }
}
