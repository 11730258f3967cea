//! The clock of the node's lease: the one that guards on this host read, with its time as the pure
//! crates write it.

use lockmesh_client::Clock;
use lockmesh_client::holder::Moment;
use lockmesh_protocol::time::Time;

/// The source of the time: the kernel's `CLOCK_BOOTTIME`, or a clock that a test controls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock(pub(crate) Clock);

impl BootClock {
    /// Returns the time now: microseconds since this host was booted.
    pub(crate) fn now(self) -> Time {
        Time(0) + self.0.now().since(Moment::default())
    }

    /// Waits until `time`; forever if there is none.
    pub(crate) async fn sleep_until(self, time: Option<Time>) {
        match time {
            Some(time) => self.0.sleep_until(Moment::default() + time.since(Time(0))).await,
            None => std::future::pending().await,
        }
    }
}
