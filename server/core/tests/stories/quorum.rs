//! Three servers in virtual time, with a network that loses, delays and reorders messages, and
//! disks that lose unflushed data. No acknowledged write is ever lost, and replicas at the same
//! applied index have the same state.

use crate::solo::Disk;
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::log::{LogWrite, Membership, SnapshotMeta};
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_core::{CallToken, Core, Input, Outbox, Proposal};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{LogIndex, ServerId, Term, WallTime};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};

const SERVERS: u64 = 3;

struct Server {
    core: Core,
    disk: Disk,
    unflushed: Vec<LogWrite>,
    outbox: Outbox,
}

struct Quorum {
    servers: BTreeMap<ServerId, Server>,
    now: Time,
    in_flight: Vec<(Time, ServerId, ServerId, PeerMessage)>,
    cut_off: BTreeSet<ServerId>,
    draw: u64,
    answered: BTreeMap<String, LogIndex>,
    asked: BTreeMap<CallToken, String>,
    read: BTreeMap<CallToken, LogIndex>,
    last_ticket: u64,
    crashes: u64,
}

impl Quorum {
    fn start(seed: u64) -> Self {
        let voters: Vec<_> = (1..=SERVERS).map(ServerId).collect();
        let membership = Membership { voters: voters.clone(), ..Membership::default() };
        let snapshot = SnapshotMeta { index: LogIndex(1), term: Term(1), membership };
        let disk = Disk::new(snapshot);
        let servers = voters.into_iter().map(|id| (id, open(id, disk.clone(), seed))).collect();
        Self {
            servers,
            now: Time(0),
            in_flight: Vec::new(),
            cut_off: BTreeSet::new(),
            draw: seed,
            answered: BTreeMap::new(),
            asked: BTreeMap::new(),
            read: BTreeMap::new(),
            last_ticket: 0,
            crashes: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draw >> 33) % limit
    }

    /// Advances time by a tick. With `faults` the network and the disks misbehave.
    fn step(&mut self, faults: bool) {
        self.now = self.now + TICK;
        let ids: Vec<_> = self.servers.keys().copied().collect();
        for id in ids {
            if faults && self.below(200) == 0 {
                self.crash(id);
            }
            if faults && self.below(300) == 0 {
                self.cut_off.insert(id);
            } else if self.below(20) == 0 {
                self.cut_off.remove(&id);
            }
            self.input(id, Input::Tick(WallTime(self.now.0)), faults);
            if !faults || self.below(3) > 0 {
                self.flush(id, faults);
            }
        }
        for _ in 0..8 {
            self.deliver(faults);
        }
        self.assert_nobody_seems_set_back();
    }

    fn deliver(&mut self, faults: bool) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|(at, ..)| *at <= self.now);
        self.in_flight = later;
        for (_, from, to, message) in due {
            if !self.cut_off.contains(&from) && !self.cut_off.contains(&to) {
                self.input(to, Input::Peer(from, message), faults);
                if !faults {
                    self.flush(to, faults);
                }
            }
        }
    }

    fn input(&mut self, id: ServerId, input: Input, faults: bool) {
        let now = self.now;
        let server = self.servers.get_mut(&id).expect("the server exists");
        server.core.handle(now, input, &mut server.outbox);
        server.core.settle(now, &mut server.outbox);
        self.carry_out(id, faults);
    }

    /// Asserts that a server that lost nothing holds all that others remember of it, and is never
    /// refused.
    fn assert_nobody_seems_set_back(&self) {
        for (of, server) in &self.servers {
            for (by, other) in &self.servers {
                let found = SetBack::find(
                    *of,
                    server.core.replica().log_position(),
                    *by,
                    other.core.replica().peer_memory().of(*of),
                );
                assert_eq!(found.map(|found| found.to_string()), None);
            }
        }
    }

    fn carry_out(&mut self, id: ServerId, faults: bool) {
        let server = self.servers.get_mut(&id).expect("the server exists");
        let mut outbox = std::mem::take(&mut server.outbox);
        server.unflushed.append(&mut outbox.writes);
        if !outbox.changes.is_empty() {
            server.core.replica().state().check().expect("the state keeps its invariants");
        }
        for token in outbox.readable.drain(..) {
            let bound = self.read.remove(&token).expect("a read is confirmed once");
            let applied = server.core.replica().log_status().applied_index;
            assert!(applied >= bound, "a read sees every write that was answered before it");
        }
        for (token, response) in outbox.replies.drain(..) {
            if let (Some(key), Response::Applied(applied)) = (self.asked.remove(&token), response) {
                self.answered.insert(key, applied.index);
            }
        }
        for (to, message) in outbox.shell.messages.drain(..) {
            let copies = if faults { [1, 1, 1, 1, 2, 0][self.below(6) as usize] } else { 1 };
            for _ in 0..copies {
                let delay = if faults && self.below(4) == 0 { self.below(8) } else { 0 };
                let at = Time(self.now.0 + delay * TICK.as_micros() as u64);
                self.in_flight.push((at, id, to, message.clone()));
            }
        }
    }

    fn flush(&mut self, id: ServerId, faults: bool) {
        let server = self.servers.get_mut(&id).expect("the server exists");
        let mut number = None;
        for write in server.unflushed.drain(..) {
            number = Some(write.number);
            server.disk.write(write);
        }
        if let Some(number) = number {
            self.input(id, Input::Persisted(number), faults);
        }
    }

    fn crash(&mut self, id: ServerId) {
        self.crashes += 1;
        let disk = self.servers[&id].disk.clone();
        let seed = self.below(u64::from(u32::MAX));
        self.servers.insert(id, open(id, disk, seed));
    }

    fn leader(&self) -> Option<ServerId> {
        self.servers.iter().find(|(_, server)| server.core.replica().is_serving()).map(|(id, _)| *id)
    }

    fn write(&mut self, key: &str, faults: bool) {
        let Some(leader) = self.leader() else { return };
        self.last_ticket += 1;
        let token = CallToken(self.last_ticket);
        self.asked.insert(token, key.into());
        let entry = NewEntry { key: key.into(), value: Default::default(), flags: 0 };
        let command = Command::Kv(KvCommand::Set(entry));
        let proposal = Proposal::new(None, WallTime(1), command);
        self.input(leader, Input::Propose(token, proposal), faults);
    }

    /// Reads from any server that accepts the request: even a deposed leader must not return stale
    /// data.
    fn read(&mut self, faults: bool) {
        let id = ServerId(1 + self.below(SERVERS));
        self.last_ticket += 1;
        let token = CallToken(self.last_ticket);
        let newest = self.answered.values().max().copied().unwrap_or_default();
        self.read.insert(token, newest);
        self.input(id, Input::Read(token, Consistency::Default), faults);
    }
}

fn open(id: ServerId, disk: Disk, seed: u64) -> Server {
    Server { core: disk.open(id, seed ^ id.0), disk, unflushed: Vec::new(), outbox: Outbox::default() }
}

fn storm(seed: u64) -> String {
    let mut quorum = Quorum::start(seed);
    for step in 0..1500 {
        quorum.step(true);
        if step % 3 == 0 {
            quorum.write(&format!("key-{step}"), true);
            quorum.read(true);
        }
    }
    quorum.cut_off.clear();
    for _ in 0..100 {
        quorum.step(false);
    }
    let leader = quorum.leader().expect("after the storm there is a leader");
    quorum.write("after", false);
    for _ in 0..20 {
        quorum.step(false);
    }
    assert!(quorum.answered.contains_key("after"), "after the storm clients are served");
    let state = quorum.servers[&leader].core.replica().state();
    for (key, index) in &quorum.answered {
        let (_, rows) = state.query(&Query::Entry(key.as_str().into()));
        let Rows::Entries(kept) = rows else { panic!("an entry was asked for") };
        assert_eq!(kept[0].create_index, *index, "seed {seed}: {key} was answered");
    }
    for server in quorum.servers.values() {
        assert_eq!(server.core.replica().state(), state, "seed {seed}: replicas are equal");
    }
    assert!(
        quorum.crashes > 0 && quorum.answered.len() > 20,
        "seed {seed}: a storm in which little happened"
    );
    format!("{} answered, {} crashes, {state:?}", quorum.answered.len(), quorum.crashes)
}

#[test]
fn storms_lose_no_acknowledged_write() {
    for seed in 0..10 {
        storm(seed);
    }
}

#[test]
fn same_seed_repeats_run() {
    assert_eq!(storm(5), storm(5));
}
