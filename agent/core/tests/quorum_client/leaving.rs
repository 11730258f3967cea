//! A node that leaves, and servers that are added while the agent runs.

use super::*;

#[test]
fn left_agent_does_not_reregister() {
    let mut story = Story::at_rest();
    let lease = story.client.registered_lease().expect("it is registered");
    story.handle_input(Input::Leave);
    assert_eq!(story.client.registered_lease(), Some(lease), "it answers for its node until the end");
    let leave = NodeLeave { node: "n1".into(), lease: Some(lease), prune: false };
    let token = story.call(LocalCall::Propose(Command::LeaveNode(leave)));
    assert!(!story.client.lease().has_left);
    story.apply(&story.only(), 5);
    assert_eq!(story.heard_applied(token), 5);
    assert!(story.client.lease().has_left, "guards learn of it before the agent stops");
    // The new leader does not know it any more; any other agent would register.
    story.generation = None;
    story.elect(B);
    story.kill(A);
    story.pass(60 * SECOND);
    assert_eq!((story.registrations, story.client.registered_lease()), (1, None));
}

#[test]
fn staying_agent_reregisters_only_if_left() {
    let mut story = Story::at_rest();
    story.handle_input(Input::Leave);
    story.handle_input(Input::Stay { may_have_left: false });
    story.pass(SECOND);
    assert_eq!(story.registrations, 1);
    story.handle_input(Input::Leave);
    story.handle_input(Input::Stay { may_have_left: true });
    story.pass(SECOND);
    assert_eq!(story.registrations, 2);
    assert!(story.client.registered_lease().is_some());
}

#[test]
fn unregistered_agent_has_no_lease() {
    let mut story = Story::begin();
    story.registers = false;
    story.pass(SECOND);
    assert_eq!(story.client.registered_lease(), None);
}

#[test]
fn added_server_dialled_when_others_down() {
    let mut story = Story::begin_with(&[A]);
    story.down.insert(A);
    story.pass(5 * SECOND);
    assert_eq!(story.registrations, 0);
    story.leader = Some(B);
    story.handle_input(Input::AddServer(B.into()));
    story.pass(5 * SECOND);
    assert_eq!((story.registrations, story.dials.contains_key(B)), (1, true));
    assert_eq!(story.client.cluster_id(), "c");
}
