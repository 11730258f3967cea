//! Detection of a dead host, and its delay.

use crate::mesh::{MS, Mesh, SECOND, agent};
use std::collections::BTreeSet;
use std::time::Duration;

/// Returns the time from a host's death to the first suspicion.
fn time_to_suspect(mesh: &mut Mesh, number: u32) -> Duration {
    mesh.forget();
    let died = mesh.now;
    mesh.kill(agent(number));
    loop {
        mesh.pass(MS * 10);
        assert!(mesh.suspicions.iter().all(|(_, _, suspect)| *suspect == agent(number)));
        if let Some((at, ..)) = mesh.suspicions.first() {
            let time = at.since(died);
            mesh.bury();
            return time;
        }
    }
}

#[test]
fn suspicion_time_independent_of_scale() {
    for count in [5, 32, 128] {
        let mut mesh = Mesh::of(count, u64::from(count));
        let mut times: Vec<_> =
            (0..(count / 4).clamp(1, 9)).map(|number| time_to_suspect(&mut mesh, number)).collect();
        times.sort();
        assert!(times[times.len() / 2] <= MS * 1_300, "{count}: {times:?}");
        assert!(times[times.len() - 1] <= SECOND * 5, "{count}: {times:?}");
    }
}

#[test]
fn slow_host_refutes_suspicion() {
    let mut mesh = Mesh::of(8, 4);
    mesh.stop(agent(3), SECOND * 3);
    mesh.pass(SECOND * 4);
    assert!(!mesh.suspicions.is_empty());
    assert!(mesh.suspicions.iter().all(|(_, _, suspect)| *suspect == agent(3)), "{:?}", mesh.suspicions);
    mesh.pass(SECOND);
    mesh.forget();
    assert!(mesh.counts(agent(3)).refutations > 0);
    mesh.pass(SECOND * 30);
    assert_eq!(mesh.suspicions, [], "it answers again");
}

#[test]
fn refuted_host_death_detected_by_all() {
    let mut mesh = Mesh::of(8, 4);
    mesh.stop(agent(3), SECOND * 3);
    mesh.pass(SECOND * 4);
    let suspected_by = mesh.suspicions.len();
    mesh.forget();
    mesh.kill(agent(3));
    mesh.pass(SECOND * 15);
    assert!(suspected_by > 0);
    let reporters: BTreeSet<_> = mesh.suspicions.iter().map(|(_, reporter, _)| *reporter).collect();
    assert_eq!(reporters.len(), 7, "{reporters:?}");
}

#[test]
fn item_reaches_all_members_once() {
    let mut mesh = Mesh::of(128, 9);
    mesh.loss = 100;
    mesh.act(agent(7), |gossip, _, _| gossip.pass_on(b"deploy done"));
    mesh.pass(SECOND * 5);
    let mut reached: Vec<_> = mesh.items.iter().map(|(_, who, item)| (*who, item.clone())).collect();
    reached.sort();
    reached.dedup();
    assert_eq!(reached.len(), 127);
    assert_eq!(mesh.items.len(), 127, "each received it as new once");
}
