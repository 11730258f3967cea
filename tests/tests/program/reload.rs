//! Certificates are checked before a process starts. Certificates and the log level are read again
//! on SIGHUP and on request; broken ones are rejected, and the previous ones stay in use.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::{Process, run};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A certificate authority in `folder/ca`, and the certificates that it issued.
pub(super) struct Fleet {
    folder: TempDir,
}

impl Fleet {
    pub(super) fn new() -> Self {
        let this = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        lockmesh(&["operator", "tls", "init", "--out", &this.at("ca")]);
        this
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn at(&self, name: &str) -> String {
        self.path(name).to_str().expect("a temporary folder's name is text").to_owned()
    }

    /// Issues a certificate into `folder/name`.
    pub(super) fn issue(&self, name: &str, role: &str, node: &str) {
        issue(&self.at("ca"), &self.at(name), role, node);
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

fn issue(ca: &str, out: &str, role: &str, node: &str) {
    lockmesh(&["operator", "tls", "issue", "--ca", ca, "--out", out, "--role", role, "--node", node]);
}

fn lockmesh(arguments: &[&str]) {
    let (code, _, said) = run(arguments);
    assert_eq!(code, 0, "{said}");
}

/// Replaces a certificate by another one.
fn replace(from: &Path, to: &Path, role: &str) {
    for name in [format!("{role}.pem"), format!("{role}-key.pem")] {
        fs::copy(from.join(&name), to.join(&name)).expect("the files can be copied");
    }
}

#[test]
fn dev_takes_new_certificates_and_refuses_broken_ones() {
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
    changes("nothing has changed");
    let fresh = dev.folder.path().join("fresh");
    let (ca, out) = (tls.to_str().expect("text").to_owned(), fresh.to_str().expect("text").to_owned());
    issue(&ca, &out, "server", "node-one");
    replace(&fresh, &tls, "server");
    changes("server.pem is in use for new connections, good for 364 more days");
    changes("nothing has changed");
    fs::write(tls.join("agent.pem"), "accidental garbage").expect("it can be written");
    client.put("/v1/agent/reload", "").expect_text(500, "agent.pem");
    client.set("after", "the refusal");
    let (code, _, said) = run(&["reload", "--http-addr", &dev.http.to_string()]);
    assert!(code == 1 && said.contains("agent.pem"), "{code} {said}");
}

#[test]
fn an_agent_that_is_another_node_or_a_second_one_does_not_start() {
    let fleet = Fleet::new();
    let reach = format!(
        "listen = \"127.0.0.1:0\"\n[http]\ntcp = \"\"\nsocket = \"{}\"\n[upstream]\nservers = [\"127.0.0.1:1\"]",
        fleet.at("sock")
    );
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
fn server_and_agent_read_again_on_sighup() {
    let fleet = Fleet::new();
    fleet.issue("s1", "server", "s1");
    fleet.issue("web-1", "agent", "web-1");
    let config = fleet.config(
        "server",
        "s1",
        "info",
        "[rpc]\nlisten = \"127.0.0.1:0\"\n[quorum]\nbootstrap_expect = 1",
    );
    let server = Process::lockmesh(&["server", "--config", &config]);
    let listens = server.says("the server listens");
    let address = listens.rsplit_once("address=").expect("the address is logged").1.to_owned();
    let reach = format!(
        "listen = \"127.0.0.1:0\"\n[http]\ntcp = \"\"\nsocket = \"{}\"\n[upstream]\nservers = [\"{address}\"]",
        fleet.at("sock")
    );
    let config = fleet.config("agent", "web-1", "info", &reach);
    let agent = Process::lockmesh(&["agent", "--config", &config]);
    agent.says(" ready");

    fleet.config("server", "s1", "debug", "[rpc]\nlisten = \"127.0.0.1:1\"\n[quorum]\nbootstrap_expect = 1");
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
    let client = Client { address: Address::Unix(fleet.path("sock")) };
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

/// Returns a node's metadata without the pairs that each agent reports.
fn without_own(mut meta: Value) -> Value {
    let pairs = meta.as_object_mut().expect("it is an object");
    assert!(pairs.remove("consul-network-segment").is_some() && pairs.remove("consul-version").is_some());
    meta
}
