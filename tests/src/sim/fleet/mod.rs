//! A fleet in virtual time: three servers and any number of agents, all with the shipped defaults.
//! It runs in the same world as the storms, with the same invariants, and with no fault except the
//! measured one.
//!
//! | file | contents |
//! |---|---|
//! | `plan` | servers, machines and the network; the effect of a lost datagram on QUIC |
//! | `resident` | the programs on every host: they hold locks, and wait for them |
//! | `crash` | hosts die one after the other: time to the verdict and to the next holder |
//! | `peace` | no host dies, in bad conditions: no node may be failed |
//! | `join` | all hosts join at once |
//! | `deaths` | three tenths die at once: traffic, and time until all are failed |
//! | `heal` | three tenths are cut off, and come back: time until all members know it |

pub mod crash;
pub mod deaths;
pub mod heal;
pub mod join;
pub mod peace;
mod plan;
pub mod resident;

use super::agent::Agent;
use super::chronicle::Detail;
use super::client::Client;
use super::draw::Draw;
use super::fault_injection::FaultInjection;
use super::history::Past;
use super::plan::ResidentPlan;
use super::stage::Stage;
use super::world::World;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::{LossCause, MemberStatus};
use lockmesh_protocol::time::Time;
use resident::Resident;
use serde::Serialize;
use std::time::Duration;

/// Maximum time for any expected event.
const BOUND: Duration = Duration::from_secs(120);

/// The parameters of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of all randomness.
    pub seed: u64,
    /// The number of agents.
    pub agents: usize,
    /// The time for which a host may be silent before its sessions end.
    pub window: HealthWindow,
    /// The permanent fault of the mesh.
    pub mesh: MeshTrouble,
}

/// A fault of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeshTrouble {
    /// No fault.
    #[default]
    None,
    /// All datagrams of the mesh are lost.
    Lost,
    /// All members lie: they corrupt their packets, replay others' packets, send malformed data,
    /// and suspect all others.
    Hostile,
}

impl MeshTrouble {
    /// All kinds; the first is none.
    pub const ALL: [Self; 3] = [Self::None, Self::Lost, Self::Hostile];

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lost => "lost",
            Self::Hostile => "hostile",
        }
    }
}

/// A world without storms.
#[derive(Debug)]
struct Fleet {
    world: World,
    /// The number of agents that will join.
    size: usize,
    /// The last inspected entry.
    seen: LogIndex,
}

impl Fleet {
    /// Returns a fleet of three servers with a leader, and no agent yet. One in `loses_one_in`
    /// datagrams is lost; none for 0. Programs think for `think` between two requests.
    fn of_servers(
        options: Options,
        loses_one_in: u64,
        is_contended: bool,
        think: Duration,
    ) -> Result<Self, String> {
        let residents = ResidentPlan { window: options.window, is_contended };
        let plan = plan::plan(&options, loses_one_in, residents, think);
        let draw = Draw::new(options.seed);
        let mut world = World::of_servers(Stage::of(plan, draw, FaultInjection::None, Detail::Nothing));
        // The state grows with the fleet, and with it both the number of entries and the cost of
        // each check.
        world.judge.history.check_every = 1 + options.agents as u64 / 16;
        let mut fleet = Self { world, size: options.agents, seen: LogIndex(0) };
        fleet.run_until_so("a server leads", |fleet| fleet.world.machines.values().any(|m| m.serves()))?;
        Ok(fleet)
    }

    /// Starts all agents at once.
    fn begin_agents(&mut self) {
        let World { stage, judge, agents, .. } = &mut self.world;
        agents.extend((0..self.size).map(|place| Agent::start(stage, judge, place)));
    }

    fn now(&self) -> Time {
        self.world.stage.now
    }

    fn state(&self) -> &lockmesh_core::State {
        self.world.judge.history.state()
    }

    /// Runs until a time.
    ///
    /// # Errors
    /// A message if an invariant is broken.
    fn run_until(&mut self, until: Time) -> Result<(), String> {
        while self.world.stage.is_due(until) {
            self.step()?;
        }
        Ok(())
    }

    /// Processes one event.
    fn step(&mut self) -> Result<(), String> {
        self.world.step();
        match self.world.judge.violations.first() {
            None => Ok(()),
            Some(broken) => Err(format!("{} is broken: {}", broken.invariant, broken.what)),
        }
    }

    /// Runs until a condition holds, which is checked ten times a second.
    ///
    /// # Errors
    /// A message if an invariant is broken, or if the condition never holds.
    fn run_until_so(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), String> {
        let began = self.now();
        while !is_so(self) {
            if self.now().since(began) > BOUND {
                return Err(format!("timeout of {BOUND:?} waiting until {what}"));
            }
            self.run_until(self.now() + Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Returns the verdicts among the new entries, with the time at which each was applied.
    fn verdicts(&mut self) -> Vec<(NodeFailure, Time)> {
        let history = &self.world.judge.history;
        let new = self.seen.0 + 1..=history.last().0;
        self.seen = history.last();
        new.filter_map(|index| verdict(history.at(LogIndex(index))?)).collect()
    }

    fn residents(&self, host: usize) -> impl Iterator<Item = &Resident> {
        self.world.agents[host].clients().filter_map(|client| match client {
            Client::Resident(resident) => Some(resident),
            _ => None,
        })
    }

    /// Returns `true` if a host's own program holds its lock.
    fn holds_own(&self, host: usize) -> bool {
        self.residents(host).any(|resident| resident.holds_own(self.state()).is_some())
    }
}

/// Returns the verdict of an entry that ended a node's sessions or failed the node.
fn verdict(past: &Past) -> Option<(NodeFailure, Time)> {
    let Command::FailNode(failure) = &past.proposal.as_ref()?.command else { return None };
    let takes_effect = past.changes.iter().any(|change| match change {
        Change::Loss(_, Some(loss)) => matches!(loss.cause, LossCause::NodeFailed { .. }),
        Change::Session(_, None) => true,
        Change::Agent(_, Some(agent)) => agent.status == MemberStatus::Failed,
        _ => false,
    });
    takes_effect.then(|| (failure.clone(), past.at))
}
