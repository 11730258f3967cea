//! Whether the servers take this agent: what became of each attempt, and of its registration.
//!
//! Certificates that do not fit are no outage: no waiting mends them, and a call that waited would end as if the quorum
//! were lost. **Invariant:** as long as one server may yet take the agent, calls wait for that one.

use super::roster::Place;
use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// The servers that this agent does not believe, or that do not believe it, with the reason.
    refusals: BTreeMap<Place, String>,
    /// Why the leader does not take the registration.
    denial: Option<String>,
}

impl Admission {
    /// A server and this agent did not believe each other's certificates.
    pub(super) fn refused(&mut self, place: Place, reason: String) {
        self.refusals.insert(place, reason);
    }

    /// They did; or the server was not reached, and may be a friend.
    pub(super) fn not_refused(&mut self, place: Place) {
        self.refusals.remove(&place);
    }

    /// The leader does not take the registration.
    pub(super) fn denied(&mut self, reason: &str) {
        self.denial = Some(reason.into());
    }

    /// The leader took the registration.
    pub(super) fn registered(&mut self) {
        self.denial = None;
    }

    /// Why none of the servers that are known takes this agent, where that is so.
    pub(super) fn refusal(&mut self, places: &[Place]) -> Option<String> {
        self.refusals.retain(|place, _| places.contains(place));
        let refused_by_all = places.iter().all(|place| self.refusals.contains_key(place));
        let first = self.refusals.values().next().filter(|_| refused_by_all);
        first.or(self.denial.as_ref()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, Place};

    const BOTH: [Place; 2] = [Place(1), Place(2)];

    #[test]
    fn an_agent_is_refused_when_the_last_server_has_refused_it() {
        let mut admission = Admission::default();
        assert_eq!(admission.refusal(&BOTH), None);
        admission.refused(Place(1), "a stranger".into());
        assert_eq!(admission.refusal(&BOTH), None, "the second may be a friend");
        admission.refused(Place(2), "expired".into());
        assert_eq!(admission.refusal(&BOTH).as_deref(), Some("a stranger"));
        admission.not_refused(Place(2));
        assert_eq!(admission.refusal(&BOTH), None);
    }

    #[test]
    fn servers_that_are_not_known_any_more_do_not_count() {
        let mut admission = Admission::default();
        admission.refused(Place(1), "a stranger".into());
        assert_eq!(admission.refusal(&BOTH[..1]).as_deref(), Some("a stranger"));
        assert_eq!(admission.refusal(&BOTH[1..]), None);
        assert_eq!(admission.refusal(&BOTH[..1]), None, "it is met anew");
        assert_eq!(admission.refusal(&[]), None);
    }

    #[test]
    fn what_the_leader_denies_counts_until_it_registers_the_agent() {
        let mut admission = Admission::default();
        admission.denied("another node");
        admission.not_refused(Place(1));
        assert_eq!(admission.refusal(&BOTH).as_deref(), Some("another node"));
        admission.registered();
        assert_eq!(admission.refusal(&BOTH), None);
    }
}
