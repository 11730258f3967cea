//! Hosts die one after the other at random moments, while other hosts wait for their locks; each
//! comes back with a new boot. Measures the time from a host's death to a committed verdict, the
//! time until the next holder is notified, and the time from the verdict until all members that
//! probed it know of it.

use super::resident::Resident;
use super::{BOUND, Fleet, MeshTrouble, Options};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::time::Time;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// Think time of a program between two requests.
const THINK: Duration = Duration::from_millis(250);

/// Minimum and maximum downtime of a host.
const DOWNTIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// Maximum time until the next host dies once everything is well: it covers the whole interval
/// between two renewals.
const NEXT: Duration = Duration::from_secs(5);

/// Interval at which the spread of a verdict is checked.
const LOOK: Duration = Duration::from_millis(50);

/// Results for the hosts that died.
#[derive(Clone, Debug, Serialize)]
pub struct CrashReport {
    /// The number of agents.
    pub agents: usize,
    /// The time for which a host may be silent.
    pub window: HealthWindow,
    /// The fault of the mesh.
    pub mesh: MeshTrouble,
    /// The number of deaths.
    pub crashes: usize,
    /// Seconds from each death until a verdict was committed: median and maximum.
    pub verdict: (f64, f64),
    /// Seconds from each death until the next holder was notified: median and maximum.
    pub next_holder: (f64, f64),
    /// Seconds from each verdict until all members of the host's cell knew it: median and maximum.
    /// `None` for verdicts by which no node leaves the mesh.
    pub known: Option<(f64, f64)>,
    /// The number of other hosts that were failed without having died.
    pub wrongly_failed: usize,
    /// The length of the run, in virtual seconds.
    pub seconds: f64,
}

/// Lets this many hosts die.
///
/// # Errors
/// A message if an invariant is broken, or an expected event does not happen.
pub fn crash(options: Options, crashes: usize) -> Result<CrashReport, String> {
    let mut fleet = Fleet::of_servers(options, 0, true, THINK)?;
    fleet.begin_agents();
    let (mut verdicts, mut grants, mut known) = (Vec::new(), Vec::new(), Vec::new());
    let mut tally = Tally::default();
    for _ in 0..crashes {
        fleet.run_until_so("all hosts hold their locks", |fleet| {
            (0..fleet.size).all(|h| fleet.holds_own(h))
        })?;
        let (host, next) = fleet.victim();
        let pause = fleet.world.stage.draw.duration(Duration::ZERO, NEXT);
        fleet.run_until(fleet.now() + pause)?;
        let is_waited_for = |fleet: &Fleet| fleet.residents(next).any(|one| one.waits(fleet.state()));
        fleet.run_until_so("another host waits for the lock", is_waited_for)?;
        let death = fleet.kill(host)?;
        tally.dead.insert(death.lease);
        verdicts.push(fleet.await_verdict(&death, &mut tally)?);
        grants.push(fleet.await_next_holder(next, death.at)?);
        if death.window >= HealthWindow::Default {
            known.push(
                fleet.await_knowledge(host, &death)?.saturating_sub(*verdicts.last().expect("it came")),
            );
        }
    }
    let Options { agents, window, mesh, .. } = options;
    Ok(CrashReport {
        agents,
        window,
        mesh,
        crashes,
        verdict: middle_and_most(verdicts),
        next_holder: middle_and_most(grants),
        known: (!known.is_empty()).then(|| middle_and_most(known)),
        wrongly_failed: tally.wrongly_failed,
        seconds: fleet.now().0 as f64 / 1e6,
    })
}

/// A host that died.
struct Death {
    at: Time,
    lease: LeaseId,
    window: HealthWindow,
}

/// The leases of dead hosts, and the number of wrong verdicts.
#[derive(Default)]
struct Tally {
    dead: BTreeSet<LeaseId>,
    wrongly_failed: usize,
}

impl Fleet {
    /// Returns the next victim, and the host that waits for its lock.
    fn victim(&mut self) -> (usize, usize) {
        let host = self.world.stage.draw.below(self.size as u64) as usize;
        (host, (host + 1) % self.size)
    }

    fn kill(&mut self, host: usize) -> Result<Death, String> {
        let world = &mut self.world;
        let lease = world.agents[host].registration().ok_or("lock holder is not registered")?.lease;
        let downtime = world.stage.draw.duration(DOWNTIME.0, DOWNTIME.1);
        world.agents[host].die_unheard(&mut world.stage, &mut world.judge, downtime);
        let window = world.stage.plan.clients.residents.map(|plan| plan.window).unwrap_or_default();
        Ok(Death { at: world.stage.now, lease, window })
    }

    /// Waits for the verdict on a host, and returns the time since its death.
    fn await_verdict(&mut self, death: &Death, tally: &mut Tally) -> Result<Duration, String> {
        loop {
            for (failure, at) in self.verdicts() {
                tally.wrongly_failed += usize::from(!tally.dead.contains(&failure.lease));
                if failure.lease == death.lease && failure.window >= death.window {
                    return Ok(at.since(death.at));
                }
            }
            self.wait_since(death.at, "the dead host is failed")?;
        }
    }

    /// Waits until the waiting program is notified that it holds the lock, and returns the time
    /// since the death.
    fn await_next_holder(&mut self, next: usize, death: Time) -> Result<Duration, String> {
        loop {
            let taken = self.residents(next).find_map(Resident::took_over).filter(|at| *at > death);
            match taken {
                Some(at) => return Ok(at.since(death)),
                None => self.wait_since(death, "the next holder is notified")?,
            }
        }
    }

    /// Waits until no other host considers the dead host a member, and returns the time since its
    /// death.
    fn await_knowledge(&mut self, host: usize, death: &Death) -> Result<Duration, String> {
        let member = MemberId::of_agent(death.lease);
        loop {
            let others = (0..self.size).filter(|other| *other != host);
            let meshes = others.filter_map(|other| self.world.agents[other].member.mesh());
            if meshes.into_iter().all(|mesh| mesh.roster().get(member).is_none()) {
                return Ok(self.now().since(death.at));
            }
            self.run_until(self.now() + LOOK)?;
            self.wait_since(death.at, "all members know that the host has failed")?;
        }
    }

    fn wait_since(&mut self, since: Time, what: &str) -> Result<(), String> {
        match self.now().since(since) > BOUND {
            true => Err(format!("timeout of {BOUND:?} waiting until {what}")),
            false => self.step(),
        }
    }
}

/// Returns the median and the maximum of some durations, in seconds.
fn middle_and_most(mut all: Vec<Duration>) -> (f64, f64) {
    all.sort_unstable();
    let at = |place: usize| all.get(place).copied().unwrap_or_default().as_secs_f64();
    (at(all.len() / 2), at(all.len().saturating_sub(1)))
}
