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
        assert!(mesh.accusations.iter().all(|(_, _, suspect)| *suspect == agent(number)));
        if let Some((at, ..)) = mesh.accusations.first() {
            let time = at.since(died);
            mesh.bury();
            return time;
        }
    }
}

#[test]
fn a_dead_host_is_suspected_within_about_a_second_whatever_the_number_of_hosts() {
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
fn who_was_only_slow_refutes_the_suspicion() {
    let mut mesh = Mesh::of(8, 4);
    mesh.stop(agent(3), SECOND * 3);
    mesh.pass(SECOND * 4);
    assert!(!mesh.accusations.is_empty());
    assert!(mesh.accusations.iter().all(|(_, _, suspect)| *suspect == agent(3)), "{:?}", mesh.accusations);
    mesh.pass(SECOND);
    mesh.forget();
    assert!(mesh.counts(agent(3)).refutations > 0);
    mesh.pass(SECOND * 30);
    assert_eq!(mesh.accusations, [], "it answers again");
}

#[test]
fn who_was_suspected_is_a_member_as_before_and_found_out_by_all_when_it_dies() {
    let mut mesh = Mesh::of(8, 4);
    mesh.stop(agent(3), SECOND * 3);
    mesh.pass(SECOND * 4);
    let suspected_by = mesh.accusations.len();
    mesh.forget();
    mesh.kill(agent(3));
    mesh.pass(SECOND * 15);
    assert!(suspected_by > 0);
    let accusers: BTreeSet<_> = mesh.accusations.iter().map(|(_, accuser, _)| *accuser).collect();
    assert_eq!(accusers.len(), 7, "{accusers:?}");
}

#[test]
fn what_one_passes_on_reaches_all() {
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
