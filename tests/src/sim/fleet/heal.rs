//! Three tenths of the hosts are cut off from all others for half a minute, then reconnected.
//! Measures the time until all hosts know the members of the mesh again.

use super::{BOUND, Fleet, Options};
use crate::sim::agent::Agent;
use crate::sim::network::Place;
use lockmesh_agent_core::gossip::mesh::Mesh;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::lease::LeaseId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Think time of a program that holds its lock and wants nothing more.
const THINK: Duration = Duration::from_secs(5);

/// Length of the cut.
const CUT: Duration = Duration::from_secs(30);

/// Interval at which membership views are checked.
const LOOK: Duration = Duration::from_millis(50);

/// Results for a fleet that was partitioned and healed.
#[derive(Clone, Debug, Serialize)]
pub struct HealReport {
    /// The number of agents.
    pub agents: usize,
    /// The number of agents that were cut off.
    pub cut_off: usize,
    /// The number of other agents that were failed.
    pub wrongly_failed: usize,
    /// Seconds until all were registered as live members.
    pub registered: f64,
    /// Seconds until 99 % of the hosts knew exactly the members of the mesh.
    pub most_agree: f64,
    /// Seconds until all hosts did.
    pub all_agree: f64,
}

/// Partitions a fleet, and heals it.
///
/// # Errors
/// A message if an invariant is broken, or if the fleet does not heal.
pub fn heal(options: Options) -> Result<HealReport, String> {
    let mut fleet = Fleet::of_servers(options, 0, false, THINK)?;
    fleet.begin_agents();
    fleet.run_until_so("all hosts hold their locks", |fleet| (0..fleet.size).all(|h| fleet.holds_own(h)))?;
    fleet.run_until_so("all hosts know each other", |fleet| fleet.agreeing() == fleet.size)?;
    let cut_off = 3 * fleet.size / 10;
    let lease = |agent: &Agent| agent.registration().map(|registration| registration.lease);
    let others: BTreeSet<LeaseId> = fleet.world.agents[cut_off..].iter().filter_map(lease).collect();
    fleet.verdicts();
    fleet.world.stage.network.darken((0..cut_off).map(Place::Agent));
    fleet.run_until(fleet.now() + CUT)?;
    let failed = fleet.verdicts().into_iter();
    let wrongly_failed = failed.filter(|(failure, _)| others.contains(&failure.lease)).count();
    fleet.world.stage.network.darken([]);
    let healed = fleet.now();
    let (mut registered, mut most) = (None, None);
    let all = loop {
        fleet.run_until(fleet.now() + LOOK)?;
        let after = fleet.now().since(healed);
        if registered.is_none() && fleet.members().values().map(BTreeSet::len).sum::<usize>() == fleet.size {
            registered = Some(after);
        }
        let agreeing = if registered.is_some() { fleet.agreeing() } else { 0 };
        if most.is_none() && agreeing * 100 >= fleet.size * 99 {
            most = Some(after);
        }
        if agreeing == fleet.size {
            break after;
        }
        if after > BOUND {
            return Err(format!("after {after:?} {agreeing} of {} know the members of the mesh", fleet.size));
        }
    };
    let seconds = |duration: Option<Duration>| duration.unwrap_or_default().as_secs_f64();
    Ok(HealReport {
        agents: options.agents,
        cut_off,
        wrongly_failed,
        registered: seconds(registered),
        most_agree: seconds(most),
        all_agree: all.as_secs_f64(),
    })
}

impl Fleet {
    /// Returns the processes that the servers consider live members, by cell.
    fn members(&self) -> BTreeMap<CellNumber, BTreeSet<MemberId>> {
        let state = self.state();
        let mut members: BTreeMap<CellNumber, BTreeSet<MemberId>> = BTreeMap::new();
        for agent in state.agents().filter(|agent| state.living_agent(agent.lease()).is_some()) {
            members.entry(agent.cell).or_default().insert(MemberId::of_agent(agent.lease()));
        }
        members
    }

    /// Returns the number of hosts that know exactly the members of their cells.
    pub(super) fn agreeing(&self) -> usize {
        let (state, members) = (self.state(), self.members());
        let agrees = |mesh: &Mesh| {
            let cell = mesh.me().lease().and_then(|lease| Some(state.agent_of(lease)?.cell));
            let roster = mesh.roster();
            cell.and_then(|cell| members.get(&cell)).is_some_and(|members| {
                roster.len() == members.len() && roster.members().all(|member| members.contains(&member.id))
            })
        };
        self.world.agents.iter().filter_map(|agent| agent.member.mesh()).filter(|mesh| agrees(mesh)).count()
    }
}
