//! Sessions that guards gave up while no server received their node's renewals. The node lists them
//! in its answers to challenges, and the leader ends them.
//!
//! A node that agents reach and servers do not stays alive by these answers. It receives no
//! acknowledgement, so its guards stop relying on their locks; without the list the locks would
//! stay held without a holder. **Invariants:** a list ends only sessions of the node under whose
//! lease it was made; it is not a renewal; a repeated, late or forged list changes nothing.

use crate::cluster::Turn;
use crate::observed::JudgeCounts;
use crate::raft::message::MessageKind;
use crate::upgrade;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::{GivenUp, GivenUpSession};

/// The first format version in which a server understands [`MessageKind::GivenUp`].
const SINCE_FORMAT: u8 = 2;

/// Handles a node's list of given-up sessions; a follower forwards it to the leader.
pub(super) fn handle(turn: &mut Turn<'_>, counts: &mut JudgeCounts, given_up: &GivenUp) {
    let view = turn.view;
    if !view.state.is_authentic_list(given_up) {
        counts.forged_answers += 1;
        return;
    }
    match view.other_leader() {
        Some(leader) => {
            // An older build cannot read the message. The node repeats its list.
            let reads_it = |id| view.state.server(id).is_some_and(|row| row.format >= SINCE_FORMAT);
            if reads_it(leader) {
                turn.send(leader, MessageKind::GivenUp, given_up);
            }
        }
        None if view.is_serving() => end(turn, counts, given_up),
        None => {}
    }
}

fn end(turn: &mut Turn<'_>, counts: &mut JudgeCounts, given_up: &GivenUp) {
    let state = turn.view.state;
    let Some(agent) = state.agent_of(given_up.lease) else { return };
    let node = agent.node.folded();
    for GivenUpSession { session, silent_for } in given_up.sessions.as_slice() {
        let (session, silent_for) = (*session, *silent_for);
        let known = state.session(session);
        if known.is_none_or(|session| session.spec.node.folded() != node) {
            continue;
        }
        let command = match silent_for {
            Some(silent_for) => {
                upgrade::as_the_cluster_reads_it(state, Command::GiveUpSession { session, silent_for })
            }
            None => Command::DestroySession(session),
        };
        // The agent's own command is restricted.
        let sent = command.clone().restricted();
        if !turn.is_on_its_way(|under_way| *under_way == command || *under_way == sent) {
            counts.given_up_by_answer += 1;
            tracing::info!(%session, node = %agent.node, ?silent_for, "ending a session that its guard gave up");
            turn.propose_own(command);
        }
    }
}
