//! Ids in order of the times at which something is due for them, so that finding what is due needs
//! no walk over all.

use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;

/// Ids, each with at most one time.
#[derive(Debug)]
pub(super) struct Agenda<K>(BTreeSet<(Time, K)>);

impl<K: Clone + Ord> Agenda<K> {
    pub(super) fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// Returns the earliest time.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Returns every id with its time, in order of the times; of equal times, in order of the ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Time, K)> {
        self.0.iter()
    }

    /// Returns the ids that are due, in that order.
    pub(super) fn due(&self, now: Time) -> impl Iterator<Item = &K> {
        self.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| id)
    }

    /// Moves an id from its time to another one; `None` is no time.
    pub(super) fn move_to(&mut self, id: &K, from: Option<Time>, to: Option<Time>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.0.remove(&(from, id.clone()));
        }
        self.0.extend(to.map(|to| (to, id.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_order_by_time_then_id() {
        let mut agenda = Agenda::new();
        for (id, at) in [("c", 2), ("b", 1), ("a", 2), ("d", 3)] {
            agenda.move_to(&id, None, Some(Time(at)));
        }
        let due = |agenda: &Agenda<_>, now| agenda.due(Time(now)).copied().collect::<Vec<_>>();
        assert_eq!((due(&agenda, 0), due(&agenda, 2)), (vec![], vec!["b", "a", "c"]));
        agenda.move_to(&"b", Some(Time(1)), Some(Time(4)));
        agenda.move_to(&"a", Some(Time(2)), Some(Time(2)));
        agenda.move_to(&"c", Some(Time(2)), None);
        assert_eq!((agenda.next(), due(&agenda, 9)), (Some(Time(2)), vec!["a", "d", "b"]));
        let times: Vec<_> = agenda.iter().map(|(at, _)| at.0).collect();
        assert_eq!(times, [2, 3, 4]);
    }
}
