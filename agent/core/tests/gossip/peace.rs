//! Behavior without faults, or with faults that must not matter.

use crate::mesh::{MS, Mesh, SECOND, agent};
use lockmesh_protocol::gossip::member::MemberId;
use std::time::Duration;

#[test]
fn in_peace_nobody_is_accused_and_little_is_sent() {
    let mut mesh = Mesh::of(32, 1);
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.accusations, []);
    let (count, bytes) = (mesh.datagrams as f64 / 32.0 / 60.0, mesh.bytes as f64 / 32.0 / 60.0);
    assert!((3.9..=4.1).contains(&count), "{count} datagrams a second");
    assert!(bytes < 100.0, "{bytes} bytes a second");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut mesh = Mesh::of(8, seed);
        mesh.loss = 100;
        mesh.pass(SECOND * 20);
        (mesh.datagrams, mesh.bytes, mesh.accusations)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// Stops one process after the other right after it has sent a probe, for increasing times. Returns
/// `true` if any of them suspects others afterwards, and the number of its excused probes.
fn sleepers_accuse(stand_still: fn(&mut Mesh, MemberId, Duration)) -> (bool, u64) {
    let mut mesh = Mesh::of(16, 2);
    let (mut accused, mut excused) = (false, 0);
    for number in 0..16 {
        let sleeper = agent(number);
        let before = mesh.counts(sleeper);
        while mesh.counts(sleeper).probes == before.probes {
            mesh.pass(MS / 10);
        }
        stand_still(&mut mesh, sleeper, MS * 300 * (number + 1));
        mesh.pass(SECOND * 10);
        // It is suspected itself, correctly.
        accused |= mesh.accusations.iter().any(|(_, accuser, _)| *accuser == sleeper);
        excused += mesh.counts(sleeper).excused - before.excused;
        mesh.forget();
    }
    (accused, excused)
}

#[test]
fn who_stood_still_accuses_nobody_when_it_wakes() {
    assert!(!sleepers_accuse(Mesh::stop).0, "what has arrived counts first");
}

#[test]
fn who_was_suspended_and_missed_all_answers_accuses_nobody_when_it_wakes() {
    let (accused, excused) = sleepers_accuse(Mesh::suspend);
    assert!(!accused && excused >= 8, "{excused} failed probes");
}

#[test]
fn who_is_wrong_again_and_again_gives_its_probes_more_time_until_all_is_well() {
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
fn who_hears_nobody_accuses_nobody_for_long() {
    let mut mesh = Mesh::of(16, 3);
    mesh.loss = 1_000;
    mesh.pass(SECOND * 2);
    mesh.forget();
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.accusations, []);
    assert!(mesh.counts(agent(3)).excused > 10);
}
