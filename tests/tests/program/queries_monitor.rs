//! Prepared queries across processes: an agent's death and a server's restart, and the commands
//! `lockmesh query` and `lockmesh monitor` with their exit codes.

use lockmesh_tests::fleet::{Fleet, gone, wait_until};
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::Process;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The number of lines that fill every buffer between a monitor and a client that does not read.
const LINES: usize = 800;

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
fn a_query_dies_with_its_session_s_agent_and_stays_gone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Fleet::start_with(folder.path(), "1", &["--nodes", "2"]);
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

    let pid = dev.pid("s1");
    let (_, shown, _) = dev.kill("s1", &["--timeout", "1s"]);
    assert!(shown.contains(&pid), "{shown}");
    gone(&pid);
    let config = folder.path().join("s1/server.toml");
    let server = Process::lockmesh(&["server", "--config", config.to_str().expect("text")]);
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
fn a_monitor_shows_what_a_request_causes_and_an_unread_one_lets_the_agent_stop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("sock");
    let usual = ["dev", "--http", "127.0.0.1:0", "--node", "node-one", "--socket"];
    let dev = Process::lockmesh(&[&usual[..], &[socket.to_str().expect("text")]].concat());
    let ready = dev.says("ready http=");
    let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect("an address");
    let client = Client { address: Address::Tcp(http.parse().expect("an address")) };
    let monitor = Process::lockmesh(&["monitor", "--log-level", "debug", "--http-addr", http]);
    // It has no line yet that shows its begin, so the cause comes until the line does.
    let durable = "[DEBUG] agent.server: the checkpoint is durable: index=";
    wait_until(|| {
        client.set("change", "again");
        client.get("/v1/snapshot").expect(200);
        monitor.said().contains(durable)
    });
    let register = |name: &str, port: usize| {
        let body = json!({"Name": name, "Port": port % 2}).to_string();
        client.put("/v1/agent/service/register", body).expect(200);
    };
    register("web", 0);
    monitor.says("[INFO]  agent: service registered: service=web");
    assert!(!dev.said().contains("the checkpoint is durable"), "its own level does not change");
    monitor.signal("INT");
    assert_eq!(monitor.ends(), 0);

    let mut reader = UnixStream::connect(&socket).expect("it listens");
    reader.write_all(b"GET /v1/agent/monitor HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    let mut received = vec![0; 15];
    reader.read_exact(&mut received).expect("the log begins");
    assert_eq!(received, b"HTTP/1.1 200 OK");
    let name = "x".repeat(1_000);
    (0..LINES).for_each(|number| register(&name, number));
    dev.signal("TERM");
    assert_eq!(dev.ends(), 0, "{}", dev.said());
    // An error: the connection was aborted.
    let _ = reader.read_to_end(&mut received);
    let shown = String::from_utf8_lossy(&received).matches("service registered").count();
    assert!(shown > 0 && shown < LINES, "{shown} of {LINES} lines were read");
}
