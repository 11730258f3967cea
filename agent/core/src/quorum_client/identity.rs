//! The agent's cluster: the query for a server's index base, rejected servers, and the notices to
//! operators about them.
//!
//! The decision is made by the tracker's `identity.rs`. **Invariant:** there is one notice when the
//! set of rejected servers changes, and one when it becomes empty; there is none for each attempt.

use super::QuorumClient;
use super::calls::{CallKind, PendingCall, RetryScope};
use super::input::ConnectionId;
use super::links::LinkState;
use super::outbox::Notice;
use crate::cluster::ClusterChoice;
use crate::servers::Slot;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

/// The timeout of the query for a server's index.
const INDEX_TIMEOUT: Duration = Duration::from_secs(60);

impl QuorumClient {
    /// Asks a server for its index, if that is not known on this connection.
    ///
    /// The checks of this agent's node are few rows, and a registration, a recovery and a rebuilt
    /// cluster change that table.
    pub(super) fn ask_index(&mut self, slot: Slot, connection: ConnectionId) {
        if !self.tracker.wants_index(slot) {
            return;
        }
        let deadline = self.now + INDEX_TIMEOUT;
        let call = PendingCall { kind: CallKind::Index, scope: RetryScope::Own, begun: self.now, deadline };
        let query = Query::NodeChecks(self.config.registration.node.name.clone());
        let request = Request::Read { query, consistency: Consistency::Stale, blocking: None };
        self.send(slot, connection, call, request);
    }

    pub(super) fn index_answered(&mut self, slot: Slot, response: &Response) {
        match response {
            Response::Answer(answer) => {
                let index = answer.index;
                self.tell(|tracker, _| tracker.index_heard(slot, index));
            }
            Response::Unavailable(Unavailable::Removed | Unavailable::Corrupt) => {
                self.tell(|tracker, now| tracker.removed(slot, now));
            }
            // Asked again with the next status.
            _ => {}
        }
    }

    /// Disconnects a server that does not belong to this agent's cluster, for a while.
    pub(super) fn refuse(&mut self, slot: Slot) {
        let Some(link) = self.links.get(&slot) else { return };
        let LinkState::Up(connection) = link.state else { return };
        self.outbox.disconnect.push(connection);
        self.connection_is_over(slot, connection);
        self.links.get_mut(&slot).expect("it was there").pause_refused(self.now);
        self.tell(|tracker, now| tracker.lost(slot, now));
    }

    /// Applies a configuration that selects another cluster, or none.
    pub(super) fn choose_cluster(&mut self, choice: ClusterChoice) {
        self.config.cluster = choice.clone();
        self.tell(|tracker, now| tracker.choose_cluster(choice, now));
        self.notice_move();
        // Servers that were rejected may belong to the right cluster now.
        let pausing = self.links.iter().filter(|(_, link)| matches!(link.state, LinkState::Pausing(_)));
        let pausing: Vec<Slot> = pausing.map(|(slot, _)| *slot).collect();
        for slot in pausing {
            self.links.get_mut(&slot).expect("it was there").state = LinkState::Pausing(self.now);
        }
    }

    /// Handles a move to another cluster, which does not know the agent's registration.
    pub(super) fn notice_move(&mut self) {
        if self.tracker.has_moved() {
            self.registrar.is_registered = false;
        }
    }

    /// Reports changes of the rejected servers, and a new pin.
    pub(super) fn notice_mismatch(&mut self) {
        if let Some(pin) = self.tracker.pin().filter(|pin| self.told_pin.as_ref() != Some(pin)) {
            self.outbox.notices.push(Notice::Pinned(pin.clone()));
            self.told_pin = Some(pin.clone());
        }
        let refused =
            if self.config.cluster == ClusterChoice::Any { Vec::new() } else { self.tracker.refusals() };
        if self.refused == refused {
            return;
        }
        self.complaint = if refused.is_empty() { None } else { self.tracker.complaint() };
        self.outbox.notices.push(match &self.complaint {
            Some(complaint) => Notice::ClusterMismatch(complaint.clone()),
            None => Notice::ClusterMismatchOver,
        });
        self.refused = refused;
        // Calls that wait for a route fail at once if no server is left.
        self.notice_refusal();
        self.routes_changed = true;
    }
}
