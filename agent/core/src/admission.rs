//! Whether the servers take this agent: what became of each attempt, and of its registration.
//!
//! Certificates that do not fit are no outage: no waiting mends them, and a call that waited would
//! end as if the quorum were lost. **Invariant:** as long as one server may yet take the agent,
//! calls wait for that one.

use crate::servers::Slot;
use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Admission {
    /// The servers that this agent does not believe, or that do not believe it, with the reason.
    refusals: BTreeMap<Slot, String>,
    /// Why the leader does not take the registration.
    denial: Option<String>,
}

impl Admission {
    /// A server and this agent did not believe each other's certificates.
    pub fn refused(&mut self, slot: Slot, reason: String) {
        self.refusals.insert(slot, reason);
    }

    /// They did; or the server was not reached, and may be a friend.
    pub fn not_refused(&mut self, slot: Slot) {
        self.refusals.remove(&slot);
    }

    /// The leader does not take the registration.
    pub fn denied(&mut self, reason: &str) {
        self.denial = Some(reason.into());
    }

    /// The leader took the registration.
    pub fn registered(&mut self) {
        self.denial = None;
    }

    /// Why none of the servers that are known takes this agent, where that is so.
    pub fn refusal(&mut self, slots: &[Slot]) -> Option<String> {
        self.refusals.retain(|slot, _| slots.contains(slot));
        // One that did not refuse may yet take the agent, also one that was never reached.
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
    fn an_agent_is_refused_when_the_last_server_has_refused_it() {
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
    fn servers_that_are_not_known_any_more_do_not_count() {
        let mut admission = Admission::default();
        admission.refused(Slot(1), "a stranger".into());
        assert_eq!(admission.refusal(&BOTH[..1]).as_deref(), Some("a stranger"));
        assert_eq!(admission.refusal(&BOTH[1..]), None);
        assert_eq!(admission.refusal(&BOTH[..1]), None, "it is met anew");
        assert_eq!(admission.refusal(&[]), None);
    }

    #[test]
    fn what_the_leader_denies_counts_until_it_registers_the_agent() {
        let mut admission = Admission::default();
        admission.denied("another node");
        admission.not_refused(Slot(1));
        assert_eq!(admission.refusal(&BOTH).as_deref(), Some("another node"));
        admission.registered();
        assert_eq!(admission.refusal(&BOTH), None);
    }
}
