//! What operators see of a quorum and do to it, over HTTP and on the command line.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::process::run;
use serde_json::json;
use std::sync::OnceLock;

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Runs `lockmesh operator …` against the shared agent: exit code, standard output, standard error.
fn operator(words: &[&str]) -> (i32, String, String) {
    let address = shared().http.to_string();
    run(&[&["operator"], words, &["--http-addr", &address]].concat())
}

#[test]
fn a_quorum_of_one_is_well_and_may_lose_nobody() {
    let client = shared().client();
    let health = client.get("/v1/operator/autopilot/health").expect(200).json();
    assert_eq!((&health["Healthy"], &health["FailureTolerance"]), (&json!(true), &json!(0)));
    let server = &health["Servers"][0];
    assert_eq!((&server["Leader"], &server["Voter"]), (&json!(true), &json!(true)));
    if shared().is_foreign() {
        return;
    }
    let (code, table, _) = operator(&["autopilot", "health"]);
    assert!(code == 0 && table.contains("All servers are well, but none may be lost."), "{table}");
    let (code, table, _) = operator(&["raft", "list-peers"]);
    assert_eq!(code, 0);
    let row: Vec<&str> = table.lines().nth(1).expect("there is a server").split_whitespace().collect();
    assert_eq!((row[0], row[1], row[4], row[5], row[7]), ("node-one", "1", "leader", "true", "well"));
    let (_, text, _) = operator(&["raft", "list-peers", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&listed["Leader"], &listed["Servers"][0]["Healthy"]), (&json!(1), &json!(true)));
}

#[test]
fn the_only_server_stays() {
    if shared().is_foreign() {
        return;
    }
    let (code, _, said) = operator(&["raft", "remove", "node-one"]);
    assert!(code == 1 && said.contains("refused (409)") && said.contains("operator raft add"), "{said}");
    let (code, _, said) = operator(&["raft", "remove", "nobody"]);
    assert!(code == 1 && said.contains("no server is called \"nobody\"; there are server 1"), "{said}");
    let (code, _, said) = operator(&["raft", "transfer-leader"]);
    assert!(code == 1 && said.contains("there is no other server that could lead"), "{said}");
}

#[test]
fn autopilot_is_told_what_to_do_and_remembers_it() {
    let dev = Dev::start(&[]);
    if dev.is_foreign() {
        return;
    }
    let address = dev.http.to_string();
    let autopilot = |words: &[&str]| {
        let (code, told, said) =
            run(&[&["operator", "autopilot"], words, &["--http-addr", &address]].concat());
        assert_eq!(code, 0, "{said}");
        told
    };
    let first = autopilot(&["get-config"]);
    assert!(first.starts_with("CleanupDeadServers = true\nLastContactThreshold = 200ms\n"), "{first}");
    let updated = autopilot(&["set-config", "-cleanup-dead-servers=false", "-min-quorum=3"]);
    assert_eq!(updated, "Configuration updated!\n");
    let dev = dev.restart();
    let kept = dev.client().get("/v1/operator/autopilot/configuration").expect(200).json();
    assert_eq!((&kept["CleanupDeadServers"], &kept["MinQuorum"]), (&json!(false), &json!(3)));
    assert_eq!(kept["MaxTrailingLogs"], 250);
}

#[test]
fn servers_come_lead_and_go() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = Fleet::start(folder.path(), "3");
    let client = fleet.client();
    let session = client.session();
    assert!(client.acquire("held", &session));

    let follower =
        ["s1", "s2", "s3"].into_iter().find(|node| *node != fleet.leader()).expect("there are two");
    let (code, told, said) = fleet.command(&["operator", "raft", "transfer-leader", follower]);
    assert!(code == 0 && told.contains(follower) && told.ends_with("leads now\n"), "{told} {said}");
    assert_eq!(fleet.leader(), follower);

    let (mut stranger, address) = fleet.stranger("s4");
    let (code, told, said) = fleet.command(&["operator", "raft", "add", &address]);
    assert!(code == 0 && told.contains("is told to join") && told.ends_with(" votes\n"), "{told} {said}");
    assert_eq!(fleet.servers().iter().filter(|server| server["Voter"] == true).count(), 4);
    let (code, _, said) = fleet.command(&["operator", "raft", "add", &address]);
    assert!(code == 1 && said.contains("belongs to this quorum already"), "{said}");
    let (code, _, said) = fleet.command(&["operator", "raft", "add", "127.0.0.1:1"]);
    assert!(code == 1 && said.contains("no server is reached at 127.0.0.1:1"), "{said}");

    let leader = fleet.leader();
    let (code, _, said) = fleet.command(&["operator", "raft", "remove", &leader]);
    assert!(code == 1 && said.contains("transfer-leader"), "{said}");
    stranger.kill();
    let (code, told, said) = fleet.command(&["operator", "raft", "remove", "s4"]);
    assert!(code == 0 && told.ends_with("is out of the quorum\n"), "{told} {said}");
    assert_eq!(fleet.servers().len(), 3);

    // Of three, one is dead: the two that live are needed, the dead one is not.
    let followers: Vec<&str> = ["s1", "s2", "s3"].into_iter().filter(|node| *node != leader).collect();
    assert!(shell(&format!("kill -9 {}", fleet.pid(followers[0]))));
    wait_until(|| client.get("/v1/operator/autopilot/health").status == 429);
    let (code, _, said) = fleet.command(&["operator", "raft", "remove", followers[1]]);
    assert!(code == 1 && said.contains("too few of the other servers are well"), "{said}");
    let (code, _, said) = fleet.command(&["operator", "raft", "remove", followers[0]]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(client.holder("held"), Some(session), "no session is lost with a server");
    client.get("/v1/operator/autopilot/health").expect(200);
    fleet.stop();
}
