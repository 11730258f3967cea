//! All hosts join at once, when the servers have a leader. Measures the time until each host is
//! registered, and until each has its lease acknowledged.

use super::{Fleet, Options};
use lockmesh_protocol::record::MemberStatus;
use serde::Serialize;
use std::time::Duration;

/// Think time of a program between two requests.
const THINK: Duration = Duration::from_millis(100);

/// Results for a fleet that joined.
#[derive(Clone, Debug, Serialize)]
pub struct JoinReport {
    /// The number of agents.
    pub agents: usize,
    /// Virtual seconds until all were registered.
    pub registered: f64,
    /// Virtual seconds until each had received the leader's acknowledgement of its lease.
    pub acknowledged: f64,
    /// Virtual seconds until each host's program held its lock.
    pub locked: f64,
    /// The number of log entries for registrations, sessions and locks together.
    pub entries: u64,
    /// The number of times that an agent logged a failed registration; each succeeded in the end.
    pub attempts_failed: u64,
    /// The number of failed nodes.
    pub wrongly_failed: usize,
}

/// Lets all hosts join.
///
/// # Errors
/// A message if an invariant is broken, or if an agent never joins.
pub fn join(options: Options) -> Result<JoinReport, String> {
    let mut fleet = Fleet::of_servers(options, 0, false, THINK)?;
    let (began, before) = (fleet.now(), fleet.world.judge.history.last());
    fleet.begin_agents();
    let seconds = |fleet: &Fleet| fleet.now().since(began).as_secs_f64();
    fleet.run_until_so("all agents are registered", |fleet| {
        fleet.world.agents.iter().all(|agent| agent.registration().is_some())
    })?;
    let registered = seconds(&fleet);
    fleet.run_until_so("each has its lease", |fleet| {
        fleet.world.agents.iter().all(|agent| agent.lease().renewed.is_some())
    })?;
    let acknowledged = seconds(&fleet);
    fleet.run_until_so("all hosts hold their locks", |fleet| {
        (0..fleet.size).all(|host| fleet.holds_own(host))
    })?;
    let alive = fleet.state().agents().filter(|agent| agent.status == MemberStatus::Alive).count();
    if alive != options.agents {
        return Err(format!("{alive} of {} agents are live members", options.agents));
    }
    Ok(JoinReport {
        agents: options.agents,
        registered,
        acknowledged,
        locked: seconds(&fleet),
        entries: fleet.world.judge.history.last().0 - before.0,
        attempts_failed: fleet.world.agents.iter().map(|agent| agent.attempts_failed).sum(),
        wrongly_failed: fleet.verdicts().len(),
    })
}
