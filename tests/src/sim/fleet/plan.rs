//! The environment of a fleet: servers and agents with the shipped defaults, machines and a network
//! of one data center, and no fault except the measured one.
//!
//! **Lost datagrams** delay their contents, as in QUIC: each datagram, retransmitted or not, is
//! lost independently. After a probe timeout of 30 ms (a round trip of a millisecond, four times
//! its variance, and the peer's maximum acknowledgement delay of 25 ms) two datagrams are sent
//! again, after twice that time two more, and so on. Data sent later on the connection waits,
//! although separate streams would not. While a connection is being made the first timeout is 300
//! ms, and four datagrams must get through one after the other. Messages between servers and their
//! questions to nodes are lost in the same way. But servers always have more to send, and
//! acknowledgements of that reveal earlier losses, so their timeouts do not grow.

use super::{MeshTrouble, Options};
use crate::sim::plan::{
    ClientPlan, CorePlan, CorruptionPlan, DiskPlan, FaultPlan, GuardPlan, MeshPlan, NetworkPlan, Plan,
    ResidentPlan, Retransmission,
};
use crate::sim::reach::ReachPlan;
use lockmesh_core::raft::ElectionTimeout;
use lockmesh_server::config::ServerConfig;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// Returns the plan of a fleet: its agents, its datagram loss (one in `loses_one_in`; none for 0),
/// its programs, and their think time between two requests.
pub(super) fn plan(options: &Options, loses_one_in: u64, residents: ResidentPlan, think: Duration) -> Plan {
    let agents = options.agents;
    Plan {
        voters: 3,
        storm: NEVER,
        network: NetworkPlan {
            delay: (MS / 5, MS),
            loses_one_in,
            repeats_one_in: 0,
            lags_one_in: 0,
            lag: Duration::ZERO,
            reorders: false,
            retransmission: Some(Retransmission { probe_timeout: 30 * MS, first_probe_timeout: 300 * MS }),
        },
        disk: DiskPlan {
            commit: (MS, 5 * MS),
            checkpoint: (5 * MS, 20 * MS),
            is_real: false,
            part_bytes: 1 << 20,
        },
        faults: nothing(),
        core: shipped(),
        clients: ClientPlan {
            agents,
            lockers: 0,
            writers: 0,
            readers: 0,
            watchers: 0,
            watch: Duration::ZERO,
            archives: false,
            rewrites_health: false,
            has_checks: false,
            binds_processes: false,
            has_queries: false,
            lists_another_cluster: false,
            locks: 0,
            keys: 0,
            think,
            ttl: Duration::ZERO,
            lock_delay: Duration::ZERO,
            agent_turn: Duration::ZERO,
            timeout: 7 * Duration::from_secs(1),
            residents: Some(residents),
        },
        corruption: CorruptionPlan {
            check_interval: ServerConfig::default().storage.corruption_check_interval,
            comes: None,
        },
        hangs: Vec::new(),
        guards: GuardPlan {
            has_commands: false,
            per_agent: 0,
            locks: 0,
            drift: 0,
            stop: None,
            stop_length: Duration::ZERO,
            kill: None,
            revoke: None,
            unheard_once_in: 0,
            silent_once_in: 0,
            host_trouble: None,
            host_trouble_length: Duration::ZERO,
            is_crowd: false,
            is_steady: false,
        },
        mesh: mesh(options.mesh, agents),
        reach: ReachPlan::default(),
        has_acl: false,
    }
}

fn mesh(trouble: MeshTrouble, agents: usize) -> MeshPlan {
    let sound = MeshPlan { is_on: true, loses_one_in: 0, liars: 0 };
    match trouble {
        MeshTrouble::None => sound,
        MeshTrouble::Lost => MeshPlan { loses_one_in: 1, ..sound },
        MeshTrouble::Hostile => MeshPlan { liars: agents, ..sound },
    }
}

/// Returns the default configuration of a server.
fn shipped() -> CorePlan {
    let ServerConfig { quorum, storage, sessions, tombstones, limits, .. } = ServerConfig::default();
    let ElectionTimeout { ticks, heartbeat_ticks } = ElectionTimeout::with_timeout(quorum.election_timeout);
    CorePlan {
        election_ticks: ticks,
        heartbeat_ticks,
        ttl_multiplier: sessions.ttl_multiplier,
        tombstone_ttl: tombstones.ttl,
        log_keep_bytes: storage.log_keep_bytes,
        max_pending_proposals: 65_536,
        checkpoint_interval: storage.checkpoint_interval,
        checkpoint_changes: storage.checkpoint_changes as usize,
        turn: MS / 5,
        max_watches: limits.watches,
    }
}

/// Returns a plan without faults: clocks run slightly fast or slow, and ticks are slightly late.
fn nothing() -> FaultPlan {
    FaultPlan {
        crash: None,
        blackout: None,
        downtime: Duration::ZERO,
        pause: None,
        pause_length: Duration::ZERO,
        jump: None,
        wall_jump: None,
        split: None,
        one_way: None,
        cut_length: Duration::ZERO,
        clog: None,
        stall: None,
        refusal: None,
        disk_trouble: Duration::ZERO,
        agent_restart: None,
        agent_downtime: Duration::ZERO,
        agent_stop: None,
        suspension: None,
        stop_length: Duration::ZERO,
        agent_copy: None,
        server_of_agent: None,
        server_trouble: Duration::ZERO,
        transfer: None,
        removal: None,
        arrival: None,
        wipe: None,
        set_back: None,
        fetch: 5 * MS,
        drift: 100,
        tick_lateness: 2 * MS,
    }
}
