//! The reply sinks of the connections that have called.

use crate::event_queue::{Outgoing, ReplySink, WakeList};
use lockmesh_core::frontend::{CallRef, Caller};
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::rpc::CallId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The open connections that have called.
#[derive(Debug, Default)]
pub(super) struct Connections {
    sinks: HashMap<Caller, ReplySink>,
    wakes: WakeList,
}

impl Connections {
    /// Registers the sink for a call's answer; returns the caller in the frontend's terms.
    pub(super) fn begin(&mut self, call: CallId, replies: &ReplySink) -> (CallRef, Arc<Peer>) {
        let caller = replies.caller();
        self.sinks.entry(caller).or_insert_with(|| replies.clone());
        (CallRef { caller, call }, replies.shared_peer())
    }

    /// The connection ended: its answers are dropped.
    pub(super) fn forget(&mut self, caller: Caller) {
        self.sinks.remove(&caller);
    }

    /// Returns the sink of the connection that made a call; `None` if it ended.
    pub(super) fn of(&self, call: CallRef) -> Option<ReplySink> {
        self.sinks.get(&call.caller).cloned()
    }

    /// Puts an answer into its connection's queue; it is sent by [`Connections::deliver`]. Returns
    /// the arrival time of the call if its answer is still wanted.
    pub(super) fn answer(&mut self, to: CallRef, outgoing: impl Into<Outgoing>) -> Option<Instant> {
        let replies = self.sinks.get(&to.caller)?;
        self.wakes.answer(replies, to.call, outgoing)
    }

    /// Wakes every connection that has answers: the end of a turn.
    pub(super) fn deliver(&mut self) {
        self.wakes.deliver();
    }
}
