//! The mesh of real agents: neighbors' probes of a dead host fail, and the servers' verdict reaches
//! them.

use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::http::Client;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Three servers and three agents, each of which knows the two others.
fn start() -> Fleet {
    let dev = Fleet::new("3", &["--nodes", "3"]);
    for node in NODES {
        let client = dev.client_of(node);
        wait_until(|| figures(&client).value("lockmesh_agent_mesh_members") == 2.0);
        wait_until(|| event(&client, "received") > 0.0);
    }
    dev
}

fn figures(client: &Client) -> Figures {
    Figures::parse(client.get("/metrics").expect(200).text())
}

/// Returns the value of an agent's mesh event counter.
fn event(client: &Client, event: &str) -> f64 {
    figures(client).value(&format!("lockmesh_agent_mesh_events_total{{event=\"{event}\"}}"))
}

/// Returns the number of unsolicited updates from servers to agents.
fn pushes(dev: &Fleet) -> f64 {
    let of = |server| figures(&dev.monitor(server)).value("lockmesh_server_mesh_pushes_total");
    ["s1", "s2", "s3"].into_iter().map(of).sum()
}

#[test]
fn failed_probes_remove_dead_host() {
    let dev = start();
    let (first, second) = (dev.client_of("n1"), dev.client_of("n2"));
    assert!(shell(&format!("kill -KILL {}", dev.pid("n3"))));
    wait_until(|| {
        let members = first.get("/v1/agent/members").expect(200).json();
        let dead = members.as_array().expect("a list").iter().find(|member| member["Name"] == "n3");
        dead.is_some_and(|member| member["State"] == "failed")
    });
    // A neighbor that ran late on a busy machine suspects no other agent.
    let in_vain = ["suspicion", "excused_probe"].map(|kind| event(&first, kind) + event(&second, kind));
    assert!(in_vain.iter().sum::<f64>() >= 1.0);
    // By its verdict, and the resulting roster.
    for survivor in [first, second] {
        wait_until(|| figures(&survivor).value("lockmesh_agent_mesh_members") == 1.0);
    }
    assert!(pushes(&dev) >= 1.0, "the leader sends the verdict unsolicited");
}
