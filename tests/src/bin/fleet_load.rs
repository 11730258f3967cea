//! Very many agents that do nothing but renew their leases, and what they cost the servers:
//! `fleet_load [--agents N] [--window fast|default|none]… [--seconds N] [--json]`; 1,000 agents,
//! with a `default` session each and then with a `fast` one, for 30 s, unless told otherwise. With
//! `none` they have no session.
//!
//! The agents are stand-ins in this process, each with a socket and connections of its own; the
//! three servers are processes, of the build that `LOCKMESH_BIN` names if it is set. Prints a line,
//! or an object of JSON, for each window. Fails with 1 where an agent's lease is not acknowledged
//! or ends, and with 2 where it does not know what is wanted.

use lockmesh_protocol::lease::HealthWindow;
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::fleet::Fleet;
use lockmesh_tests::probe::{processor_time, resident_bytes};
use lockmesh_tests::stand_ins::{Issuer, StandIn};
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as never.
const NEVER: Duration = Duration::from_secs(120);

/// So many agents come at once. This one process has the processors of all of them: of more, none
/// would have its handshakes done before it gives them up and begins anew.
const CONNECTING: usize = 25;

/// After all sessions are there, agents renew for so long before anything is measured.
const SETTLE: Duration = Duration::from_secs(3);

struct Wanted {
    agents: usize,
    windows: Vec<Option<HealthWindow>>,
    seconds: u64,
    json: bool,
}

/// What it cost while all renewed.
#[derive(Serialize)]
struct Cost {
    agents: usize,
    window: &'static str,
    seconds: f64,
    /// Until all were registered and acknowledged.
    joined_seconds: f64,
    /// Acknowledged, of all agents.
    renewals_a_second: f64,
    /// The leader first.
    servers: Vec<ServerCost>,
    /// Of this process, with all agents.
    agents_cores: f64,
    leases_lost: usize,
}

#[derive(Serialize)]
struct ServerCost {
    server: String,
    /// Of one core.
    cores: f64,
    resident_mib: f64,
}

fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(problem) => {
            eprintln!("fleet_load: {problem}; see the first lines of tests/src/bin/fleet_load.rs");
            return ExitCode::from(2);
        }
    };
    let mut is_well = true;
    for window in &wanted.windows {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        match runtime.expect("a runtime can be started").block_on(measure(&wanted, *window)) {
            Ok(cost) if wanted.json => println!("{}", serde_json::to_string(&cost).expect("it is JSON")),
            Ok(cost) => println!("{cost}"),
            Err(problem) => {
                eprintln!("fleet_load: {problem}");
                is_well = false;
            }
        }
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Wanted {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wanted = Self { agents: 1_000, windows: Vec::new(), seconds: 30, json: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--agents" => wanted.agents = number(&word, &value()?, 1..=10_000)? as usize,
                "--seconds" => wanted.seconds = number(&word, &value()?, 1..=3_600)?,
                "--window" => wanted.windows.push(window(&value()?)?),
                "--json" => wanted.json = true,
                other => return Err(format!("there is no option {other}")),
            }
        }
        if wanted.windows.is_empty() {
            wanted.windows = vec![Some(HealthWindow::Default), Some(HealthWindow::Fast)];
        }
        Ok(wanted)
    }
}

/// Starts servers and agents, and lets them renew.
async fn measure(wanted: &Wanted, window: Option<HealthWindow>) -> Result<Cost, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = Fleet::start(folder.path(), "3");
    let servers: Vec<String> = fleet
        .servers()
        .iter()
        .map(|server| server["Address"].as_str().expect("an address").to_owned())
        .collect();
    let issuer = Issuer::of(&folder.path().join("tls"));
    let began = Instant::now();
    let mut agents: Vec<StandIn> = Vec::new();
    while agents.len() < wanted.agents {
        let group = agents.len()..wanted.agents.min(agents.len() + CONNECTING);
        agents.extend(group.map(|number| StandIn::start(&issuer, number, &servers)));
        let all = async {
            for agent in agents.iter().rev().take(CONNECTING) {
                agent.is_acknowledged().await;
            }
        };
        if tokio::time::timeout(NEVER, all).await.is_err() {
            return Err(what_is_missing(&agents));
        }
    }
    let joined_seconds = began.elapsed().as_secs_f64();
    if let Some(window) = window {
        for agent in &agents {
            agent.begin_session(window).await?;
        }
    }
    // This thread is none of those that serve the agents.
    let_pass(SETTLE);
    let names = by_rank(&fleet);
    let (began, before) = (Instant::now(), Used::now(&fleet, &names, &agents));
    let_pass(Duration::from_secs(wanted.seconds));
    let (seconds, after) = (began.elapsed().as_secs_f64(), Used::now(&fleet, &names, &agents));
    let cores = |after: Duration, before: Duration| (after - before).as_secs_f64() / seconds;
    let server = |(place, name): (usize, &String)| ServerCost {
        server: name.clone(),
        cores: cores(after.servers[place], before.servers[place]),
        resident_mib: resident_bytes(pid(&fleet, name)) as f64 / f64::from(1 << 20),
    };
    let cost = Cost {
        agents: wanted.agents,
        window: window.map_or("none", HealthWindow::as_str),
        seconds,
        joined_seconds,
        renewals_a_second: (after.renewals - before.renewals) as f64 / seconds,
        servers: names.iter().enumerate().map(server).collect(),
        agents_cores: cores(after.own, before.own),
        leases_lost: agents.iter().filter(|agent| agent.upstream.lease().borrow().ended.is_some()).count(),
    };
    StandIn::close_all(agents).await;
    tokio::task::spawn_blocking(|| fleet.stop()).await.expect("it ends");
    match cost.leases_lost {
        0 => Ok(cost),
        lost => Err(format!("the leases of {lost} agents ended while they renewed: {cost}")),
    }
}

/// Whose lease is not acknowledged, and why.
fn what_is_missing(agents: &[StandIn]) -> String {
    let missing = agents.iter().filter(|agent| agent.upstream.lease().borrow().renewed.is_none());
    let missing: Vec<&StandIn> = missing.collect();
    let first = missing.first().map(|agent| agent.upstream.not_ready());
    format!(
        "after {NEVER:?} the leases of {} agents are not acknowledged; the first: {first:?}",
        missing.len()
    )
}

/// All servers, the leader first.
fn by_rank(fleet: &Fleet) -> Vec<String> {
    let mut servers = fleet.servers();
    servers.sort_by_key(|server| server["Leader"] != true);
    servers.iter().map(|server| server["Node"].as_str().expect("a name").to_owned()).collect()
}

fn pid(fleet: &Fleet, server: &str) -> u32 {
    fleet.pid(server).parse().expect("a number")
}

/// What only grows.
struct Used {
    servers: Vec<Duration>,
    own: Duration,
    renewals: u64,
}

impl Used {
    fn now(fleet: &Fleet, servers: &[String], agents: &[StandIn]) -> Self {
        let counted = agents.iter().filter_map(|agent| agent.upstream.counters());
        Self {
            servers: servers.iter().map(|name| processor_time(pid(fleet, name))).collect(),
            own: processor_time(std::process::id()),
            renewals: counted.map(|counters| counters.renewals_acknowledged.load(Ordering::Relaxed)).sum(),
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} agents, {}: all came in {:.1} s; for {:.0} s {:.0} renewals a second were acknowledged;",
            self.agents, self.window, self.joined_seconds, self.seconds, self.renewals_a_second
        )?;
        for (place, server) in self.servers.iter().enumerate() {
            let role = if place == 0 { "leader" } else { "follower" };
            let (cores, memory) = (100.0 * server.cores, server.resident_mib);
            write!(f, " {role} {} {cores:.1} % of a core and {memory:.1} MiB,", server.server)?;
        }
        write!(f, " all agents together {:.1} %", 100.0 * self.agents_cores)
    }
}

fn number(option: &str, word: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let number = word.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{option} {word}: say a number in {range:?}"))
}

fn window(word: &str) -> Result<Option<HealthWindow>, String> {
    match word {
        "none" => Ok(None),
        _ => HealthWindow::parse(word)
            .map(Some)
            .ok_or_else(|| format!("--window {word}: say fast, default or none")),
    }
}
