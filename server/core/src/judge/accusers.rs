//! Who is listened to: an agent in the mesh that was often wrong about others has a bad network, or
//! bad intentions, and must not keep the servers busy with checks of nodes that live.
//!
//! Every accusation whose check the node's answer closed is held against the accuser for a while; a
//! verdict on the node makes up for one. Whoever has too many against it is heard only where
//! another one accuses the same node at the same time.
//!
//! By the node, not by the agent's number: that of an agent which registers under another id is
//! another one. All of it is this leader's own, and forgotten with its leadership.

use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a wrong accusation is held against an accuser, one after the other.
const HELD_AGAINST: Duration = Duration::from_secs(15);
/// An accuser with more than this against it, four wrong accusations, is not heard alone.
const MOST: Duration = Duration::from_secs(60);
/// However often it was wrong, so much later it is as any other.
const LONGEST: Duration = Duration::from_secs(300);
/// Within so long two accusations of one node are made at the same time.
const TOGETHER: Duration = Duration::from_secs(5);
/// So many accusers of one node are remembered.
const REMEMBERED: usize = 4;
/// How often what is over is forgotten.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);

/// What a leader holds against accusers. By folded names.
#[derive(Debug, Default)]
pub(super) struct Accusers {
    /// Until when something is held against an accuser.
    held_until: BTreeMap<NodeName, Time>,
    /// Who accused each node of late.
    recent: BTreeMap<AgentNumber, Vec<(NodeName, Time)>>,
    forget_at: Time,
}

impl Accusers {
    /// A node is accused by another one; whether that counts.
    pub(super) fn listen(&mut self, now: Time, accuser: &NodeName, accused: AgentNumber) -> bool {
        let recent = self.recent.entry(accused).or_default();
        recent.retain(|(node, at)| node != accuser && now.since(*at) <= TOGETHER);
        let is_alone = recent.is_empty();
        if recent.len() >= REMEMBERED {
            recent.remove(0);
        }
        recent.push((accuser.clone(), now));
        !is_alone || self.is_trusted(now, accuser)
    }

    /// Whether an accuser is heard alone.
    pub(super) fn is_trusted(&self, now: Time, accuser: &NodeName) -> bool {
        self.held_until.get(accuser).is_none_or(|until| until.since(now) <= MOST)
    }

    /// A node that it accused has answered.
    pub(super) fn was_wrong(&mut self, now: Time, accuser: &NodeName) {
        let until = self.held_until.entry(accuser.clone()).or_default();
        *until = ((*until).max(now) + HELD_AGAINST).min(now + LONGEST);
    }

    /// A majority of the servers did not hear from a node that it accused.
    pub(super) fn was_right(&mut self, now: Time, accuser: &NodeName) {
        if let Some(until) = self.held_until.get_mut(accuser) {
            *until = now + until.since(now).saturating_sub(HELD_AGAINST);
        }
    }

    /// Forgets what is over, from time to time.
    pub(super) fn forget(&mut self, now: Time) {
        if now < self.forget_at {
            return;
        }
        self.forget_at = now + FORGET_INTERVAL;
        self.held_until.retain(|_, until| *until > now);
        self.recent.retain(|_, recent| recent.iter().any(|(_, at)| now.since(*at) <= TOGETHER));
    }
}

#[cfg(test)]
mod tests {
    use super::{Accusers, FORGET_INTERVAL, HELD_AGAINST, LONGEST, TOGETHER};
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
        assert!(accusers.listen(at(100) + HELD_AGAINST, &liar, Y));
    }

    #[test]
    fn nobody_is_ignored_for_ever_however_often_it_was_wrong() {
        let (mut accusers, liar) = (Accusers::default(), NodeName::from("liar"));
        wrong(&mut accusers, "liar", 1_000);
        assert!(!accusers.is_trusted(at(100) + LONGEST / 2, &liar));
        assert!(accusers.is_trusted(at(100) + LONGEST, &liar));
        accusers.forget(at(100) + LONGEST);
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
        assert!(!accusers.is_trusted(at(100), &node), "nobody gathers credit for later");
    }

    #[test]
    fn who_is_often_wrong_is_heard_beside_another_one_and_not_beside_itself() {
        let mut accusers = Accusers::default();
        let (liar, other) = (NodeName::from("liar"), NodeName::from("other"));
        wrong(&mut accusers, "liar", 10);
        wrong(&mut accusers, "other", 10);
        assert!(!accusers.listen(at(101), &liar, X));
        assert!(!accusers.listen(at(102), &liar, X));
        assert!(!accusers.listen(at(102), &other, Y), "that is another node");
        assert!(accusers.listen(at(103), &other, X));
        assert!(!accusers.listen(at(103) + TOGETHER + SECOND, &liar, X), "too late");
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut accusers = Accusers::default();
        for number in 0..100 {
            accusers.listen(at(100), &NodeName::from(format!("n{number}")), X);
        }
        assert!(accusers.recent[&X].len() <= super::REMEMBERED);
        accusers.forget(at(100));
        accusers.forget(at(100) + FORGET_INTERVAL);
        assert!(accusers.recent.is_empty());
    }
}
