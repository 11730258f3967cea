//! Pending calls on one connection.
//!
//! **Invariant:** a call ends once: by its reply, by the end of the connection or of the server's
//! role, by its deadline, or by cancellation.

use super::owner::RequestNumber;
use crate::request_ids::Registration;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::rpc::{CallId, Request, VIEW_WAIT};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The server that a call needs, and where the call is retried when that server is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryScope {
    /// The leader, with a prompt reply. Retried on the next leader.
    Leader,
    /// The home server, with a prompt reply. Retried on the next home server.
    Home,
    /// The home server or the leader, with a reply when there is news. Retried when the server is
    /// neither any more.
    Parked,
    /// This server only, while it is connected.
    Own,
    /// The home server, for the mesh, with no prompt reply expected. Never retried.
    Aside,
}

/// The roles of a server for this agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) leads: bool,
    pub(super) is_home: bool,
}

impl Roles {
    pub(super) fn serve(self, scope: RetryScope) -> bool {
        match scope {
            RetryScope::Leader => self.leads,
            RetryScope::Home | RetryScope::Aside => self.is_home,
            RetryScope::Parked => self.leads || self.is_home,
            RetryScope::Own => true,
        }
    }
}

/// The content of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An attempt at a request.
    Attempt(RequestNumber),
    /// The agent's registration.
    Registration,
    /// A query of the server's status, sent in this registration.
    Status(Option<Registration>),
    /// A query of the server's index, for its index base.
    Index,
    /// A renewal of this lease, with this sequence.
    Renewal(LeaseId, u64),
}

/// Returns the time for which a server may keep a request waiting before it works on it.
pub(super) fn view_wait(request: &Request) -> Duration {
    if matches!(request, Request::ReadParts { .. }) { VIEW_WAIT } else { Duration::ZERO }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingCall {
    pub(super) kind: CallKind,
    pub(super) scope: RetryScope,
    pub(super) begun: Time,
    pub(super) deadline: Time,
}

/// The pending calls of one connection, by their numbers.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    last: u64,
    /// Calls that expect a prompt reply, in order of their start.
    prompt: BTreeMap<CallId, PendingCall>,
    /// All other calls.
    patient: BTreeMap<CallId, PendingCall>,
}

impl PendingCalls {
    pub(super) fn begin(&mut self, call: PendingCall, request: &Request) -> CallId {
        self.last += 1;
        let id = CallId(self.last);
        // Kept apart: the silence of a parked call or of a list that waits for a view does not
        // indicate a failed server, and a mesh query must not cost a connection. A dead connection
        // is detected without them, and only after a brief network outage would have ended.
        match call.scope {
            RetryScope::Leader | RetryScope::Home if view_wait(request).is_zero() => {
                self.prompt.insert(id, call)
            }
            _ => self.patient.insert(id, call),
        };
        id
    }

    pub(super) fn remove(&mut self, id: CallId) -> Option<PendingCall> {
        self.prompt.remove(&id).or_else(|| self.patient.remove(&id))
    }

    /// Returns the calls that a server with these roles does not accept.
    pub(super) fn unfit(&self, roles: Roles) -> Vec<CallId> {
        let all = self.prompt.iter().chain(&self.patient);
        all.filter(|(_, call)| !roles.serve(call.scope)).map(|(id, _)| *id).collect()
    }

    /// Removes and returns all calls, in order.
    pub(super) fn take_all(&mut self) -> Vec<(CallId, PendingCall)> {
        let (prompt, patient) = (std::mem::take(&mut self.prompt), std::mem::take(&mut self.patient));
        prompt.into_iter().chain(patient).collect()
    }

    /// Returns the start of the oldest call that expects a prompt reply.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.prompt.first_key_value().map(|(_, call)| call.begun)
    }

    pub(super) fn len(&self) -> usize {
        self.prompt.len() + self.patient.len()
    }
}
