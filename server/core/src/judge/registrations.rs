//! Conflicting registrations: a second process registers for a node whose first process may be
//! alive, for example a host cloned with its data folder, or an agent started twice. The first
//! process keeps its lease as long as it answers; the second is rejected with an error message.
//!
//! An agent that was killed and restarted waits for one second, in which its former process is
//! challenged and does not answer. An announced restart does not wait.
//!
//! A node that announced a restart keeps its name for four seconds. After that another node id may
//! take the name, for example that of a container that was replaced: the sessions of the node live
//! as long as announced.

use crate::input::CallToken;
use crate::proposal::Proposal;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Registrations that wait until the first process is known to be alive or dead.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    pub(super) waiting: Vec<WaitingRegistration>,
}

#[derive(Debug)]
pub(super) struct WaitingRegistration {
    pub(super) came: Time,
    pub(super) token: CallToken,
    pub(super) proposal: Proposal,
    /// The lease of the first process.
    pub(super) lease: LeaseId,
}

impl Registrations {
    /// Returns whether a registration waits for the outcome of this lease.
    pub(super) fn wait_for(&self, lease: LeaseId) -> bool {
        self.waiting.iter().any(|waiting| waiting.lease == lease)
    }

    pub(super) fn postpone(&mut self, gap: Duration) {
        self.waiting.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
    }
}
