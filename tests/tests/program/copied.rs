//! A copied data folder of a server: a copy that lost acknowledged state must never vote again.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::process::run;
use std::path::Path;

/// Copies a folder, deletes it and copies it back: path and device stay the same, and mostly the
/// inodes.
fn copy_and_put_back(folder: &Path) {
    let folder = folder.to_str().expect("it is text");
    let script = format!("cp -a {folder} {folder}.away && rm -r {folder} && cp -a {folder}.away {folder}");
    assert!(shell(&script), "the shell command succeeds");
}

fn fence(client: &Client) -> u64 {
    let session = client.session();
    let granted = client.put(&format!("/v1/kv/lock?acquire={session}"), "").expect(200);
    let fence = granted.header("X-Lockmesh-Fence").expect("it has a fence").parse().expect("a number");
    client.destroy(&session);
    fence
}

#[test]
fn copied_member_refused_until_emptied() {
    let fleet = Fleet::new("3", &[]);
    fleet.client().set("kept", "by the others");
    fleet.kill_process("s1");
    let data = fleet.folder.join("s1/data");
    copy_and_put_back(&data);
    let config = fleet.folder.join("s1/server.toml");
    let (config, place) = (config.to_str().expect("it is text"), data.to_str().expect("it is text"));

    let (code, _, said) = run(&["server", "--config", config]);
    assert_ne!(code, 0, "{said}");
    for words in ["is a copy", "nothing was changed", "Empty the whole folder", "raft moved --data-dir"] {
        assert!(said.contains(words), "{words:?} is missing: {said}");
    }
    let moved = ["operator", "raft", "moved", "--data-dir", place];
    let (code, _, said) = run(&moved);
    assert!(code == 2 && said.contains("nothing was changed"), "{said}");

    // The original has not run since, so the copy may replace it.
    let (code, told, said) = run(&[&moved[..], &["--yes-nothing-ran-since"]].concat());
    assert!(code == 0 && told.contains("is at home in"), "{told} {said}");
    let mut s1 = fleet.restart("s1");
    let is_well = || fleet.servers().iter().all(|server| server["Healthy"] == true);
    wait_until(is_well);
    s1.kill();

    // Copied once more, and emptied as instructed.
    copy_and_put_back_after_removing(&data);
    let (code, _, said) = run(&["server", "--config", config]);
    assert!(code != 0 && said.contains("is a copy"), "{said}");
    assert!(shell(&format!("rm -r {place}")));
    let mut s1 = fleet.restart("s1");
    wait_until(|| {
        let servers = fleet.servers();
        servers.len() == 3
            && servers.iter().all(|server| server["Voter"] == true && server["Healthy"] == true)
    });
    assert_eq!(fleet.client().get("/v1/kv/kept?raw").expect(200).text(), "by the others");
    s1.kill();
    fleet.stop();
}

fn copy_and_put_back_after_removing(folder: &Path) {
    assert!(shell(&format!("rm -r {}.away", folder.display())));
    copy_and_put_back(folder);
}

#[test]
fn copied_lone_server_raises_fences() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    let mut dev = Dev::start_with_data(&data, &[]);
    dev.client().set("kept", "by the copy");
    let before = fence(&dev.client());
    dev.kill();
    copy_and_put_back(&data);
    let mut dev = dev.restart();
    assert!(dev.log().contains("the data folder is a copy"), "{}", dev.log());
    assert_eq!(dev.client().get("/v1/kv/kept?raw").expect(200).text(), "by the copy");
    let jumped = fence(&dev.client());
    assert!(jumped > before + (1 << 31), "{before} before the copy, {jumped} behind it");

    // From then on it counts as the original.
    dev.kill();
    let dev = dev.restart();
    let next = fence(&dev.client());
    assert!(next > jumped && next < jumped + 1_000, "{jumped}, then {next}");
}
