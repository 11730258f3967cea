//! Processes, and the network between them.

use lockmesh_agent_core::gossip::{Counts, Gossip, Outbox};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::id::{AgentNumber, LogIndex};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// Returns the process of the agent with this number.
pub(crate) fn agent(number: u32) -> MemberId {
    MemberId::of_agent(LeaseId { agent: AgentNumber(number), began: LogIndex(1_000 + u64::from(number)) })
}

/// A datagram in flight.
struct Datagram {
    from: MemberId,
    to: MemberId,
    bytes: Vec<u8>,
}

/// A process; a stopped one processes nothing until `still_until`.
struct Process {
    gossip: Gossip,
    still_until: Time,
    /// Set if its host is suspended as well, so that arriving datagrams are lost.
    is_suspended: bool,
    waiting: Vec<(MemberId, Vec<u8>)>,
}

/// A mesh in virtual time.
pub(crate) struct Mesh {
    pub(crate) now: Time,
    /// The number of lost datagrams per thousand.
    pub(crate) loss: u64,
    processes: BTreeMap<MemberId, Process>,
    under_way: BTreeMap<(Time, u64), Datagram>,
    /// The wake-up times of processes.
    wakes: BTreeSet<(Time, MemberId)>,
    random: Random,
    count: u64,
    /// The time, sender and target of each suspicion.
    pub(crate) suspicions: Vec<(Time, MemberId, MemberId)>,
    /// The time and receiver of each item.
    pub(crate) items: Vec<(Time, MemberId, Vec<u8>)>,
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl Mesh {
    /// Creates a mesh of processes that have known each other for a while.
    pub(crate) fn of(count: u32, seed: u64) -> Self {
        let mut mesh = Self {
            now: Time(0),
            loss: 0,
            processes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            wakes: BTreeSet::new(),
            random: Random::new(seed),
            count: 0,
            suspicions: Vec::new(),
            items: Vec::new(),
            datagrams: 0,
            bytes: 0,
        };
        for number in 0..count {
            // Hosts do not start at the same moment.
            mesh.now = Time(mesh.random.number() % 500_000);
            let gossip = Gossip::new(agent(number), mesh.random.number(), mesh.now);
            let process = Process { gossip, still_until: Time(0), is_suspended: false, waiting: Vec::new() };
            mesh.processes.insert(agent(number), process);
            mesh.act(agent(number), |gossip, now, outbox| {
                gossip.set_members(now, (0..count).map(agent), outbox);
            });
        }
        mesh.now = Time(500_000);
        // By then each has received a packet from every other one.
        mesh.pass(SECOND * (count / 2 + 10));
        mesh.forget();
        mesh
    }

    /// Discards the observations so far.
    pub(crate) fn forget(&mut self) {
        self.suspicions.clear();
        self.items.clear();
        (self.datagrams, self.bytes) = (0, 0);
    }

    /// Runs `act` on a process.
    pub(crate) fn act(&mut self, who: MemberId, act: impl FnOnce(&mut Gossip, Time, &mut Outbox)) {
        let mut outbox = Outbox::default();
        let Some(process) = self.processes.get_mut(&who) else { return };
        act(&mut process.gossip, self.now, &mut outbox);
        self.suspicions.extend(outbox.suspicions.iter().map(|suspect| (self.now, who, *suspect)));
        for item in outbox.items {
            self.items.push((self.now, who, item.clone()));
            self.processes.get_mut(&who).expect("it acts").gossip.pass_on(&item);
        }
        for (to, bytes) in outbox.packets {
            self.send(who, to, bytes);
        }
        self.wakes.extend(self.wakes_at(who).map(|at| (at, who)));
    }

    fn wakes_at(&self, who: MemberId) -> Option<Time> {
        let process = self.processes.get(&who)?;
        Some(process.gossip.wakes_at()?.max(process.still_until))
    }

    /// Sends a datagram.
    pub(crate) fn send(&mut self, from: MemberId, to: MemberId, bytes: Vec<u8>) {
        self.datagrams += 1;
        self.bytes += bytes.len() as u64;
        if self.random.number() % 1_000 < self.loss {
            return;
        }
        let delay = Duration::from_micros(500 + self.random.number() % 2_000);
        self.count += 1;
        self.under_way.insert((self.now + delay, self.count), Datagram { from, to, bytes });
    }

    /// Kills the host of a process.
    pub(crate) fn kill(&mut self, who: MemberId) {
        self.processes.remove(&who);
    }

    /// Simulates verdicts on all dead processes: they are removed from every roster.
    pub(crate) fn bury(&mut self) {
        let living = self.living();
        for who in &living {
            self.act(*who, |gossip, now, outbox| gossip.set_members(now, living.clone(), outbox));
        }
    }

    /// Stops a process for a time; arriving datagrams wait.
    pub(crate) fn stop(&mut self, who: MemberId, duration: Duration) {
        self.processes.get_mut(&who).expect("it lives").still_until = self.now + duration;
    }

    /// Suspends a host for a time; arriving datagrams are lost.
    pub(crate) fn suspend(&mut self, who: MemberId, duration: Duration) {
        self.stop(who, duration);
        self.processes.get_mut(&who).expect("it lives").is_suspended = true;
    }

    pub(crate) fn counts(&self, who: MemberId) -> Counts {
        self.processes[&who].gossip.counts()
    }

    /// Returns the factors by which the probes of each process are slowed down.
    pub(crate) fn stretches(&self) -> Vec<u32> {
        self.processes.values().map(|process| process.gossip.stretch()).collect()
    }

    /// Returns the live processes.
    pub(crate) fn living(&self) -> Vec<MemberId> {
        self.processes.keys().copied().collect()
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let datagram = self.under_way.first_key_value().map(|((at, _), _)| *at);
            let timer = self.wakes.first().copied();
            let next = datagram.into_iter().chain(timer.map(|(at, _)| at)).min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            // Datagrams that have arrived count before any timer.
            if datagram == Some(at) {
                let (_, datagram) = self.under_way.pop_first().expect("it is there");
                self.arrive(datagram);
            } else if let Some((at, who)) = self.wakes.pop_first() {
                match self.wakes_at(who) {
                    Some(due) if due <= at => self.wake(who),
                    due => self.wakes.extend(due.map(|due| (due, who))),
                }
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, datagram: Datagram) {
        let Datagram { from, to, bytes } = datagram;
        let Some(process) = self.processes.get_mut(&to) else { return };
        if process.still_until > self.now {
            if !process.is_suspended {
                process.waiting.push((from, bytes));
            }
            return;
        }
        process.is_suspended = false;
        self.wake_up(to);
        self.act(to, |gossip, now, outbox| gossip.receive(now, from, &bytes, outbox));
    }

    fn wake(&mut self, who: MemberId) {
        self.wake_up(who);
        self.act(who, |gossip, now, outbox| gossip.tick(now, outbox));
    }

    /// Processes the datagrams that have waited.
    fn wake_up(&mut self, who: MemberId) {
        let waiting = std::mem::take(&mut self.processes.get_mut(&who).expect("it lives").waiting);
        for (from, bytes) in waiting {
            self.act(who, |gossip, now, outbox| gossip.receive(now, from, &bytes, outbox));
        }
    }
}
