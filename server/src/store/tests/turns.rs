//! Benchmarks of a driver turn's cost in the core and in the dirty rows. They only print: no
//! duration can fail them.
//!
//! `cargo test --release -p lockmesh-server --lib store::tests::turns -- --ignored --nocapture`

use crate::store::DirtyRows;
use bytes::Bytes;
use lockmesh_core::durability::write_queue::CheckpointRows;
use lockmesh_core::raft::ElectionTimeout;
use lockmesh_core::raft::log::{HardState, Recovered};
use lockmesh_core::{CallToken, ClusterStart, Core, CoreConfig, Input, Outbox, Proposal, TimerConfig};
use lockmesh_protocol::command::{
    AgentRegistration, Command, Deregistration, KvCommand, NewEntry, Registration,
};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{AgentNumber, Generation, RequestId, ServerId, SessionId, WallTime};
use lockmesh_protocol::record::{Behavior, Node, SessionSpec};
use lockmesh_protocol::time::Time;
use std::time::{Duration, Instant};

const SESSIONS: u32 = 100_000;
const DOOMED: u32 = 10_000;
/// The number of puts per turn.
const BATCH: usize = 64;
const PUTS: u32 = 200_000;

/// A leader that is alone, with an infinitely fast disk.
struct Leader {
    core: Core,
    outbox: Outbox,
    dirty: DirtyRows,
    sequence: u64,
    /// The time spent in the core, and in the dirty rows.
    took: [Duration; 2],
    changes: usize,
}

impl Leader {
    fn new() -> Self {
        let snapshot = Core::bootstrap_snapshot(&[ServerId(1)]);
        let config = CoreConfig {
            format: format::NEWEST,
            id: ServerId(1),
            seed: 7,
            cluster_start: ClusterStart {
                cluster_id: "c1".into(),
                servers: Vec::new(),
                ..ClusterStart::default()
            },
            election: ElectionTimeout::default(),
            timers: TimerConfig::default(),
            max_pending_proposals: 100_000,
            log_keep_bytes: 1 << 20,
            log_keep_fetching_bytes: 1 << 20,
            corruption_check_interval: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(1),
        };
        let hard_state = HardState { term: snapshot.term, vote: ServerId(0), commit: snapshot.index };
        let base = (snapshot.index, snapshot.term);
        let recovered = Recovered { hard_state, snapshot, base, ..Recovered::default() };
        let (outbox, dirty) = (Outbox::default(), DirtyRows::default());
        let core = Core::new(config, recovered);
        let mut leader = Self { core, outbox, dirty, sequence: 0, took: Default::default(), changes: 0 };
        leader.turn([Input::Tick(WallTime(1))]);
        let node = Node { id: "5a0f2b6e-3c60-4d3f-9d5c-000000000001".into(), ..node("n1") };
        let register = Command::RegisterAgent(AgentRegistration::of(node));
        leader.turn([Input::Propose(CallToken(1), Proposal::new(None, WallTime(1), register))]);
        leader
    }

    fn propose(&mut self, command: Command) -> Input {
        self.sequence += 1;
        let request = RequestId {
            agent: AgentNumber(1),
            generation: Generation(1),
            sequence: self.sequence,
            lowest: self.sequence.saturating_sub(256).max(1),
        };
        Input::Propose(CallToken(1), Proposal::new(Some(request), WallTime(1), command))
    }

    fn turn(&mut self, inputs: impl IntoIterator<Item = Input>) {
        let now = Time(1_000_000);
        let begun = Instant::now();
        for input in inputs {
            self.core.handle(now, input, &mut self.outbox);
        }
        loop {
            self.core.settle(now, &mut self.outbox);
            let Some(last) = self.outbox.writes.drain(..).next_back() else { break };
            self.core.handle(now, Input::Persisted(last.number), &mut self.outbox);
        }
        self.outbox.replies.clear();
        self.took[0] += begun.elapsed();
        self.changes += self.outbox.changes.len();
        let begun = Instant::now();
        self.dirty.record_all(std::mem::take(&mut self.outbox.changes));
        self.outbox.changes.clear();
        self.took[1] += begun.elapsed();
    }

    fn checkpoint(&mut self) {
        drop(self.dirty.take());
        let mark = self.core.replica().snapshot_meta();
        self.core.handle(Time(1_000_000), Input::CheckpointDurable(mark), &mut self.outbox);
    }

    /// Runs a workload and prints its cost, after a checkpoint has taken all earlier changes.
    fn measure(&mut self, what: &str, count: u32, work: impl FnOnce(&mut Self)) {
        self.checkpoint();
        (self.took, self.changes) = Default::default();
        work(self);
        let [core, dirty] = self.took;
        println!(
            "{what}: {} changes; core {core:?} ({:?} each), dirty rows {dirty:?} ({:?} each)",
            self.changes,
            core / count,
            dirty / count
        );
    }
}

fn node(name: &str) -> Node {
    Node::of(name.into(), String::new(), "127.0.0.1")
}

fn session(number: u32) -> SessionId {
    let mixed = u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    SessionId::from_random(mixed.to_be_bytes())
}

fn new_session(number: u32) -> SessionSpec {
    SessionSpec {
        id: session(number),
        name: String::new(),
        node: if number < DOOMED { "doomed" } else { "n1" }.into(),
        lock_delay: Duration::from_secs(15),
        behavior: Behavior::Release,
        ttl_text: "24h".into(),
        ttl: Some(Duration::from_secs(86_400)),
        checks: Vec::new(),
        node_checks: Vec::new(),
        service_checks: None,
        health_window: Default::default(),
    }
}

fn entry(key: String, value: u32) -> NewEntry {
    NewEntry { key: key.into(), value: Bytes::from(vec![value as u8; 256]), flags: 0 }
}

#[test]
#[ignore = "prints figures of this machine"]
fn puts_and_large_node_deregistration() {
    let mut leader = Leader::new();
    let node = node("doomed");
    let registration = Registration { node, skip_node_update: false, service: None, checks: Vec::new() };
    let register = leader.propose(Command::Register(registration));
    leader.turn([register]);
    for first in (0..SESSIONS).step_by(250) {
        let mut inputs = Vec::new();
        for number in first..first + 250 {
            inputs.push(leader.propose(Command::CreateSession(new_session(number))));
            let lock = KvCommand::Acquire(entry(format!("large/lock-{number}"), 0), session(number));
            inputs.push(leader.propose(Command::Kv(lock)));
        }
        leader.turn(inputs);
        leader.checkpoint();
    }
    leader.measure("puts", PUTS, |leader| {
        for first in (0..PUTS).step_by(BATCH) {
            let put = |number| KvCommand::Set(entry(format!("put-{}", number % 256), number >> 8));
            let puts = (first..first + BATCH as u32).map(put);
            let inputs: Vec<_> = puts.map(|put| leader.propose(Command::Kv(put))).collect();
            leader.turn(inputs);
            if first % 6_400 == 0 {
                leader.checkpoint();
            }
        }
    });
    leader.measure("the end of a node", DOOMED, |leader| {
        let end = Deregistration { node: "doomed".into(), service: None, check: None };
        let end = leader.propose(Command::Deregister(end));
        leader.turn([end]);
    });
    let begun = Instant::now();
    leader.dirty.sort();
    println!("{} rows sorted for the snapshot in {:?}", leader.dirty.rows().len(), begun.elapsed());
}
