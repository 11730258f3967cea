//! Locks that follow checks, with three servers and agents as processes. A session on a script, an
//! HTTP request, a check of a service or an alias ends when the target fails, and the next waiter
//! gets its lock, also when the leader is killed meanwhile. A reload of the configuration ends the
//! sessions of removed checks alone.
//!
//! The simulator bounds the time (`src/sim/check_sessions.rs`); here the limit is long enough for a
//! slow machine, and the time is printed.

use super::reload;
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::process::{Process, run};
use lockmesh_tests::target::HttpTarget;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval of every check, and the time-out of its runs.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time allowed beside both, for a slow machine and an election.
const SLACK: Duration = Duration::from_secs(30);
/// The checks of which a session each depends on one.
const CHECKS: [&str; 4] = ["script", "page", "web-up", "db-alias"];

/// What the checks look at.
struct Targets {
    /// The script passes while it exists.
    flag: PathBuf,
    page: HttpTarget,
    /// The ports of the services `web` and `db`, open while these run.
    ports: [u16; 2],
    services: Vec<TcpListener>,
}

impl Targets {
    fn new(folder: &std::path::Path) -> Self {
        let services: Vec<_> =
            (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let port = |number: usize| services[number].local_addr().expect("it is bound").port();
        let ports = [port(0), port(1)];
        Self { flag: folder.join("flag"), page: HttpTarget::start(), ports, services: Vec::new() }
    }

    /// Starts what is looked at.
    fn start(&mut self) {
        fs::write(&self.flag, "").expect("it can be written");
        self.page.set_well(true);
        let open = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).expect("the port is still free");
        self.services = self.ports.iter().map(open).collect();
    }

    /// Ends what is looked at.
    fn fail(&mut self) {
        fs::remove_file(&self.flag).expect("it exists");
        self.page.set_well(false);
        self.services.clear();
    }

    /// Registers the checks, and the services that two of them belong to or follow.
    fn register(&self, client: &Client) {
        let [web, db] = self.ports.map(|port| format!("127.0.0.1:{port}"));
        let tcp = |id: &str, address: &str| json!({"CheckID": id, "TCP": address, "Interval": "1s", "Timeout": "1s"});
        for (name, check) in [("web", tcp("web-up", &web)), ("db", tcp("db-up", &db))] {
            let service = json!({"Name": name, "Check": check}).to_string();
            client.put("/v1/agent/service/register", service).expect(200);
        }
        let flag = self.flag.to_str().expect("a temporary folder's name is text");
        for check in [
            json!({"ID": "script", "Name": "script", "Args": ["ls", flag], "Interval": "1s", "Timeout": "1s"}),
            json!({"ID": "page", "Name": "page", "HTTP": self.page.url(), "Interval": "1s", "Timeout": "1s"}),
            json!({"ID": "db-alias", "Name": "db-alias", "AliasService": "db"}),
        ] {
            client.put("/v1/agent/check/register", check.to_string()).expect(200);
        }
    }
}

/// Starts an agent on a node of its own, with script checks; returns its client too.
fn start_agent(fleet: &Fleet, node: &str) -> (Process, Client) {
    let place = |name: &str| fleet.folder.join(name).to_str().expect("it is text").to_owned();
    let (ca, own) = (place("tls"), place(node));
    let issue = ["operator", "tls", "issue", "--role", "agent"];
    let (code, _, said) = run(&[&issue[..], &["--node", node, "--ca", &ca, "--out", &own]].concat());
    assert_eq!(code, 0, "{said}");
    let servers: Vec<_> = fleet.server_addresses().iter().map(|address| format!("{address:?}")).collect();
    let config = format!(
        "data_dir = \"{own}/data\"\nlisten = \"127.0.0.1:0\"\n[http]\ntcp = \"\"\nsocket = \"{own}/agent.sock\"\n\
         [upstream]\nservers = [{}]\n[node]\nname = \"{node}\"\n[registry]\nscripts = \"unix_socket\"\n\
         [tls]\nca = \"{ca}/ca.pem\"\ncertificate = \"{own}/agent.pem\"\nkey = \"{own}/agent-key.pem\"\n",
        servers.join(", ")
    );
    let file = place(&format!("{node}.toml"));
    fs::write(&file, config).expect("it can be written");
    let process = Process::lockmesh(&["agent", "--config", &file]);
    process.says(" ready");
    (process, fleet.client_of(node))
}

/// Waits until the catalog has these checks of a node as passing.
fn wait_until_passing(client: &Client, node: &str, checks: &[&str]) {
    wait_until(|| {
        let known = client.get(&format!("/v1/health/node/{node}")).expect(200).json();
        let known = known.as_array().expect("checks");
        let passes =
            |id: &&str| known.iter().any(|check| check["CheckID"] == **id && check["Status"] == "passing");
        checks.iter().all(passes)
    });
}

/// A lock that a session on one check holds, and that another agent's session waits for.
struct Followed {
    check: &'static str,
    key: String,
    holder: String,
    waiter: String,
    waiting: JoinHandle<bool>,
}

impl Followed {
    fn begin(check: &'static str, round: &str, holder: &Client, other: &Client) -> Self {
        let key = format!("{round}/{check}");
        let held = holder.session_of(json!({"Name": check, "NodeChecks": [check], "LockDelay": "0s"}));
        assert!(holder.acquire(&key, &held));
        let waiter = other.session();
        let (client, path) = (other.clone(), format!("/v1/kv/{key}?acquire={waiter}&wait=10m"));
        let waiting = thread::spawn(move || client.put(&path, "next").is_true());
        wait_until(|| {
            let locks = other.get("/v1/lockmesh/locks").expect(200).json();
            let mut locks = locks.as_array().expect("a list").iter();
            locks.any(|lock| lock["Key"] == key.as_str() && lock["Waiters"] == 1)
        });
        Self { check, key, holder: held, waiter, waiting }
    }

    /// Expects the session to have ended by now or soon, and the lock to have passed on.
    fn expect_end(self, fleet: &Fleet, failed: Instant) {
        assert!(self.waiting.join().expect("it is answered"), "{}: the waiter got no lock", self.key);
        let after = failed.elapsed();
        eprintln!("{}: passed on {after:?} after the target failed", self.key);
        assert!(after <= 2 * INTERVAL + SLACK, "{}: {after:?}", self.key);
        let client = fleet.client();
        assert_eq!(client.session_info(&self.holder), None, "{}", self.key);
        assert_eq!(client.holder(&self.key), Some(self.waiter), "{}", self.key);
        let (code, losses, said) = fleet.command(&["locks", "--losses"]);
        let row = losses.lines().find(|line| line.contains(&self.holder)).unwrap_or_default();
        let names = |text: &str| row.contains(text);
        assert!(code == 0 && names(&self.key), "{said}{losses}");
        assert!(names("check-critical") && names(self.check), "{}: {row}", self.key);
    }
}

#[test]
fn failed_check_passes_lock_despite_election() {
    let fleet = Fleet::new("3", &[]);
    let (agent, client) = start_agent(&fleet, "app");
    let mut targets = Targets::new(&fleet.folder);
    targets.register(&client);
    for round in ["led", "leaderless"] {
        targets.start();
        wait_until_passing(&client, "app", &CHECKS);
        let begin = |check| Followed::begin(check, round, &client, &fleet.client());
        let followed = CHECKS.map(begin);
        let failed = Instant::now();
        if round == "leaderless" {
            assert!(shell(&format!("kill -KILL {}", fleet.pid(&fleet.leader()))));
        }
        targets.fail();
        followed.into_iter().for_each(|followed| followed.expect_end(&fleet, failed));
    }
    agent.signal("TERM");
    assert_eq!(agent.ends(), 0);
    fleet.stop();
}

/// The configuration of an agent with a service, whose port is given, and checks.
fn definitions(port: u16, address: &str, checks: &[&str]) -> String {
    let service = format!(
        "[[services]]\nname = \"web\"\nport = {port}\ncheck = {{ id = \"web-up\", tcp = {address:?}, interval = \"1s\" }}\n"
    );
    let check = |check: &&str| format!("[[checks]]\n{check}\n");
    service + &checks.iter().map(check).collect::<String>()
}

/// Creates a session on a check, with a lock.
fn hold(client: &Client, check: &str) -> String {
    let session = client.session_of(json!({"NodeChecks": [check], "LockDelay": "0s"}));
    assert!(client.acquire(&format!("reload/{check}"), &session));
    session
}

/// Returns a check of the node `web-1` in the catalog.
fn in_catalog(client: &Client, check: &str) -> Option<Value> {
    let known = client.get("/v1/health/node/web-1").expect(200).json();
    known.as_array().expect("checks").iter().find(|known| known["CheckID"] == check).cloned()
}

#[test]
fn reload_updates_checks_atomically() {
    let files = reload::Fleet::new();
    let (server, server_address) = files.founder("s1");
    files.issue("web-1", "agent", "web-1");
    let reach = files.reach("web-1", &[&server_address]);
    let target = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = target.local_addr().expect("it is bound").to_string();
    let config = |level: &str, definitions: &str| {
        files.config("agent", "web-1", level, &format!("{reach}{definitions}"))
    };
    let kept = format!("id = \"kept\"\nname = \"kept\"\ntcp = {address:?}\ninterval = \"1s\"");
    let changed = |notes: &str| {
        format!(
            "id = \"changed\"\nname = \"changed\"\ntcp = {address:?}\ninterval = \"1s\"\nnotes = {notes:?}"
        )
    };
    let gone = "id = \"gone\"\nname = \"gone\"\nttl = \"1h\"\nstatus = \"passing\"";
    let first = definitions(80, &address, &[&kept, &changed("first"), gone]);
    let agent = Process::lockmesh(&["agent", "--config", &config("info", &first)]);
    agent.says(" ready");
    let client = files.client("web-1");
    wait_until_passing(&client, "web-1", &["web-up", "kept", "changed", "gone"]);
    let held = ["web-up", "kept", "changed", "gone"].map(|check| hold(&client, check));
    let in_catalog = |check: &str| in_catalog(&client, check);
    let before = in_catalog("kept");

    config("info", &definitions(81, &address, &[&kept, &changed("second")]));
    agent.signal("HUP");
    agent.says("reloaded: the services of the configuration are in use");
    agent.says("reloaded: the checks of the configuration are in use");
    wait_until(|| in_catalog("gone").is_none());
    wait_until(|| in_catalog("changed").is_some_and(|check| check["Notes"] == "second"));
    wait_until(|| client.get("/v1/catalog/service/web").expect(200).json()[0]["ServicePort"] == 81);
    assert_eq!(in_catalog("kept"), before, "an unchanged check is not written");
    let lives = || held.each_ref().map(|session| client.session_info(session).is_some());
    assert_eq!(lives(), [true, true, true, false], "the session of the removed check alone has ended");
    let losses = client.get("/v1/lockmesh/losses").expect(200).json();
    assert_eq!((&losses[0]["Session"], &losses[0]["Cause"]), (&json!(held[3]), &json!("check-deregistered")));

    // What is refused is not taken in part: neither the definitions nor the level of the log.
    let all = || {
        [
            client.get("/v1/agent/services").expect(200).json(),
            client.get("/v1/agent/checks").expect(200).json(),
        ]
    };
    let known = all();
    let misspelt = definitions(82, &address, &["name = \"kept\"\nintervall = \"1s\""]);
    let stray = definitions(83, &address, &["name = \"stray\"\nservice_id = \"nowhere\"\nttl = \"1s\""]);
    for (bad, reason) in [(misspelt, "intervall"), (stray, "ServiceID \"nowhere\" does not exist")] {
        config("debug", &bad);
        agent.signal("HUP");
        let said = agent.says(reason);
        assert!(said.contains("reload failed; nothing was changed"), "{said}");
        assert_eq!(all(), known);
    }
    assert!(!agent.said().contains("reloaded: log.level"), "{}", agent.said());
    assert_eq!(lives(), [true, true, true, false]);
    config("info", &definitions(81, &address, &[&kept, &changed("third")]));
    agent.signal("HUP");
    wait_until(|| in_catalog("changed").is_some_and(|check| check["Notes"] == "third"));
    assert_eq!(lives(), [true, true, true, false]);

    drop(target);
    wait_until(|| lives() == [false; 4]);
    for process in [&agent, &server] {
        process.signal("TERM");
        assert_eq!(process.ends(), 0);
    }
}
