//! Sessions that guards gave up while no server received their node's renewals. The node lists them
//! in its answers to challenges, and the leader ends them.
//!
//! A node that agents reach and servers do not stays alive by these answers. It receives no
//! acknowledgement, so its guards stop relying on their locks; without the list the locks would
//! stay held without a holder. **Invariants:** a list ends only sessions of the node under whose
//! lease it was made; it is not a renewal; a repeated, late or forged list changes nothing.

use crate::core::{Core, Origin};
use crate::outbox::Outbox;
use crate::raft::message::MessageKind;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::{GivenUp, GivenUpSession};
use lockmesh_protocol::id::SessionId;
use std::time::Duration;

/// The first format version in which a server understands [`MessageKind::GivenUp`].
const SINCE_FORMAT: u8 = 2;

impl Core {
    /// Takes a node's list of given-up sessions; a follower forwards it to the leader.
    pub(crate) fn take_given_up(&mut self, given_up: &GivenUp, outbox: &mut Outbox) {
        if !self.state.is_authentic_list(given_up) {
            self.observer.observed.forged_answers += 1;
            return;
        }
        match self.engine.leader() {
            Some(leader) if leader == self.config.id => self.end_given_up(given_up),
            Some(leader) => {
                // An older build cannot read the message. The node repeats its list.
                let reads_it = |id| self.state.server(id).is_some_and(|row| row.format >= SINCE_FORMAT);
                if reads_it(leader) {
                    self.send(leader, MessageKind::GivenUp, given_up, outbox);
                }
            }
            None => {}
        }
    }

    fn end_given_up(&mut self, given_up: &GivenUp) {
        if !self.is_serving() {
            return;
        }
        let Some(agent) = self.state.agent_of(given_up.lease) else { return };
        let node = agent.node.folded();
        for GivenUpSession { session, silent_for } in given_up.sessions.as_slice() {
            let known = self.state.session(*session);
            if known.is_none_or(|session| session.spec.node.folded() != node) {
                continue;
            }
            let command = self.given_up_end(*session, *silent_for);
            if !self.is_on_its_way(|under_way| *under_way == command) {
                self.observer.observed.given_up_by_answer += 1;
                tracing::info!(%session, node = %agent.node, ?silent_for, "ending a session that its guard gave up");
                self.batch.push((self.own(command), Origin::Nobody));
            }
        }
    }

    /// The command that ends a session that its client gave up.
    fn given_up_end(&self, session: SessionId, silent_for: Option<Duration>) -> Command {
        match silent_for {
            Some(silent_for) => self.as_the_cluster_reads_it(Command::GiveUpSession { session, silent_for }),
            None => Command::DestroySession(session),
        }
    }
}
