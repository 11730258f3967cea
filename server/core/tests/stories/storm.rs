//! Storms: a single server with a slow disk and crashes at any moment, from a seed.
//!
//! Acknowledged writes survive every crash, no lock changes its holder without a cause, fencing
//! tokens and indexes never go back, and the same seed gives the same run.

use crate::solo::{Solo, entry};
use lockmesh_core::CallToken;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{Fence, LogIndex, SessionId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use std::collections::BTreeMap;
use std::time::Duration;

/// A small seeded generator; the core draws from its own.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The facts that must hold in a storm.
#[derive(Default)]
struct Promises {
    /// The keys whose write was acknowledged, with its index.
    written: BTreeMap<String, LogIndex>,
    last_index: LogIndex,
    fences: BTreeMap<String, Fence>,
    asked: BTreeMap<CallToken, Command>,
}

impl Promises {
    fn check_replies(&mut self, solo: &mut Solo) {
        for (token, response) in std::mem::take(&mut solo.replies) {
            let Some(command) = self.asked.remove(&token) else { continue };
            let Response::Applied(Applied { index, reply }) = response else { continue };
            assert!(index > self.last_index, "indexes never go back");
            self.last_index = index;
            match (command, reply) {
                (Command::Kv(KvCommand::Set(entry)), _) => {
                    self.written.insert(entry.key.to_string(), index);
                }
                (Command::Kv(KvCommand::Acquire(entry, _)), Reply::Granted { fence }) => {
                    let last = self.fences.insert(entry.key.to_string(), fence);
                    assert!(last <= Some(fence), "a lock's tokens never go back");
                }
                _ => {}
            }
        }
    }

    fn keep(&self, solo: &Solo) {
        for (key, index) in &self.written {
            let kept = solo.entry(key);
            let kept = kept.unwrap_or_else(|| panic!("{key} was answered at {index} and is gone"));
            assert!(kept.modify_index >= *index || kept.create_index <= *index);
        }
    }
}

fn storm(seed: u64) -> String {
    let mut draw = Draw(seed);
    let mut solo = Solo::start();
    let sessions: Vec<SessionId> =
        (1..=4).map(|n| solo.session(&n.to_string(), Duration::ZERO, Duration::from_secs(n))).collect();
    let mut promises = Promises::default();
    for step in 0..300 {
        match draw.below(12) {
            0 => {
                solo.crash();
                promises.asked.clear();
                promises.keep(&solo);
            }
            1 | 2 => solo.sync(),
            3 => solo.flushes = !solo.flushes,
            4 => solo.run(Duration::from_millis(draw.below(3000))),
            5..=7 => {
                let session = &sessions[draw.below(4) as usize];
                let lock = entry(&format!("lock-{}", draw.below(3)));
                let command = if draw.below(3) == 0 {
                    KvCommand::Release(lock, *session)
                } else {
                    KvCommand::Acquire(lock, *session)
                };
                propose(&mut solo, &mut promises, Command::Kv(command));
            }
            _ => {
                let command = KvCommand::Set(entry(&format!("key-{step}")));
                propose(&mut solo, &mut promises, Command::Kv(command));
            }
        }
        promises.check_replies(&mut solo);
    }
    solo.sync();
    promises.check_replies(&mut solo);
    let before = solo.core.replica().state().clone();
    solo.crash();
    promises.keep(&solo);
    assert_eq!(&before, solo.core.replica().state(), "a replay of the log makes the same state");
    format!("{:?}", solo.core.replica().state())
}

fn propose(solo: &mut Solo, promises: &mut Promises, command: Command) {
    let token = solo.propose(command.clone());
    promises.asked.insert(token, command);
}

#[test]
fn fifty_storms_break_no_promise() {
    for seed in 0..50 {
        storm(seed);
    }
}

#[test]
fn same_seed_repeats_run() {
    assert_eq!(storm(11), storm(11));
}
