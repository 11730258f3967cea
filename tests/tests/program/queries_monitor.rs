//! Prepared queries across processes: an agent's death and a server's restart, and the commands
//! `lockmesh query` and `lockmesh monitor` with their exit codes.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::{Fleet, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::process::Process;
use serde_json::{Value, json};

/// Runs `lockmesh query` to its success, and parses what it prints.
#[track_caller]
fn query(dev: &Fleet, words: &[&str]) -> Value {
    let (code, shown, said) = dev.command(&[&["query"], words, &["--json"]].concat());
    assert_eq!(code, 0, "{said}");
    serde_json::from_str(&shown).expect("it is JSON")
}

/// Creates a query for the service `web`, and returns its id.
#[track_caller]
fn create(dev: &Fleet, mut body: Value) -> String {
    body["Service"] = json!({"Service": if body["Template"].is_null() { "web" } else { "${name.suffix}" }});
    query(dev, &["create", &body.to_string()])["ID"].as_str().expect("an id").to_owned()
}

/// The names of all queries that an agent lists.
fn names(client: &Client) -> Vec<String> {
    let listed = client.get("/v1/query").expect(200).json();
    let name = |query: &Value| query["Name"].as_str().expect("a name").to_owned();
    let mut names: Vec<String> = listed.as_array().expect("a list").iter().map(name).collect();
    names.sort();
    names
}

/// The nodes of the instances in the answer to an execution.
fn nodes(executed: &Value) -> Vec<String> {
    let node = |instance: &Value| instance["Node"]["Node"].as_str().expect("a node").to_owned();
    let mut nodes: Vec<String> = executed["Nodes"].as_array().expect("a list").iter().map(node).collect();
    nodes.sort();
    nodes
}

#[test]
fn agent_death_removes_query_permanently() {
    let dev = Fleet::new("1", &["--nodes", "2"]);
    let (first, second) = (dev.client_of("n1"), dev.client_of("n2"));
    for client in [&first, &second] {
        client.put("/v1/agent/service/register", r#"{"Name": "web", "Port": 80}"#).expect(200);
    }
    let session = second.session_of(json!({"LockDelay": "0s"}));
    create(&dev, json!({"Name": "Bound", "Session": session}));
    create(&dev, json!({"Name": "geo-", "Template": {"Type": "name_prefix_match"}}));
    let ended = first.session();
    let destroyed = create(&dev, json!({"Name": "brief", "Session": ended}));
    let failed = |words: &[&str], reason: &str| {
        let (code, shown, said) = dev.command(&[&["query"], words].concat());
        assert!(code == 1 && shown.is_empty() && said.contains(reason), "{code} {shown} {said}");
    };
    let bound_again = json!({"Name": "bOUND", "Service": {"Service": "web"}}).to_string();
    failed(&["create", &bound_again], "name 'bOUND' aliases an existing query name");

    // Services reach the catalog soon after their registration.
    wait_until(|| nodes(&query(&dev, &["execute", "bound"])) == ["n1", "n2"]);
    let by_template = second.get("/v1/query/geo-web/execute").expect(200).json();
    assert_eq!(nodes(&by_template), ["n1", "n2"]);
    first.destroy(&ended);
    failed(&["show", &destroyed, "--json"], "not found; list queries with `lockmesh query list`");
    let late = json!({"Name": "late", "Session": ended, "Service": {"Service": "web"}}).to_string();
    failed(&["create", &late, "--json"], &format!("invalid session \"{ended}\""));

    let index = first.get("/v1/query").expect(200).index();
    let (code, _, said) = dev.kill("n2", &[]);
    assert_eq!(code, 0, "{said}");
    // The deletion wakes a blocking read.
    first.get(&format!("/v1/query?index={index}&wait=10m")).expect(200);
    assert_eq!(names(&first), ["geo-"]);
    assert_eq!(first.session_info(&session), None);
    failed(&["execute", "bound"], "query bound not found");
    assert_eq!(nodes(&query(&dev, &["execute", "geo-web"])), ["n1"], "n2 is critical");

    dev.kill_process("s1");
    let server = dev.restart("s1");
    server.says("the server listens");
    wait_until(|| first.get("/v1/query").status == 200);
    assert_eq!(names(&first), ["geo-"]);
    let (code, said, _) = dev.command(&["query", "delete", "GEO-"]);
    assert!(code == 0 && said.starts_with("Deleted query: "), "{code} {said}");
    assert_eq!(query(&dev, &["list"]), json!([]));
    server.signal("TERM");
    assert_eq!(server.ends(), 0);
    dev.stop();
}

#[test]
fn monitor_streams_log_at_its_level() {
    let dev = Dev::start(&[]);
    let (client, http) = (dev.client(), dev.http.to_string());
    let monitor = Process::lockmesh(&["monitor", "--log-level", "debug", "--http-addr", &http]);
    // It has no line yet that shows its begin, so the cause comes until the line does.
    let durable = "[DEBUG] agent.server: the checkpoint is durable: index=";
    wait_until(|| {
        client.set("change", "again");
        client.get("/v1/snapshot").expect(200);
        monitor.said().contains(durable)
    });
    client.put("/v1/agent/service/register", r#"{"Name": "web"}"#).expect(200);
    monitor.says("[INFO]  agent: service registered: service=web");
    assert!(!dev.log().contains("the checkpoint is durable"), "its own level does not change");
    monitor.signal("INT");
    assert_eq!(monitor.ends(), 0);
}
