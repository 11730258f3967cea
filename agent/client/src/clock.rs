//! The clock that deadlines rest on: monotonic, including time that the machine is suspended.
//!
//! It is not the wall clock, which administrators can set, and not tokio's clock, which stops while
//! the machine is suspended: a holder that slept past its lease must find it expired on waking up.
//! The agent uses the same clock: the deadlines that it reports to guards are instants of this
//! clock.

use crate::holder::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tokio::time::sleep;

/// The maximum length of one sleep while waiting for a [`Moment`]. It bounds the delay with which a
/// suspended machine notices it after waking up.
const MAX_SLEEP_TIME: Duration = Duration::from_millis(500);

/// The source of time.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The kernel's `CLOCK_BOOTTIME`.
    #[default]
    Boot,
    /// Tokio's clock, which tests can pause and advance; counted from the given instant.
    #[cfg(any(test, feature = "virtual-clock"))]
    Virtual(tokio::time::Instant),
}

impl Clock {
    /// Returns the current time.
    pub fn now(self) -> Moment {
        match self {
            Self::Boot => {
                let now = clock_gettime(ClockId::Boottime);
                let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
                let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
                Moment::default() + Duration::new(seconds, nanoseconds)
            }
            #[cfg(any(test, feature = "virtual-clock"))]
            Self::Virtual(start) => Moment::default() + start.elapsed(),
        }
    }

    /// Waits until `moment`.
    pub async fn sleep_until(self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // Sleeps in short intervals, because tokio's clock stops while the machine is
            // suspended.
            sleep(left.min(MAX_SLEEP_TIME)).await;
        }
    }
}
