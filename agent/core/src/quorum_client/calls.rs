//! The calls that wait for an answer on one connection.
//!
//! **Invariant:** a call is over once: by an answer, by the end of the connection or of the
//! server's role, by its own deadline, or by its caller's going.

use super::owner::RequestNumber;
use crate::request_ids::Registration;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::rpc::CallId;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// What a call needs of the server at the other end, and where it goes when that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryScope {
    /// The leader, soon. It goes again to the next leader.
    Leader,
    /// The home server, soon. It goes again to the next one.
    Home,
    /// The home server or the leader, whenever there is news. It goes again when the server is
    /// neither any more.
    Parked,
    /// This one server, as long as there is a connection to it.
    Own,
    /// The home server, whenever it comes to it, for the mesh. It goes nowhere else.
    Aside,
}

/// What a server is for this agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) leads: bool,
    pub(super) is_home: bool,
}

impl Roles {
    pub(super) fn take(self, scope: RetryScope) -> bool {
        match scope {
            RetryScope::Leader => self.leads,
            RetryScope::Home | RetryScope::Aside => self.is_home,
            RetryScope::Parked => self.leads || self.is_home,
            RetryScope::Own => true,
        }
    }
}

/// What is asked by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An attempt at a request.
    Attempt(RequestNumber),
    /// The agent's registration.
    Registration,
    /// The server's status, asked for in this registration.
    Status(Option<Registration>),
    /// The index that a server counts with, for its index base.
    Index,
    /// A renewal of this lease, with this sequence.
    Renewal(LeaseId, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingCall {
    pub(super) kind: CallKind,
    pub(super) scope: RetryScope,
    pub(super) begun: Time,
    pub(super) deadline: Time,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    last: u64,
    /// The calls that are to be answered soon, in order of their beginning.
    prompt: BTreeMap<CallId, PendingCall>,
    /// The others.
    patient: BTreeMap<CallId, PendingCall>,
}

impl PendingCalls {
    pub(super) fn begin(&mut self, call: PendingCall) -> CallId {
        self.last += 1;
        let id = CallId(self.last);
        // Kept apart, because the silence of a parked call says nothing of its server, and what is
        // asked aside shall not cost a connection: that nothing at all arrives is noticed without
        // it, and later than a network that is dark for a moment is light again.
        match call.scope {
            RetryScope::Leader | RetryScope::Home => self.prompt.insert(id, call),
            RetryScope::Parked | RetryScope::Own | RetryScope::Aside => self.patient.insert(id, call),
        };
        id
    }

    pub(super) fn remove(&mut self, id: CallId) -> Option<PendingCall> {
        self.prompt.remove(&id).or_else(|| self.patient.remove(&id))
    }

    /// The calls that a server with these roles does not take.
    pub(super) fn unfit(&self, roles: Roles) -> Vec<CallId> {
        let all = self.prompt.iter().chain(&self.patient);
        all.filter(|(_, call)| !roles.take(call.scope)).map(|(id, _)| *id).collect()
    }

    /// All calls, in order; none is left.
    pub(super) fn take_all(&mut self) -> Vec<(CallId, PendingCall)> {
        let (prompt, patient) = (std::mem::take(&mut self.prompt), std::mem::take(&mut self.patient));
        prompt.into_iter().chain(patient).collect()
    }

    /// When the oldest call began that is to be answered soon.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.prompt.first_key_value().map(|(_, call)| call.begun)
    }

    pub(super) fn len(&self) -> usize {
        self.prompt.len() + self.patient.len()
    }
}
