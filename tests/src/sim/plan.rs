//! What a seed stands for: how many servers and clients, how fast the machines are, and which
//! faults there are.
//!
//! Whole kinds of faults are switched off at random, since some bugs show only where others do not
//! hide them.

use super::draw::Draw;
use super::reach::ReachPlan;
use lockmesh_protocol::lease::HealthWindow;
use std::time::Duration;

/// The fastest and the slowest clock: so many microseconds a second too many or too few.
pub const MAX_DRIFT: i64 = 5_000;

/// The same for the clocks of guards. A lease keeps a twentieth of its TTL between itself and the
/// server.
pub const MAX_GUARD_DRIFT: u64 = 20_000;

/// Everything that is drawn before the first event.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many servers form the quorum.
    pub voters: u64,
    /// How long faults happen.
    pub storm: Duration,
    /// The network.
    pub network: NetworkPlan,
    /// Every disk.
    pub disk: DiskPlan,
    /// Processes and what befalls them.
    pub faults: FaultPlan,
    /// What servers are told.
    pub core: CorePlan,
    /// Who asks.
    pub clients: ClientPlan,
    /// Servers whose states come apart.
    pub corruption: CorruptionPlan,
    /// Programs that hold locks by the client library.
    pub guards: GuardPlan,
    /// The mesh of the agents.
    pub mesh: MeshPlan,
    /// Disks that hang.
    pub hangs: Vec<HangPlan>,
    /// Faults between a host and the servers as a whole.
    pub reach: ReachPlan,
}

/// A disk that takes nothing for long: nothing that is under way, and nothing new.
#[derive(Clone, Copy, Debug)]
pub struct HangPlan {
    /// When it begins.
    pub at: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// Whose disk it is: the leader's, or that of one of the servers that run.
    pub victim: u64,
}

/// The longest time that a disk hangs.
const LONGEST_HANG: Duration = Duration::from_secs(60);

impl HangPlan {
    /// Those of one seed, of a chance of their own.
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

/// Whether agents take part in the mesh, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct MeshPlan {
    /// Whether there is one.
    pub is_on: bool,
    /// One in so many of its datagrams is lost, besides what the network loses; 0 for none, 1 for
    /// all.
    pub loses_one_in: u64,
    /// So many agents, the first ones, lie to all others.
    pub liars: usize,
}

/// How many guards there are, and what befalls them and their hosts.
#[derive(Clone, Debug)]
pub struct GuardPlan {
    /// At each agent.
    pub per_agent: usize,
    /// How many locks they want.
    pub locks: u64,
    /// How far their clocks run wrong, at most: so many microseconds a second.
    pub drift: u64,
    /// The mean time between two times that a guard's process stands still, or its host with it;
    /// none for never.
    pub stop: Option<Duration>,
    /// For how long, at most.
    pub stop_length: Duration,
    /// The same for its death.
    pub kill: Option<Duration>,
    /// The same for somebody who takes a lock away from a guard.
    pub revoke: Option<Duration>,
    /// One in so many answers finds its connection broken.
    pub unheard_once_in: u64,
    /// The mean time between two times that hosts have such trouble that their nodes may fail; none
    /// for never.
    pub host_trouble: Option<Duration>,
    /// How long that lasts, at most.
    pub host_trouble_length: Duration,
    /// Whether there are so many hosts that the judge's brake may come on.
    pub is_crowd: bool,
    /// Whether hosts alone have trouble: no leader serves long enough to fail a node where servers
    /// have it all the time.
    pub is_steady: bool,
}

/// How often servers are compared, and whether one holds what it should not.
#[derive(Clone, Debug)]
pub struct CorruptionPlan {
    /// How long after a corruption check the next one begins.
    pub check_interval: Duration,
    /// When a row of one server becomes another one than the log has made, if ever.
    pub comes: Option<Duration>,
}

/// How links behave.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// How long a message takes, least and most.
    pub delay: (Duration, Duration),
    /// One in so many is lost; 0 for none.
    pub loses_one_in: u64,
    /// One in so many comes twice; 0 for none.
    pub repeats_one_in: u64,
    /// One in so many takes much longer; 0 for none.
    pub lags_one_in: u64,
    /// How much longer, at most.
    pub lag: Duration,
    /// Whether a message may overtake another.
    pub reorders: bool,
    /// What is lost of a stream comes later, as by QUIC; none where it is lost for good, or its
    /// connection breaks.
    pub retransmission: Option<Retransmission>,
}

/// How soon what was lost is sent again: after such a time, then after twice as long, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Retransmission {
    /// On a connection whose round trips have been measured.
    pub probe_timeout: Duration,
    /// While a connection is being made.
    pub first_probe_timeout: Duration,
}

/// How disks behave.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    /// How long a commit takes, least and most.
    pub commit: (Duration, Duration),
    /// How long a checkpoint takes.
    pub checkpoint: (Duration, Duration),
    /// Whether servers keep their state in the real store.
    pub is_real: bool,
    /// A part of a checkpoint that is read has about so many bytes.
    pub part_bytes: usize,
}

/// The mean time between two faults of a kind; none where the kind is switched off.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// A server dies.
    pub crash: Option<Duration>,
    /// All servers die at once.
    pub blackout: Option<Duration>,
    /// How long a dead server stays dead.
    pub downtime: Duration,
    /// A process stands still.
    pub pause: Option<Duration>,
    /// For how long, at most.
    pub pause_length: Duration,
    /// A clock jumps ahead.
    pub jump: Option<Duration>,
    /// The wall clock is set to something else.
    pub wall_jump: Option<Duration>,
    /// Servers are parted.
    pub split: Option<Duration>,
    /// One direction is cut.
    pub one_way: Option<Duration>,
    /// How long a cut lasts, at most.
    pub cut_length: Duration,
    /// A link is clogged.
    pub clog: Option<Duration>,
    /// A disk takes very long.
    pub stall: Option<Duration>,
    /// A disk refuses.
    pub refusal: Option<Duration>,
    /// How long a disk's trouble lasts, at most.
    pub disk_trouble: Duration,
    /// An agent dies, or ends as it should, and comes back.
    pub agent_restart: Option<Duration>,
    /// For how long it is away, at most.
    pub agent_downtime: Duration,
    /// An agent takes nothing in for a while.
    pub agent_stop: Option<Duration>,
    /// The same, and its clock stands still: its host is suspended.
    pub suspension: Option<Duration>,
    /// For how long either, at most.
    pub stop_length: Duration,
    /// A copy of an agent's machine registers.
    pub agent_copy: Option<Duration>,
    /// The server that an agent takes for the leader, or that is its home, has trouble.
    pub server_of_agent: Option<Duration>,
    /// For how long, at most.
    pub server_trouble: Duration,
    /// Leadership is handed over.
    pub transfer: Option<Duration>,
    /// A server is taken out.
    pub removal: Option<Duration>,
    /// A server comes.
    pub arrival: Option<Duration>,
    /// A server loses its disk, and comes back as another one.
    pub wipe: Option<Duration>,
    /// Somebody copies a disk, or puts a copy back.
    pub set_back: Option<Duration>,
    /// How long eight parts of a checkpoint take to be read.
    pub fetch: Duration,
    /// How far clocks run wrong, at most.
    pub drift: i64,
    /// How late a tick comes, at most.
    pub tick_lateness: Duration,
}

/// What servers are told.
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
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Or so many changes.
    pub checkpoint_changes: usize,
    /// How long a turn lets events gather, at most.
    pub turn: Duration,
    /// See `FrontendConfig`.
    pub max_watches: usize,
}

/// Who asks for what.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// How many agents there are.
    pub agents: usize,
    /// Of each agent: how many take locks.
    pub lockers: usize,
    /// How many write.
    pub writers: usize,
    /// How many read.
    pub readers: usize,
    /// How many watch.
    pub watchers: usize,
    /// How long each waits for news.
    pub watch: Duration,
    /// Whether somebody writes the health of nodes that agents live on, as no agent says it.
    pub rewrites_health: bool,
    /// Whether agents are configured with a server of another cluster too.
    pub lists_another_cluster: bool,
    /// Whether some make backups and restore them.
    pub archives: bool,
    /// How many keys are fought over.
    pub locks: u64,
    /// How many keys are written.
    pub keys: u64,
    /// How long a client thinks between two requests.
    pub think: Duration,
    /// The longest TTL.
    pub ttl: Duration,
    /// The longest lock-delay.
    pub lock_delay: Duration,
    /// How long an agent takes nothing in after it has taken something, at most.
    pub agent_turn: Duration,
    /// After how long a client gives up.
    pub timeout: Duration,
    /// The programs of a fleet's hosts, which take the place of all these.
    pub residents: Option<ResidentPlan>,
}

/// What the programs are of which every host of a fleet has the same.
#[derive(Clone, Copy, Debug)]
pub struct ResidentPlan {
    /// How long a host may be silent before its sessions end.
    pub window: HealthWindow,
    /// Whether every host also waits for the lock of the one before it.
    pub is_contended: bool,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Plan {
    /// Draws everything.
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
            // Chance of its own: seeds without guards stay what they are.
            guards: GuardPlan::draw(&mut Draw::new(draw.clone().bits())),
            mesh: MeshPlan::draw(&mut Draw::new(draw.clone().bits().rotate_left(32))),
            hangs: Vec::new(),
            reach: ReachPlan::draw(&mut Draw::new(draw.clone().bits().rotate_left(48))),
        };
        if plan.core.ttl_multiplier == 1 {
            // A jump costs a deadline up to a tick, and clients count on every one of a TTL.
            plan.faults.jump = None;
        }
        if plan.corruption.comes.is_some() && draw.once_in(2) {
            plan.keep_witnesses();
        }
        // Chance of its own, as above.
        plan.clients.lists_another_cluster = Draw::new(draw.clone().bits().rotate_left(16)).once_in(6);
        plan.hangs = HangPlan::draw(Draw::new(draw.clone().bits().rotate_left(48)), plan.storm);
        plan.clients.rewrites_health = Draw::new(!draw.clone().bits()).once_in(8);
        plan.suit_guards();
        plan
    }
}

impl Plan {
    /// What guards need to be tried. Where there are none, hosts have trouble of other kinds.
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

    /// So many hosts that all of them at once are too many to fail; each has little to do.
    fn gather_hosts(&mut self) {
        let clients = &mut self.clients;
        (clients.agents, clients.lockers, clients.writers, clients.watchers) = (6, 1, 1, 1);
        clients.readers = 0;
        self.guards.per_agent = 1;
    }

    /// What befalls hosts is all that goes wrong, and their guards hold on to what they have.
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
        // A leader that is corrupt answers nobody, and nothing else makes it step down.
        self.corruption.comes = None;
    }

    /// Lets no server be a copy of another one, which could not say whose state is corrupt.
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

/// What seeds are spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// Everything alike.
    #[default]
    Everything,
    /// What guards may believe: there are some, their deadlines are close to the servers', and they
    /// are often cut off.
    Guards,
}

impl Focus {
    /// Sees to it that what matters comes into play.
    pub fn adjust(self, plan: &mut Plan) {
        if self == Self::Everything {
            return;
        }
        plan.guards.per_agent = plan.guards.per_agent.max(2);
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
