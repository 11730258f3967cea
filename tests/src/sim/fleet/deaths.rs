//! Three tenths of the hosts die at once. Measures the time until all of them are failed, and the
//! traffic of the mesh meanwhile.

use super::{BOUND, Fleet, Options};
use lockmesh_protocol::lease::LeaseId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// Think time of a program that holds its lock and wants nothing more.
const THINK: Duration = Duration::from_secs(5);

/// Downtime of a dead host: longer than the measurement.
const DOWNTIME: Duration = Duration::from_secs(3_600);

/// Number of seconds over which datagrams are counted.
const COUNTED: u32 = 30;

const SECOND: Duration = Duration::from_secs(1);

/// Results for a fleet in which very many hosts died.
#[derive(Clone, Debug, Serialize)]
pub struct DeathsReport {
    /// The number of agents.
    pub agents: usize,
    /// The number of deaths.
    pub died: usize,
    /// The number of other hosts that were failed.
    pub wrongly_failed: usize,
    /// Seconds until the first, half and all of them were failed.
    pub failed: (f64, f64, f64),
    /// Datagrams that a live node sent per second: mean, and worst second.
    pub datagrams_a_second: (f64, f64),
    /// The bytes of those datagrams.
    pub datagram_bytes_a_second: (f64, f64),
}

/// Lets the hosts die.
///
/// # Errors
/// A message if an invariant is broken, or if the hosts are not failed.
pub fn deaths(options: Options) -> Result<DeathsReport, String> {
    let mut fleet = Fleet::of_servers(options, 0, false, THINK)?;
    fleet.begin_agents();
    fleet.run_until_so("all hosts hold their locks", |fleet| (0..fleet.size).all(|h| fleet.holds_own(h)))?;
    fleet.run_until_so("all hosts know each other", |fleet| fleet.agreeing() == fleet.size)?;
    fleet.verdicts();
    let died = 3 * fleet.size / 10;
    let (began, mut dead) = (fleet.now(), BTreeSet::new());
    for host in 0..died {
        dead.insert(fleet.die(host)?);
    }
    let (mut failed, mut wrongly_failed, mut said) = (Vec::new(), 0, Vec::new());
    for second in 1.. {
        let before = fleet.world.stage.network.traffic;
        fleet.run_until(began + SECOND * second)?;
        let after = fleet.world.stage.network.traffic;
        if second <= COUNTED {
            said.push((after.mesh - before.mesh, after.mesh_bytes - before.mesh_bytes));
        }
        for (failure, at) in fleet.verdicts() {
            match dead.remove(&failure.lease) {
                true => failed.push(at.since(began).as_secs_f64()),
                false => wrongly_failed += 1,
            }
        }
        if dead.is_empty() && second >= COUNTED {
            break;
        }
        if SECOND * second > BOUND {
            return Err(format!("after {BOUND:?} {} of {died} are not failed", dead.len()));
        }
    }
    let living = (options.agents - died) as f64;
    let mean_and_most = |of: fn(&(u64, u64)) -> u64| {
        let most = said.iter().map(of).max().unwrap_or_default() as f64 / living;
        (said.iter().map(of).sum::<u64>() as f64 / f64::from(COUNTED) / living, most)
    };
    let at = |place: usize| failed.get(place).copied().unwrap_or_default();
    Ok(DeathsReport {
        agents: options.agents,
        died,
        wrongly_failed,
        failed: (at(0), at(died / 2), at(died - 1)),
        datagrams_a_second: mean_and_most(|(datagrams, _)| *datagrams),
        datagram_bytes_a_second: mean_and_most(|(_, bytes)| *bytes),
    })
}

impl Fleet {
    fn die(&mut self, host: usize) -> Result<LeaseId, String> {
        let world = &mut self.world;
        let lease = world.agents[host].registration().ok_or("lock holder is not registered")?.lease;
        world.agents[host].die_unheard(&mut world.stage, &mut world.judge, DOWNTIME);
        Ok(lease)
    }
}
