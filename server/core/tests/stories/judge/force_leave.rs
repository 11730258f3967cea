//! Force-leave: a living node keeps its sessions and membership, a dead one leaves, and a leader
//! that does not know yet frees no lock.

use super::{Fleet, SECOND, agent, process, registration};
use crate::frontend::assert_denied;
use lockmesh_core::frontend::CallRef;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::{Generation, LogIndex, RequestId, ServerId};
use lockmesh_protocol::lease::{HealthWindow, RESTART_WINDOW};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{LossCause, MemberStatus};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};

impl Fleet {
    /// A node leaves on its own.
    pub(super) fn leave(&mut self, name: &str) -> Response {
        let (leader, lease) = (self.cluster.leader(), self.hosts[name].lease);
        let id = RequestId { agent: lease.agent, generation: Generation(1), sequence: 2, lowest: 1 };
        let leave = NodeLeave { node: name.into(), lease: Some(lease), prune: false };
        self.cluster.ask(leader, &agent(name), Request::Propose(Some(id), Command::LeaveNode(leave)))
    }

    /// Sends a force-leave from another node.
    fn begin_force_leave(&mut self, to: ServerId, name: &str, prune: bool) -> CallRef {
        let leave = NodeLeave { node: name.into(), lease: None, prune };
        let proposal = self.cluster.proposal(Command::LeaveNode(leave));
        self.cluster.call(to, &agent("a1"), proposal)
    }

    /// Forces a node to leave, and waits for the reply.
    fn force_leave(&mut self, name: &str, prune: bool) -> Response {
        let leader = self.cluster.leader();
        let call = self.begin_force_leave(leader, name, prune);
        self.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
        self.cluster.answer(leader, call).expect("it is answered").clone()
    }

    /// A host with a session of each window and one without checks, with renewals at the leader.
    fn with_holder() -> Self {
        let mut fleet = Self::start();
        fleet.host("h1");
        for window in HealthWindow::ALL {
            fleet.session(window.as_str(), "h1", window);
        }
        fleet.run(2 * SECOND);
        fleet
    }

    /// Asserts that the node is unchanged.
    #[track_caller]
    fn assert_untouched(&self) {
        assert!(HealthWindow::ALL.iter().all(|window| self.lives(window.as_str())), "a session ended");
        let state = self.cluster.servers[&self.cluster.leader()].frontend.core().state();
        let (_, rows) = state.query(&Query::Nodes);
        assert!(
            matches!(&rows, Rows::Nodes(nodes) if nodes.iter().any(|node| node.name == "h1".into())),
            "{rows:?}"
        );
        assert_ne!(self.status("h1"), MemberStatus::Left);
    }

    /// The causes of all sessions that ended.
    fn causes(&self) -> Vec<LossCause> {
        let state = self.cluster.servers[&self.cluster.leader()].frontend.core().state();
        match state.query(&Query::Losses) {
            (_, Rows::Losses(losses)) => losses.iter().map(|loss| loss.cause.clone()).collect(),
            other => panic!("losses were asked for: {other:?}"),
        }
    }
}

/// The index of a command that succeeded.
#[track_caller]
fn assert_done(answer: &Response) -> LogIndex {
    match answer {
        Response::Applied(Applied { index, reply: Reply::Done }) => *index,
        other => panic!("not done: {other:?}"),
    }
}

#[test]
fn a_living_node_keeps_its_sessions_its_catalog_entry_and_its_place() {
    let mut fleet = Fleet::with_holder();
    let began = fleet.hosts["h1"].lease;
    for prune in [false, true] {
        let before = fleet.cluster.put("key");
        let index = assert_done(&fleet.force_leave("H1", prune));
        assert!(before <= index && index < fleet.cluster.put("key"), "{index}");
        fleet.run(20 * SECOND);
        fleet.assert_untouched();
        assert_eq!((fleet.status("h1"), fleet.member("h1").lease()), (MemberStatus::Alive, began));
    }
    assert_done(&fleet.leave("h1"));
    assert!(!fleet.lives("safe") && fleet.status("h1") == MemberStatus::Left);
}

#[test]
fn a_node_that_just_died_is_made_to_leave_once_it_has_failed() {
    let mut fleet = Fleet::with_holder();
    fleet.kill("h1");
    fleet.run(SECOND);
    assert_done(&fleet.force_leave("h1", false));
    fleet.assert_untouched();
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    assert!(fleet.lives("safe"));
    assert_done(&fleet.force_leave("h1", false));
    assert!(!fleet.lives("safe") && fleet.status("h1") == MemberStatus::Left);
    assert!(fleet.causes().contains(&LossCause::NodeForcedToLeave), "{:?}", fleet.causes());
}

#[test]
fn a_leader_that_was_just_elected_has_a_living_node_answer_first() {
    let mut fleet = Fleet::with_holder();
    // It does not renew for longer than a new leader waits before a challenge.
    fleet.at("h1").renews_every = None;
    fleet.depose();
    let leader = fleet.cluster.leader();
    let call = fleet.begin_force_leave(leader, "h1", false);
    assert_eq!(fleet.cluster.answer(leader, call), None, "it does not know yet");
    let took = fleet.run_until(10 * SECOND, |fleet| fleet.cluster.answer(leader, call).is_some());
    assert_done(fleet.cluster.answer(leader, call).expect("it is answered"));
    assert!(took <= SECOND, "{took:?}");
    fleet.assert_untouched();
}

#[test]
fn a_leader_that_was_just_elected_frees_no_lock_of_a_silent_node() {
    let mut fleet = Fleet::with_holder();
    fleet.kill("h1");
    fleet.depose();
    let answer = fleet.force_leave("h1", false);
    assert_denied(&answer, "node h1 has neither answered nor failed yet");
    fleet.run_until(5 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    assert_done(&fleet.force_leave("h1", true));
    assert!(!fleet.lives("safe"));
}

#[test]
fn a_force_leave_waits_for_the_verdict_and_for_no_leader_that_was_deposed() {
    let mut fleet = Fleet::with_holder();
    fleet.kill("h1");
    fleet.depose();
    fleet.run(4 * SECOND);
    assert_done(&fleet.force_leave("h1", false));
    assert_eq!(fleet.status("h1"), MemberStatus::Left);
    // A leader that is cut off cannot decide, and rejects the request when it steps down.
    let mut fleet = Fleet::with_holder();
    let leader = fleet.cluster.leader();
    fleet.cluster.cut_off.insert(leader);
    let living = fleet.begin_force_leave(leader, "h1", false);
    fleet.run(10 * SECOND);
    let answer = fleet.cluster.answer(leader, living);
    assert!(matches!(answer, Some(Response::Unavailable(Unavailable::NotLeader { .. }))), "{answer:?}");
    fleet.assert_untouched();
}

#[test]
fn a_restarting_node_is_a_living_one_until_its_time_is_over() {
    let mut fleet = Fleet::with_holder();
    assert!(fleet.announce(1, 1));
    fleet.kill("h1");
    fleet.run(RESTART_WINDOW - SECOND);
    assert_done(&fleet.force_leave("h1", false));
    fleet.assert_untouched();
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    assert_done(&fleet.force_leave("h1", false));
    assert_eq!(fleet.status("h1"), MemberStatus::Left);
}

#[test]
fn an_agent_that_prunes_its_own_failed_node_leaves_no_reply_behind() {
    let mut fleet = Fleet::with_holder();
    assert_eq!(fleet.status("a1"), MemberStatus::Failed, "the agent that asks never renews");
    assert_done(&fleet.force_leave("a1", true));
    let state = fleet.cluster.servers[&fleet.cluster.leader()].frontend.core().state();
    assert_eq!((state.member(&"a1".into()), state.check()), (None, Ok(())));
}

#[test]
fn a_failed_node_that_registers_in_front_of_a_force_leave_is_a_living_one() {
    let mut fleet = Fleet::with_holder();
    fleet.kill("h1");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    let leader = fleet.cluster.leader();
    let registers = fleet.cluster.begin(leader, &agent("h1"), registration("h1", process(2, 1)));
    let forced = fleet.begin_force_leave(leader, "h1", false);
    assert_done(fleet.cluster.answer(leader, forced).expect("it is answered"));
    let registered = fleet.cluster.answer(leader, registers).expect("it registered").clone();
    fleet.registered("h1", process(2, 1), &registered);
    fleet.run(SECOND);
    assert_eq!(fleet.status("h1"), MemberStatus::Alive);
    assert!(fleet.lives("safe"), "the same boot keeps it");
}
