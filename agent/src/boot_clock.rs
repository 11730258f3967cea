//! The clock that the node's lease rests on: monotonic, and it goes on while the host is suspended.
//!
//! Never tokio's, which stands still in a suspended host: an agent that slept through a deadline
//! must find it passed on waking up. Guards on this host read the same clock.

use lockmesh_protocol::time::Time;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tokio::time::sleep;

/// The longest nap while waiting: how late a deadline may be noticed after the host was suspended.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// Where the time comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum BootClock {
    /// The kernel's `CLOCK_BOOTTIME`.
    #[default]
    Kernel,
    /// Tokio's, which tests can stop and turn; counted from the given instant.
    #[cfg(test)]
    Virtual(tokio::time::Instant),
}

impl BootClock {
    /// The time now: microseconds since this host was booted.
    pub(crate) fn now(self) -> Time {
        match self {
            Self::Kernel => {
                let now = clock_gettime(ClockId::Boottime);
                let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
                let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
                Time(0) + Duration::new(seconds, nanoseconds)
            }
            #[cfg(test)]
            Self::Virtual(start) => Time(0) + start.elapsed(),
        }
    }

    /// Waits until `time` has come; for ever where there is none.
    pub(crate) async fn sleep_until(self, time: Option<Time>) {
        let Some(time) = time else { return std::future::pending().await };
        loop {
            let left = time.since(self.now());
            if left.is_zero() {
                return;
            }
            // In naps, because tokio's clock stands still in a suspended host.
            sleep(left.min(LONGEST_NAP)).await;
        }
    }
}
