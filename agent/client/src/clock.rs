//! The clock that deadlines rest on: monotonic, and it goes on while the machine is suspended.
//!
//! Never the wall clock, which people turn, and never tokio's, which stands still in a suspended
//! machine: a holder that slept through its lease must find it over on waking up. The agent reads
//! the same one: what it tells guards are points in time of this clock.

use crate::holder::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tokio::time::sleep;

/// The longest nap while waiting for a [`Moment`]: how late a suspended machine may notice it after
/// waking up.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// Where the time comes from.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The kernel's `CLOCK_BOOTTIME`.
    #[default]
    Boot,
    /// Tokio's, which tests can stop and turn; counted from the given instant.
    #[cfg(any(test, feature = "virtual-clock"))]
    Virtual(tokio::time::Instant),
}

impl Clock {
    /// The time now.
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

    /// Waits until `moment` has come.
    pub async fn sleep_until(self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // In naps, because tokio's clock stands still in a suspended machine.
            sleep(left.min(LONGEST_NAP)).await;
        }
    }
}
