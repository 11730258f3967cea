//! Behavior without faults, or with faults that must not matter.

use crate::mesh::{MS, Mesh, SECOND, agent};
use lockmesh_protocol::gossip::member::MemberId;
use std::time::Duration;

#[test]
fn no_suspicions_and_little_traffic() {
    let mut mesh = Mesh::of(32, 1);
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.suspicions, []);
    let (count, bytes) = (mesh.datagrams as f64 / 32.0 / 60.0, mesh.bytes as f64 / 32.0 / 60.0);
    assert!((3.9..=4.1).contains(&count), "{count} datagrams a second");
    assert!(bytes < 100.0, "{bytes} bytes a second");
}

#[test]
fn same_seed_same_run() {
    let run = |seed| {
        let mut mesh = Mesh::of(8, seed);
        mesh.loss = 100;
        mesh.pass(SECOND * 20);
        (mesh.datagrams, mesh.bytes, mesh.suspicions)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// Stops one process after the other right after it has sent a probe, for increasing times. Returns
/// `true` if any of them suspects others afterwards, and the number of its excused probes.
fn sleepers_suspect(stand_still: fn(&mut Mesh, MemberId, Duration)) -> (bool, u64) {
    let mut mesh = Mesh::of(16, 2);
    let (mut suspected, mut excused) = (false, 0);
    for number in 0..16 {
        let sleeper = agent(number);
        let before = mesh.counts(sleeper);
        while mesh.counts(sleeper).probes == before.probes {
            mesh.pass(MS / 10);
        }
        stand_still(&mut mesh, sleeper, MS * 300 * (number + 1));
        mesh.pass(SECOND * 10);
        // It is suspected itself, correctly.
        suspected |= mesh.suspicions.iter().any(|(_, reporter, _)| *reporter == sleeper);
        excused += mesh.counts(sleeper).excused - before.excused;
        mesh.forget();
    }
    (suspected, excused)
}

#[test]
fn stopped_host_resumes_without_suspicions() {
    assert!(!sleepers_suspect(Mesh::stop).0, "what has arrived counts first");
}

#[test]
fn suspended_host_resumes_without_suspicions() {
    let (suspected, excused) = sleepers_suspect(Mesh::suspend);
    assert!(!suspected && excused >= 8, "{excused} failed probes");
}

#[test]
fn lossy_network_stretches_probes_temporarily() {
    let mut mesh = Mesh::of(8, 5);
    assert_eq!(mesh.stretches(), vec![1; 8]);
    let probes = |mesh: &Mesh| (0..8).map(|number| mesh.counts(agent(number)).probes).sum::<u64>();
    let in_a_while = |mesh: &mut Mesh| {
        let before = probes(mesh);
        mesh.pass(SECOND * 20);
        probes(mesh) - before
    };
    let usual = in_a_while(&mut mesh);
    mesh.loss = 600;
    mesh.pass(SECOND * 20);
    assert!(mesh.stretches().iter().all(|stretch| (2..=9).contains(stretch)));
    assert!(in_a_while(&mut mesh) * 2 < usual);
    mesh.loss = 0;
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.stretches(), vec![1; 8]);
}

#[test]
fn isolated_host_stops_suspecting_others() {
    let mut mesh = Mesh::of(16, 3);
    mesh.loss = 1_000;
    mesh.pass(SECOND * 2);
    mesh.forget();
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.suspicions, []);
    assert!(mesh.counts(agent(3)).excused > 10);
}
