//! Rate limiting of suspicions. An agent that is often wrong about other nodes has a bad network or
//! bad intentions. It must not keep the servers busy with checks of healthy nodes.
//!
//! A suspicion whose check is closed by the node's answer counts against its reporter for a while;
//! a verdict on the node cancels one. A reporter above the limit counts only if another node
//! suspects the same node at the same time.
//!
//! Reporters are keyed by node name, not by agent number: an agent that registers with another id
//! gets another number. The leader keeps all of this in memory and drops it with its leadership.

use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The penalty for one wrong suspicion. Penalties add up.
const PENALTY_TIME: Duration = Duration::from_secs(15);
/// The largest penalty, four wrong suspicions, at which a reporter still counts alone.
const MAX_TRUSTED_PENALTY_TIME: Duration = Duration::from_secs(60);
/// The upper bound of the penalty, however many suspicions were wrong.
const MAX_PENALTY_TIME: Duration = Duration::from_secs(300);
/// The maximum time between two suspicions of one node that count as simultaneous.
const CORROBORATION_WINDOW: Duration = Duration::from_secs(5);
/// The maximum number of recent reporters kept for one node.
const MAX_REPORTERS: usize = 4;
/// The interval between clean-ups.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);

/// The penalties of reporters, as a leader keeps them, keyed by folded node names.
#[derive(Debug, Default)]
pub(super) struct Reporters {
    /// The time at which a reporter's penalty ends.
    held_until: BTreeMap<NodeName, Time>,
    /// The recent reporters of each node.
    recent: BTreeMap<AgentNumber, Vec<(NodeName, Time)>>,
    forget_at: Time,
}

impl Reporters {
    /// Records a suspicion of one node by another; returns whether it counts.
    pub(super) fn listen(&mut self, now: Time, reporter: &NodeName, suspected: AgentNumber) -> bool {
        let recent = self.recent.entry(suspected).or_default();
        recent.retain(|(node, at)| node != reporter && now.since(*at) <= CORROBORATION_WINDOW);
        let is_alone = recent.is_empty();
        if recent.len() >= MAX_REPORTERS {
            recent.remove(0);
        }
        recent.push((reporter.clone(), now));
        !is_alone || self.is_trusted(now, reporter)
    }

    /// Returns whether suspicions of this reporter count without a second reporter.
    pub(super) fn is_trusted(&self, now: Time, reporter: &NodeName) -> bool {
        self.held_until.get(reporter).is_none_or(|until| until.since(now) <= MAX_TRUSTED_PENALTY_TIME)
    }

    /// Records that a node suspected by this reporter has answered.
    pub(super) fn was_wrong(&mut self, now: Time, reporter: &NodeName) {
        let until = self.held_until.entry(reporter.clone()).or_default();
        *until = ((*until).max(now) + PENALTY_TIME).min(now + MAX_PENALTY_TIME);
    }

    /// Records that a majority of servers got no answer from a node that this reporter suspected.
    pub(super) fn was_right(&mut self, now: Time, reporter: &NodeName) {
        if let Some(until) = self.held_until.get_mut(reporter) {
            *until = now + until.since(now).saturating_sub(PENALTY_TIME);
        }
    }

    /// Removes expired entries, at most once per [`FORGET_INTERVAL`].
    pub(super) fn forget(&mut self, now: Time) {
        if now < self.forget_at {
            return;
        }
        self.forget_at = now + FORGET_INTERVAL;
        self.held_until.retain(|_, until| *until > now);
        self.recent.retain(|_, recent| recent.iter().any(|(_, at)| now.since(*at) <= CORROBORATION_WINDOW));
    }
}

#[cfg(test)]
mod tests {
    use super::{CORROBORATION_WINDOW, FORGET_INTERVAL, MAX_PENALTY_TIME, PENALTY_TIME, Reporters};
    use lockmesh_protocol::id::{AgentNumber, NodeName};
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);
    const X: AgentNumber = AgentNumber(1);
    const Y: AgentNumber = AgentNumber(2);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn wrong(reporters: &mut Reporters, node: &str, times: usize) {
        (0..times).for_each(|_| reporters.was_wrong(at(100), &NodeName::from(node)));
    }

    #[test]
    fn fifth_false_suspicion_mutes_temporarily() {
        let (mut reporters, liar) = (Reporters::default(), NodeName::from("liar"));
        wrong(&mut reporters, "liar", 4);
        assert!(reporters.listen(at(100), &liar, X));
        wrong(&mut reporters, "liar", 1);
        assert!(!reporters.listen(at(110), &liar, X));
        assert!(reporters.listen(at(100) + PENALTY_TIME, &liar, Y));
    }

    #[test]
    fn penalty_is_capped() {
        let (mut reporters, liar) = (Reporters::default(), NodeName::from("liar"));
        wrong(&mut reporters, "liar", 1_000);
        assert!(!reporters.is_trusted(at(100) + MAX_PENALTY_TIME / 2, &liar));
        assert!(reporters.is_trusted(at(100) + MAX_PENALTY_TIME, &liar));
        reporters.forget(at(100) + MAX_PENALTY_TIME);
        assert!(reporters.held_until.is_empty());
    }

    #[test]
    fn confirmed_suspicion_restores_trust() {
        let (mut reporters, node) = (Reporters::default(), NodeName::from("n"));
        wrong(&mut reporters, "n", 5);
        reporters.was_right(at(100), &node);
        assert!(reporters.is_trusted(at(100), &node));
        (0..10).for_each(|_| reporters.was_right(at(100), &node));
        wrong(&mut reporters, "n", 5);
        assert!(!reporters.is_trusted(at(100), &node), "credit does not accumulate");
    }

    #[test]
    fn distrusted_reporter_needs_corroboration() {
        let mut reporters = Reporters::default();
        let (liar, other) = (NodeName::from("liar"), NodeName::from("other"));
        wrong(&mut reporters, "liar", 10);
        wrong(&mut reporters, "other", 10);
        assert!(!reporters.listen(at(101), &liar, X));
        assert!(!reporters.listen(at(102), &liar, X));
        assert!(!reporters.listen(at(102), &other, Y), "another node was suspected");
        assert!(reporters.listen(at(103), &other, X));
        assert!(!reporters.listen(at(103) + CORROBORATION_WINDOW + SECOND, &liar, X), "too late");
    }

    #[test]
    fn recent_suspicions_bounded_and_forgotten() {
        let mut reporters = Reporters::default();
        for number in 0..100 {
            reporters.listen(at(100), &NodeName::from(format!("n{number}")), X);
        }
        assert!(reporters.recent[&X].len() <= super::MAX_REPORTERS);
        reporters.forget(at(100));
        reporters.forget(at(100) + FORGET_INTERVAL);
        assert!(reporters.recent.is_empty());
    }
}
