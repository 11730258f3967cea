//! Fills the disk of `lockmesh dev`, then the disks of three servers, and checks their behavior:
//! `full_disk FOLDER`.
//!
//! FOLDER is on a small dedicated disk, such as a tmpfs of 64 MiB; `.ci/run` mounts one. While the
//! disk is full, writes must fail with a 500 that states the reason, and reads must work. That also
//! holds for three servers whose leader dies meanwhile, which leaves no leader. No acknowledged
//! write may be lost, and writes must succeed again, without a restart, once there is space.

use lockmesh_tests::cluster::Cluster;
use lockmesh_tests::dev::Dev;
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::http::{Answer, Client};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// The maximum capacity of a small disk: filling a larger one would take too long or harm the
/// machine.
const LARGEST: usize = 1 << 30;
/// The maximum number of writes that still succeed on a full disk, in space already allocated.
const LAST_WRITES: usize = 20_000;

fn main() {
    let folder = std::env::args().nth(1).expect("usage: full_disk FOLDER (on a small disk of its own)");
    let folder = Path::new(&folder);
    one_server(&folder.join("one"));
    three_servers(&folder.join("three"));
}

fn one_server(folder: &Path) {
    std::fs::create_dir(folder).expect("the small disk is writable");
    let server = Dev::start_with_data(&folder.join("data"), &[]);
    let client = server.client();
    let session = client.session();
    assert!(client.acquire("disk/lock", &session));
    let mut kept: Vec<String> = Vec::new();
    for number in 0..50 {
        write(&client, number).expect(200);
        kept.push(key(number));
    }

    let filler = folder.join("filler");
    println!("filled the disk with {} bytes", fill(&filler));
    let refused = write_until_refused(&client, &mut kept);
    println!("after {} writes: {} {}", kept.len(), refused.status, refused.text());
    assert_states_reason(&refused);

    verify(&client, &kept, &session);
    let create = client.put("/v1/session/create", "");
    assert_eq!(create.status, 500, "a session cannot be created: {create:?}");
    println!("reads still work: all {} keys are there", kept.len());

    std::fs::remove_file(&filler).expect("the filler can be removed");
    let waited = write_until_taken(&client, &mut kept);
    println!("writes succeed {} ms after space was freed", waited.as_millis());
    verify(&client, &kept, &session);
    assert!(client.release("disk/lock", &session));
    assert!(client.acquire("disk/lock", &session));

    let server = server.restart();
    verify(&server.client(), &kept, &session);
    println!("after a kill: all {} keys are there, and the lock", kept.len());
    drop(server);
    std::fs::remove_dir_all(folder).expect("the data can be removed");
}

fn three_servers(folder: &Path) {
    let disks = ["s1", "s2", "s3"].map(|name| folder.join(name));
    let mut cluster = Cluster::start(&disks, &[&[0, 1, 2]], 1);
    cluster.wait_until_whole();
    let client = cluster.client(0);
    let session = client.session();
    assert!(client.acquire("disk/lock", &session));
    let mut kept: Vec<String> = Vec::new();
    let filler = folder.join("filler");
    fill(&filler);
    let first = write_until_refused(&client, &mut kept);
    assert_eq!(first.status, 500, "{first:?}");
    // The first call may end as unknown while the leader tries to pass its leadership on.
    assert_states_reason(&write(&client, kept.len()));
    println!("three full disks: {}", write(&client, kept.len()).text());

    let leader = cluster.wait_for_leader();
    cluster.kill(leader);
    assert_states_reason(&write(&client, kept.len()));
    println!("without a leader: {}", write(&client, kept.len()).text());

    std::fs::remove_file(&filler).expect("the filler can be removed");
    let waited = write_until_taken(&client, &mut kept);
    println!("writes succeed {} ms after space was freed", waited.as_millis());
    cluster.begin(leader);
    cluster.wait_until_whole();
    verify(&client, &kept, &session);
}

fn assert_states_reason(refused: &Answer) {
    assert_eq!(refused.status, 500, "{refused:?}");
    let reason = refused.text().to_lowercase();
    assert!(reason.contains("disk") || reason.contains("space"), "it must state the reason: {refused:?}");
}

fn key(number: usize) -> String {
    format!("disk/{number:06}")
}

fn value(key: &str) -> String {
    key.repeat(4096 / key.len())
}

fn write(client: &Client, number: usize) -> Answer {
    client.put(&format!("/v1/kv/{}", key(number)), value(&key(number)))
}

/// Fills the disk to its last byte.
fn fill(path: &Path) -> usize {
    let mut file = File::create(path).expect("a file can be made on the small disk");
    let mut written = 0;
    for size in [1 << 20, 4096, 1] {
        let block = vec![0_u8; size];
        while file.write_all(&block).is_ok() {
            written += size;
            assert!(written < LARGEST, "the disk is too large: mount a tmpfs of 64 MiB there");
        }
    }
    written
}

fn write_until_refused(client: &Client, kept: &mut Vec<String>) -> Answer {
    let first = kept.len();
    for number in first..first + LAST_WRITES {
        let answer = write(client, number);
        if answer.status != 200 {
            return answer;
        }
        kept.push(key(number));
    }
    panic!("{LAST_WRITES} writes succeeded: the disk cannot have been full");
}

fn write_until_taken(client: &Client, kept: &mut Vec<String>) -> Duration {
    let begun = Instant::now();
    loop {
        let answer = write(client, kept.len());
        if answer.status == 200 {
            kept.push(key(kept.len()));
            return begun.elapsed();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "a write failed although there is space: {answer:?}"
        );
        let_pass(Duration::from_millis(50));
    }
}

fn verify(client: &Client, kept: &[String], session: &str) {
    for key in kept {
        let answer = client.get(&format!("/v1/kv/{key}?raw")).expect(200);
        assert_eq!(answer.text(), value(key), "{key}");
    }
    assert_eq!(client.holder("disk/lock").as_deref(), Some(session));
    assert!(client.session_info(session).is_some());
}
