//! Two servers that each bootstrapped a cluster by mistake, under one certificate authority: no
//! lock is ever granted in both. Agents of `lockmesh dev` belong to the servers that the command
//! starts.

use super::reload::Fleet;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::Client;
use lockmesh_tests::process::Process;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

/// Starts a server that bootstraps a cluster alone; returns its address and the cluster's ID.
fn founder(fleet: &Fleet, name: &str) -> (Process, String, String) {
    let (server, address) = fleet.founder(name);
    let line = server.says("this server is a member of the cluster");
    let rest = line.split_once("cluster=").expect("the id is logged").1;
    let cluster = rest.split_whitespace().next().unwrap_or_default().trim_matches('"').to_owned();
    (server, address, cluster)
}

/// Starts an agent with this list of servers.
fn agent(fleet: &Fleet, name: &str, servers: &[&str], cluster_id: &str) -> (Process, Client) {
    let reach = fleet.reach(name, servers);
    let rest =
        format!("{reach}hold_timeout = \"1s\"\ncluster_id = \"{cluster_id}\"\n[gossip]\nenabled = false");
    let process = Process::lockmesh(&["agent", "--config", &fleet.config("agent", name, "info", &rest)]);
    let client = fleet.client(name);
    wait_until(|| client.connect().is_ok());
    (process, client)
}

fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").expect(200).text().to_owned();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn lock_never_granted_across_clusters() {
    let fleet = Fleet::new();
    let ((_one, a, first), (_two, b, second)) = (founder(&fleet, "s1"), founder(&fleet, "s2"));
    ["web-1", "web-2"].iter().for_each(|name| fleet.issue(name, "agent", name));
    let agents = [agent(&fleet, "web-1", &[&a, &b], &first), agent(&fleet, "web-2", &[&b, &a], &first)];
    let sessions = agents.iter().map(|(process, client)| {
        process.says(" ready");
        (client, client.session_of(json!({"LockDelay": "0s"})))
    });
    let sessions: Vec<_> = sessions.collect();
    let holders = sessions.iter().filter(|(client, session)| client.acquire("one", session)).count();
    assert_eq!(holders, 1, "one lock, one holder");
    // The second agent lists the other server first, and has contacted it.
    let said = agents[1].0.says("this agent belongs to the cluster");
    assert!(said.contains(&first) && said.contains(&second) && said.contains(&b), "{said}");
    // It serves, and is not ready until its list names only one cluster.
    let ready = agents[1].1.get("/health/ready").expect(503);
    assert!(ready.text().contains(&first) && ready.text().contains(&second), "{}", ready.text());
    // It keeps its cluster without configuration, even if only the other one is listed.
    drop(agents);
    let (process, client) = agent(&fleet, "web-2", &[&b], "");
    process.says("this agent belongs to the cluster");
    assert!(client.get("/health/ready").expect(503).text().contains(&first));
    assert_eq!(metric(&client, "lockmesh_upstream_registrations_total"), 0.0);
}

#[test]
fn dev_agents_replace_earlier_cluster_pin() {
    let ways: [(&[&str], &str); 3] =
        [(&[], "agent"), (&["--servers", "1"], "agent"), (&["--servers", "1", "--nodes", "1"], "n1/data")];
    for (options, agent) in ways {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = folder.path().join(agent);
        fs::create_dir_all(&data).expect("it can be made");
        // A pin from an earlier cluster: without the ID of its own servers the agent refuses them.
        let earlier = "6f2d0b6e-3c60-4d3f-9d5c-2b1f7c0e9a55";
        let pin = json!({"cluster_id": earlier, "index_base": 0}).to_string();
        fs::write(data.join("cluster.json"), pin).expect("it can be written");
        let place = folder.path().to_str().expect("text");
        let usual = ["dev", "--http", "127.0.0.1:0", "--data-dir", place];
        let dev = Process::lockmesh(&[&usual, options].concat());
        dev.says("ready http=");
        // The pin is written outside the driver.
        wait_until(|| !fs::read_to_string(data.join("cluster.json")).expect("a pin").contains(earlier));
        if agent == "n1/data" {
            let pin: Value = serde_json::from_slice(&fs::read(data.join("cluster.json")).expect("a pin"))
                .expect("it is JSON");
            let config = fs::read_to_string(folder.path().join("n1/agent.toml")).expect("it has one");
            let line = format!("cluster_id = {}", pin["cluster_id"]);
            assert!(config.contains(&line), "needed for an agent that is started by hand: {config}");
        }
    }
}

#[test]
fn container_without_volume_reclaims_name() {
    let fleet = Fleet::new();
    let (_server, address, cluster) = founder(&fleet, "s1");
    fleet.issue("web-1", "agent", "web-1");
    let id_of = |client: &Client| client.get("/v1/agent/self").expect(200).json()["Config"]["NodeID"].clone();
    let (process, client) = agent(&fleet, "web-1", &[&address], &cluster);
    process.says(" ready");
    let (id, session) = (id_of(&client), client.session_of(json!({"LockDelay": "0s"})));
    assert!(client.acquire("one", &session));
    process.signal("TERM");
    assert_eq!(process.ends(), 0);
    fs::remove_dir_all(fleet.path("web-1/data")).expect("the agent's data folder");
    let began = Instant::now();
    let (process, client) = agent(&fleet, "web-1", &[&address], &cluster);
    process.says(" ready");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_ne!(id_of(&client), id, "another node id");
    // The boot is the same, so the session and its lock live on.
    let row = client.get("/v1/kv/one").expect(200).json();
    assert_eq!(row[0]["Session"], json!(session));
    assert_eq!(client.get("/v1/session/list").expect(200).json().as_array().map(Vec::len), Some(1));
}
