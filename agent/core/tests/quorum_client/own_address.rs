//! The address at which others reach the agent, or its node's metadata, changes while it runs.

use super::*;

/// The address in the registration that a server received.
fn registered_address(asked: &Asked) -> (&str, &str) {
    let Request::Propose(None, Command::RegisterAgent(registration)) = &asked.request else {
        panic!("no registration: {asked:?}")
    };
    (&registration.node.address, &registration.node.tagged_addresses["lan"])
}

#[test]
fn address_change_waits_for_commands() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let command = story.only();
    let address = "10.0.0.7".parse().expect("an address");
    story.registers = false;
    story.handle_input(Input::OwnAddress(address));
    story.pass(SECOND);
    assert_eq!(story.only(), command, "a registration would lose the outcome of the command");
    story.apply(&command, 5);
    assert_eq!(story.heard_applied(token), 5);
    let registration = story.until_asked();
    assert_eq!(registered_address(&registration), ("10.0.0.7", "10.0.0.7"));
    // A later command belongs to the new registration.
    story.propose("k");
    assert_eq!(story.only(), registration);
}

#[test]
fn metadata_change_waits_for_commands() {
    let mut story = Story::at_rest();
    let token = story.propose("k");
    let command = story.only();
    let meta = BTreeMap::from([("rack".to_owned(), "r1".to_owned())]);
    story.registers = false;
    for meta in [BTreeMap::new(), meta.clone()] {
        story.handle_input(Input::NodeMeta(meta));
        story.pass(SECOND);
        assert_eq!(story.only(), command);
    }
    story.apply(&command, 5);
    assert_eq!(story.heard_applied(token), 5);
    let asked = story.until_asked();
    let Request::Propose(None, Command::RegisterAgent(registration)) = &asked.request else {
        panic!("no registration: {asked:?}")
    };
    assert_eq!(registration.node.meta, meta);
    // Changed back before the reply: only a registration is sure to be the last word.
    story.handle_input(Input::NodeMeta(BTreeMap::new()));
    story.handle_input(Input::NodeMeta(meta));
    story.pass(SECOND);
    assert_eq!(story.only(), asked);
}

#[test]
fn unchanged_address_not_reregistered() {
    let mut story = Story::at_rest();
    let address = "10.0.0.7".parse().expect("an address");
    for _ in 0..3 {
        story.handle_input(Input::OwnAddress(address));
        story.pass(SECOND);
    }
    assert_eq!(story.registrations, 2);
}
