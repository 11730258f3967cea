//! The cluster time: the leader's time, used to stamp mesh datagrams despite clock skew. An agent
//! with another time would reject its peers' datagrams as old, or they would reject its own. A
//! server with a wrong clock must therefore not separate its agents from the others.
//!
//! A leader continues the time of the previous leader if it has received it; otherwise it starts
//! with its own clock. Time therefore advances evenly; it need not match the real time. If it jumps
//! nevertheless, agents follow within half a minute; until then node failures are detected by
//! overdue renewals.

use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Interval at which a leader sends the time to the other servers.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

/// The leader's time, as last announced to this server.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock {
    /// The last time that a leader announced, and when.
    announced: Option<(Time, WallTime)>,
    /// Time of the next announcement, if this server leads.
    announces_at: Time,
}

impl ClusterClock {
    /// Returns `true` if a leader has announced the time, or this server has as leader.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Returns the cluster time; `own` is the time of this server's clock.
    pub(super) fn at(&self, now: Time, own: WallTime) -> WallTime {
        self.announced.map_or(own, |(at, WallTime(millis))| {
            WallTime(millis.saturating_add(now.since(at).as_millis() as u64))
        })
    }

    /// Records the leader's announcement.
    pub(super) fn note_announcement(&mut self, now: Time, announced: WallTime) {
        self.announced = Some((now, announced));
    }

    /// Returns the time for this leader's announcement, if one is due.
    pub(super) fn announcement_due(&mut self, now: Time, own: WallTime) -> Option<WallTime> {
        if now < self.announces_at {
            return None;
        }
        self.announces_at = now + ANNOUNCE_INTERVAL;
        // From here on the time is the leader's own, independent of the clock that it started with.
        let announced = self.at(now, own);
        self.note_announcement(now, announced);
        Some(announced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn own_clock_until_leader_announcement() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        assert_eq!(clock.at(began, WallTime(7_000)), WallTime(7_000));
        clock.note_announcement(began, WallTime(900_000));
        assert_eq!(clock.at(began + SECOND * 3, WallTime(7_000)), WallTime(903_000));
    }

    #[test]
    fn leader_continues_announced_time_every_second() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        clock.note_announcement(began, WallTime(900_000));
        assert_eq!(clock.announcement_due(began + SECOND, WallTime(7_000)), Some(WallTime(901_000)));
        assert_eq!(clock.announcement_due(began + SECOND * 3 / 2, WallTime(7_000)), None);
        assert_eq!(clock.announcement_due(began + SECOND * 2, WallTime(7_000)), Some(WallTime(902_000)));
    }

    #[test]
    fn leader_clock_step_is_ignored() {
        let (mut clock, began) = (ClusterClock::default(), Time(5));
        assert_eq!(clock.announcement_due(began, WallTime(7_000)), Some(WallTime(7_000)));
        assert_eq!(clock.at(began + SECOND, WallTime(3_600_000)), WallTime(8_000));
    }
}
