//! Requests that wait for a leader's stalled disk, while the other servers still commit the
//! leader's proposals.

use crate::frontend::{Cluster, agent, put, read};
use lockmesh_core::frontend::CallRef;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::id::{ServerId, SessionId};
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The TTL of a session; it expires after twice this time.
const TTL: Duration = Duration::from_secs(10);
/// A stall timeout with which a leader keeps its role until its disk recovers.
pub(crate) const LONG_STALL_TIMEOUT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Stalls a disk from now on.
    pub(crate) fn stall(&mut self, id: ServerId) {
        self.servers.get_mut(&id).expect("it runs").held = Some(Vec::new());
    }

    /// Stalls the leader's disk, and has the others commit a write that the leader cannot apply.
    pub(crate) fn stall_leader(&mut self) -> (ServerId, CallRef) {
        let (leader, proposal) = (self.leader(), self.proposal(put("stalled")));
        self.stall(leader);
        let write = self.call(leader, &agent("a1"), proposal);
        self.run(2 * TICK);
        (leader, write)
    }

    fn renew(&mut self, leader: ServerId, session: SessionId) -> CallRef {
        self.call(leader, &agent("a1"), Request::Renew(session))
    }

    fn has_session(&self, at: ServerId, session: SessionId) -> bool {
        self.servers[&at].frontend.core().state().session(session).is_some()
    }

    /// The text of a reply with an unknown outcome.
    #[track_caller]
    fn unknown(&self, leader: ServerId, call: CallRef) -> &str {
        match self.answer(leader, call) {
            Some(Response::Unavailable(Unavailable::Unknown(why))) => why,
            other => panic!("the outcome is not unknown: {other:?}"),
        }
    }
}

#[test]
fn a_session_does_not_expire_while_its_renewal_waits_and_has_a_whole_ttl_from_the_answer() {
    let mut cluster = Cluster::start_with(3, LONG_STALL_TIMEOUT);
    let session = cluster.session_with_ttl(TTL);
    cluster.run(2 * TTL - 2 * SECOND);
    let (leader, _) = cluster.stall_leader();
    let renewal = cluster.renew(leader, session);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.answer(leader, renewal), None, "it waits for the disk");
    let follower = cluster.follower();
    assert!(cluster.has_session(follower, session), "no expiry was proposed");
    cluster.let_write(leader);
    cluster.deliver();
    let answer = cluster.answer(leader, renewal);
    assert!(matches!(answer, Some(Response::Renewed(Some(_)))), "{answer:?}");
    cluster.run(2 * TTL - SECOND);
    assert!(cluster.has_session(leader, session), "it has a whole TTL from the acknowledgement");
    cluster.run(2 * SECOND);
    assert!(!cluster.has_session(leader, session), "a session that is not renewed expires");
}

#[test]
fn a_renewal_that_waits_for_too_long_is_unknown_and_keeps_its_session_no_longer() {
    let mut cluster = Cluster::start_with(3, LONG_STALL_TIMEOUT);
    let session = cluster.session_with_ttl(TTL);
    cluster.run(2 * TTL - SECOND);
    let (leader, _) = cluster.stall_leader();
    let follower = cluster.follower();
    let renewal = cluster.renew(leader, session);
    cluster.run(6 * SECOND - TICK);
    assert!(cluster.answer(leader, renewal).is_none() && cluster.has_session(follower, session));
    cluster.run(SECOND);
    let why = cluster.unknown(leader, renewal);
    assert!(why.contains("has not taken a write for 6."), "{why}");
    assert!(!cluster.has_session(follower, session), "the others have committed its expiry");
    // Its end is in the log and not applied here: no renewal may be acknowledged.
    let late = cluster.renew(leader, session);
    let why = cluster.unknown(leader, late);
    assert!(why.contains("is being decided"), "{why}");
    cluster.let_write(leader);
    cluster.deliver();
    let last = cluster.renew(leader, session);
    assert_eq!(cluster.answer(leader, last), Some(&Response::Renewed(None)));
}

#[test]
fn requests_behind_a_stalled_disk_end_with_the_reason() {
    let mut cluster = Cluster::start_with(3, LONG_STALL_TIMEOUT);
    let (leader, write) = cluster.stall_leader();
    let requests = [
        read("stalled", Consistency::Default, None),
        read("stalled", Consistency::Consistent, None),
        Request::NodeLeases(NodeLeaseQuery::Of("a1".into())),
    ];
    let reads = requests.map(|request| cluster.call(leader, &agent("a1"), request));
    let second = cluster.proposal(put("another"));
    let second = cluster.call(leader, &agent("a1"), second);
    cluster.run(6 * SECOND - 2 * TICK);
    assert_eq!(cluster.answer(leader, second), None, "the disk may still take it in time");
    cluster.run(4 * TICK);
    for call in reads.into_iter().chain([write, second]) {
        let why = cluster.unknown(leader, call);
        assert!(why.starts_with("the leader's disk has not taken a write for 6."), "{why}");
    }
    let why = cluster.unknown(leader, second);
    assert!(why.ends_with("it is unknown whether the request was applied"), "{why}");
    // A write with an unknown outcome may take effect, and is answered once.
    cluster.let_write(leader);
    cluster.deliver();
    let answer = cluster.ask(leader, &agent("a1"), read("another", Consistency::Default, None));
    assert!(matches!(answer, Response::Answer(_)), "{answer:?}");
}

#[test]
fn a_write_that_no_majority_stores_ends_with_the_names_of_the_servers() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let others: Vec<_> = cluster.servers.keys().copied().filter(|id| *id != leader).collect();
    others.iter().for_each(|id| cluster.stall(*id));
    let proposal = cluster.proposal(put("k"));
    let write = cluster.call(leader, &agent("a1"), proposal);
    cluster.run(6 * SECOND + TICK);
    let why = cluster.unknown(leader, write);
    for id in others {
        assert!(why.contains(&format!("s{id}")), "{why}");
    }
    let answer = cluster.ask(leader, &agent("a1"), read("k", Consistency::Default, None));
    assert!(matches!(answer, Response::Answer(_)), "a read needs no disk: {answer:?}");
}
