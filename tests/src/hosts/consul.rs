//! The same host failure under Consul. The holder's host loses its link, and a waiter on another
//! host acquires the lock: once under Lockmesh and once under Consul, on the same hosts in one run.
//!
//! Consul is used as intended: `consul agent` on every host, `consul lock` for the waiters, and for
//! the holder if its options suffice. `consul lock` has no option for the lock-delay, so a holder
//! without a delay is a session of the HTTP API.

use super::belief::{Belief, BootTime, overlaps};
use super::connect;
use super::expectation::{LockDelay, Window};
use super::fault::{self, HOLDER};
use super::guard::{Guard, records};
use super::members::{AGENTS, Hosts, SERVERS, json, wait_within};
use super::network::Network;
use super::report::{median, seconds};
use super::round::Plan;
use crate::cluster::ask_quickly;
use crate::dialect::let_pass;
use crate::http::{Address, Client};
use crate::member::text;
use crate::process::Process;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The lock-delays of the holder's session: Consul's default, and none.
const LOCK_DELAYS: [&str; 2] = ["15s", "0s"];
/// The maximum time for any step under Consul: it retries a failed node only twice per minute.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The time that waiters with a session have to start waiting. Consul has no visible queue.
const BEGINNING: Duration = Duration::from_secs(1);
/// The flags of keys that `consul lock` acquires; it rejects others.
const LOCK_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

/// The failover times under one system.
#[derive(Clone, Debug, Serialize)]
pub struct Failovers {
    /// The system, and the window of the session if it has one.
    pub system: String,
    /// The lock-delay of the holder's session.
    pub lock_delay: &'static str,
    /// Seconds from the loss of the link until a waiter held the lock; `None` if none did.
    pub seconds: Vec<Option<f64>>,
    /// The median of the completed failovers.
    pub median_seconds: Option<f64>,
    /// The number of pairs of holders that believed at the same moment, as far as holders were
    /// recorded.
    pub overlaps: usize,
}

/// All systems side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// A row for each system and lock-delay.
    pub rows: Vec<Failovers>,
}

impl Comparison {
    /// Returns `true` if every lock passed on, and no lock of ours had two holders.
    pub fn is_clean(&self) -> bool {
        let is_ours = |row: &Failovers| row.system.starts_with("lockmesh");
        let is_clean = |row: &Failovers| row.overlaps == 0 && row.seconds.iter().all(Option::is_some);
        self.rows.iter().filter(|row| is_ours(row)).all(is_clean)
    }

    /// Runs both systems, inside the sandbox with this folder.
    pub fn run(consul: &Path, windows: &[Window], rounds: usize, folder: &Path, keep: &Path) -> Self {
        let mut hosts = Hosts::start(connect(), folder, Window::shortest_ttl(windows));
        let mut rows = Vec::new();
        for window in windows {
            rows.extend(LOCK_DELAYS.map(|lock_delay| of_lockmesh(&mut hosts, *window, lock_delay, rounds)));
        }
        hosts.save_said(keep);
        let consul = Consul::start(consul, hosts.end(), folder);
        rows.extend(LOCK_DELAYS.map(|lock_delay| consul.failovers(lock_delay, rounds)));
        Self { rows }
    }
}

fn of_lockmesh(hosts: &mut Hosts, window: Window, lock_delay: &'static str, rounds: usize) -> Failovers {
    let fault = &fault::LINK_DOWN;
    let delay = if lock_delay == LOCK_DELAYS[0] { LockDelay::Shipped } else { LockDelay::None };
    let rounds = (1..=rounds).map(|number| {
        let round = Plan { fault, window, lock_delay: delay, number }.run(hosts);
        (round.seconds, round.overlaps)
    });
    Failovers::new(format!("lockmesh, {window}"), lock_delay, rounds)
}

impl Failovers {
    fn new(
        system: String,
        lock_delay: &'static str,
        rounds: impl Iterator<Item = (Option<f64>, usize)>,
    ) -> Self {
        let rounds = rounds.inspect(|(taken, _)| {
            eprintln!("{system}, lock-delay {lock_delay}: {} s", seconds(*taken));
        });
        let (seconds, overlaps): (Vec<Option<f64>>, Vec<usize>) = rounds.unzip();
        let ended: Vec<f64> = seconds.iter().flatten().copied().collect();
        let (median_seconds, overlaps) = (median(&ended), overlaps.iter().sum());
        Self { system, lock_delay, seconds, median_seconds, overlaps }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:<10} {:>8} {:>8}  each", "system", "lock-delay", "median s", "overlaps")?;
        for row in &self.rows {
            let each: Vec<String> = row.seconds.iter().map(|taken| seconds(*taken)).collect();
            let (middle, each) = (seconds(row.median_seconds), each.join(" "));
            writeln!(f, "{:<18} {:<10} {middle:>8} {:>8}  {each}", row.system, row.lock_delay, row.overlaps)?;
        }
        Ok(())
    }
}

/// Consul on all hosts. Dropping it ends the processes.
struct Consul {
    program: String,
    network: Network,
    folder: PathBuf,
    agents: Vec<Process>,
}

impl Consul {
    fn start(program: &Path, network: Network, folder: &Path) -> Self {
        let folder = folder.join("consul");
        fs::create_dir(&folder).expect("the folder can be written to");
        let mut consul = Self { program: text(program), network, folder, agents: Vec::new() };
        let join = SERVERS.map(|host| format!("-retry-join={}", consul.network.address(host)));
        for host in SERVERS.into_iter().chain(AGENTS) {
            let data = format!("-data-dir={}", text(&consul.folder.join(host)));
            let (bind, node) = (format!("-bind={}", consul.network.address(host)), format!("-node={host}"));
            let http = format!("addresses {{ http = \"{}\" }}", consul.socket_option(host));
            let mut words = vec![consul.program.as_str(), "agent", "-log-level=warn", "-retry-interval=1s"];
            words.extend(["-hcl", &http, &data, &bind, &node]);
            words.extend(join.iter().map(String::as_str));
            if SERVERS.contains(&host) {
                words.extend(["-server", "-bootstrap-expect=3"]);
            }
            let agent = Process::start(Path::new("ip"), &[&consul.network.on(host)[..], &words].concat());
            consul.agents.push(agent);
        }
        AGENTS.into_iter().for_each(|host| consul.wait_until_healthy(host));
        consul
    }

    fn socket_option(&self, host: &str) -> String {
        format!("unix://{}", text(&self.folder.join(format!("{host}.sock"))))
    }

    fn client(&self, host: &str) -> Client {
        Client { address: Address::Unix(self.folder.join(format!("{host}.sock"))) }
    }

    /// Waits until a host's agent serves, and the servers consider its node healthy.
    fn wait_until_healthy(&self, host: &str) {
        let healthy = wait_within(TIMEOUT, || {
            ask_quickly(&self.client(host), "GET", "/v1/kv/?keys&consistent")
                .filter(|answer| [200, 404].contains(&answer.status))?;
            let health = json(&self.client(AGENTS[1]), &format!("/v1/health/node/{host}?consistent"))?;
            (health.as_array()?.first()?["Status"] == "passing").then_some(())
        });
        assert!(healthy.is_some(), "Consul on {host} does not become healthy");
    }

    fn failovers(&self, lock_delay: &'static str, rounds: usize) -> Failovers {
        let rounds = (1..=rounds).map(|number| self.failover(lock_delay, number));
        Failovers::new("consul 1.8.7".into(), lock_delay, rounds)
    }

    /// Runs one failover. Returns its duration and the number of overlapping beliefs.
    fn failover(&self, lock_delay: &str, number: usize) -> (Option<f64>, usize) {
        let name = format!("consul-{lock_delay}-{number}");
        let records = records(&self.folder, &name);
        let guard = |host: &'static str| {
            let address = format!("-http-addr={}", self.socket_option(host));
            let command = [&self.program, "lock", &address, "-shell=false", &name];
            Guard::start(&self.network, host, &command, &records.join(host))
        };
        let holder = match lock_delay {
            "15s" => Some(guard(HOLDER)),
            _ => {
                self.hold(&name, lock_delay);
                None
            }
        };
        if let Some(holder) = &holder {
            wait_within(TIMEOUT, || holder.belief()).expect("the holder acquires the lock first");
        }
        let contenders = [AGENTS[1], AGENTS[2]].map(guard);
        let all_ask = || {
            let sessions = json(&self.client(AGENTS[3]), "/v1/session/list?consistent")?;
            (sessions.as_array()?.len() >= 3).then_some(())
        };
        wait_within(TIMEOUT, all_ask).expect("each has a session");
        let_pass(BEGINNING);

        let struck = BootTime::now();
        self.network.unplug(HOLDER);
        let next = || contenders.iter().filter_map(Guard::belief).min_by_key(|belief| belief.first);
        let next = wait_within(TIMEOUT, next);
        self.network.plug(HOLDER);
        let ended = holder.into_iter().chain(contenders).map(|guard| guard.end().0);
        let beliefs: Vec<Belief> = ended.flatten().collect();
        self.wait_until_healthy(HOLDER);
        (next.map(|next| next.first.since(struck)), overlaps(&beliefs))
    }

    /// Holds the lock as `consul lock` does, but with this lock-delay, for a session that lives as
    /// long as its node.
    fn hold(&self, name: &str, lock_delay: &str) {
        let client = self.client(HOLDER);
        let session = client.session_of(json!({"Name": name, "LockDelay": lock_delay}));
        let path = format!("/v1/kv/{name}/.lock?acquire={session}&flags={LOCK_FLAGS}");
        assert!(client.put(&path, "").is_true(), "a new lock is free");
    }
}
