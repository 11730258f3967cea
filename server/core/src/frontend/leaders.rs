//! The leaders that a server has observed, and its last contact with one.

use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The leaders that a server has observed.
#[derive(Debug)]
pub(super) struct LeaderHistory {
    newest: Option<(ServerId, Term)>,
    changes: u64,
    /// The time of the last contact with a leader.
    contact: Time,
    /// `true` if this server led and served at the end of the last turn.
    serving: bool,
}

impl LeaderHistory {
    pub(super) fn new(now: Time) -> Self {
        Self { newest: None, changes: 0, contact: now, serving: false }
    }

    /// Records the leader at the end of a turn, and the time since its last message.
    pub(super) fn record(&mut self, now: Time, leader: (ServerId, Term), silence: Option<Duration>) {
        let before = self.newest.replace(leader);
        self.changes += u64::from(before.is_some_and(|before| before != leader));
        if let Some(silence) = silence {
            self.contact = self.contact.max(Time(now.0.saturating_sub(silence.as_micros() as u64)));
        }
    }

    /// Records if this server leads and serves. Returns `true` if it stopped.
    pub(super) fn record_serving(&mut self, serving: bool) -> bool {
        std::mem::replace(&mut self.serving, serving) && !serving
    }

    /// Returns the number of leader changes, including a new term of the same leader, after the
    /// first one.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the time since the last contact with a leader.
    pub(super) fn silence(&self, now: Time) -> Duration {
        now.since(self.contact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_term_counts_as_change() {
        let mut leaders = LeaderHistory::new(Time(0));
        for term in [1, 1, 2] {
            leaders.record(Time(0), (ServerId(1), Term(term)), None);
        }
        assert_eq!(leaders.changes(), 1);
    }

    #[test]
    fn silence_grows_without_known_leader() {
        let second = Duration::from_secs(1);
        let start = Time(0);
        let mut leaders = LeaderHistory::new(start);
        leaders.record(start + 3 * second, (ServerId(1), Term(1)), Some(second));
        assert_eq!(leaders.silence(start + 4 * second), 2 * second);
        leaders.record(start + 4 * second, (ServerId(2), Term(2)), Some(3 * second));
        assert_eq!(leaders.silence(start + 4 * second), 2 * second, "the latest contact counts");
    }
}
