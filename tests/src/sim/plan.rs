//! The parameters of a seed: the number of servers and clients, the speed of the machines, and the
//! kinds of faults.
//!
//! Whole kinds of faults are switched off at random, since some bugs show only if others do not
//! hide them.

use super::draw::Draw;
use super::reach::ReachPlan;
use lockmesh_protocol::lease::HealthWindow;
use std::time::Duration;

/// Maximum clock drift in either direction, in microseconds per second.
pub const MAX_DRIFT: i64 = 5_000;

/// Maximum drift of guards' clocks, in microseconds per second. A lease keeps a twentieth of its
/// TTL as a margin against the server's clock.
pub const MAX_GUARD_DRIFT: u64 = 20_000;

/// The number of readers per agent in the seeds where lists have to wait for each other: it exceeds
/// the maximum number of views of a server.
const MANY_READERS: usize = 16;

/// Everything that is drawn before the first event.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of servers in the initial quorum.
    pub voters: u64,
    /// The length of the storm.
    pub storm: Duration,
    /// The network.
    pub network: NetworkPlan,
    /// The disks.
    pub disk: DiskPlan,
    /// Faults of processes.
    pub faults: FaultPlan,
    /// The configuration of servers.
    pub core: CorePlan,
    /// The clients.
    pub clients: ClientPlan,
    /// Servers with diverging state.
    pub corruption: CorruptionPlan,
    /// Programs that hold locks with the client library.
    pub guards: GuardPlan,
    /// The mesh of the agents.
    pub mesh: MeshPlan,
    /// Disks that hang.
    pub hangs: Vec<HangPlan>,
    /// Faults between a host and the servers as a whole.
    pub reach: ReachPlan,
    /// `true` if access control lists are enforced, and a client tries what it has no right to.
    pub has_acl: bool,
}

/// A long hang of a disk: neither pending nor new writes make progress.
#[derive(Clone, Copy, Debug)]
pub struct HangPlan {
    /// The start.
    pub at: Duration,
    /// The length.
    pub length: Duration,
    /// Selects the disk: the leader's, or that of another running server.
    pub victim: u64,
}

/// Longest hang of a disk.
const LONGEST_HANG: Duration = Duration::from_secs(60);

impl HangPlan {
    /// Draws the hangs of one seed from a random source of their own.
    fn draw(mut draw: Draw, storm: Duration) -> Vec<Self> {
        let count = if draw.once_in(4) { draw.within(1, 2) } else { 0 };
        let mut one = || Self {
            at: draw.duration(2 * SECOND, storm),
            length: draw.duration(SECOND, LONGEST_HANG),
            victim: draw.bits() >> 1,
        };
        (0..count).map(|_| one()).collect()
    }
}

/// The mesh of the agents, and its faults.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// `true` if agents take part in a mesh.
    pub is_on: bool,
    /// One in this many of its datagrams is lost, in addition to the network's losses; 0 for none,
    /// 1 for all.
    pub loses_one_in: u64,
    /// The number of lying agents, counted from the first.
    pub liars: usize,
}

/// The guards, and the faults of guards and their hosts.
#[derive(Clone, Debug)]
pub struct GuardPlan {
    /// The number of guards at each agent.
    pub per_agent: usize,
    /// The number of locks that they compete for.
    pub locks: u64,
    /// Maximum drift of their clocks, in microseconds per second.
    pub drift: u64,
    /// The mean time between two pauses of a guard's process, or of its whole host; `None` for
    /// never.
    pub stop: Option<Duration>,
    /// Maximum length of a pause.
    pub stop_length: Duration,
    /// The mean time between two deaths of a guard's process.
    pub kill: Option<Duration>,
    /// The mean time between two acts that take a lock away from a guard.
    pub revoke: Option<Duration>,
    /// One in this many replies finds its connection broken.
    pub unheard_once_in: u64,
    /// One in this many grants of a wait is dropped in silence: the agent has sent it, and the
    /// guard receives neither a reply nor an error. 0 for none.
    pub silent_once_in: u64,
    /// The mean time between two host faults that may make nodes fail; `None` for never.
    pub host_trouble: Option<Duration>,
    /// Maximum length of such a fault.
    pub host_trouble_length: Duration,
    /// `true` if there are enough hosts for the judge's brake to engage.
    pub is_crowd: bool,
    /// `true` if guards run commands under their holds.
    pub has_commands: bool,
    /// `true` if only hosts have faults: under constant server faults no leader serves long enough
    /// to fail a node.
    pub is_steady: bool,
}

/// Corruption checks, and a server with corrupt state.
#[derive(Clone, Debug)]
pub struct CorruptionPlan {
    /// The time between the starts of two corruption checks.
    pub check_interval: Duration,
    /// The time at which a row of one server diverges from the log, if ever.
    pub comes: Option<Duration>,
}

/// The behavior of links.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The delay of a message, minimum and maximum.
    pub delay: (Duration, Duration),
    /// One in this many is lost; 0 for none.
    pub loses_one_in: u64,
    /// One in this many is delivered twice; 0 for none.
    pub repeats_one_in: u64,
    /// One in this many takes much longer; 0 for none.
    pub lags_one_in: u64,
    /// Maximum extra delay of such a message.
    pub lag: Duration,
    /// `true` if messages may be reordered.
    pub reorders: bool,
    /// Lost stream data is retransmitted, as in QUIC; `None` if it is lost permanently or its
    /// connection breaks.
    pub retransmission: Option<Retransmission>,
}

/// The retransmission delays: after this time, then after twice as long, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    /// On a connection whose round trips have been measured.
    pub probe_timeout: Duration,
    /// While a connection is being made.
    pub first_probe_timeout: Duration,
}

/// The behavior of disks.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    /// The latency of a commit, minimum and maximum.
    pub commit: (Duration, Duration),
    /// The latency of a checkpoint.
    pub checkpoint: (Duration, Duration),
    /// `true` if servers keep their state in the real store.
    pub is_real: bool,
    /// Approximate size of a part of a checkpoint, in bytes.
    pub part_bytes: usize,
}

/// The mean time between two faults of each kind; `None` if the kind is switched off.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// A server crashes.
    pub crash: Option<Duration>,
    /// All servers crash at once.
    pub blackout: Option<Duration>,
    /// The downtime of a crashed server.
    pub downtime: Duration,
    /// A process is paused.
    pub pause: Option<Duration>,
    /// Maximum length of a pause.
    pub pause_length: Duration,
    /// A clock jumps ahead.
    pub jump: Option<Duration>,
    /// The wall clock is changed.
    pub wall_jump: Option<Duration>,
    /// The servers are partitioned.
    pub split: Option<Duration>,
    /// One direction is cut.
    pub one_way: Option<Duration>,
    /// Maximum length of a cut.
    pub cut_length: Duration,
    /// A link is clogged.
    pub clog: Option<Duration>,
    /// A disk is very slow.
    pub stall: Option<Duration>,
    /// A disk refuses writes.
    pub refusal: Option<Duration>,
    /// Maximum length of a disk fault.
    pub disk_trouble: Duration,
    /// An agent crashes or shuts down cleanly, and comes back.
    pub agent_restart: Option<Duration>,
    /// Maximum downtime of an agent.
    pub agent_downtime: Duration,
    /// An agent is paused.
    pub agent_stop: Option<Duration>,
    /// An agent's host is suspended.
    pub suspension: Option<Duration>,
    /// Maximum length of either.
    pub stop_length: Duration,
    /// A copy of an agent's machine registers.
    pub agent_copy: Option<Duration>,
    /// The server that an agent follows as leader, or its home server, has a fault.
    pub server_of_agent: Option<Duration>,
    /// Maximum length of that fault.
    pub server_trouble: Duration,
    /// Leadership is transferred.
    pub transfer: Option<Duration>,
    /// A server is removed.
    pub removal: Option<Duration>,
    /// A server is added.
    pub arrival: Option<Duration>,
    /// A server loses its disk, and comes back as a new server.
    pub wipe: Option<Duration>,
    /// A disk is copied, or set back to a copy.
    pub set_back: Option<Duration>,
    /// The time to read eight parts of a checkpoint.
    pub fetch: Duration,
    /// Maximum clock drift.
    pub drift: i64,
    /// Maximum delay of a tick.
    pub tick_lateness: Duration,
}

/// The configuration of servers.
#[derive(Clone, Debug)]
pub struct CorePlan {
    /// See `Election`.
    pub election_ticks: usize,
    /// See `Election`.
    pub heartbeat_ticks: usize,
    /// See `TimerConfig`.
    pub ttl_multiplier: u32,
    /// See `TimerConfig`.
    pub tombstone_ttl: Duration,
    /// See `CoreConfig`.
    pub log_keep_bytes: u64,
    /// See `CoreConfig`.
    pub max_pending_proposals: usize,
    /// The time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// The number of changes after which a checkpoint is made earlier.
    pub checkpoint_changes: usize,
    /// Maximum time for which a turn gathers events.
    pub turn: Duration,
    /// See `FrontendConfig`.
    pub max_watches: usize,
}

/// The clients.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The number of agents.
    pub agents: usize,
    /// Lockers per agent.
    pub lockers: usize,
    /// Writers per agent.
    pub writers: usize,
    /// Readers per agent.
    pub readers: usize,
    /// Watchers per agent.
    pub watchers: usize,
    /// The wait of a blocking read.
    pub watch: Duration,
    /// `true` if a client writes health checks of agents' nodes that no agent writes.
    pub rewrites_health: bool,
    /// `true` if applications register health checks with their agents.
    pub has_checks: bool,
    /// `true` if some clients write prepared queries, what those look up, and read both.
    pub has_queries: bool,
    /// `true` if processes of the agents' hosts bind sessions.
    pub binds_processes: bool,
    /// `true` if agents are also configured with a server of another cluster.
    pub lists_another_cluster: bool,
    /// `true` if some clients make backups and restore them.
    pub archives: bool,
    /// The number of contended lock keys.
    pub locks: u64,
    /// The number of keys that are written.
    pub keys: u64,
    /// The think time between two requests.
    pub think: Duration,
    /// The longest TTL.
    pub ttl: Duration,
    /// The longest lock-delay.
    pub lock_delay: Duration,
    /// Maximum pause of an agent after it has processed input.
    pub agent_turn: Duration,
    /// The timeout of a client.
    pub timeout: Duration,
    /// The programs of a fleet's hosts, which replace all these.
    pub residents: Option<ResidentPlan>,
}

/// The programs that run on every host of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct ResidentPlan {
    /// The time for which a host may be silent before its sessions end.
    pub window: HealthWindow,
    /// `true` if every host also waits for the lock of the host before it.
    pub is_contended: bool,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Plan {
    /// Draws a plan.
    pub fn draw(draw: &mut Draw) -> Self {
        let mut plan = Self {
            voters: *draw.pick(&[1, 3, 3, 3, 3, 5]),
            storm: draw.duration(15 * SECOND, 30 * SECOND),
            network: NetworkPlan::draw(draw),
            disk: DiskPlan::draw(draw),
            faults: FaultPlan::draw(draw),
            core: CorePlan::draw(draw),
            clients: ClientPlan::draw(draw),
            corruption: CorruptionPlan::draw(draw),
            // A random source of its own: seeds without guards are unchanged.
            guards: GuardPlan::draw(&mut Draw::new(draw.clone().bits())),
            mesh: MeshPlan::draw(&mut Draw::new(draw.clone().bits().rotate_left(32))),
            hangs: Vec::new(),
            reach: ReachPlan::draw(&mut Draw::new(draw.clone().bits().rotate_left(48))),
            has_acl: false,
        };
        if plan.core.ttl_multiplier == 1 {
            // A jump shortens a deadline by up to a tick, and clients rely on the full TTL.
            plan.faults.jump = None;
        }
        if plan.corruption.comes.is_some() && draw.once_in(2) {
            plan.keep_witnesses();
        }
        // Random sources of their own, as above.
        plan.clients.lists_another_cluster = Draw::new(draw.clone().bits().rotate_left(16)).once_in(6);
        plan.hangs = HangPlan::draw(Draw::new(draw.clone().bits().rotate_left(48)), plan.storm);
        plan.clients.rewrites_health = Draw::new(!draw.clone().bits()).once_in(8);
        // They leave the seeds that once found something (`.ci/run`) as they were.
        plan.clients.has_queries = Draw::new(draw.clone().bits().rotate_left(43)).once_in(3);
        plan.clients.binds_processes = Draw::new(draw.clone().bits().rotate_left(27)).once_in(3);
        if Draw::new(draw.clone().bits().rotate_left(33)).once_in(8) {
            plan.clients.readers = MANY_READERS;
        }
        plan.suit_guards();
        plan
    }
}

impl Plan {
    /// Adds the conditions that test guards. Without guards, hosts have other faults.
    fn suit_guards(&mut self) {
        if self.guards.per_agent == 0 {
            self.guards.host_trouble = None;
            return;
        }
        if self.guards.is_crowd {
            self.gather_hosts();
        }
        if self.guards.is_steady {
            self.steady_servers();
        }
    }

    /// Plans so many hosts that all of them at once are too many to fail; each has little work.
    fn gather_hosts(&mut self) {
        let clients = &mut self.clients;
        (clients.agents, clients.lockers, clients.writers, clients.watchers) = (6, 1, 1, 1);
        clients.readers = 0;
        self.guards.per_agent = 1;
    }

    /// Leaves only the faults of hosts, and makes their guards keep their locks.
    pub(super) fn steady_servers(&mut self) {
        self.hangs.clear();
        let faults = &mut self.faults;
        (faults.crash, faults.blackout, faults.pause, faults.jump) = (None, None, None, None);
        (faults.split, faults.one_way, faults.clog) = (None, None, None);
        (faults.stall, faults.refusal, faults.transfer) = (None, None, None);
        (faults.removal, faults.arrival, faults.wipe, faults.set_back) = (None, None, None, None);
        (faults.server_of_agent, faults.agent_copy, faults.agent_restart) = (None, None, None);
        let guards = &mut self.guards;
        (guards.kill, guards.revoke, guards.stop) = (None, None, None);
        (guards.host_trouble, guards.unheard_once_in, guards.locks) = (Some(4 * SECOND), 64, 6);
        // A leader with corrupt state replies to no client, and nothing else makes it step down.
        self.corruption.comes = None;
    }

    /// Prevents any server from being a copy of another: copies cannot vote on corruption.
    fn keep_witnesses(&mut self) {
        self.voters = self.voters.max(3);
        self.core.log_keep_bytes = 1 << 30;
        let faults = &mut self.faults;
        (faults.removal, faults.arrival, faults.wipe, faults.set_back) = (None, None, None, None);
    }
}

impl CorruptionPlan {
    fn draw(draw: &mut Draw) -> Self {
        let check_interval = draw.duration(SECOND, 5 * SECOND);
        Self { check_interval, comes: draw.once_in(4).then(|| draw.duration(3 * SECOND, 10 * SECOND)) }
    }
}

/// The focus of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// All features equally.
    #[default]
    Everything,
    /// Beliefs of guards: there are guards, their deadlines are close to the servers', and they are
    /// often cut off.
    Guards,
    /// Health checks: every agent has some, and keeps the catalog equal to them (anti-entropy).
    Checks,
}

impl Focus {
    /// Adjusts a plan so that the focus matters.
    pub fn adjust(self, plan: &mut Plan) {
        plan.clients.has_checks = self == Self::Checks;
        if self != Self::Guards {
            return;
        }
        plan.guards.per_agent = plan.guards.per_agent.max(2);
        plan.guards.has_commands = true;
        plan.guards.drift = MAX_GUARD_DRIFT;
        plan.guards.host_trouble = Some(6 * SECOND);
        plan.reach.every = plan.reach.every_for_guards;
        plan.suit_guards();
        if plan.guards.is_steady {
            return;
        }
        plan.guards.unheard_once_in = 4;
        plan.guards.stop = Some(2 * SECOND);
        plan.clients.agents = plan.clients.agents.max(2);
        (plan.clients.lockers, plan.clients.writers, plan.clients.locks) = (1, 1, 1);
        (plan.clients.archives, plan.disk.is_real, plan.corruption.comes) = (false, false, None);
        plan.core.ttl_multiplier = 1;
        let faults = &mut plan.faults;
        (faults.jump, faults.crash, faults.blackout, faults.set_back) = (None, None, None, None);
        (faults.removal, faults.arrival, faults.wipe) = (None, None, None);
        (faults.split, faults.one_way, faults.cut_length) = (Some(3 * SECOND), Some(3 * SECOND), 4 * SECOND);
    }
}

impl GuardPlan {
    fn draw(draw: &mut Draw) -> Self {
        let per_agent = if draw.once_in(3) { draw.within(1, 2) as usize } else { 0 };
        let mut kind = |mean: Duration| (!draw.once_in(3)).then(|| draw.around(mean));
        Self {
            per_agent,
            stop: kind(3 * SECOND),
            kill: kind(10 * SECOND),
            revoke: kind(4 * SECOND),
            unheard_once_in: 16,
            drift: draw.below(MAX_GUARD_DRIFT + 1),
            stop_length: draw.duration(200 * MS, 6 * SECOND),
            host_trouble: (!draw.once_in(4)).then(|| draw.around(5 * SECOND)),
            host_trouble_length: *draw.pick(&[4, 8, 20]) * SECOND,
            is_crowd: draw.once_in(6),
            locks: *draw.pick(&[1, 2, 6]),
            is_steady: draw.once_in(3),
            has_commands: false,
            silent_once_in: *draw.pick(&[0, 4, 2]),
        }
    }
}

impl MeshPlan {
    fn draw(draw: &mut Draw) -> Self {
        Self {
            is_on: !draw.once_in(8),
            loses_one_in: *draw.pick(&[0, 0, 0, 10, 2, 1]),
            liars: usize::from(draw.once_in(3)),
        }
    }
}

impl NetworkPlan {
    fn draw(draw: &mut Draw) -> Self {
        let least = draw.duration(MS / 20, MS);
        Self {
            delay: (least, least + draw.duration(MS / 20, 10 * MS)),
            loses_one_in: *draw.pick(&[0, 0, 200, 50, 10]),
            repeats_one_in: *draw.pick(&[0, 0, 100, 10]),
            lags_one_in: *draw.pick(&[0, 0, 100, 10]),
            lag: draw.duration(10 * MS, 500 * MS),
            reorders: draw.once_in(2),
            retransmission: None,
        }
    }
}

impl DiskPlan {
    fn draw(draw: &mut Draw) -> Self {
        let least = draw.duration(MS / 10, 2 * MS);
        let checkpoint = draw.duration(MS, 50 * MS);
        let spread = *draw.pick(&[1, 10, 60]) * MS;
        Self {
            commit: (least, least + draw.duration(MS / 10, spread)),
            checkpoint: (checkpoint, checkpoint * 4),
            is_real: draw.once_in(16),
            part_bytes: *draw.pick(&[2_000, 20_000, 1 << 20]),
        }
    }
}

impl FaultPlan {
    fn draw(draw: &mut Draw) -> Self {
        let slowest_fetch = *draw.pick(&[50, 500, 3_000]) * MS;
        let longest_stop = *draw.pick(&[200, 3_000, 10_000]) * MS;
        let longest_trouble = *draw.pick(&[1, 5, 20]) * SECOND;
        let mut kind = |mean: Duration| (!draw.once_in(3)).then(|| draw.around(mean));
        Self {
            crash: kind(2 * SECOND),
            blackout: kind(12 * SECOND),
            pause: kind(3 * SECOND),
            jump: kind(4 * SECOND),
            wall_jump: kind(3 * SECOND),
            split: kind(3 * SECOND),
            one_way: kind(3 * SECOND),
            clog: kind(2 * SECOND),
            stall: kind(2 * SECOND),
            refusal: kind(4 * SECOND),
            agent_restart: kind(6 * SECOND),
            agent_stop: kind(4 * SECOND),
            suspension: kind(6 * SECOND),
            agent_copy: kind(4 * SECOND),
            server_of_agent: kind(3 * SECOND),
            transfer: kind(3 * SECOND),
            removal: kind(6 * SECOND),
            arrival: kind(6 * SECOND),
            wipe: kind(10 * SECOND),
            set_back: kind(2 * SECOND),
            fetch: draw.duration(5 * MS, slowest_fetch),
            downtime: draw.duration(100 * MS, 3 * SECOND),
            pause_length: draw.duration(100 * MS, 4 * SECOND),
            cut_length: draw.duration(200 * MS, 4 * SECOND),
            disk_trouble: draw.duration(100 * MS, 2 * SECOND),
            drift: draw.below(MAX_DRIFT as u64 + 1) as i64,
            agent_downtime: draw.duration(Duration::ZERO, SECOND),
            stop_length: draw.duration(50 * MS, longest_stop),
            server_trouble: draw.duration(200 * MS, longest_trouble),
            tick_lateness: draw.duration(Duration::ZERO, 8 * MS),
        }
    }
}

impl CorePlan {
    fn draw(draw: &mut Draw) -> Self {
        Self {
            election_ticks: *draw.pick(&[5, 10, 20]),
            heartbeat_ticks: *draw.pick(&[1, 2]),
            ttl_multiplier: *draw.pick(&[1, 2]),
            tombstone_ttl: draw.duration(SECOND, 20 * SECOND),
            log_keep_bytes: *draw.pick(&[0, 2_000, 20_000, 1 << 30]),
            max_pending_proposals: *draw.pick(&[4, 64, 4_096]),
            checkpoint_interval: draw.duration(100 * MS, 2 * SECOND),
            checkpoint_changes: *draw.pick(&[10, 1_000]),
            turn: draw.duration(MS / 100, MS),
            max_watches: *draw.pick(&[1_000, 1_000, 1_000, 1]),
        }
    }
}

impl ClientPlan {
    fn draw(draw: &mut Draw) -> Self {
        Self {
            agents: draw.within(1, 4) as usize,
            lockers: draw.within(1, 3) as usize,
            writers: draw.within(1, 3) as usize,
            readers: draw.within(0, 2) as usize,
            watchers: draw.within(1, 3) as usize,
            watch: *draw.pick(&[2, 30]) * SECOND,
            rewrites_health: false,
            has_checks: false,
            has_queries: false,
            binds_processes: false,
            lists_another_cluster: false,
            archives: draw.once_in(3),
            locks: draw.within(1, 4),
            keys: draw.within(1, 12),
            think: draw.duration(2 * MS, 150 * MS),
            ttl: draw.duration(600 * MS, 3 * SECOND),
            lock_delay: draw.duration(50 * MS, 2 * SECOND),
            agent_turn: *draw.pick(&[Duration::ZERO, Duration::ZERO, MS / 2, 30 * MS]),
            timeout: draw.duration(SECOND, 8 * SECOND),
            residents: None,
        }
    }
}
