//! The cost and the speed of the mesh with hundreds of real agents. They join, stay idle, three
//! tenths of them are killed at once, and restart.
//!
//! **Expected:** each step completes within a bound, and no living agent is failed.

use super::crowd::{Crowd, OBSERVER};
use super::members::wait_within;
use super::mesh_report::{Deaths, Idle, Joined, MeshReport, ServerCost};
use super::network::raise_loopback;
use super::report::median;
use super::traffic::Meter;
use crate::dialect::let_pass;
use crate::probe::{private_bytes, processor_time, resident_bytes};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// The idle time before a measurement, after all agents know each other.
const SETTLE: Duration = Duration::from_secs(5);
/// The number of agents started at once; the next ones follow when these are registered. With more,
/// handshakes on the processors of one machine take so long that all time out and retry.
const STARTED: usize = 100;
/// The interval of progress messages.
const PROGRESS: Duration = Duration::from_secs(5);
/// The maximum time for a step, and the additional time per agent.
const LIMIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(250));
/// The pause before a retry after a missing reply.
const GLANCE: Duration = Duration::from_millis(100);

/// The number of other members that an agent knows.
const MEMBERS: &str = "lockmesh_agent_mesh_members";
/// The number of datagrams that the mesh has sent.
const SENT: &str = "lockmesh_agent_mesh_events_total{event=\"sent\"}";
/// 1 while an agent is registered.
const REGISTERED: &str = "lockmesh_upstream_registered";
/// The number of registrations: a failed agent registers again.
const REGISTRATIONS: &str = "lockmesh_upstream_registrations_total";

/// Runs the measurement with this number of agents and this idle time; keeps logs if an expectation
/// is broken.
pub fn measure(folder: &Path, keep: &Path, agents: usize, idle: Duration) -> MeshReport {
    raise_loopback();
    eprintln!("three servers and {agents} agents");
    let mut run = Run::new(Crowd::new(folder, agents));
    let joined = run.begin(OBSERVER + 1..agents);
    let registered = run.registrations(0..agents);
    let idle = run.idle(idle);
    let killed = agents - (agents * 3 / 10).max(1)..agents;
    let deaths = run.deaths(killed.clone());
    run.none_registered_again(&registered, 0..killed.start);
    let back = run.begin(killed);
    if !run.broken.is_empty() {
        run.crowd.save_said(keep, &run.unwell);
    }
    MeshReport { agents, joined, idle, deaths, back, broken: run.broken }
}

/// The agents, and the broken expectations.
struct Run {
    crowd: Crowd,
    limit: Duration,
    broken: Vec<String>,
    /// Agents that broke an expectation.
    unwell: Vec<usize>,
}

impl Run {
    fn new(crowd: Crowd) -> Self {
        let limit = LIMIT.0 + LIMIT.1 * u32::try_from(crowd.agents()).expect("agents are few");
        Self { crowd, limit, broken: Vec::new(), unwell: Vec::new() }
    }

    /// Starts agents, and waits until all agents know all.
    fn begin(&mut self, agents: Range<usize>) -> Joined {
        let (meter, starting) = (Meter::start(), Instant::now());
        let mut since = starting;
        for group in agents.clone().step_by(STARTED).map(|first| first..agents.end.min(first + STARTED)) {
            self.crowd.begin(group.clone());
            since = Instant::now();
            self.wait_for_figure("to be registered", since, group, REGISTERED, 1);
        }
        let started_seconds = (since - starting).as_secs_f64();
        let alive_seconds = self.wait_for_alive(since);
        let all = 0..self.crowd.agents();
        let known_seconds =
            self.wait_for_figure("to know all others", since, all, MEMBERS, self.crowd.agents() - 1);
        let (traffic, agents) = (meter.stop(), self.crowd.agents() as f64);
        Joined { started_seconds, alive_seconds, known_seconds, bytes: traffic.bytes / agents }
    }

    /// Leaves the agents idle and measures them.
    fn idle(&mut self, length: Duration) -> Idle {
        eprintln!("idle for {} s", (SETTLE + length).as_secs());
        let_pass(SETTLE);
        let all = 0..self.crowd.agents();
        let sent = self.figures(all.clone(), SENT);
        let (meter, used, servers) = (Meter::start(), self.used(all.clone()), self.servers_used());
        let_pass(length);
        let (used_after, servers_after, traffic) =
            (self.used(all.clone()), self.servers_used(), meter.stop());
        let sent_after = self.figures(all.clone(), SENT);
        let agents = self.crowd.agents() as f64;
        let datagrams: f64 = sent_after.iter().map(|(agent, sent_by)| sent_by - sent[agent]).sum();
        let cores: Vec<f64> = used_after
            .iter()
            .zip(&used)
            .map(|(after, before)| (*after - *before).as_secs_f64() / traffic.seconds)
            .collect();
        let resident = self.mebibytes(all.clone(), resident_bytes);
        let servers = self.crowd.servers().into_iter().zip(servers_after.iter().zip(&servers));
        Idle {
            seconds: traffic.seconds,
            datagrams: datagrams / traffic.seconds / agents,
            packets: traffic.packets / agents,
            bytes: traffic.bytes / agents,
            cores: cores.iter().sum::<f64>() / agents,
            worst_cores: cores.into_iter().fold(0.0, f64::max),
            resident_mib: median(&resident).expect("there are agents"),
            worst_resident_mib: resident.into_iter().fold(0.0, f64::max),
            private_mib: median(&self.mebibytes(all, private_bytes)).expect("there are agents"),
            servers: servers
                .map(|(process, (after, before))| ServerCost {
                    cores: (*after - *before).as_secs_f64() / traffic.seconds,
                    resident_mib: mebibytes(resident_bytes(process)),
                })
                .collect(),
        }
    }

    /// Kills agents at once, and waits until the servers have failed them and no agent has them in
    /// its mesh.
    fn deaths(&mut self, killed: Range<usize>) -> Deaths {
        eprintln!("{} agents are killed at once", killed.len());
        let living = 0..killed.start;
        let (meter, since) = (Meter::start(), Instant::now());
        self.crowd.kill(killed.clone());
        let mut failed = BTreeMap::new();
        let (mut index, mut told) = (0, Instant::now());
        let is_missing = |failed: &BTreeMap<String, f64>, crowd: &Crowd, agent: usize| {
            !failed.contains_key(crowd.name(agent))
        };
        while since.elapsed() < self.limit
            && killed.clone().any(|agent| is_missing(&failed, &self.crowd, agent))
        {
            let Some((next, nodes)) = self.crowd.failed_since(index) else {
                let_pass(GLANCE);
                continue;
            };
            index = next;
            for node in nodes {
                failed.entry(node).or_insert_with(|| since.elapsed().as_secs_f64());
            }
            if told.elapsed() > PROGRESS {
                eprintln!("{} are failed", failed.len());
                told = Instant::now();
            }
        }
        let traffic = meter.stop();
        let late: Vec<usize> =
            killed.clone().filter(|agent| is_missing(&failed, &self.crowd, *agent)).collect();
        let wrong: Vec<usize> =
            living.clone().filter(|agent| !is_missing(&failed, &self.crowd, *agent)).collect();
        let is_whole = late.is_empty();
        self.breaks("were killed and not failed", late);
        self.breaks("were failed and live", wrong);
        let mut seconds: Vec<f64> =
            killed.clone().filter_map(|agent| failed.get(self.crowd.name(agent)).copied()).collect();
        seconds.sort_by(f64::total_cmp);
        let forgotten_seconds = self.wait_for_figure(
            "to know all living agents",
            since,
            living.clone(),
            MEMBERS,
            living.len() - 1,
        );
        let count = killed.len();
        self.crowd.wait_for_end(killed);
        Deaths {
            killed: count,
            first_failed_seconds: seconds.first().copied(),
            last_failed_seconds: seconds.last().copied().filter(|_| is_whole),
            forgotten_seconds,
            bytes: traffic.bytes / living.len() as f64,
            worst_bytes: traffic.worst_bytes / living.len() as f64,
        }
    }

    /// Waits until the servers list all agents as alive. Returns the seconds since `since`.
    fn wait_for_alive(&mut self, since: Instant) -> Option<f64> {
        let (crowd, mut missing) = (&self.crowd, Vec::new());
        let done = wait_within(self.limit, || {
            let states = crowd.states()?;
            let is_alive =
                |agent: &usize| states.get(crowd.name(*agent)).is_some_and(|state| state == "alive");
            missing = (0..crowd.agents()).filter(|agent| !is_alive(agent)).collect();
            missing.is_empty().then(|| since.elapsed().as_secs_f64())
        });
        self.breaks("were not alive to the servers in time", missing);
        done
    }

    /// Waits until a metric has this value at each of these agents. Returns the seconds since
    /// `since`.
    fn wait_for_figure(
        &mut self,
        what: &str,
        since: Instant,
        agents: Range<usize>,
        series: &str,
        value: usize,
    ) -> Option<f64> {
        let (crowd, mut missing, mut told) = (&self.crowd, agents.collect::<Vec<_>>(), Instant::now());
        let is_so = |agent: usize| crowd.figure(agent, series) == Some(value as f64);
        let done = wait_within(self.limit, || {
            while missing.last().is_some_and(|agent| is_so(*agent)) {
                missing.pop();
            }
            // Each pass polls only one missing agent without success: polling slows agents that are
            // still starting.
            let turn = missing.len().min(1);
            missing.rotate_right(turn);
            if told.elapsed() > PROGRESS {
                let names = crowd.names(&missing);
                eprintln!("{} agents are waited for {what}: {names}", missing.len());
                told = Instant::now();
            }
            missing.is_empty().then(|| since.elapsed().as_secs_f64())
        });
        missing.retain(|agent| !is_so(*agent));
        self.breaks(&format!("timed out waiting {what}"), missing);
        done
    }

    /// Checks registrations: an agent that registered again without a kill had been failed.
    fn none_registered_again(&mut self, before: &BTreeMap<usize, f64>, agents: Range<usize>) {
        let again = self.registrations(agents.clone());
        let wrong = agents.filter(|agent| again.get(agent) != before.get(agent)).collect();
        self.breaks("registered again, or do not answer, and were not killed", wrong);
    }

    fn registrations(&self, agents: Range<usize>) -> BTreeMap<usize, f64> {
        self.figures(agents, REGISTRATIONS)
    }

    /// Returns a metric of each of these agents that replies.
    fn figures(&self, agents: Range<usize>, series: &str) -> BTreeMap<usize, f64> {
        agents.filter_map(|agent| Some((agent, self.crowd.figure(agent, series)?))).collect()
    }

    fn used(&self, agents: Range<usize>) -> Vec<Duration> {
        agents.map(|agent| processor_time(self.crowd.number(agent))).collect()
    }

    fn servers_used(&self) -> Vec<Duration> {
        self.crowd.servers().into_iter().map(processor_time).collect()
    }

    fn mebibytes(&self, agents: Range<usize>, look: fn(u32) -> usize) -> Vec<f64> {
        agents.map(|agent| mebibytes(look(self.crowd.number(agent)))).collect()
    }

    /// Records the agents that broke an expectation, if any.
    fn breaks(&mut self, what: &str, agents: Vec<usize>) {
        if agents.is_empty() {
            return;
        }
        let line = format!("{} agents {what}: {}", agents.len(), self.crowd.names(&agents));
        eprintln!("{line}");
        self.broken.push(line);
        self.unwell.extend(agents);
    }
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
