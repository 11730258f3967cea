//! How nodes' leases stand: the leader's own memory, so nobody else answers, and the leader only
//! once it has made sure that it still leads.

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
    /// Somebody asks how the lease of a node stands, or those of all nodes.
    pub(super) fn ask_node_leases(
        &mut self,
        now: Time,
        from: CallRef,
        query: NodeLeaseQuery,
        actions: &mut Actions,
    ) {
        // A follower may read the state after its leader's round, but nothing of this is in it.
        if !self.core.is_serving() {
            let answer = self.with_leader_hint(Response::Unavailable(not_leader()));
            return actions.answer(from, answer, AnswerKind::Read);
        }
        let kind = CallKind::NodeLeases(query);
        self.ask(now, from, kind, |token| Input::Read(token, Consistency::Consistent));
    }

    /// It led until now.
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
