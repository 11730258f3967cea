//! Lease renewals that wait for the leader's stalled disk: no verdict is proposed meanwhile.

use super::{Fleet, SECOND, is_renewed};
use crate::stalled_renewals::LONG_STALL_TIMEOUT;
use lockmesh_core::frontend::CallRef;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::rpc::{Response, Unavailable};

impl Fleet {
    /// Returns whether the session exists in the server's applied state.
    fn has_session(&self, at: ServerId, session: &str) -> bool {
        let state = self.cluster.servers[&at].frontend.core().state();
        state.session(crate::names::session(session)).is_some()
    }
}

/// A host with a session of the fast window. It renews once more while the leader's disk is
/// stalled, and is silent from then on.
fn renewing_behind_a_stalled_disk() -> (Fleet, ServerId, CallRef) {
    let mut fleet = Fleet::start_with(LONG_STALL_TIMEOUT);
    fleet.host("h1");
    fleet.session("fast", "h1", HealthWindow::Fast);
    fleet.run(2 * SECOND);
    fleet.kill("h1");
    let (leader, _) = fleet.cluster.stall_leader();
    let renewal = fleet.renew("h1", leader);
    (fleet, leader, renewal)
}

#[test]
fn no_verdict_is_proposed_while_a_renewal_of_the_node_waits() {
    let (mut fleet, leader, renewal) = renewing_behind_a_stalled_disk();
    fleet.run(5 * SECOND);
    assert_eq!(fleet.cluster.answer(leader, renewal), None, "it waits for the disk");
    let follower = fleet.cluster.follower();
    assert!(fleet.has_session(follower, "fast"), "no verdict was committed");
    fleet.cluster.let_write(leader);
    fleet.cluster.deliver();
    assert!(is_renewed(fleet.cluster.answer(leader, renewal)));
    // It renewed once, and is dead.
    let took = fleet.run_until(5 * SECOND, |fleet| !fleet.lives("fast"));
    assert!(took < SECOND, "{took:?}");
}

#[test]
fn a_renewal_that_waits_for_too_long_is_unknown_and_holds_no_verdict_up() {
    let (mut fleet, leader, renewal) = renewing_behind_a_stalled_disk();
    fleet.run(6 * SECOND + 2 * TICK);
    let answer = fleet.cluster.answer(leader, renewal);
    let Some(Response::Unavailable(Unavailable::Unknown(why))) = answer else { panic!("{answer:?}") };
    assert!(why.contains("has not taken a write"), "{why}");
    fleet.run(SECOND);
    let follower = fleet.cluster.follower();
    assert!(!fleet.has_session(follower, "fast"), "the others have committed the verdict");
    // From its proposal on no renewal is acknowledged.
    let late = fleet.renew("h1", leader);
    let answer = fleet.cluster.answer(leader, late);
    assert!(matches!(answer, Some(Response::Unavailable(Unavailable::Unknown(_)))), "{answer:?}");
}
