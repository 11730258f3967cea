//! Sessions that guards gave up while no server received their node's renewals. Its answers to
//! challenges list them, and the leader ends them. The node itself stays alive.

use super::{Fleet, SECOND};
use lockmesh_core::frontend::Event;
use lockmesh_core::{Input, NodeInput};
use lockmesh_protocol::given_up::{GivenUpSession, NodeAnswer};
use lockmesh_protocol::lease::HealthWindow;
use std::time::Duration;

const SILENT_FOR: Duration = Duration::from_millis(3_000);

impl Fleet {
    /// A guard of the host gives a session up.
    pub(super) fn give_up(&mut self, host: &str, session: &str) {
        let listed = GivenUpSession { session: super::session_id(session), silent_for: Some(SILENT_FOR) };
        self.at(host).given_up.push(listed);
    }
}

#[test]
fn forged_or_foreign_list_ignored() {
    let mut fleet = Fleet::start();
    fleet.cut_off(4);
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
    let counts = fleet.observed_by(leader).judge;
    assert!(counts.forged_answers >= 1 && counts.given_up_by_answer == 0);
    fleet.run(SECOND);
    assert!(fleet.lives("fast"));
}

crate::script::stories! { Fleet, "given_up.txt",
    session_ends_via_agent_answers follower_forwards_list_to_leader
    overdue_renewal_lists_given_up_session
}
