//! User events across several agents in separate processes: fired at one, received by all.

use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::{Fleet, wait_until};
use lockmesh_tests::http::Client;
use serde_json::{Value, json};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn fire(client: &Client, name_and_query: &str, payload: &str) -> Value {
    client.put(&format!("/v1/event/fire/{name_and_query}"), payload).expect(200).json()
}

/// Waits for an event of this name, and returns the newest.
fn hears(client: &Client, name: &str) -> Value {
    let path = format!("/v1/event/list?name={name}&index=1&wait=10m");
    let events = client.get(&path).expect(200).json();
    events.as_array().and_then(|events| events.last()).expect("one came").clone()
}

#[test]
fn fired_event_reaches_targeted_agents() {
    let dev = Fleet::new("1", &["--nodes", "3"]);
    let clients = NODES.map(|node| dev.client_of(node));
    for client in &clients {
        // An agent that is not in the roster yet reaches no other agent.
        let members =
            || Figures::parse(client.get("/metrics").expect(200).text()).value("lockmesh_agent_mesh_members");
        wait_until(|| members() == 2.0);
    }
    let fired = fire(&clients[0], "deploy?node=^n[23]$", "v1.2");
    assert_eq!((&fired["LTime"], &fired["Payload"]), (&json!(0), &json!("djEuMg==")));
    let heard = [&clients[1], &clients[2]].map(|client| hears(client, "deploy"));
    assert_eq!((&heard[0], &heard[0]["ID"]), (&heard[1], &fired["ID"]));
    assert!(heard[0]["LTime"].as_u64().is_some_and(|time| time > 0), "{heard:?}");

    // Fired by an agent that has received the first event: so it is later. The command line does
    // the same.
    let (code, said, _) = dev.command(&["event", "fire", "restart", "now", "--node", "."]);
    assert!(code == 0 && said.starts_with("Event ID: "), "{said}");
    let later = hears(&clients[2], "restart");
    assert!(said.contains(later["ID"].as_str().expect("an id")), "{said} {later}");
    assert!(later["LTime"].as_u64() > heard[0]["LTime"].as_u64(), "{later}");
    let (code, shown, _) = dev.command(&["event", "list"]);
    assert!(
        code == 0 && shown.contains("restart") && !shown.contains("deploy"),
        "deploy does not target n1: {shown}"
    );
    let (code, shown, _) = dev.command(&["watch", "--type", "event", "--name", "restart"]);
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    assert_eq!((code, &shown[0]), (0, &later));
    for _ in 0..20 {
        let fired = fire(&clients[0], "listed", "");
        let listed = clients[0].get("/v1/event/list?name=listed").expect(200).json();
        let newest = listed.as_array().and_then(|events| events.last()).expect("it is listed");
        assert_eq!(newest["ID"], fired["ID"], "before the answer");
    }
    let (code, _, said) = dev.command(&["event", "-name=x", "-tag=a"]);
    assert!(code == 1 && said.contains("Cannot provide tag filter without service filter"), "{said}");
    dev.stop();
}
