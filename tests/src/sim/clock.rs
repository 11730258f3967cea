//! A process's own clock: it runs slightly fast or slow, and may jump ahead. It never goes back.

use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Time as one process sees it, counted from its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The start of the present rate, in true time.
    since: Time,
    /// The clock's reading at that time.
    shown: Time,
    /// Drift: microseconds that it gains or loses per second.
    drift: i64,
}

impl Clock {
    /// Returns a clock that starts at 0 now.
    pub fn start(now: Time, drift: i64) -> Self {
        Self { since: now, shown: Time(0), drift }
    }

    /// Returns its reading at a true time.
    pub fn at(&self, now: Time) -> Time {
        let passed = now.since(self.since).as_micros() as i64;
        Time(self.shown.0 + (passed + passed * self.drift / 1_000_000) as u64)
    }

    /// Returns the first true time at which it reads `shown`, or now if it already does.
    pub fn when(&self, shown: Time, now: Time) -> Time {
        let missing = shown.since(self.at(now)).as_micros() as i64;
        let mut at = Time(now.max(self.since).0 + (missing * 1_000_000 / (1_000_000 + self.drift)) as u64);
        while self.at(at) < shown {
            at = Time(at.0 + 1);
        }
        at
    }

    /// Changes the drift from now on.
    pub fn turn(&mut self, now: Time, drift: i64) {
        *self = Self { since: now, shown: self.at(now), drift };
    }

    /// Moves the clock ahead.
    pub fn jump(&mut self, now: Time, by: Duration) {
        (self.shown, self.since) = (self.at(now) + by, now);
    }
}
