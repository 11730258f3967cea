//! A process's own clock: it runs a little too fast or too slow, and may jump ahead. It never goes
//! back.

use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Time as one process sees it, counted from its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When the present rate began, in true time.
    since: Time,
    /// What the clock showed then.
    shown: Time,
    /// How many microseconds too many or too few it counts in a second.
    drift: i64,
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn start(now: Time, drift: i64) -> Self {
        Self { since: now, shown: Time(0), drift }
    }

    /// What it shows at a true time.
    pub fn at(&self, now: Time) -> Time {
        let passed = now.since(self.since).as_micros() as i64;
        Time(self.shown.0 + (passed + passed * self.drift / 1_000_000) as u64)
    }

    /// The first true time at which it shows `shown`, or now if it does already.
    pub fn when(&self, shown: Time, now: Time) -> Time {
        let missing = shown.since(self.at(now)).as_micros() as i64;
        let mut at = Time(now.max(self.since).0 + (missing * 1_000_000 / (1_000_000 + self.drift)) as u64);
        while self.at(at) < shown {
            at = Time(at.0 + 1);
        }
        at
    }

    /// It counts so many microseconds too many or too few in a second from now on.
    pub fn turn(&mut self, now: Time, drift: i64) {
        *self = Self { since: now, shown: self.at(now), drift };
    }

    /// Lets it jump ahead.
    pub fn jump(&mut self, now: Time, by: Duration) {
        (self.shown, self.since) = (self.at(now) + by, now);
    }
}
