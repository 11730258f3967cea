//! Another process registers for a node whose first one may live: a host that was cloned with its
//! data folder, or an agent that was started twice. The first one keeps its lease as long as it
//! answers; the second one is refused in words.
//!
//! An agent that was killed and started again waits for that: a second, in which its former process
//! is asked and says nothing. One that announced its restart does not wait.

use crate::input::CallToken;
use crate::proposal::Proposal;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Registrations that wait until it is known whether the first process lives.
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
    /// Whether somebody waits to know if the process of this lease lives.
    pub(super) fn wait_for(&self, lease: LeaseId) -> bool {
        self.waiting.iter().any(|waiting| waiting.lease == lease)
    }

    pub(super) fn postpone(&mut self, gap: Duration) {
        self.waiting.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
    }
}
