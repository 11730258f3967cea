//! A server whose state diverged while it was stopped: it is detected, answers no agent, and joins
//! again as a new server.

use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_server::store::{DirtyRows, SEGMENT_BYTES, Store, StoreEvent, StoreOptions};
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::member::{certificates, configure, issue};
use lockmesh_tests::process::{Process, run};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// The key that one server holds and that no client has written.
const STRAY: &str = "nobody-wrote-this";
const SERVERS: [&str; 3] = ["s1", "s2", "s3"];

/// Adds a row to a stopped server's checkpoint, with a matching checksum: a valid file with
/// different state.
fn corrupt(data: &Path) {
    let record = fs::read_to_string(data.join("quorum.json")).expect("it belongs to a quorum");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let id = record["state"]["member"]["server"].as_u64().expect("it is a member");
    let options = StoreOptions {
        server: ServerId(id),
        first_snapshot: SnapshotMeta::default(),
        cache_bytes: 4 << 20,
        accept_loss: false,
        segment_bytes: SEGMENT_BYTES,
    };
    let (store, recovered) = Store::open(data, &options).expect("the server is stopped");
    let entry = Entry {
        key: STRAY.into(),
        value: "wrong".into(),
        flags: 0,
        lock: Lock::default(),
        create_index: LogIndex(1),
        modify_index: LogIndex(1),
    };
    let mut rows = DirtyRows::default();
    rows.record(Change::Entry(STRAY.into(), Some(Arc::new(entry))));
    let (tell, told) = mpsc::sync_channel(16);
    let store = store.start(move |event| drop(tell.send(event))).expect("threads can be started");
    store.checkpoint(recovered.snapshot, rows);
    while !matches!(told.recv().expect("the store writes it"), StoreEvent::Checkpointed(_)) {}
    store.close();
}

/// An agent that knows one server only.
struct LonelyAgent {
    _process: Process,
    client: Client,
}

impl LonelyAgent {
    fn of(fleet: &Fleet, server: &str) -> Self {
        let (home, own) = (&fleet.folder, fleet.folder.join("lonely"));
        issue(&home.join("tls"), &certificates(home, "lonely"), "agent", "lonely");
        let socket = home.join("lonely.sock");
        let rest = format!(
            "listen = \"127.0.0.1:0\"\n[http]\ntcp = \"\"\nsocket = {socket:?}\n[upstream]\nservers = [{:?}]",
            address(fleet, server)
        );
        let config = configure(home, "tls", "lonely", "agent", &own, &rest);
        let process = Process::lockmesh(&["agent", "--config", &config]);
        let client = Client { address: Address::Unix(socket) };
        wait_until(|| client.connect().is_ok());
        Self { _process: process, client }
    }
}

fn address(fleet: &Fleet, server: &str) -> String {
    let config = fs::read_to_string(fleet.folder.join(server).join("server.toml")).expect("it has one");
    let config: toml::Table = config.parse().expect("TOML");
    config["rpc"]["listen"].as_str().expect("an address").to_owned()
}

fn log(fleet: &Fleet, server: &str) -> String {
    fs::read_to_string(fleet.folder.join(server).join("log")).expect("it has a log")
}

/// A quorum that compares its servers every second, one of which was corrupted before.
fn fleet_with_one_corrupt(folder: &Path) -> Fleet {
    let fleet = Fleet::start(folder, "3");
    fleet.client().set("kept", "by the others");
    fleet.stop();
    for server in SERVERS {
        let file = folder.join(server).join("server.toml");
        let config = fs::read_to_string(&file).expect("it has one");
        let short = "\n[storage]\ncorruption_check_interval = \"1s\"\n";
        fs::write(file, config + short).expect("the folder is ours");
    }
    corrupt(&folder.join("s1/data"));
    Fleet::start(folder, "3")
}

#[test]
fn diverged_server_excluded_until_emptied() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = fleet_with_one_corrupt(folder.path());
    let client = fleet.client();
    client.set("news", "an entry to compare");
    let leader_said = "the state of these servers differs from that of a majority";
    wait_until(|| {
        log(&fleet, "s1").contains("the state of this server is corrupt: a corruption check found it")
    });
    wait_until(|| SERVERS.iter().any(|server| log(&fleet, server).contains(leader_said)));

    // Another server leads, and reports this one.
    wait_until(|| {
        let servers = fleet.servers();
        servers.iter().any(|server| server["Leader"] == true && server["Node"] != "s1")
            && servers.iter().all(|server| (server["Node"] == "s1") != (server["Healthy"] == true))
    });
    let (code, table, said) = fleet.command(&["operator", "autopilot", "health"]);
    let row = table.lines().find(|line| line.starts_with("s1")).unwrap_or_else(|| panic!("{table} {said}"));
    assert!(row.contains("false"), "exit code {code}: {table}");

    // Agents switched to other servers; one that cannot gets no reply.
    assert_eq!(client.get("/v1/kv/kept?raw&stale").expect(200).text(), "by the others");
    assert_eq!(client.get(&format!("/v1/kv/{STRAY}?stale")).status, 404);
    let lonely = LonelyAgent::of(&fleet, "s1");
    let refused = lonely.client.get(&format!("/v1/kv/{STRAY}?stale"));
    assert_eq!(refused.status, 500, "{}", refused.text());

    // The finding survives a restart, and the way back is an empty folder.
    fleet.kill_process("s1");
    let data = folder.path().join("s1/data");
    let place = data.to_str().expect("it is text");
    let (code, told, said) = run(&["operator", "raft", "inspect", "--data-dir", place]);
    assert!(code == 0 && told.contains("corrupt: it differs from that of a majority"), "{told} {said}");
    let mut s1 = fleet.restart("s1");
    s1.says("the state of this server is corrupt, as found by a corruption check");
    s1.kill();
    assert!(shell(&format!("rm -r {place}")));
    let mut s1 = fleet.restart("s1");
    wait_until(|| {
        let servers = fleet.servers();
        servers.len() == 3
            && servers.iter().all(|server| server["Voter"] == true && server["Healthy"] == true)
    });
    while lonely.client.get(&format!("/v1/kv/{STRAY}?stale")).status != 404 {
        let_pass(Duration::from_millis(20));
    }
    s1.kill();
    fleet.stop();
}
