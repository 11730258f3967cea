//! No host dies, under bad conditions, for very many node-hours: no node may be failed.

use super::{Fleet, MeshTrouble, Options};
use crate::sim::marks::Mark;
use crate::sim::network::{Place, Traffic};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::time::Time;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// Length of a slice of a run, after which progress is reported.
const SLICE: Duration = Duration::from_secs(60);

/// Think time of a program that holds its lock and wants nothing more.
const THINK: Duration = Duration::from_secs(5);

/// Maximum pause of a slow node, after which it takes all input at once.
const SLOWNESS: Duration = Duration::from_millis(50);

/// Minimum and maximum time between two freezes of a slow node.
const FREEZES_EVERY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));

/// Minimum and maximum time between two outages of a rack, and between two bursts of losses.
const LIGHT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(40));

/// The length of a burst of losses, and its loss rate: one in this many.
const BURST: (Duration, u64) = (Duration::from_secs(1), 2);

/// Maximum number of passed deadlines per node-hour with default windows, if outages are as long as
/// that: several times the rate that was measured in very many hours.
const LATE_A_NODE_HOUR: f64 = 0.25;

/// The bad condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// None.
    None,
    /// One datagram in twenty is lost.
    Loss5,
    /// One in ten.
    Loss10,
    /// One in four.
    Loss25,
    /// Every other one for a second, repeatedly.
    Burst,
    /// One node in twenty is slow, and now and then freezes for less than a window.
    Slow,
    /// A tenth of the nodes is cut off for 2 s, repeatedly.
    Dark2,
    /// The same for 4 s.
    Dark4,
}

impl Trouble {
    /// All kinds; the first is none.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Loss5,
        Self::Loss10,
        Self::Loss25,
        Self::Burst,
        Self::Slow,
        Self::Dark2,
        Self::Dark4,
    ];

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loss5 => "loss-5",
            Self::Loss10 => "loss-10",
            Self::Loss25 => "loss-25",
            Self::Burst => "burst",
            Self::Slow => "slow",
            Self::Dark2 => "dark-2",
            Self::Dark4 => "dark-4",
        }
    }

    fn loses_one_in(self) -> u64 {
        match self {
            Self::Loss5 => 20,
            Self::Loss10 => 10,
            Self::Loss25 => 4,
            _ => 0,
        }
    }

    fn dark(self) -> Option<Duration> {
        match self {
            Self::Dark2 => Some(Duration::from_secs(2)),
            Self::Dark4 => Some(Duration::from_secs(4)),
            _ => None,
        }
    }

    /// Returns the maximum number of deadlines that may pass in this many node-hours: none if no
    /// outage lasts for two thirds of a default window, by the guarantee to guards.
    fn late_at_most(self, node_hours: f64) -> u64 {
        match self {
            Self::Slow | Self::Dark4 => (LATE_A_NODE_HOUR * node_hours).ceil() as u64,
            _ => 0,
        }
    }
}

/// Results for a fleet in which no host died.
#[derive(Clone, Debug, Serialize)]
pub struct PeaceReport {
    /// The bad condition.
    pub trouble: Trouble,
    /// The fault of the mesh.
    pub mesh: MeshTrouble,
    /// The time for which a host may be silent.
    pub window: HealthWindow,
    /// The number of agents.
    pub agents: usize,
    /// The number of simulated node-hours.
    pub node_hours: f64,
    /// The number of times that a node was failed, or its sessions ended.
    pub wrongly_failed: usize,
    /// The number of times that the deadline of a node's guards passed before the node was in
    /// contact again.
    pub late: u64,
    /// The maximum of that number.
    pub late_at_most: u64,
    /// The number of challenges from servers to nodes.
    pub challenges: u64,
    /// The number of elections after the first.
    pub elections: u64,
    /// Renewals that a node sent per second.
    pub renewals_a_second: f64,
    /// Messages between a node and servers per second, both ways; lost messages are counted once.
    pub messages_a_second: f64,
    /// Messages between servers per second, in total.
    pub server_messages_a_second: f64,
    /// Mesh datagrams that a node sent per second.
    pub datagrams_a_second: f64,
    /// The bytes of those datagrams, without UDP and IP headers.
    pub datagram_bytes_a_second: f64,
}

impl PeaceReport {
    /// Returns `true` if no node was failed and no more deadlines of guards passed than allowed.
    /// With windows shorter than the default, deadlines may pass at any time: these outages are
    /// longer.
    pub fn is_well(&self) -> bool {
        let is_late = self.late > self.late_at_most && self.window >= HealthWindow::Default;
        self.wrongly_failed == 0 && !is_late
    }
}

/// Runs a fleet for this many node-hours, and reports progress.
///
/// # Errors
/// A message if an invariant is broken.
pub fn peace(
    options: Options,
    trouble: Trouble,
    node_hours: f64,
    progress: impl Fn(f64),
) -> Result<PeaceReport, String> {
    let mut fleet = Fleet::of_servers(options, trouble.loses_one_in(), false, THINK)?;
    fleet.begin_agents();
    fleet.run_until_so("all hosts hold their locks", |fleet| (0..fleet.size).all(|h| fleet.holds_own(h)))?;
    let mut disturber = Disturber::new(&mut fleet, trouble, options.window);
    let (began, before) = (fleet.now(), Counted::of(&fleet));
    let end = began + Duration::from_secs_f64(node_hours * 3_600.0 / options.agents as f64);
    let hours = |fleet: &Fleet| fleet.now().since(began).as_secs_f64() / 3_600.0 * options.agents as f64;
    let mut wrongly_failed = 0;
    while fleet.now() < end {
        let until = end.min(fleet.now() + SLICE);
        while let Some(at) = disturber.next().filter(|at| *at <= until) {
            fleet.run_until(at)?;
            disturber.disturb(&mut fleet);
        }
        fleet.run_until(until)?;
        wrongly_failed += fleet.verdicts().len();
        progress(hours(&fleet));
    }
    let (after, seconds) = (Counted::of(&fleet), fleet.now().since(began).as_secs_f64());
    let a_second = |after: u64, before: u64| (after - before) as f64 / seconds;
    let agents = options.agents as f64;
    Ok(PeaceReport {
        trouble,
        mesh: options.mesh,
        window: options.window,
        agents: options.agents,
        node_hours: hours(&fleet),
        wrongly_failed,
        late: after.late - before.late,
        late_at_most: trouble.late_at_most(node_hours),
        challenges: after.challenges - before.challenges,
        elections: after.elections - before.elections,
        renewals_a_second: a_second(after.renewals, before.renewals) / agents,
        messages_a_second: a_second(after.traffic.agents, before.traffic.agents) / agents,
        server_messages_a_second: a_second(after.traffic.servers, before.traffic.servers),
        datagrams_a_second: a_second(after.traffic.mesh, before.traffic.mesh) / agents,
        datagram_bytes_a_second: a_second(after.traffic.mesh_bytes, before.traffic.mesh_bytes) / agents,
    })
}

/// Counters that only grow.
struct Counted {
    renewals: u64,
    traffic: Traffic,
    late: u64,
    challenges: u64,
    elections: u64,
}

impl Counted {
    fn of(fleet: &Fleet) -> Self {
        let stage = &fleet.world.stage;
        Self {
            renewals: fleet.world.agents.iter().map(|agent| agent.counts().renewals).sum(),
            traffic: stage.network.traffic,
            late: stage.marks.count(Mark::LeaseLate),
            challenges: stage.marks.count(Mark::Challenged),
            elections: stage.marks.count(Mark::Election),
        }
    }
}

/// Repeated disturbances of nodes.
struct Disturber {
    /// The next disturbances, in order.
    due: BTreeSet<(Time, Disturbance)>,
    /// Maximum freeze of a slow node.
    longest_freeze: Duration,
    dark: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    /// A slow node freezes for a while.
    Freeze(usize),
    /// The rack is cut off.
    Dark,
    /// The rack is reconnected.
    Light,
    /// A burst of losses begins.
    Burst,
    /// The burst ends.
    BurstEnds,
}

impl Disturber {
    fn new(fleet: &mut Fleet, trouble: Trouble, window: HealthWindow) -> Self {
        let mut due = BTreeSet::new();
        let now = fleet.now();
        if trouble == Trouble::Slow {
            for host in (0..fleet.size).step_by(20) {
                fleet.world.agents[host].slowness = SLOWNESS;
                due.insert((now, Disturbance::Freeze(host)));
            }
        }
        if trouble.dark().is_some() {
            due.insert((now, Disturbance::Dark));
        }
        if trouble == Trouble::Burst {
            due.insert((now, Disturbance::Burst));
        }
        // Input that had arrived before the freeze is delayed too.
        let longest_freeze = window.duration() - 2 * SLOWNESS;
        Self { due, longest_freeze, dark: trouble.dark().unwrap_or_default() }
    }

    fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    fn disturb(&mut self, fleet: &mut Fleet) {
        let Some((now, disturbance)) = self.due.pop_first() else { return };
        let stage = &mut fleet.world.stage;
        let (wait, next) = match disturbance {
            Disturbance::Freeze(host) => {
                let length = stage.draw.duration(Duration::ZERO, self.longest_freeze);
                fleet.world.agents[host].stop(stage, length);
                (length + stage.draw.duration(FREEZES_EVERY.0, FREEZES_EVERY.1), disturbance)
            }
            Disturbance::Dark => {
                fleet.turn_rack(true);
                (self.dark, Disturbance::Light)
            }
            Disturbance::Burst => {
                stage.network.lose_one_in(BURST.1);
                (BURST.0, Disturbance::BurstEnds)
            }
            Disturbance::BurstEnds => {
                stage.network.lose_one_in(0);
                (stage.draw.duration(LIGHT.0, LIGHT.1), Disturbance::Burst)
            }
            Disturbance::Light => {
                let wait = stage.draw.duration(LIGHT.0, LIGHT.1);
                fleet.turn_rack(false);
                (wait, Disturbance::Dark)
            }
        };
        self.due.insert((now + wait, next));
    }
}

impl Fleet {
    /// Cuts the first tenth of the nodes off, or reconnects it.
    fn turn_rack(&mut self, is_dark: bool) {
        let rack = if is_dark { self.size.div_ceil(10) } else { 0 };
        self.world.stage.network.darken((0..rack).map(Place::Agent));
    }
}
