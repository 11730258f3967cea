//! Assertions 61 and 66: agents in separate processes that leave, are forced to leave, or stop for
//! a moment, and the outcome for their sessions.

use super::reload::Fleet;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::Client;
use lockmesh_tests::process::{Process, run};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One server, and the agents of two nodes.
pub(super) struct Nodes {
    fleet: Fleet,
    address: String,
    pub(super) server: Process,
}

impl Nodes {
    pub(super) fn new() -> Self {
        let fleet = Fleet::new();
        let (server, address) = fleet.founder("s1");
        ["web-1", "web-2"].iter().for_each(|name| fleet.issue(name, "agent", name));
        Self { fleet, address, server }
    }

    /// The agent of a node, once it serves.
    pub(super) fn agent(&self, name: &str, settings: &[&str]) -> Process {
        let process = Process::lockmesh(&[&["agent", "--config", &self.config(name)], settings].concat());
        process.says(" ready");
        process
    }

    fn config(&self, name: &str) -> String {
        let rest = self.fleet.reach(name, &[&self.address]);
        self.fleet.config("agent", name, "info", &rest)
    }

    pub(super) fn client(&self, name: &str) -> Client {
        self.fleet.client(name)
    }

    /// Runs a `lockmesh` command against a node's agent.
    pub(super) fn command(&self, name: &str, words: &[&str]) -> (i32, String, String) {
        let address = format!("unix://{}", self.fleet.at(&format!("{name}.sock")));
        // Arguments after `--` belong to another program.
        let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        run(&[&words[..own], &["--http-addr", &address], &words[own..]].concat())
    }

    /// Returns a node as the agent of another node sees it.
    fn member(&self, name: &str, by: &str) -> Value {
        let members = self.client(by).get("/v1/agent/members?lease").expect(200).json();
        let members = members.as_array().expect("members").clone();
        members.into_iter().find(|member| member["Name"] == name).unwrap_or_default()
    }
}

#[test]
fn sessions_survive_restart_but_not_leave() {
    let nodes = Nodes::new();
    let (first, second) = (nodes.agent("web-1", &[]), nodes.agent("web-2", &[]));
    let session = nodes.client("web-1").session_of(json!({"LockDelay": "0s"}));
    assert!(nodes.client("web-1").acquire("job", &session));
    assert_eq!(nodes.member("web-1", "web-2")["State"], "alive");
    // The leader reports this once the agent has renewed its lease, through any agent.
    wait_until(|| nodes.member("web-1", "web-2")["NodeLease"]["LastHeardAgoMs"].is_u64());
    let (code, shown, said) = nodes.command("web-2", &["session", "info", &session]);
    assert_eq!(code, 0, "{said}");
    for row in ["Lease ", "Deadline     in ", "Last heard   "] {
        assert!(shown.lines().any(|line| line.starts_with(row)), "{shown}");
    }

    first.signal("TERM");
    assert_eq!(first.ends(), 0);
    first.says("the servers keep this node's sessions for a restart");
    let stopped = nodes.member("web-1", "web-2");
    assert_eq!((&stopped["State"], &stopped["Status"]), (&json!("restarting"), &json!(1)));
    let other = nodes.client("web-2");
    assert!(other.session_info(&session).is_some());
    let first = nodes.agent("web-1", &[]);
    assert_eq!(nodes.member("web-1", "web-2")["State"], "alive");
    assert!(other.session_info(&session).is_some());
    assert_eq!(other.holder("job").as_deref(), Some(session.as_str()));

    let left = nodes.client("web-1").put("/v1/agent/leave", "").expect(200);
    assert!(left.body.is_empty(), "{left:?}");
    assert_eq!(first.ends(), 0);
    assert_eq!((other.session_info(&session), other.holder("job")), (None, None));
    let member = nodes.member("web-1", "web-2");
    assert_eq!((&member["State"], &member["Status"]), (&json!("left"), &json!(3)));
    other.get("/v1/catalog/node/web-1").expect_text(200, "null");
    let losses = other.get("/v1/lockmesh/losses").expect(200).json();
    assert_eq!((&losses[0]["Session"], &losses[0]["Cause"]), (&json!(session), &json!("node-left")));
    let (code, table, _) = nodes.command("web-2", &["members"]);
    let row = table.lines().find(|line| line.starts_with("web-1")).unwrap_or_default();
    assert!(code == 0 && row.contains(" left "), "{table}");

    let again = nodes.agent("web-1", &[]);
    assert_eq!(nodes.member("web-1", "web-2")["State"], "alive", "a node that left may come back");
    for agent in [again, second] {
        agent.signal("TERM");
        assert_eq!(agent.ends(), 0);
    }
}

#[test]
fn force_leave_spares_live_node_sigterm_leaves() {
    let nodes = Nodes::new();
    let _first = nodes.agent("web-1", &[]);
    let second = nodes.agent("web-2", &["--set", "leave_on_terminate=true"]);
    let words = "agent: No node found with name 'web-9'";
    nodes.client("web-1").put("/v1/agent/force-leave/web-9", "").expect_text(500, words);
    let (code, _, said) = nodes.command("web-1", &["force-leave", "web-9"]);
    assert!(code == 1 && said.contains(words), "{code} {said}");
    nodes.client("web-1").put("/v1/agent/join/127.0.0.1:1", "").expect_text(500, "Failed to join");
    let (code, _, said) = nodes.command("web-1", &["join", &nodes.address]);
    assert_eq!(code, 0, "{said}");

    // A live node is not affected, as in Consul.
    let session = nodes.client("web-2").session();
    nodes.client("web-1").put("/v1/agent/force-leave/web-2", "").expect_text(200, "");
    let (code, _, said) = nodes.command("web-1", &["force-leave", "--prune", "WEB-2"]);
    assert!(code == 1 && said.contains("web-2 is alive: force-leave has no effect"), "{code} {said}");
    assert_eq!(nodes.member("web-2", "web-1")["State"], "alive");
    assert!(nodes.client("web-1").session_info(&session).is_some());

    second.signal("TERM");
    assert_eq!(second.ends(), 0);
    second.says("this node left the cluster");
    assert_eq!(nodes.member("web-2", "web-1")["State"], "left");
    assert_eq!(nodes.client("web-1").session_info(&session), None);
    let (code, said, _) = nodes.command("web-1", &["force-leave", "--prune", "web-2"]);
    assert!(code == 0 && said.contains("web-2 left the cluster and is forgotten"), "{code} {said}");
    assert_eq!(nodes.member("web-2", "web-1"), Value::Null);
}

#[test]
fn unreachable_servers_prevent_leave_not_exit() {
    let mut nodes = Nodes::new();
    let agent = nodes.agent("web-1", &["--set", "upstream.hold_timeout=0s"]);
    nodes.server.kill();
    let client = nodes.client("web-1");
    wait_until(|| client.put("/v1/agent/leave", "").text() == "No cluster leader");
    assert!(client.get("/v1/agent/self").expect(200).json().is_object(), "nothing stops");
    agent.signal("TERM");
    assert_eq!(agent.ends(), 0);
}

#[test]
fn dev_exits_when_node_leaves() {
    let dev = Process::lockmesh(&["dev", "--http", "127.0.0.1:0", "--node", "node-one"]);
    let ready = dev.says("ready http=");
    let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect("an address");
    let (code, said, _) = run(&["leave", "--http-addr", http]);
    assert_eq!((code, said.as_str()), (0, "the node left the cluster; its agent ends\n"));
    assert_eq!(dev.ends(), 0);
    dev.says("this node left the cluster: stopping");
}

/// Without a quorum, a call is held by the agent for 7 s; without an agent that runs, for ever.
#[test]
fn timeout_kept_without_leader_or_agent() {
    let nodes = Nodes::new();
    let agent = nodes.agent("web-1", &[]);
    let ends_in_time = || {
        for command in [&["lock", "job"][..], &["semaphore", "pool", "--slots", "2"], &["elect", "office"]] {
            let begun = Instant::now();
            let words = [command, &["--timeout", "1s", "--", "true"]].concat();
            let (code, _, said) = nodes.command("web-1", &words);
            let elapsed = begun.elapsed();
            assert_eq!(code, 120, "{command:?}: {said}");
            assert!(said.contains(" in 1s"), "{said}");
            assert!(elapsed >= Duration::from_secs(1), "{command:?}: {elapsed:?}");
            assert!(elapsed < Duration::from_secs(4), "{command:?}: {elapsed:?}");
        }
    };
    nodes.server.signal("STOP");
    ends_in_time();
    agent.signal("STOP");
    ends_in_time();
}
