//! The faults and their timing: each kind has its own rate, and many end on their own.

use super::marks::Mark;
use super::network::{Link, Place, Port};
use super::operator::Order;
use super::plan::HangPlan;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_protocol::id::ServerId;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A server crashes.
    Crash,
    /// This server crashes.
    CrashOf(ServerId),
    /// An operator asks this server to lead, even during other work.
    Urge(ServerId),
    /// All servers crash.
    Blackout,
    /// A process is paused.
    Pause,
    /// A clock jumps ahead.
    Jump,
    /// A wall clock is set.
    WallJump,
    /// The network between servers is partitioned.
    Split,
    /// One direction is cut.
    OneWay,
    /// A link is clogged.
    Clog,
    /// A disk is very slow.
    Stall,
    /// A disk refuses writes.
    Refusal,
    /// A disk hangs; the number of the planned hang.
    Hang(usize),
    /// An agent crashes or shuts down cleanly, and comes back.
    AgentRestart,
    /// An agent is paused.
    AgentStop,
    /// An agent's host is suspended.
    Suspension,
    /// Hosts have faults that may make the servers fail their nodes.
    Hosts,
    /// A fault between a host and the servers as a whole.
    Reach,
    /// A copy of an agent's machine registers.
    AgentCopy,
    /// A fault of an agent's home server, or of the server that it follows as leader.
    ServerOfAgent,
    /// Leadership is transferred.
    Transfer,
    /// A server is removed.
    Removal,
    /// A server is added.
    Arrival,
    /// A server loses its disk.
    Wipe,
    /// A follower's disk receives a row that no entry has made.
    Corruption,
    /// A disk is copied, or set back to an older copy of itself.
    SetBack,
}

impl Kind {
    /// Returns `true` if the fault concerns only hosts, which it names itself.
    fn is_of_a_host(self) -> bool {
        matches!(
            self,
            Self::AgentRestart
                | Self::AgentStop
                | Self::Suspension
                | Self::Hosts
                | Self::AgentCopy
                | Self::Reach
        )
    }
}

/// The end of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Mends these links.
    Links(Vec<Link>),
    /// Removes one fault from each of these closed ports.
    Ports(Vec<(Link, Port)>),
}

/// Schedules the first fault of each kind.
pub fn begin(stage: &mut Stage) {
    for (kind, mean) in rhythms(stage) {
        let wait = stage.around(mean);
        stage.after(wait, Event::Fault(kind));
    }
    for (number, hang) in stage.plan.hangs.clone().into_iter().enumerate() {
        stage.after(hang.at, Event::Fault(Kind::Hang(number)));
    }
    if let Some(wait) = stage.plan.corruption.comes {
        stage.after(wait, Event::Fault(Kind::Corruption));
    }
}

/// Returns the enabled kinds, each with its mean interval.
fn rhythms(stage: &Stage) -> Vec<(Kind, Duration)> {
    let plan = &stage.plan.faults;
    let all = [
        (Kind::Crash, plan.crash),
        (Kind::Blackout, plan.blackout),
        (Kind::Pause, plan.pause),
        (Kind::Jump, plan.jump),
        (Kind::WallJump, plan.wall_jump),
        (Kind::Split, plan.split),
        (Kind::OneWay, plan.one_way),
        (Kind::Clog, plan.clog),
        (Kind::Stall, plan.stall),
        (Kind::Refusal, plan.refusal),
        (Kind::AgentRestart, plan.agent_restart),
        (Kind::AgentStop, plan.agent_stop),
        (Kind::Suspension, plan.suspension),
        (Kind::Hosts, stage.plan.guards.host_trouble),
        (Kind::Reach, stage.plan.reach.every),
        (Kind::AgentCopy, plan.agent_copy),
        (Kind::ServerOfAgent, plan.server_of_agent),
        (Kind::Transfer, plan.transfer),
        (Kind::Removal, plan.removal),
        (Kind::Arrival, plan.arrival),
        (Kind::Wipe, plan.wipe),
        (Kind::SetBack, plan.set_back),
    ];
    all.into_iter().filter_map(|(kind, mean)| Some((kind, mean?))).collect()
}

impl World {
    /// Performs a fault, and schedules the next of its kind.
    pub fn fault(&mut self, kind: Kind) {
        if self.stage.calm {
            return;
        }
        let rhythm = rhythms(&self.stage).into_iter().find(|(other, _)| *other == kind);
        if let Some((_, mean)) = rhythm {
            let wait = self.stage.around(mean);
            self.stage.after(wait, Event::Fault(kind));
        }
        if self.waits_for_refusal() {
            return;
        }
        if !kind.is_of_a_host() {
            self.held.fault_everywhere(self.stage.now);
        }
        match kind {
            Kind::Crash => self.crash_some(),
            Kind::CrashOf(id) => self.crash_and_restart(id),
            Kind::Urge(id) => self.urge(id),
            Kind::Blackout => self.black_out(),
            Kind::Pause => self.pause(),
            Kind::Jump => self.jump(),
            Kind::WallJump => self.jump_wall(),
            Kind::Split => self.split(),
            Kind::OneWay => self.cut_one_way(),
            Kind::Clog => self.clog(),
            Kind::Stall | Kind::Refusal => self.trouble_disk(kind),
            Kind::Hang(number) => self.hang_disk(number),
            Kind::AgentRestart => self.restart_some_agent(),
            Kind::AgentStop | Kind::Suspension => self.stop_some_agent(kind == Kind::Suspension),
            Kind::Hosts => self.trouble_hosts(),
            Kind::Reach => self.trouble_reach(),
            Kind::AgentCopy => self.copy_some_agent(),
            Kind::ServerOfAgent => self.trouble_server_of_agent(),
            Kind::Transfer => self.transfer(),
            Kind::Removal => self.order_removal(),
            Kind::Arrival => self.order_arrival(),
            Kind::Wipe => self.wipe(),
            Kind::Corruption => self.corrupt_some(),
            Kind::SetBack => self.copy_or_set_back(),
        }
    }

    /// Returns a running server; more often the leader than another one.
    fn victim(&mut self) -> Option<ServerId> {
        let leader = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id);
        let running = self.running();
        match leader {
            Some(leader) if self.stage.draw.once_in(3) => Some(leader),
            _ => self.stage.draw.any(&running),
        }
    }

    pub(super) fn crash_and_restart(&mut self, id: ServerId) {
        self.crash(id);
        let downtime = self.stage.plan.faults.downtime;
        let wait = match self.stage.draw.once_in(3) {
            true => Duration::from_millis(1),
            false => self.stage.draw.duration(Duration::ZERO, downtime),
        };
        self.stage.after(wait, Event::Restart(id));
    }

    fn crash_some(&mut self) {
        if let Some(id) = self.victim() {
            self.crash_and_restart(id);
        }
    }

    fn black_out(&mut self) {
        self.stage.log(|| "the power fails everywhere".into());
        for id in self.running() {
            self.crash_and_restart(id);
        }
    }

    fn pause(&mut self) {
        let Some(id) = self.victim() else { return };
        let longest = self.stage.plan.faults.pause_length;
        let length = self.stage.draw.duration(Duration::from_millis(20), longest);
        self.stand_still(id, length);
    }

    /// Pauses a server's process.
    pub(super) fn stand_still(&mut self, id: ServerId, length: Duration) {
        let until = self.stage.now + length;
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if machine.serves() {
            self.stage.hit(Mark::LeaderPause);
        }
        self.stage.hit(Mark::Pause);
        self.stage.log(|| format!("server {id} is paused for {length:?}"));
        if let Some(process) = &mut machine.process {
            process.stand_still(&mut self.stage, until);
        }
    }

    /// Moves a clock ahead. The core does not notice a smaller jump: see `LATE` there.
    fn jump(&mut self) {
        let Some(id) = self.victim() else { return };
        let by = self.stage.draw.duration(Duration::from_millis(300), Duration::from_secs(5));
        self.stage.hit(Mark::ClockJump);
        self.judge.jumps.push(self.stage.now);
        self.stage.log(|| format!("the clock of server {id} jumps ahead by {by:?}"));
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if let Some(process) = &mut machine.process {
            process.jump(&mut self.stage, by);
        }
    }

    fn jump_wall(&mut self) {
        let Some(id) = self.victim() else { return };
        let offset = self.stage.draw.below(1_000_000_000);
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        if let Some(process) = &mut machine.process {
            process.wall_offset = offset;
        }
    }

    fn places(&self) -> Vec<Place> {
        let servers = self.machines.values().filter(|machine| !machine.is_out());
        let servers = servers.map(|machine| Place::Server(machine.id));
        servers.chain((0..self.agents.len()).map(Place::Agent)).collect()
    }

    fn split(&mut self) {
        let places = self.places();
        let sides: Vec<bool> = places.iter().map(|_| self.stage.draw.once_in(2)).collect();
        let mut links = Vec::new();
        for (from, side) in places.iter().zip(&sides) {
            let others = places.iter().zip(&sides).filter(|(_, other)| *other != side);
            links.extend(others.map(|(to, _)| (*from, *to)));
        }
        if !links.is_empty() {
            self.stage.hit(Mark::TwoWayCut);
            let one: Vec<_> = places.iter().zip(&sides).filter(|(_, side)| **side).map(|(p, _)| p).collect();
            self.stage.log(|| format!("the network separates {one:?} from the rest"));
            self.cut(links);
        }
    }

    fn cut_one_way(&mut self) {
        let places = self.places();
        let from = *self.stage.draw.pick(&places);
        let deaf = self.stage.draw.once_in(2);
        let others = places.into_iter().filter(|place| *place != from);
        let links: Vec<Link> = others.map(|to| if deaf { (to, from) } else { (from, to) }).collect();
        self.stage.hit(Mark::OneWayCut);
        self.stage.log(|| format!("{from:?} {}", if deaf { "is deaf" } else { "is mute" }));
        self.cut(links);
    }

    fn cut(&mut self, links: Vec<Link>) {
        self.cut_for(links, self.stage.plan.faults.cut_length);
    }

    /// Cuts links for a random time up to `longest`.
    pub(super) fn cut_for(&mut self, links: Vec<Link>, longest: Duration) {
        let length = self.stage.draw.duration(Duration::from_millis(50), longest);
        self.cut_exactly(links, length);
    }

    /// Cuts links for `length`.
    pub(super) fn cut_exactly(&mut self, links: Vec<Link>, length: Duration) {
        links.iter().for_each(|link| self.stage.network.cut(*link));
        self.stage.after(length, Event::Mend(Mend::Links(links)));
    }

    fn clog(&mut self) {
        let places = self.places();
        let (from, to) = (*self.stage.draw.pick(&places), *self.stage.draw.pick(&places));
        let length = self.stage.draw.duration(Duration::from_millis(50), Duration::from_secs(1));
        self.stage.hit(Mark::Burst);
        let until = self.stage.now + length;
        self.stage.network.clog((from, to), until);
    }

    fn trouble_disk(&mut self, kind: Kind) {
        let Some(id) = self.victim() else { return };
        let longest = self.stage.plan.faults.disk_trouble;
        let length = self.stage.draw.duration(Duration::from_millis(20), longest);
        let until = self.stage.now + length;
        let disk = &mut self.machines.get_mut(&id).expect("the machine exists").disk;
        if kind == Kind::Stall {
            self.stage.hit(Mark::DiskStalled);
            self.stage.log(|| format!("the disk of server {id} stalls for {length:?}"));
            disk.stall(until);
        } else {
            self.stage.log(|| format!("the disk of server {id} refuses writes for {length:?}"));
            disk.refuse(until);
        }
    }

    /// Hangs a disk, most often the leader's. It draws nothing, so that a seed without hangs stays
    /// the same.
    fn hang_disk(&mut self, number: usize) {
        let HangPlan { length, victim, .. } = self.stage.plan.hangs[number];
        let serving = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id);
        let leader = serving.filter(|_| !victim.is_multiple_of(4));
        let running = self.running();
        let other = running.get(victim as usize % running.len().max(1)).copied();
        let Some(id) = leader.or(other) else { return };
        self.stage.hit(Mark::DiskHung);
        self.stage.log(|| format!("the disk of server {id} hangs for {length:?}"));
        let now = self.stage.now;
        self.machines.get_mut(&id).expect("the machine exists").disk.hang(now, now + length);
    }

    fn transfer(&mut self) {
        let running = self.running();
        let to = if self.stage.draw.once_in(2) { self.stage.draw.any(&running) } else { None };
        if self.operator.orders.len() < 3 {
            self.operator.orders.push(Order::Transfer(to));
        }
    }

    /// Ends a fault.
    pub fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Links(links) => links.into_iter().for_each(|link| self.stage.network.mend(link)),
            Mend::Ports(ports) => {
                ports.into_iter().for_each(|(link, port)| self.stage.network.reopen(link, port));
            }
        }
    }
}
