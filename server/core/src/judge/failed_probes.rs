//! Nodes that agents cannot probe although they renew their leases: mostly a wrong `advertise`, or
//! a firewall in front of the agent's ports.
//!
//! A single suspicion is not worth a report, because a node that renews is alive. The leader
//! reports a node once suspicions have come without a long break for a while: then the mesh detects
//! no failure of that node, and no server can challenge it. The report changes no verdict.
//!
//! **Invariant:** one agent alone causes no report if there are others: its own network may be bad.

use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which suspicions must come before the node is reported.
const REPORT_DELAY: Duration = Duration::from_secs(60);
/// The break between two suspicions after which the node counts as probed. Agents slow their probes
/// down after false suspicions.
const MAX_SUSPICION_GAP: Duration = Duration::from_secs(45);
/// The number of suspicions that are not worth a report, however long they take.
const FEW: u32 = 3;
/// The maximum number of nodes that are followed at a time.
const MAX_NODES: usize = 4_096;
/// The number of agents that must suspect a node, if there are as many others.
const LEAST_REPORTERS: usize = 2;

/// The suspicions of nodes that renew their leases.
#[derive(Debug, Default)]
pub(super) struct FailedProbes(BTreeMap<AgentNumber, Suspicions>);

/// Suspicions of one node without a long break.
#[derive(Debug)]
struct Suspicions {
    lease: LeaseId,
    first: Time,
    last: Time,
    count: u32,
    /// The first agents that suspected it, by their folded names.
    reporters: Vec<NodeName>,
    is_reported: bool,
}

impl FailedProbes {
    /// Records a suspicion of a node by one of its `others`, the number of other agents that live.
    /// Returns `true` if the node is to be reported from now on.
    pub(super) fn suspected(&mut self, now: Time, lease: LeaseId, by: &NodeName, others: usize) -> bool {
        if self.0.len() >= MAX_NODES && !self.0.contains_key(&lease.agent) {
            return false;
        }
        let fresh = || {
            let reporters = Vec::new();
            Suspicions { lease, first: now, last: now, count: 0, reporters, is_reported: false }
        };
        let known = self.0.entry(lease.agent).or_insert_with(fresh);
        // Another process of the node may listen elsewhere.
        if known.lease != lease {
            *known = fresh();
        }
        known.last = now;
        known.count = known.count.saturating_add(1);
        if known.reporters.len() < LEAST_REPORTERS && !known.reporters.contains(by) {
            known.reporters.push(by.clone());
        }
        let is_agreed = known.reporters.len() >= LEAST_REPORTERS.min(others);
        let is_due = is_agreed && now.since(known.first) >= REPORT_DELAY && known.count > FEW;
        is_due && !std::mem::replace(&mut known.is_reported, true)
    }

    /// Forgets nodes that are no longer suspected, or that `is_alive` rejects. Returns those that
    /// were reported.
    pub(super) fn ended(&mut self, now: Time, is_alive: impl Fn(LeaseId) -> bool) -> Vec<AgentNumber> {
        let mut ended = Vec::new();
        self.0.retain(|number, known| {
            let goes_on = now.since(known.last) < MAX_SUSPICION_GAP && is_alive(known.lease);
            if !goes_on && known.is_reported {
                ended.push(*number);
            }
            goes_on
        });
        ended
    }

    /// Returns `true` if the holder of this lease is reported.
    pub(super) fn is_reported(&self, lease: LeaseId) -> bool {
        self.0.get(&lease.agent).is_some_and(|known| known.lease == lease && known.is_reported)
    }

    /// Returns the number of reported nodes.
    pub(super) fn len(&self) -> usize {
        self.0.values().filter(|known| known.is_reported).count()
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW, FailedProbes, MAX_SUSPICION_GAP, REPORT_DELAY};
    use lockmesh_protocol::id::{AgentNumber, LogIndex};
    use lockmesh_protocol::lease::LeaseId;
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    const NODE: AgentNumber = AgentNumber(7);
    const SECOND: Duration = Duration::from_secs(1);

    fn lease(began: u64) -> LeaseId {
        LeaseId { agent: NODE, began: LogIndex(began) }
    }

    /// Suspects the node at this interval for a while; returns the times at which a report was due.
    fn suspect(probes: &mut FailedProbes, from: Time, every: Duration, count: u32) -> Vec<Time> {
        let times = (0..count).map(|number| from + every * number);
        times
            .filter(|now| {
                assert!(probes.ended(*now, |_| true).is_empty());
                // By two agents in turn.
                let by = if (now.0 / 1_000_000).is_multiple_of(2) { "a" } else { "b" };
                probes.suspected(*now, lease(1), &by.into(), 5)
            })
            .collect()
    }

    #[test]
    fn continuing_suspicions_reported_once() {
        let mut probes = FailedProbes::default();
        assert_eq!(suspect(&mut probes, Time(0), SECOND, 200), [Time(0) + REPORT_DELAY], "once");
        assert!(probes.is_reported(lease(1)) && !probes.is_reported(lease(2)) && probes.len() == 1);
        let last = Time(0) + SECOND * 199;
        assert!(probes.ended(last + (MAX_SUSPICION_GAP - SECOND), |_| true).is_empty());
        assert_eq!(probes.ended(last + MAX_SUSPICION_GAP, |_| true), [NODE], "it is probed again");
        assert!(probes.len() == 0 && probes.ended(last + MAX_SUSPICION_GAP, |_| true).is_empty());
    }

    #[test]
    fn occasional_suspicions_are_not_reported() {
        let mut probes = FailedProbes::default();
        // Less than a minute, then a break.
        assert!(suspect(&mut probes, Time(0), SECOND, 59).is_empty());
        let later = Time(0) + SECOND * 58 + MAX_SUSPICION_GAP;
        assert!(probes.ended(later, |_| true).is_empty(), "it was never reported");
        assert!(suspect(&mut probes, later, SECOND, 59).is_empty());
        let mut probes = FailedProbes::default();
        assert!(suspect(&mut probes, Time(0), MAX_SUSPICION_GAP - SECOND, FEW).is_empty(), "they are few");
    }

    #[test]
    fn lone_suspicion_ignored_among_many() {
        for (others, reports) in [(1, 1), (2, 0), (5, 0)] {
            let mut probes = FailedProbes::default();
            let times = (0..100).map(|number| Time(0) + SECOND * number);
            let due = times.filter(|now| probes.suspected(*now, lease(1), &"a".into(), others));
            assert_eq!(due.count(), reports, "with {others} other agents");
        }
    }

    #[test]
    fn restart_or_failure_resets_report() {
        let mut probes = FailedProbes::default();
        suspect(&mut probes, Time(0), SECOND, 61);
        assert!(!probes.suspected(Time(0) + REPORT_DELAY, lease(2), &"a".into(), 5), "it has restarted");
        assert_eq!(probes.len(), 0);
        let mut probes = FailedProbes::default();
        suspect(&mut probes, Time(0), SECOND, 61);
        assert_eq!(probes.ended(Time(0) + REPORT_DELAY, |_| false), [NODE], "it has failed");
    }
}
