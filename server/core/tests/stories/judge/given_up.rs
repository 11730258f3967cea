//! Sessions that guards gave up while no server received their node's renewals. Its answers to
//! challenges list them, and the leader ends them. The node itself stays alive.

use super::{Fleet, SECOND};
use lockmesh_core::frontend::Event;
use lockmesh_core::{Input, NodeInput};
use lockmesh_protocol::given_up::{GivenUpSession, NodeAnswer};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{LossCause, MemberStatus};
use std::time::Duration;

const SILENT_FOR: Duration = Duration::from_millis(3_000);

impl Fleet {
    /// A guard of the host gives a session up.
    fn give_up(&mut self, host: &str, session: &str) {
        let listed = GivenUpSession { session: super::session_id(session), silent_for: Some(SILENT_FOR) };
        self.at(host).given_up.push(listed);
    }

    /// The causes of ended sessions, newest first.
    fn loss_causes(&self) -> Vec<LossCause> {
        let state = self.cluster.servers[&self.cluster.leader()].frontend.core().state();
        let (_, Rows::Losses(losses)) = state.query(&Query::Losses) else { panic!("no losses") };
        losses.iter().rev().map(|loss| loss.cause.clone()).collect()
    }
}

/// The servers kept the node alive by its answers to agents, but its guard had given up: the lock
/// was held without a holder during the outage, or forever without a TTL.
#[test]
fn a_session_that_was_given_up_ends_though_agents_alone_reach_its_node() {
    let mut fleet = Fleet::cut_off(4);
    fleet.at("h1").answers_agents = ["h3".to_owned()].into();
    fleet.session("other", "h1", HealthWindow::Default);
    fleet.run(5 * SECOND);
    assert!(fleet.lives("fast"), "its guard has given nothing up yet");
    fleet.give_up("h1", "fast");
    let took = fleet.run_until(2 * SECOND, |fleet| !fleet.lives("fast"));
    assert!(took < SECOND, "{took:?}");
    assert_eq!(fleet.loss_causes()[0], LossCause::GivenUp { silent_for: SILENT_FOR });
    fleet.run(20 * SECOND);
    assert!(fleet.lives("other") && fleet.status("h1") == MemberStatus::Alive);
    assert_eq!(fleet.loss_causes().len(), 1, "named again and again, ended once");
}

/// A juror that is a follower forwards the list to the leader.
#[test]
fn a_follower_passes_on_what_a_node_gave_up() {
    let mut fleet = Fleet::cut_off(4);
    let follower = fleet.cluster.servers.keys().copied().find(|id| *id != fleet.cluster.leader());
    fleet.at("h1").answers = follower.into_iter().collect();
    fleet.run(5 * SECOND);
    assert!(fleet.lives("fast"));
    fleet.give_up("h1", "fast");
    fleet.run(SECOND);
    assert!(!fleet.lives("fast") && fleet.status("h1") == MemberStatus::Alive);
}

#[test]
fn a_list_that_was_forged_or_names_sessions_of_other_nodes_ends_nothing() {
    let mut fleet = Fleet::cut_off(4);
    fleet.at("h1").answers_agents = ["h3".to_owned()].into();
    fleet.session("of-h2", "h2", HealthWindow::Default);
    fleet.give_up("h1", "of-h2");
    fleet.run(3 * SECOND);
    assert!(fleet.lives("of-h2"));
    let (h1, h2) = (fleet.hosts["h1"].clone(), fleet.hosts["h2"].clone());
    let listed = [GivenUpSession { session: super::session_id("fast"), silent_for: None }];
    let forged = h2.secret.give_up(h1.lease, listed[..].try_into().expect("it fits"));
    let renewal = h2.secret.renewal(h1.lease, 99, 1);
    let leader = fleet.cluster.leader();
    let answer = NodeAnswer { renewal, given_up: Some(forged) };
    fleet.cluster.turn(leader, Some(Event::Core(Input::Node(NodeInput::AgentAnswered(Box::new(answer))))));
    let observed = fleet.cluster.servers.get_mut(&leader).expect("it runs").frontend.take_observed();
    assert!(observed.judge.forged_answers >= 1 && observed.judge.given_up_by_answer == 0);
    fleet.run(SECOND);
    assert!(fleet.lives("fast"));
}
