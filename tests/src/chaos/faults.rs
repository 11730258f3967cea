//! The faults: each is injected, held for a while and undone.
//!
//! After a fault nothing is repaired manually. Killed processes are started again, and the rest
//! must recover on its own.

use super::proxy::{Place, Rule};
use crate::cluster::{Cluster, SERVERS};
use crate::dialect::let_pass;
use crate::stall::hang::{Hang, LOG_WRITER};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// The time for which a leader is stopped: longer than any election and any connection timeout.
const STOP: Duration = Duration::from_secs(10);
/// The time for which a leader is cut off: longer than an agent holds a request without a leader.
const CUT: Duration = Duration::from_secs(9);
/// The duration of each sync on a stalling disk.
const STALL: Duration = Duration::from_millis(1_500);
/// The maximum capacity of a small disk.
const LARGEST: usize = 1 << 30;

/// A fault.
#[derive(Clone, Copy)]
pub struct Fault {
    /// The fault's name, of one to three words.
    pub name: &'static str,
    /// Injects the fault, holds it for this time, and undoes it.
    pub strike: fn(&mut Cluster, Duration),
    /// `true` if every write must still succeed.
    pub unnoticed: bool,
}

const fn fault(name: &'static str, strike: fn(&mut Cluster, Duration)) -> Fault {
    Fault { name, strike, unnoticed: false }
}

/// All faults, in order of execution.
pub const ALL: [Fault; 20] = [
    Fault { name: "calm", strike: |_, length| let_pass(length), unnoticed: true },
    fault("kill leader", kill_leader),
    fault("kill followers", kill_followers),
    fault("stop leader", stop_leader),
    fault("stop followers", stop_followers),
    fault("cut off leader", |cluster, length| cut_off(cluster, length.max(CUT), leader(cluster))),
    fault("cut off follower", |cluster, length| cut_off(cluster, length, follower(cluster))),
    fault("mute leader", |cluster, length| one_way(cluster, length, leader(cluster), true)),
    fault("deaf leader", |cluster, length| one_way(cluster, length, leader(cluster), false)),
    fault("deaf follower", |cluster, length| one_way(cluster, length, follower(cluster), false)),
    fault("bad network", bad_network),
    fault("full disk, leader", |cluster, length| full_disk(cluster, length, leader(cluster))),
    fault("full disk, follower", |cluster, length| full_disk(cluster, length, follower(cluster))),
    fault("slow disk, leader", |cluster, length| slow_disk(cluster, length, leader(cluster))),
    fault("slow disk, follower", |cluster, length| slow_disk(cluster, length, follower(cluster))),
    fault("kill agent", kill_agent),
    fault("stop agent", stop_agent),
    fault("kill two servers", kill_two),
    fault("kill all servers", kill_all),
    Fault { name: "rolling restart", strike: rolling_restart, unnoticed: true },
];

fn leader(cluster: &Cluster) -> Place {
    cluster.wait_for_leader()
}

fn follower(cluster: &Cluster) -> Place {
    (cluster.wait_for_leader() + 1) % SERVERS
}

fn others(place: Place) -> impl Iterator<Item = Place> {
    (0..SERVERS).filter(move |other| *other != place)
}

/// Restricts the second agent to this server.
fn bind_second_agent(cluster: &Cluster, place: Place) {
    let agent = cluster.agent(1);
    for other in others(place) {
        cluster.cut(agent, [other]);
        cluster.cut(other, [agent]);
    }
}

fn kill_leader(cluster: &mut Cluster, length: Duration) {
    let leader = leader(cluster);
    cluster.kill(leader);
    let_pass(length);
    cluster.begin(leader);
}

/// Kills the followers one after another; each is killed again while it catches up.
fn kill_followers(cluster: &mut Cluster, length: Duration) {
    let leader = leader(cluster);
    for follower in others(leader) {
        cluster.kill(follower);
        let_pass(length / 2);
        cluster.begin(follower);
        let_pass(Duration::from_millis(150));
        cluster.kill(follower);
        cluster.begin(follower);
        cluster.wait_until_whole();
    }
}

fn kill_two(cluster: &mut Cluster, length: Duration) {
    let leader = leader(cluster);
    let two = [leader, (leader + 1) % SERVERS];
    two.iter().for_each(|place| cluster.kill(*place));
    let_pass(length / 2);
    two.iter().for_each(|place| cluster.begin(*place));
}

fn kill_all(cluster: &mut Cluster, _: Duration) {
    (0..SERVERS).for_each(|place| cluster.kill(place));
    (0..SERVERS).for_each(|place| cluster.begin(place));
}

/// Stops the leader while the second agent can reach only the leader. When it resumes, it must not
/// serve its old state.
fn stop_leader(cluster: &mut Cluster, length: Duration) {
    let leader = leader(cluster);
    bind_second_agent(cluster, leader);
    let_pass(length / 4);
    cluster.signal(leader, "STOP");
    let_pass(STOP);
    cluster.signal(leader, "CONT");
    let_pass(length / 4);
    cluster.network.heal();
}

/// Stops the followers one after another, for longer than an agent waits for a silent home server.
/// One of the servers is the first agent's home, or the leader is.
fn stop_followers(cluster: &mut Cluster, length: Duration) {
    let leader = leader(cluster);
    for follower in others(leader) {
        cluster.signal(follower, "STOP");
        let_pass(length);
        cluster.signal(follower, "CONT");
        cluster.wait_until_whole();
    }
}

/// Cuts a server off from the other servers in both directions. The agents reach every server,
/// except that the second agent reaches only this one.
fn cut_off(cluster: &mut Cluster, length: Duration, place: Place) {
    bind_second_agent(cluster, place);
    for other in others(place) {
        cluster.cut(place, [other]);
        cluster.cut(other, [place]);
    }
    let_pass(length);
    cluster.network.heal();
}

fn one_way(cluster: &mut Cluster, length: Duration, place: Place, mute: bool) {
    bind_second_agent(cluster, place);
    for other in others(place) {
        match mute {
            true => cluster.cut(place, [other]),
            false => cluster.cut(other, [place]),
        }
    }
    let_pass(length);
    cluster.network.heal();
}

/// Adds loss, duplicates and delays between all servers, and milder ones towards the agents.
fn bad_network(cluster: &mut Cluster, length: Duration) {
    for from in 0..SERVERS {
        for to in others(from) {
            cluster.network.rule(from, to, Rule { lost: 100, doubled: 50, late_ms: 30 });
        }
        for agent in [cluster.agent(0), cluster.agent(1)] {
            cluster.network.rule(from, agent, Rule { lost: 20, doubled: 20, late_ms: 5 });
            cluster.network.rule(agent, from, Rule { lost: 20, doubled: 20, late_ms: 5 });
        }
    }
    let_pass(length);
    cluster.network.heal();
}

fn full_disk(cluster: &mut Cluster, length: Duration, place: Place) {
    let filler = cluster.data(place).parent().expect("it lies on its disk").join("filler");
    fill(&filler);
    let_pass(length);
    fs::remove_file(&filler).expect("the filler can be removed");
}

/// Fills the disk to its last byte.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file can be made on the small disk");
    let mut written = 0;
    for size in [1 << 20, 4096, 1] {
        let block = vec![0_u8; size];
        while file.write_all(&block).is_ok() {
            written += size;
            assert!(written < LARGEST, "the disk is too large: see tests/faults/small_disks.sh");
        }
    }
}

/// Makes every sync of the thread that writes the log slow.
fn slow_disk(cluster: &mut Cluster, length: Duration, place: Place) {
    let hang = Hang::start(cluster.process_number(place), &[LOG_WRITER], STALL);
    let_pass(length);
    hang.end();
}

fn kill_agent(cluster: &mut Cluster, length: Duration) {
    let agent = cluster.agent(0);
    cluster.kill(agent);
    let_pass(length / 4);
    cluster.begin(agent);
}

/// Stops the agent. Sessions with a TTL of one second expire meanwhile; callers wait and learn the
/// outcome.
fn stop_agent(cluster: &mut Cluster, length: Duration) {
    let agent = cluster.agent(0);
    cluster.signal(agent, "STOP");
    let_pass(length);
    cluster.signal(agent, "CONT");
}

/// Restarts each server gracefully. The next one follows when all servers have caught up.
fn rolling_restart(cluster: &mut Cluster, _: Duration) {
    for place in 0..SERVERS {
        cluster.end_kindly(place);
        cluster.begin(place);
        cluster.wait_until_whole();
    }
}
