//! A fleet in virtual time: three servers and as many agents as one likes, all as they are shipped,
//! in the same world as the storms, with the same invariants, and nothing that goes wrong but what
//! is measured.
//!
//! | file | is |
//! |---|---|
//! | `plan` | servers, machines and the network; what a lost datagram does to QUIC |
//! | `resident` | the programs on every host: they hold locks, and wait for them |
//! | `crash` | hosts die one after the other: how soon that is decided, and who holds their locks next |
//! | `peace` | nobody dies, in bad conditions: nobody may be failed |
//! | `join` | all hosts come at once |
//! | `deaths` | three tenths die at once: what is said, and how soon all are failed |
//! | `heal` | three tenths are cut off, and come back: how soon everybody knows that |

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

/// How long anything may take that must happen.
const BOUND: Duration = Duration::from_secs(120);

/// What a fleet is made of.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What decides over all chance.
    pub seed: u64,
    /// How many agents there are.
    pub agents: usize,
    /// How long a host may be silent before its sessions end.
    pub window: HealthWindow,
    /// What is wrong with the mesh, all the time.
    pub mesh: MeshTrouble,
}

/// What is wrong with the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeshTrouble {
    /// Nothing.
    #[default]
    None,
    /// No datagram of it arrives.
    Lost,
    /// All members lie: they change what they say, send again what others have said, send what is
    /// nothing, and accuse everybody.
    Hostile,
}

impl MeshTrouble {
    /// All kinds, the first of which is none.
    pub const ALL: [Self; 3] = [Self::None, Self::Lost, Self::Hostile];

    /// Its name on a command line.
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
    /// How many agents shall come.
    size: usize,
    /// The last entry that was looked at.
    seen: LogIndex,
}

impl Fleet {
    /// Three servers, of which one leads, and no agent as yet. One in so many datagrams is lost;
    /// none for 0. Programs think for so long between two requests.
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
        // The state grows with the fleet, and with it both the entries and each look at all of it.
        world.judge.history.check_every = 1 + options.agents as u64 / 16;
        let mut fleet = Self { world, size: options.agents, seen: LogIndex(0) };
        fleet.run_until_so("a server leads", |fleet| fleet.world.machines.values().any(|m| m.serves()))?;
        Ok(fleet)
    }

    /// All agents come at once.
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

    /// Lets everything happen up to a time.
    ///
    /// # Errors
    /// An invariant is broken, in words.
    fn run_until(&mut self, until: Time) -> Result<(), String> {
        while self.world.stage.is_due(until) {
            self.step()?;
        }
        Ok(())
    }

    /// Lets one event happen.
    fn step(&mut self) -> Result<(), String> {
        self.world.step();
        match self.world.judge.violations.first() {
            None => Ok(()),
            Some(broken) => Err(format!("{} is broken: {}", broken.invariant, broken.what)),
        }
    }

    /// Lets everything happen until something is so, which is looked at ten times a second.
    ///
    /// # Errors
    /// An invariant is broken, or it never becomes so, in words.
    fn run_until_so(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), String> {
        let began = self.now();
        while !is_so(self) {
            if self.now().since(began) > BOUND {
                return Err(format!("after {BOUND:?} it is not so yet that {what}"));
            }
            self.run_until(self.now() + Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// The verdicts among the entries that were not looked at before, and when each was applied.
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

    /// Whether a host's own program holds its lock.
    fn holds_own(&self, host: usize) -> bool {
        self.residents(host).any(|resident| resident.holds_own(self.state()).is_some())
    }
}

/// An entry by which a node's sessions end, or the node has failed.
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
