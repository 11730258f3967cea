//! What a fleet runs on: servers and agents as they are shipped, machines and a network of one data
//! center, and nothing that goes wrong but what is measured.
//!
//! **Datagrams that are lost** delay what they carried, as QUIC does: each is lost by its own
//! chance, also those that are sent in its place. After a probe time-out of 30 ms (a round trip of
//! a millisecond, four times its variance, and the 25 ms that the other end may wait with an
//! acknowledgement) two datagrams are sent again, after twice that time two more, and so on; what
//! is sent later on the connection waits, though streams of their own would not. While a connection
//! is made the first time-out is 300 ms, and four datagrams must come through one after the other.
//! Servers' messages to each other and their questions to nodes are lost alike; but servers have
//! always more to say, and what is heard of that tells what was lost before, so their time-outs do
//! not grow.

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

/// Such agents, of whose datagrams one in so many is lost (none for 0), with such programs, which
/// think so long between two requests.
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
            per_agent: 0,
            locks: 0,
            drift: 0,
            stop: None,
            stop_length: Duration::ZERO,
            kill: None,
            revoke: None,
            unheard_once_in: 0,
            host_trouble: None,
            host_trouble_length: Duration::ZERO,
            is_crowd: false,
            is_steady: false,
        },
        mesh: mesh(options.mesh, agents),
        reach: ReachPlan::default(),
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

/// What a server is told where nobody says otherwise.
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

/// Clocks run a little too fast or too slow, ticks come a little late, and that is all.
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
