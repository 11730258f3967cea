//! Three tenths of the hosts are cut off from all others for half a minute, and then not any more:
//! how long it takes until everybody knows again who belongs to the mesh.

use super::{BOUND, Fleet, Options};
use crate::sim::agent::Agent;
use crate::sim::network::Place;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::mesh::Mesh;
use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::lease::LeaseId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a program thinks that holds its lock, and wants nothing more.
const THINK: Duration = Duration::from_secs(5);

/// How long they are cut off.
const CUT: Duration = Duration::from_secs(30);

/// How often somebody looks who knows whom.
const LOOK: Duration = Duration::from_millis(50);

/// How a fleet came together again.
#[derive(Clone, Debug, Serialize)]
pub struct HealReport {
    /// How many agents there were.
    pub agents: usize,
    /// How many of them were cut off.
    pub cut_off: usize,
    /// Of the others so many were failed.
    pub wrongly_failed: usize,
    /// Seconds until all were registered as members that live.
    pub registered: f64,
    /// Seconds until 99 of 100 knew exactly those who belong to the mesh.
    pub most_agree: f64,
    /// Seconds until all did.
    pub all_agree: f64,
}

/// Parts a fleet, and lets it come together.
///
/// # Errors
/// An invariant is broken, or the fleet does not come together, in words.
pub fn heal(options: Options) -> Result<HealReport, String> {
    let mut fleet = Fleet::of_servers(options, 0, false, THINK)?;
    fleet.begin_agents();
    fleet.run_until_so("all hosts hold their locks", |fleet| (0..fleet.size).all(|h| fleet.holds_own(h)))?;
    fleet.run_until_so("all know each other", |fleet| fleet.agreeing() == fleet.size)?;
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
            return Err(format!("after {after:?} {agreeing} of {} know who belongs to the mesh", fleet.size));
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
    /// The processes that the servers take for members that live, by their cells.
    fn members(&self) -> BTreeMap<CellNumber, BTreeSet<MemberId>> {
        let state = self.state();
        let mut members: BTreeMap<CellNumber, BTreeSet<MemberId>> = BTreeMap::new();
        for agent in state.agents().filter(|agent| state.living_agent(agent.lease()).is_some()) {
            members.entry(agent.cell).or_default().insert(MemberId::of_agent(agent.lease()));
        }
        members
    }

    /// How many hosts know exactly those of their cells.
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
