//! The status of nodes' leases. It is in the leader's memory, so only the leader replies, and only
//! after a round that confirms its leadership.

use super::Frontend;
use super::actions::{Actions, AnswerKind};
use super::event::CallRef;
use super::pending::CallKind;
use crate::input::Input;
use crate::outbox::not_leader;
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;

impl Frontend {
    /// Handles a request for the lease status of one node or of all nodes.
    pub(super) fn ask_node_leases(
        &mut self,
        now: Time,
        from: CallRef,
        query: NodeLeaseQuery,
        actions: &mut Actions,
    ) {
        // A follower may read the state after its leader's round, but lease status is not in the
        // state.
        if !self.core.is_serving() {
            let answer = self.with_leader_hint(Response::Unavailable(not_leader()));
            return actions.answer(from, answer, AnswerKind::Read);
        }
        let kind = CallKind::NodeLeases(query);
        self.ask(now, from, kind, |token| Input::Read(token, Consistency::Consistent));
    }

    /// Replies with the lease status after the round that confirmed this server's leadership.
    pub(super) fn tell_node_leases(
        &self,
        now: Time,
        to: CallRef,
        query: &NodeLeaseQuery,
        actions: &mut Actions,
    ) {
        let answer = match self.core.node_leases(now, query) {
            Some(leases) => Response::NodeLeases(leases),
            None => self.with_leader_hint(Response::Unavailable(not_leader())),
        };
        actions.answer(to, answer, AnswerKind::Read);
    }
}
