//! The operators' view of a quorum and their changes to it, over HTTP and on the command line.

use lockmesh_tests::binary::lockmesh;
use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::process::run;
use serde_json::json;
use std::collections::BTreeSet;
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
fn single_server_tolerates_no_failure() {
    let client = shared().client();
    let health = client.get("/v1/operator/autopilot/health").expect(200).json();
    assert_eq!((&health["Healthy"], &health["FailureTolerance"]), (&json!(true), &json!(0)));
    let server = &health["Servers"][0];
    assert_eq!((&server["Leader"], &server["Voter"]), (&json!(true), &json!(true)));
    assert!(server["StableSince"].as_str().is_some_and(|since| since.starts_with("20")), "{server}");
    if shared().is_foreign() {
        return;
    }
    let (code, table, _) = operator(&["autopilot", "health"]);
    assert!(code == 0 && table.contains("All servers are healthy; failure tolerance is 0."), "{table}");
    let (code, table, _) = operator(&["raft", "list-peers"]);
    assert_eq!(code, 0);
    let row: Vec<&str> = table.lines().nth(1).expect("there is a server").split_whitespace().collect();
    assert_eq!((row[0], row[1], row[4], row[5], row[8]), ("node-one", "1", "leader", "true", "healthy"));
    let (_, text, _) = operator(&["raft", "list-peers", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(listed["ClusterID"].as_str().is_some_and(|id| id.len() == 36), "{listed}");
    assert_eq!((&listed["Leader"], &listed["Servers"][0]["Healthy"]), (&json!(1), &json!(true)));
}

#[test]
fn backup_through_pipe_is_atomic() {
    if shared().is_foreign() {
        return;
    }
    let (program, address) = (lockmesh().display(), shared().http);
    let snapshot = format!("{program} operator snapshot");
    assert!(shell(&format!("{snapshot} save - --http-addr {address} | {snapshot} inspect - | grep -q Rows")));
    assert!(shell(&format!(
        "{snapshot} save - --http-addr {address} | {snapshot} restore - --http-addr {address}"
    )));
    assert!(shell(&format!("test -z \"$({snapshot} save - --http-addr 127.0.0.1:1)\"")));
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
fn autopilot_configuration_survives_restart() {
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
    let fleet = Fleet::new("3", &[]);
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
    assert!(code == 0 && told.contains(": join requested") && told.ends_with(" votes\n"), "{told} {said}");
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
    assert!(code == 0 && told.ends_with("removed from the cluster\n"), "{told} {said}");
    assert_eq!(fleet.servers().len(), 3);

    // Of three servers, one is dead: the two live ones are needed, the dead one is not.
    let followers: Vec<&str> = ["s1", "s2", "s3"].into_iter().filter(|node| *node != leader).collect();
    assert!(shell(&format!("kill -9 {}", fleet.pid(followers[0]))));
    // For a second the leader counts on a server that has just been in contact.
    wait_until(|| {
        let servers = fleet.servers();
        let dead = servers.iter().find(|server| server["Node"] == followers[0]).expect("it is a member");
        let silence = dead["LastContact"].as_str().expect("it was in contact once");
        dead["Healthy"] == false && silence.ends_with('s') && !silence.ends_with("ms")
    });
    assert_eq!(client.get("/v1/operator/autopilot/health").status, 429);
    let (code, _, said) = fleet.command(&["operator", "raft", "remove", followers[1]]);
    assert!(code == 1 && said.contains("2 voters remain") && said.contains("confirm with --yes"), "{said}");
    let (code, _, said) = fleet.command(&["operator", "raft", "remove", "--yes", followers[1]]);
    assert!(code == 1 && said.contains("too few of the other servers are well"), "{said}");
    let (code, told, said) = fleet.command(&["operator", "raft", "remove", "--json", followers[0]]);
    assert!(code == 0 && told.contains(&format!("\"Node\": \"{}\"", followers[0])), "{told} {said}");
    assert_eq!(client.holder("held"), Some(session), "no session is lost with a server");
    client.get("/v1/operator/autopilot/health").expect(200);
    fleet.stop();
}

#[test]
fn removed_running_server_stops_serving() {
    let fleet = Fleet::new("3", &[]);
    let (mut fourth, address) = fleet.stranger("s4");
    let (code, _, said) = fleet.command(&["operator", "raft", "add", &address]);
    assert_eq!(code, 0, "{said}");
    let (code, told, said) = fleet.command(&["operator", "raft", "remove", "s4"]);
    assert!(code == 0 && told.ends_with("removed from the cluster\n"), "{told} {said}");
    fourth.says("this server was removed from the cluster and is not serving");
    let record = fleet.folder.join("s4/data/quorum.json");
    wait_until(|| std::fs::read_to_string(&record).is_ok_and(|text| text.contains("\"removed\": true")));
    fourth.kill();
    fleet.server_of("s4").says("empty the whole folder, so that it joins as a new server");
    fleet.stop();
}

/// Returns the output of `raft inspect` for a stopped server of a fleet; it must not change the
/// folder.
fn inspected(folder: &std::path::Path, node: &str) -> serde_json::Value {
    let data = folder.join(node).join("data");
    let contents = || {
        let log = std::fs::read_dir(data.join("log")).expect("it is there");
        let log = log.map(|file| file.expect("it can be read").path());
        let files = log.chain([data.join("state.redb")]);
        files.map(|path| (std::fs::read(&path).expect("it is there"), path)).collect::<BTreeSet<_>>()
    };
    let before = contents();
    let place = data.to_str().expect("it is text");
    let (code, told, said) = run(&["operator", "raft", "inspect", "--json", "--data-dir", place]);
    assert_eq!(code, 0, "{said}");
    assert!(before == contents(), "nothing is written");
    serde_json::from_str(&told).expect("JSON")
}

#[test]
fn lost_quorum_recovered_from_one_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = Fleet::start(folder.path(), "3");
    let client = fleet.client();
    client.set("kept", "by the survivor");
    let survivor = fleet.leader();
    let session = client.session();
    let fence = |client: &lockmesh_tests::http::Client, session: &str| {
        let granted = client.put(&format!("/v1/kv/lock?acquire={session}"), "").expect(200);
        granted.header("X-Lockmesh-Fence").expect("it has a fence").parse::<u64>().expect("a number")
    };
    let first = fence(&client, &session);
    client.destroy(&session);

    let data = folder.path().join(&survivor).join("data");
    let data = data.to_str().expect("it is text");
    let recover = ["operator", "raft", "recover", "--data-dir", data];
    let sure = [&recover[..], &["--yes-the-other-servers-are-gone"]].concat();
    let (code, _, said) = run(&recover);
    assert!(code == 2 && said.contains("nothing was changed"), "{said}");
    let (code, _, said) = run(&sure);
    assert!(code == 1 && said.contains("another lockmesh runs on this folder"), "{said}");
    let inspect = ["operator", "raft", "inspect", "--data-dir", data];
    let (code, _, said) = run(&inspect);
    assert!(code == 1 && said.contains("another lockmesh runs on this folder"), "{said}");
    fleet.stop();
    let (code, told, said) = run(&inspect);
    assert!(code == 0 && told.contains(&format!("({survivor}, 127.0.0.1:")), "{told} {said}");
    assert_eq!(inspected(folder.path(), &survivor)["Voters"], json!([1, 2, 3]));
    let position = |node: &&str| {
        let found = inspected(folder.path(), node);
        ["LastLogTerm", "LastLogIndex"].map(|name| found[name].as_u64().expect("a number"))
    };
    let most = ["s1", "s2", "s3"].iter().map(position).max();
    assert_eq!(Some(position(&survivor.as_str())), most, "no server has more than the leader");
    let (code, told, said) = run(&sure);
    assert!(code == 0 && told.contains("NEVER start it again"), "{told} {said}");
    assert_eq!(inspected(folder.path(), &survivor)["Voters"].as_array().map(Vec::len), Some(1));
    assert_eq!(told.matches("empty the data folder").count(), 2, "{told}");

    for lost in ["s1", "s2", "s3"].iter().filter(|node| **node != survivor) {
        std::fs::remove_dir_all(folder.path().join(lost).join("data")).expect("it is there");
    }
    let fleet = Fleet::start(folder.path(), "3");
    let client = fleet.client();
    wait_until(|| fleet.servers().iter().filter(|server| server["Voter"] == true).count() == 3);
    assert_eq!(client.get("/v1/kv/kept?raw").expect(200).text(), "by the survivor");
    let session = client.session();
    assert!(fence(&client, &session) > first, "a fence never goes back");
    fleet.stop();
}

#[test]
fn gossip_key_rotation_increments_number() {
    if shared().is_foreign() {
        return;
    }
    let shown = || operator(&["gossip", "key"]);
    assert_eq!(shown(), (0, "gossip key is 0\n".into(), String::new()));
    let (code, said, _) = operator(&["gossip", "rotate"]);
    let words =
        "gossip key is now 1; agents receive it within 30 s; the next rotation is possible in a minute\n";
    assert_eq!((code, said.as_str()), (0, words));
    let (code, _, why) = operator(&["gossip", "rotate"]);
    assert!(code == 1 && why.contains("the gossip key was changed") && why.contains("wait"), "{why}");
    let (_, text, _) = operator(&["gossip", "key", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), json!({ "Number": 1 }));
}
