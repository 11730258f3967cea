//! A rolling upgrade of real processes under load: three servers and three agents of an older build
//! are replaced one after another, servers first; then the newer build replaces itself, with
//! sessions on the checks that the older one may not know.
//!
//! | module | contents |
//! |---|---|
//! | `holds` | the locks that are held or acquired in turn meanwhile |
//! | `checked` | sessions on a TTL check, and on an HTTP check of a service |
//!
//! **Expected:** no session is lost, and no write fails except at an agent that is being replaced.
//! Every acknowledged write exists in the end, fences only increase, and the cluster's format is
//! upgraded after the last server is replaced. Agents of the older build then still answer every
//! read.

pub mod checked;
pub mod holds;

use crate::cluster::{Cluster, SERVERS};
use crate::dialect::let_pass;
use crate::http::Client;
use crate::stall::clients::{Answers, Clients, Failed};
use checked::Checked;
use holds::{Held, Turns, first_fall};
use lockmesh_protocol::format;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The number of agents.
const AGENTS: usize = 3;
/// The number of renewed sessions at each agent.
const SESSIONS: usize = 10;
/// The undisturbed time before the next process is replaced.
const PEACE: Duration = Duration::from_secs(3);
/// The maximum wait for the new format after the last server was replaced.
const RAISE_LIMIT: Duration = Duration::from_secs(30);

/// The times at which a process was asked to exit and its successor served.
type Span = (Instant, Instant);

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct UpgradeReport {
    /// The downtime of each process, in seconds.
    pub away_seconds: Vec<(String, f64)>,
    /// The number of acknowledged writes.
    pub written: usize,
    /// The number of acknowledged renewals.
    pub renewed: usize,
    /// The number of requests that failed at an agent while it was replaced.
    pub failed_at_replaced: usize,
    /// The longest time without an acknowledged write while servers were replaced.
    pub gap_seconds: f64,
    /// The number of sessions that depended on checks.
    pub checked: usize,
    /// The number of turns of the repeatedly acquired lock.
    pub turns: usize,
    /// The format after the upgrade; `None` if it was not upgraded.
    pub raised_to: Option<u8>,
    /// Descriptions of all broken expectations.
    pub broken: Vec<String>,
}

/// Upgrades from the default program to this one.
pub fn run(disks: &[PathBuf], old: &Path, new: &Path) -> UpgradeReport {
    let all: Vec<usize> = (0..SERVERS).collect();
    let mut cluster = Cluster::start(disks, &[&all[..]; AGENTS], 1);
    cluster.wait_until_whole();
    let agents: Vec<_> = (0..AGENTS).map(|agent| cluster.client(agent)).collect();
    let key = |agent: usize| format!("upgrade/{agent}");
    let clients: Vec<Clients> =
        agents.iter().enumerate().map(|(n, agent)| Clients::start(agent, SESSIONS, &key(n))).collect();
    let windows = ["fast", "default", "safe"];
    let held = windows.iter().enumerate();
    let held: Vec<Held> =
        held.map(|(n, window)| Held::start(old, window, &agents[n], &agents[(n + 1) % AGENTS])).collect();
    let mut checked: Vec<Checked> = agents
        .iter()
        .enumerate()
        .map(|(n, agent)| Checked::start(agent, cluster.name(cluster.agent(n))))
        .collect();
    checked.iter_mut().for_each(|checked| _ = checked.register_service());
    let turns = Turns::start([old.to_owned(), new.to_owned()], agents.clone());
    let_pass(PEACE);

    cluster.use_program(new);
    let servers = replace_servers(&mut cluster);
    let raised_to = wait_for_format(&cluster);
    end_by_check(&agents);
    let replaced = replace_agents(&mut cluster);
    for (agent, checked) in checked.iter_mut().enumerate().filter(|(_, checked)| !checked.has_service()) {
        assert!(checked.register_service(), "agent {agent} of this build knows services");
    }
    let again = [replace_servers(&mut cluster), replace_agents(&mut cluster)];

    eprintln!("reading all writes");
    let mut report = UpgradeReport::new(raised_to);
    for (place, span) in servers.iter().chain(&replaced).chain(again.iter().flatten()) {
        report.away_seconds.push((cluster.name(*place).to_owned(), (span.1 - span.0).as_secs_f64()));
    }
    let meanwhile = (servers[0].1.0, replaced[0].1.0);
    for (agent, clients) in clients.into_iter().enumerate() {
        let is_alive = |session: &&String| agents[0].session_info(session).is_some();
        let lost = SESSIONS - clients.sessions().iter().filter(is_alive).count();
        let answers = clients.end();
        let stored = agents[0].get(&format!("/v1/kv/{}?raw", key(agent))).expect(200);
        let stored = String::from_utf8_lossy(&stored.body).parse().unwrap_or_default();
        let lost = lost.max(answers.lost);
        let away = [replaced[agent].1, again[1][agent].1];
        report.add(&Clientele { agent, answers, lost, stored, away }, meanwhile);
    }
    for checked in checked {
        let (count, lost) = checked.end();
        report.checked += count;
        report.broken.extend(lost);
    }
    eprintln!("ending the locks");
    let fences = turns.end();
    report.turns = fences.len();
    if let Some((before, after)) = first_fall(&fences) {
        report.broken.push(format!("a fence decreased from {before} to {after}"));
    }
    report.broken.extend(held.into_iter().flat_map(Held::end));
    report
}

/// The clients of one agent in the end.
struct Clientele {
    agent: usize,
    answers: Answers,
    /// The number of their sessions that ended.
    lost: usize,
    /// The number that is stored.
    stored: u64,
    /// The times in which the agent was replaced.
    away: [Span; 2],
}

/// Replaces every server, the leader last.
fn replace_servers(cluster: &mut Cluster) -> Vec<(usize, Span)> {
    let leader = cluster.wait_for_leader();
    let order = (1..=SERVERS).map(|step| (leader + step) % SERVERS);
    order.map(|place| (place, replace(cluster, place))).collect()
}

/// Replaces every agent.
fn replace_agents(cluster: &mut Cluster) -> Vec<(usize, Span)> {
    (0..AGENTS).map(|agent| SERVERS + agent).map(|place| (place, replace(cluster, place))).collect()
}

/// Stops a process gracefully and starts the new program in its place.
fn replace(cluster: &mut Cluster, place: usize) -> Span {
    eprintln!("replacing {}", cluster.name(place));
    let begun = Instant::now();
    cluster.end_kindly(place);
    cluster.begin(place);
    cluster.wait_until_whole();
    let span = (begun, Instant::now());
    let_pass(PEACE);
    span
}

/// Records a loss with a cause that the agents of the older build cannot decode. A server that sent
/// it to them unchanged would cost them their connection, and their sessions in the end.
fn end_by_check(agents: &[Client]) {
    let register = |status: &str| {
        let check = json!({"CheckID": "up", "Status": status, "Output": "connection refused"});
        let node = json!({"Node": "upgraded", "Address": "10.0.0.1", "Check": check});
        agents[0].put("/v1/catalog/register", node.to_string()).expect(200);
    };
    register("passing");
    let session = agents[0].session_of(json!({"Node": "upgraded", "NodeChecks": ["up"]}));
    register("critical");
    for agent in agents {
        let losses = agent.get("/v1/lockmesh/losses").expect(200).json();
        let mut losses = losses.as_array().into_iter().flatten();
        let loss = losses.find(|loss| loss["Session"] == session.as_str()).expect("the session has ended");
        assert_eq!((&loss["Cause"], &loss["CheckID"]), (&json!("check-critical"), &json!("up")));
    }
}

/// Waits until a server logs the upgrade to the newest format of this build. Returns `None` if
/// there is no newer format or no server logs it.
fn wait_for_format(cluster: &Cluster) -> Option<u8> {
    let newest = format::NEWEST;
    let word = format!("format={newest}");
    let begun = Instant::now();
    while newest > format::FIRST && begun.elapsed() < RAISE_LIMIT {
        let mut said = (0..SERVERS).map(|place| cluster.said_at(place));
        if said.any(|said| said.lines().any(|line| line.split_whitespace().any(|found| found == word))) {
            return Some(newest);
        }
        let_pass(Duration::from_millis(100));
    }
    None
}

impl UpgradeReport {
    fn new(raised_to: Option<u8>) -> Self {
        let missing = raised_to.is_none() && format::NEWEST > format::FIRST;
        let broken = missing.then(|| format!("no server upgraded the format to {}", format::NEWEST));
        Self {
            away_seconds: Vec::new(),
            written: 0,
            renewed: 0,
            failed_at_replaced: 0,
            gap_seconds: 0.0,
            checked: 0,
            turns: 0,
            raised_to,
            broken: broken.into_iter().collect(),
        }
    }

    /// Adds the clients of one agent, with the time in which servers were replaced.
    fn add(&mut self, clients: &Clientele, servers: Span) {
        let Clientele { agent, answers, lost, stored, away } = clients;
        let name = format!("a{}", agent + 1);
        self.written += answers.written.len();
        self.renewed += answers.renewed;
        let meanwhile = |at: &&Instant| (servers.0..servers.1).contains(*at);
        let written: Vec<Instant> = answers.written.iter().filter(meanwhile).copied().collect();
        let gap = Answers { written, ..Answers::default() }.longest_gap().as_secs_f64();
        self.gap_seconds = self.gap_seconds.max(gap);
        if *lost > 0 {
            self.broken.push(format!("{name}: {lost} of {SESSIONS} sessions were lost"));
        }
        if *stored < answers.last_written {
            let last = answers.last_written;
            self.broken.push(format!("{name}: write {last} was acknowledged, but {stored} is stored"));
        }
        for (what, failed) in [("write", &answers.failed), ("renewal", &answers.unrenewed)] {
            let (excused, wrong): (Vec<&Failed>, Vec<&Failed>) =
                failed.iter().partition(|failed| failed.is_during(away));
            self.failed_at_replaced += excused.len();
            if let Some(first) = wrong.first() {
                let count = wrong.len();
                self.broken
                    .push(format!("{name}: {count} {what}s failed, the first one with {}", first.reason));
            }
        }
    }
}

impl fmt::Display for UpgradeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, seconds) in &self.away_seconds {
            writeln!(f, "{name} was replaced in {seconds:.2} s")?;
        }
        writeln!(
            f,
            "{} writes, {} renewals, {} sessions on checks, {} turns of a lock; {} requests failed at an agent that \
             was replaced",
            self.written, self.renewed, self.checked, self.turns, self.failed_at_replaced
        )?;
        writeln!(f, "longest time without a write while servers were replaced: {:.2} s", self.gap_seconds)?;
        match self.raised_to {
            Some(format) => writeln!(f, "the cluster was upgraded to format {format}")?,
            None => writeln!(f, "the cluster kept its format")?,
        }
        self.broken.iter().try_for_each(|line| writeln!(f, "BROKEN: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_excused_only_during_absence() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let failed = Failed { span: (at(11), at(12)), reason: "refused".into() };
        let answers = Answers { failed: vec![failed], last_written: 7, ..Answers::default() };
        let mut report = UpgradeReport::new(Some(format::NEWEST));
        let away = [(at(10), at(13)), (at(20), at(21))];
        let mut clients = Clientele { agent: 0, answers, lost: 0, stored: 7, away };
        report.add(&clients, (at(0), at(10)));
        assert_eq!((report.broken.len(), report.failed_at_replaced), (0, 1));
        clients =
            Clientele { agent: 1, lost: 2, stored: 6, away: [(at(13), at(15)), (at(20), at(21))], ..clients };
        report.add(&clients, (at(0), at(10)));
        let broken = report.broken.join("; ");
        for expected in
            ["a2: 2 of 10 sessions", "write 7 was acknowledged, but 6", "1 writes failed, the first"]
        {
            assert!(broken.contains(expected), "{broken}");
        }
    }
}
