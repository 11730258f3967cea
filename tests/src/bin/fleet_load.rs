//! Measures the server load of thousands of agents that only renew their leases: `fleet_load
//! [--agents N] [--window fast|default|none]… [--mesh] [--seconds N] [--json]`. By default 1,000
//! agents run for 30 s, first with a `default` session each, then with a `fast` one. With `none`
//! they have no session. With `--mesh` they are silent members of the mesh, and one real agent
//! knows all of them; its cost is measured too.
//!
//! The agents are stand-ins in this process, each with its own socket and connections. The three
//! servers and the real agent are processes of the build in `LOCKMESH_BIN`, if set. Prints a line,
//! or a JSON object, for each window. Exits with 1 if an agent's lease is not acknowledged or ends,
//! and with 2 on invalid options.

use clap::Parser;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::Fleet;
use lockmesh_tests::options::between;
use lockmesh_tests::probe::{processor_time, resident_bytes};
use lockmesh_tests::stand_ins::{Issuer, StandIn};
use serde::Serialize;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time after which an operation counts as never done.
const NEVER: Duration = Duration::from_secs(120);

/// The number of agents that start at once. All of them share this process's processors: with more,
/// handshakes would time out and restart.
const CONNECTING: usize = 25;

/// The interval between polls of the real agent's mesh members.
const GLANCE: Duration = Duration::from_millis(100);

/// The real agent.
const AGENT: &str = "n1";

/// The time between the creation of all sessions and the measurement.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Parser)]
struct Wanted {
    #[arg(long, default_value_t = 1_000, value_parser = between::<1, 10_000, usize>)]
    agents: usize,
    #[arg(long = "window", default_values = ["default", "fast"], value_parser = window)]
    windows: Vec<Window>,
    #[arg(long)]
    mesh: bool,
    #[arg(long, default_value_t = 30, value_parser = between::<1, 3_600, u64>)]
    seconds: u64,
    #[arg(long)]
    json: bool,
}

/// The window of the agents' sessions; `None` without sessions.
#[derive(Clone, Copy)]
struct Window(Option<HealthWindow>);

/// The cost of the renewals.
#[derive(Serialize)]
struct Cost {
    agents: usize,
    window: &'static str,
    seconds: f64,
    /// Seconds until all agents were registered and acknowledged.
    joined_seconds: f64,
    /// Acknowledged renewals per second, of all agents.
    renewals_a_second: f64,
    /// The servers, the leader first.
    servers: Vec<ProcessCost>,
    /// The real agent.
    agent: ProcessCost,
    /// The number of other members in the real agent's mesh.
    mesh_members: usize,
    /// Processor use of this process, with all agents, as a fraction of one core.
    agents_cores: f64,
    leases_lost: usize,
}

#[derive(Serialize)]
struct ProcessCost {
    node: String,
    /// Processor use, as a fraction of one core.
    cores: f64,
    resident_mib: f64,
}

fn main() -> ExitCode {
    let wanted = Wanted::parse();
    let mut is_well = true;
    for window in &wanted.windows {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        match runtime.expect("a runtime can be started").block_on(measure(&wanted, window.0)) {
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

/// Starts servers and agents, and measures while the agents renew.
async fn measure(wanted: &Wanted, window: Option<HealthWindow>) -> Result<Cost, String> {
    let fleet = Fleet::new("3", &["--nodes", "1"]);
    let began = Instant::now();
    // No process reads this socket.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let gossip = wanted.mesh.then(|| silent.local_addr().expect("it is bound"));
    let agents = begin(&fleet, &Issuer::of(&fleet.folder.join("tls")), wanted.agents, gossip).await?;
    let joined_seconds = began.elapsed().as_secs_f64();
    if let Some(window) = window {
        for agent in &agents {
            agent.begin_session(window).await?;
        }
    }
    let mesh_members = if wanted.mesh { know_all(&fleet, wanted.agents)? } else { 0 };
    // Blocks this thread only; other threads serve the agents.
    let_pass(SETTLE);
    let names = [by_rank(&fleet), vec![AGENT.to_owned()]].concat();
    let (began, before) = (Instant::now(), Used::now(&fleet, &names, &agents));
    let_pass(Duration::from_secs(wanted.seconds));
    let (seconds, after) = (began.elapsed().as_secs_f64(), Used::now(&fleet, &names, &agents));
    let cores = |after: Duration, before: Duration| (after - before).as_secs_f64() / seconds;
    let process = |(place, name): (usize, &String)| ProcessCost {
        node: name.clone(),
        cores: cores(after.processes[place], before.processes[place]),
        resident_mib: resident_bytes(pid(&fleet, name)) as f64 / f64::from(1 << 20),
    };
    let mut servers: Vec<ProcessCost> = names.iter().enumerate().map(process).collect();
    let agent = servers.pop().expect("the agent is the last");
    let cost = Cost {
        agents: wanted.agents,
        window: window.map_or("none", HealthWindow::as_str),
        seconds,
        joined_seconds,
        renewals_a_second: (after.renewals - before.renewals) as f64 / seconds,
        servers,
        agent,
        mesh_members,
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

/// Starts agents in groups, and waits until all are acknowledged.
async fn begin(
    fleet: &Fleet,
    issuer: &Issuer,
    count: usize,
    gossip: Option<SocketAddr>,
) -> Result<Vec<StandIn>, String> {
    let servers = fleet.server_addresses();
    let mut agents: Vec<StandIn> = Vec::new();
    while agents.len() < count {
        let group = agents.len()..count.min(agents.len() + CONNECTING);
        agents.extend(group.map(|number| StandIn::start_in_mesh(issuer, number, &servers, gossip)));
        let all = async {
            for agent in agents.iter().rev().take(CONNECTING) {
                agent.is_acknowledged().await;
            }
        };
        if tokio::time::timeout(NEVER, all).await.is_err() {
            return Err(what_is_missing(&agents));
        }
    }
    Ok(agents)
}

/// Waits until the real agent knows `count` other members. Returns the number that it knows.
fn know_all(fleet: &Fleet, count: usize) -> Result<usize, String> {
    let began = Instant::now();
    loop {
        let page = fleet.client_of(AGENT).get("/metrics").expect(200);
        let known = Figures::parse(page.text()).value("lockmesh_agent_mesh_members") as usize;
        if known >= count {
            return Ok(known);
        }
        if began.elapsed() > NEVER {
            return Err(format!("after {NEVER:?} the real agent knows {known} of {count} in its mesh"));
        }
        let_pass(GLANCE);
    }
}

/// Describes the agents without an acknowledged lease.
fn what_is_missing(agents: &[StandIn]) -> String {
    let missing = agents.iter().filter(|agent| agent.upstream.lease().borrow().renewed.is_none());
    let missing: Vec<&StandIn> = missing.collect();
    let first = missing.first().map(|agent| agent.upstream.not_ready());
    format!(
        "after {NEVER:?} the leases of {} agents are not acknowledged; the first: {first:?}",
        missing.len()
    )
}

/// Returns all servers, the leader first.
fn by_rank(fleet: &Fleet) -> Vec<String> {
    let mut servers = fleet.servers();
    servers.sort_by_key(|server| server["Leader"] != true);
    servers.iter().map(|server| server["Node"].as_str().expect("a name").to_owned()).collect()
}

fn pid(fleet: &Fleet, node: &str) -> u32 {
    fleet.pid(node).parse().expect("a number")
}

/// Cumulative counters.
struct Used {
    processes: Vec<Duration>,
    own: Duration,
    renewals: u64,
}

impl Used {
    fn now(fleet: &Fleet, nodes: &[String], agents: &[StandIn]) -> Self {
        let counted = agents.iter().filter_map(|agent| agent.upstream.counters());
        Self {
            processes: nodes.iter().map(|name| processor_time(pid(fleet, name))).collect(),
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
            write!(f, " {role} {} {cores:.1} % of a core and {memory:.1} MiB,", server.node)?;
        }
        let (cores, memory) = (100.0 * self.agent.cores, self.agent.resident_mib);
        write!(
            f,
            " one real agent, which knows {} in its mesh, {cores:.2} % and {memory:.1} MiB,",
            self.mesh_members
        )?;
        write!(f, " all agents together {:.1} %", 100.0 * self.agents_cores)
    }
}

fn window(word: &str) -> Result<Window, String> {
    let found = HealthWindow::parse(word);
    if found.is_none() && word != "none" {
        return Err("expected fast, default or none".into());
    }
    Ok(Window(found))
}
