//! Nothing is wrong, or only what must not matter.

use crate::mesh::{MS, Mesh, SECOND, agent};

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

#[test]
fn who_stood_still_accuses_nobody_when_it_wakes() {
    let mut mesh = Mesh::of(16, 2);
    for number in 0..16 {
        mesh.stop(agent(number), MS * 400 * (number + 1));
        mesh.pass(SECOND * 10);
    }
    let sleeper_accused = |accuser, at| {
        // A process that stands still is accused, and rightly so; it must not accuse others.
        mesh.accusations.iter().any(|(when, who, _)| (*when, *who) == (at, accuser))
    };
    for (at, accuser, suspect) in &mesh.accusations {
        assert_ne!(accuser, suspect);
        assert!(sleeper_accused(*accuser, *at));
    }
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
