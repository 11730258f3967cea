//! The cluster's time, which datagrams of the mesh are stamped with: the leader's. Whoever is told
//! another one takes what members say for old, and they what it says; so a server whose own clock
//! is wrong must not part its agents from the others.
//!
//! A leader goes on from what the one before said, where it has heard that; otherwise it begins
//! with its own clock. So time goes on evenly, and whether it is that of the world does not matter.
//! Where it leaps all the same, agents follow within half a minute, and meanwhile deaths are found
//! by renewals that are overdue.

use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// How often a leader tells the others.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct ClusterClock {
    /// What a leader said last, and when.
    told: Option<(Time, WallTime)>,
    /// When this server, if it leads, tells the others again.
    tells_at: Time,
}

impl ClusterClock {
    /// Whether a leader has told it, or this server has as the leader.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// The cluster's time, on a server whose own clock shows that.
    pub(super) fn at(&self, now: Time, own: WallTime) -> WallTime {
        self.told.map_or(own, |(at, WallTime(millis))| {
            WallTime(millis.saturating_add(now.since(at).as_millis() as u64))
        })
    }

    /// The leader has told it.
    pub(super) fn hear(&mut self, now: Time, told: WallTime) {
        self.told = Some((now, told));
    }

    /// What this leader tells the others, if it is time.
    pub(super) fn tells(&mut self, now: Time, own: WallTime) -> Option<WallTime> {
        if now < self.tells_at {
            return None;
        }
        self.tells_at = now + TELL_INTERVAL;
        // It is the leader's own from here on, whatever becomes of the clock that it began with.
        let told = self.at(now, own);
        self.hear(now, told);
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_goes_by_its_own_clock_until_a_leader_has_spoken() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        assert_eq!(clock.at(began, WallTime(7_000)), WallTime(7_000));
        clock.hear(began, WallTime(900_000));
        assert_eq!(clock.at(began + SECOND * 3, WallTime(7_000)), WallTime(903_000));
    }

    #[test]
    fn a_leader_tells_once_a_second_and_goes_on_from_the_one_before() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        clock.hear(began, WallTime(900_000));
        assert_eq!(clock.tells(began + SECOND, WallTime(7_000)), Some(WallTime(901_000)));
        assert_eq!(clock.tells(began + SECOND * 3 / 2, WallTime(7_000)), None);
        assert_eq!(clock.tells(began + SECOND * 2, WallTime(7_000)), Some(WallTime(902_000)));
    }

    #[test]
    fn a_leader_s_clock_that_is_set_does_not_change_the_cluster_s_time() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        assert_eq!(clock.tells(began, WallTime(7_000)), Some(WallTime(7_000)));
        assert_eq!(clock.at(began + SECOND, WallTime(3_600_000)), WallTime(8_000));
    }
}
