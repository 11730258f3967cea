//! An instant of the clock that deadlines rest on.

use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant of a clock that is monotonic and advances while the machine is suspended:
/// `CLOCK_BOOTTIME`. The first one is `Moment::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment this many nanoseconds after the first one: see [`Moment::as_nanos`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Returns the nanoseconds since the first moment, to send it to another process. They mean the
    /// same moment there if both processes share the host and the time namespace, until the host is
    /// booted again. At most [`u64::MAX`], which is 584 years.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time from `earlier` to this; zero if this is not later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    /// The first moment if there is no earlier one.
    fn sub(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(duration))
    }
}
