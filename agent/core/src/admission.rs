//! Admission: whether the servers accept this agent. Records the outcome of each connection attempt
//! and of the registration.
//!
//! A certificate mismatch is not an outage: waiting does not repair it, and a call that waited
//! would end as if the quorum were lost. **Invariant:** while one server may still accept the
//! agent, calls wait for that server.

use crate::servers::Slot;
use std::collections::BTreeMap;

/// The servers that reject this agent, and the denial of its registration.
#[derive(Debug, Default)]
pub struct Admission {
    /// Servers that reject this agent's certificate, or whose certificate this agent rejects, with
    /// the reason.
    refusals: BTreeMap<Slot, String>,
    /// The reason why the leader rejects the registration.
    denial: Option<String>,
}

impl Admission {
    /// Records that a server and this agent rejected each other's certificates.
    pub fn refused(&mut self, slot: Slot, reason: String) {
        self.refusals.insert(slot, reason);
    }

    /// Records that the handshake succeeded, or that the server was not reached and may still
    /// accept the agent.
    pub fn not_refused(&mut self, slot: Slot) {
        self.refusals.remove(&slot);
    }

    /// Records that the leader rejected the registration.
    pub fn denied(&mut self, reason: &str) {
        self.denial = Some(reason.into());
    }

    /// Records that the leader accepted the registration.
    pub fn registered(&mut self) {
        self.denial = None;
    }

    /// Returns why no known server accepts this agent; `None` if one may.
    pub fn refusal(&mut self, slots: &[Slot]) -> Option<String> {
        self.refusals.retain(|slot, _| slots.contains(slot));
        // A server without a refusal may still accept the agent, even one that was never reached.
        let refused_by_all = slots.iter().all(|slot| self.refusals.contains_key(slot));
        let first = self.refusals.values().next().filter(|_| refused_by_all);
        first.or(self.denial.as_ref()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, Slot};

    const BOTH: [Slot; 2] = [Slot(1), Slot(2)];

    #[test]
    fn refused_once_every_server_refuses() {
        let mut admission = Admission::default();
        assert_eq!(admission.refusal(&BOTH), None);
        admission.refused(Slot(1), "a stranger".into());
        assert_eq!(admission.refusal(&BOTH), None, "the second may be a friend");
        admission.refused(Slot(2), "expired".into());
        assert_eq!(admission.refusal(&BOTH).as_deref(), Some("a stranger"));
        admission.not_refused(Slot(2));
        assert_eq!(admission.refusal(&BOTH), None);
    }

    #[test]
    fn forgotten_server_refusal_is_dropped() {
        let mut admission = Admission::default();
        admission.refused(Slot(1), "a stranger".into());
        assert_eq!(admission.refusal(&BOTH[..1]).as_deref(), Some("a stranger"));
        assert_eq!(admission.refusal(&BOTH[1..]), None);
        assert_eq!(admission.refusal(&BOTH[..1]), None, "the server is contacted again");
        assert_eq!(admission.refusal(&[]), None);
    }

    #[test]
    fn leader_denial_lasts_until_registration() {
        let mut admission = Admission::default();
        admission.denied("another node");
        admission.not_refused(Slot(1));
        assert_eq!(admission.refusal(&BOTH).as_deref(), Some("another node"));
        admission.registered();
        assert_eq!(admission.refusal(&BOTH), None);
    }
}
