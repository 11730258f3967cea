//! Rate limiting of suspicions. An agent that is often wrong about other nodes has a bad network or
//! bad intentions. It must not keep the servers busy with checks of healthy nodes.
//!
//! A suspicion whose check is closed by the node's answer counts against its reporter (the accuser)
//! for a while; a verdict on the node cancels one. An accuser above the limit counts only if
//! another node suspects the same node at the same time.
//!
//! Accusers are keyed by node name, not by agent number: an agent that registers with another id
//! gets another number. The leader keeps all of this in memory and drops it with its leadership.

use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The penalty for one wrong suspicion. Penalties add up.
const PENALTY_TIME: Duration = Duration::from_secs(15);
/// The largest penalty, four wrong suspicions, at which an accuser still counts alone.
const MAX_TRUSTED_PENALTY_TIME: Duration = Duration::from_secs(60);
/// The upper bound of the penalty, however many suspicions were wrong.
const MAX_PENALTY_TIME: Duration = Duration::from_secs(300);
/// The maximum time between two suspicions of one node that count as simultaneous.
const CORROBORATION_WINDOW: Duration = Duration::from_secs(5);
/// The maximum number of recent accusers kept for one node.
const MAX_ACCUSERS: usize = 4;
/// The interval between clean-ups.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);

/// The penalties of accusers, as a leader keeps them, keyed by folded node names.
#[derive(Debug, Default)]
pub(super) struct Accusers {
    /// The time at which an accuser's penalty ends.
    held_until: BTreeMap<NodeName, Time>,
    /// The recent accusers of each node.
    recent: BTreeMap<AgentNumber, Vec<(NodeName, Time)>>,
    forget_at: Time,
}

impl Accusers {
    /// Records a suspicion of one node by another; returns whether it counts.
    pub(super) fn listen(&mut self, now: Time, accuser: &NodeName, accused: AgentNumber) -> bool {
        let recent = self.recent.entry(accused).or_default();
        recent.retain(|(node, at)| node != accuser && now.since(*at) <= CORROBORATION_WINDOW);
        let is_alone = recent.is_empty();
        if recent.len() >= MAX_ACCUSERS {
            recent.remove(0);
        }
        recent.push((accuser.clone(), now));
        !is_alone || self.is_trusted(now, accuser)
    }

    /// Returns whether suspicions of this accuser count without a second accuser.
    pub(super) fn is_trusted(&self, now: Time, accuser: &NodeName) -> bool {
        self.held_until.get(accuser).is_none_or(|until| until.since(now) <= MAX_TRUSTED_PENALTY_TIME)
    }

    /// Records that a node suspected by this accuser has answered.
    pub(super) fn was_wrong(&mut self, now: Time, accuser: &NodeName) {
        let until = self.held_until.entry(accuser.clone()).or_default();
        *until = ((*until).max(now) + PENALTY_TIME).min(now + MAX_PENALTY_TIME);
    }

    /// Records that a majority of servers got no answer from a node that this accuser suspected.
    pub(super) fn was_right(&mut self, now: Time, accuser: &NodeName) {
        if let Some(until) = self.held_until.get_mut(accuser) {
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
    use super::{Accusers, CORROBORATION_WINDOW, FORGET_INTERVAL, MAX_PENALTY_TIME, PENALTY_TIME};
    use lockmesh_protocol::id::{AgentNumber, NodeName};
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);
    const X: AgentNumber = AgentNumber(1);
    const Y: AgentNumber = AgentNumber(2);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn wrong(accusers: &mut Accusers, node: &str, times: usize) {
        (0..times).for_each(|_| accusers.was_wrong(at(100), &NodeName::from(node)));
    }

    #[test]
    fn four_wrong_accusations_are_forgiven_and_a_fifth_is_not_until_time_has_passed() {
        let (mut accusers, liar) = (Accusers::default(), NodeName::from("liar"));
        wrong(&mut accusers, "liar", 4);
        assert!(accusers.listen(at(100), &liar, X));
        wrong(&mut accusers, "liar", 1);
        assert!(!accusers.listen(at(110), &liar, X));
        assert!(accusers.listen(at(100) + PENALTY_TIME, &liar, Y));
    }

    #[test]
    fn nobody_is_ignored_for_ever_however_often_it_was_wrong() {
        let (mut accusers, liar) = (Accusers::default(), NodeName::from("liar"));
        wrong(&mut accusers, "liar", 1_000);
        assert!(!accusers.is_trusted(at(100) + MAX_PENALTY_TIME / 2, &liar));
        assert!(accusers.is_trusted(at(100) + MAX_PENALTY_TIME, &liar));
        accusers.forget(at(100) + MAX_PENALTY_TIME);
        assert!(accusers.held_until.is_empty());
    }

    #[test]
    fn a_verdict_makes_up_for_one_that_was_wrong() {
        let (mut accusers, node) = (Accusers::default(), NodeName::from("n"));
        wrong(&mut accusers, "n", 5);
        accusers.was_right(at(100), &node);
        assert!(accusers.is_trusted(at(100), &node));
        (0..10).for_each(|_| accusers.was_right(at(100), &node));
        wrong(&mut accusers, "n", 5);
        assert!(!accusers.is_trusted(at(100), &node), "credit does not accumulate");
    }

    #[test]
    fn who_is_often_wrong_is_heard_beside_another_one_and_not_beside_itself() {
        let mut accusers = Accusers::default();
        let (liar, other) = (NodeName::from("liar"), NodeName::from("other"));
        wrong(&mut accusers, "liar", 10);
        wrong(&mut accusers, "other", 10);
        assert!(!accusers.listen(at(101), &liar, X));
        assert!(!accusers.listen(at(102), &liar, X));
        assert!(!accusers.listen(at(102), &other, Y), "another node was suspected");
        assert!(accusers.listen(at(103), &other, X));
        assert!(!accusers.listen(at(103) + CORROBORATION_WINDOW + SECOND, &liar, X), "too late");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut accusers = Accusers::default();
        for number in 0..100 {
            accusers.listen(at(100), &NodeName::from(format!("n{number}")), X);
        }
        assert!(accusers.recent[&X].len() <= super::MAX_ACCUSERS);
        accusers.forget(at(100));
        accusers.forget(at(100) + FORGET_INTERVAL);
        assert!(accusers.recent.is_empty());
    }
}
