//! Certificates are checked before a process starts. Certificates and the log level are read again
//! on SIGHUP and on request; broken ones are rejected, and the previous ones stay in use.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::member::{issue, make_authority, text};
use lockmesh_tests::process::{Process, run};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The configuration of a server that bootstraps a cluster alone.
const ALONE: &str = "[rpc]\nlisten = \"127.0.0.1:0\"\n[quorum]\nbootstrap_expect = 1";

/// A certificate authority in `folder/ca`, and the certificates that it issued.
pub(super) struct Fleet {
    folder: TempDir,
}

impl Fleet {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        make_authority(folder.path());
        Self { folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn at(&self, name: &str) -> String {
        text(&self.path(name))
    }

    /// Issues a certificate into `folder/name`.
    pub(super) fn issue(&self, name: &str, role: &str, node: &str) {
        issue(&self.path("ca"), &self.path(name), role, node);
    }

    /// Writes a configuration file for a node whose certificate is in the folder of that name.
    pub(super) fn config(&self, role: &str, name: &str, level: &str, rest: &str) -> String {
        let file = self.at(&format!("{name}.toml"));
        let tls = self.at(name);
        let text = format!(
            "data_dir = \"{tls}/data\"\n{rest}\n[node]\nname = \"{name}\"\n[log]\nlevel = \"{level}\"\n[tls]\n\
             ca = \"{ca}/ca.pem\"\ncertificate = \"{tls}/{role}.pem\"\nkey = \"{tls}/{role}-key.pem\"\n",
            ca = self.at("ca"),
        );
        fs::write(&file, text).expect("the file can be written");
        file
    }
}

impl Fleet {
    /// Starts a server that bootstraps a cluster alone. Returns its address too.
    pub(super) fn founder(&self, name: &str) -> (Process, String) {
        self.issue(name, "server", name);
        let server = Process::lockmesh(&["server", "--config", &self.config("server", name, "info", ALONE)]);
        let listens = server.says("the server listens");
        let address = listens.rsplit_once("address=").expect("the address is logged").1.to_owned();
        (server, address)
    }

    /// Returns what the configuration of an agent of these servers begins with, up to its last
    /// table.
    pub(super) fn reach(&self, name: &str, servers: &[&str]) -> String {
        let socket = self.path(&format!("{name}.sock"));
        format!(
            "listen = \"127.0.0.1:0\"\n[http]\ntcp = \"\"\nsocket = {socket:?}\n[upstream]\nservers = {servers:?}\n"
        )
    }

    /// Returns a client of an agent with that configuration.
    pub(super) fn client(&self, name: &str) -> Client {
        Client { address: Address::Unix(self.path(&format!("{name}.sock"))) }
    }
}

/// Replaces a certificate by another one.
fn replace(from: &Path, to: &Path, role: &str) {
    for name in [format!("{role}.pem"), format!("{role}-key.pem")] {
        fs::copy(from.join(&name), to.join(&name)).expect("the files can be copied");
    }
}

#[test]
fn dev_reloads_certificates_rejects_broken() {
    let dev = Dev::start(&[]);
    if dev.is_foreign() {
        return;
    }
    let (client, tls) = (dev.client(), dev.folder.path().join("data/tls"));
    let changes = |text: &str| {
        let reloaded = client.put("/v1/agent/reload", "").expect_text(200, "");
        assert!(reloaded.body.is_empty(), "{reloaded:?}");
        let changes = reloaded.any_case("X-Lockmesh-Reloaded").expect("the changes are listed").to_owned();
        assert!(changes.contains(text), "{changes}");
    };
    changes("no changes");
    let fresh = dev.folder.path().join("fresh");
    issue(&tls, &fresh, "server", "node-one");
    replace(&fresh, &tls, "server");
    changes("server.pem is in use for new connections, good for 364 more days");
    changes("no changes");
    fs::write(tls.join("agent.pem"), "accidental garbage").expect("it can be written");
    client.put("/v1/agent/reload", "").expect_text(500, "agent.pem");
    client.set("after", "the refusal");
    let (code, _, said) = run(&["reload", "--http-addr", &dev.http.to_string()]);
    assert!(code == 1 && said.contains("agent.pem"), "{code} {said}");
}

#[test]
fn mismatched_or_duplicate_agent_rejected() {
    let fleet = Fleet::new();
    let reach = fleet.reach("web-1", &["127.0.0.1:1"]);
    fleet.issue("web-3", "agent", "web-1");
    let (code, _, said) = run(&["agent", "--config", &fleet.config("agent", "web-3", "info", &reach)]);
    assert!(
        code == 1 && said.contains("this is node web-3, but its certificate names web-1"),
        "{code} {said}"
    );
    fleet.issue("web-1", "agent", "web-1");
    let config = fleet.config("agent", "web-1", "info", &reach);
    let first = Process::lockmesh(&["agent", "--config", &config]);
    first.says("cannot connect to the server");
    let (code, _, said) = run(&["agent", "--config", &config]);
    assert!(code == 1 && said.contains("another agent uses the folder"), "{code} {said}");
    first.signal("TERM");
    assert_eq!(first.ends(), 0);
}

#[test]
fn sighup_reloads_server_and_agent() {
    let fleet = Fleet::new();
    let (server, address) = fleet.founder("s1");
    fleet.issue("web-1", "agent", "web-1");
    let reach = fleet.reach("web-1", &[&address]);
    let config = fleet.config("agent", "web-1", "info", &reach);
    let agent = Process::lockmesh(&["agent", "--config", &config]);
    agent.says(" ready");

    fleet.config("server", "s1", "debug", &ALONE.replace(":0", ":1"));
    fleet.issue("s1-new", "server", "s1");
    replace(&fleet.path("s1-new"), &fleet.path("s1"), "server");
    server.signal("HUP");
    server.says("reloaded: log.level is \"debug\", was \"info\"");
    server.says("reloaded: rpc.listen has changed, which takes a restart");
    server.says("s1/server.pem is in use for new connections");

    fleet.issue("other", "agent", "web-2");
    replace(&fleet.path("other"), &fleet.path("web-1"), "agent");
    agent.signal("HUP");
    agent.says("is the certificate of agent \"web-2\", but this process is agent \"web-1\"");
    let client = fleet.client("web-1");
    client.put("/v1/agent/reload", "").expect_text(500, "web-2");
    fleet.config("agent", "web-1", "loud", &reach);
    client.put("/v1/agent/reload", "").expect_text(500, "web-2");
    fleet.issue("renewed", "agent", "web-1");
    replace(&fleet.path("renewed"), &fleet.path("web-1"), "agent");
    client.put("/v1/agent/reload", "").expect_text(500, "`log.level` is \"loud\"");
    fleet.config("agent", "web-1", "debug", &reach);
    client.put("/v1/agent/reload", "").expect(200);
    agent.says("web-1/agent.pem is in use for new connections");
    client.set("still", "served");

    let session = client.session();
    node_metadata_is_read_again(&fleet, &agent, &client, &reach);
    rules_for_clients_are_read_again(&fleet, &agent, &client, &reach);
    assert!(client.session_info(&session).is_some());

    agent.signal("TERM");
    assert_eq!(agent.ends(), 0);
    server.signal("TERM");
    assert_eq!(server.ends(), 0);
}

fn node_metadata_is_read_again(fleet: &Fleet, agent: &Process, client: &Client, reach: &str) {
    let meta = |pairs: &str| format!("node_meta = {{ {pairs} }}\n{reach}");
    for (pairs, shown) in [
        ("rack = \"r1\", zone = \"a\"", json!({"rack": "r1", "zone": "a"})),
        ("rack = \"r2\"", json!({"rack": "r2"})),
        ("", json!({})),
    ] {
        fleet.config("agent", "web-1", "debug", &meta(pairs));
        agent.signal("HUP");
        wait_until(|| {
            let node = client.get("/v1/catalog/node/web-1").expect(200).json()["Node"]["Meta"].clone();
            without_own(node) == shown
        });
        let own = client.get("/v1/agent/self").expect(200).json()["Meta"].clone();
        assert_eq!(without_own(own), shown);
    }
    agent.says("reloaded: node_meta is in use");
    fleet.config("agent", "web-1", "debug", &meta("consul-rack = \"r1\""));
    client.put("/v1/agent/reload", "").expect_text(500, "Key prefix 'consul-' is reserved");
}

fn rules_for_clients_are_read_again(fleet: &Fleet, agent: &Process, client: &Client, reach: &str) {
    let reload = |rules: &str| {
        let file = fleet.config("agent", "web-1", "debug", &format!("{reach}[access]\n{rules}"));
        agent.signal("HUP");
        file
    };
    let file = reload("socket = \"locks\"\n");
    agent.says("reloaded: access.socket is in use");
    let line = fs::read_to_string(&file).expect("it was written");
    let line = line.lines().position(|line| line.starts_with("socket = \"locks")).expect("a rule") + 1;
    let rule = format!("which `access.socket = \"locks\"` (line {line} of {file}) does not give");
    client.put("/v1/kv/still", "refused").expect_text(403, &rule);
    client.put("/v1/agent/reload", "").expect_text(403, &rule);
    client.session();
    let own = rustix::process::getuid().as_raw();
    reload(&format!("socket = \"locks\"\n[[access.users]]\nuser = \"{own}\"\nprefixes = [\"sti\"]\n"));
    agent.says("reloaded: access.users is in use");
    client.set("still", "served");
    client.put("/v1/kv/other", "").expect_text(403, &format!("of user \"{own}\" in `access.users` (line"));
}

/// Returns a node's metadata without the pairs that each agent reports.
fn without_own(mut meta: Value) -> Value {
    let pairs = meta.as_object_mut().expect("it is an object");
    assert!(pairs.remove("consul-network-segment").is_some() && pairs.remove("consul-version").is_some());
    meta
}
