//! The clock that deadlines rest on: monotonic, including time that the machine is suspended.
//!
//! It is not the wall clock, which administrators can set, and not tokio's clock, which stops while
//! the machine is suspended: a holder that slept past its lease must find it expired on waking up.
//! The agent uses the same clock: the deadlines that it reports to guards are instants of this
//! clock.

use crate::holder::Moment;
use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use std::io;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// The maximum length of one sleep while waiting for a [`Moment`] without a timer of the kernel. It
/// bounds the delay with which a suspended machine notices it after waking up.
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

    /// Waits until `moment`, and up to 500 ms longer after the machine was suspended. For many
    /// concurrent waiters; a [`Timer`] is exact, but each one needs a file descriptor.
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

/// A timer that expires at a [`Moment`], at once if that passed while the machine was suspended: a
/// `timerfd` of the kernel on `CLOCK_BOOTTIME`. Without one, because the process has too many open
/// files, it waits like [`Clock::sleep_until`].
#[derive(Debug)]
pub struct Timer {
    clock: Clock,
    /// The kernel's timer, opened by the first wait.
    kernel: Option<AsyncFd<OwnedFd>>,
}

impl Timer {
    /// Creates a timer on this clock.
    pub fn new(clock: Clock) -> Self {
        Self { clock, kernel: None }
    }

    /// Waits until `moment`. Dropping the future cancels the wait. Must be called in a Tokio
    /// runtime with I/O and time enabled, always the same one.
    pub async fn sleep_until(&mut self, moment: Moment) {
        while moment > self.clock.now() {
            if self.expired(moment).await.is_err() {
                // Not to the end: a file descriptor may be free again.
                let step = self.clock.now() + MAX_SLEEP_TIME;
                self.clock.sleep_until(moment.min(step)).await;
            }
        }
    }

    /// Waits for the kernel's timer to expire at `moment`.
    async fn expired(&mut self, moment: Moment) -> io::Result<()> {
        if !matches!(self.clock, Clock::Boot) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let timer = match &mut self.kernel {
            Some(timer) => timer,
            none => none.insert(open_timer()?),
        };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: timespec(moment) };
        // It counts as not expired from here on, even if an earlier expiry was not awaited.
        timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
        timer.readable().await?.clear_ready();
        Ok(())
    }
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe: for types that may close their descriptor, unlike OwnedFd"
)]
fn open_timer() -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?)
}

/// Converts a moment for the kernel. The first one would disarm the timer, and has passed.
fn timespec(moment: Moment) -> Timespec {
    let since_boot = moment.since(Moment::default());
    let seconds = i64::try_from(since_boot.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: since_boot.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    /// Tokio's clock stands still, as it does while the machine is suspended.
    #[tokio::test(start_paused = true)]
    async fn timer_expires_without_tokios_clock() {
        let mut timer = Timer::new(Clock::Boot);
        let (began, tokio_began) = (Clock::Boot.now(), Instant::now());
        for wait in [30, 0, 60] {
            let moment = began + Duration::from_millis(wait);
            timer.sleep_until(moment).await;
            assert!(Clock::Boot.now() >= moment);
        }
        assert_eq!(Instant::now(), tokio_began);
    }

    /// An expiry of the cancelled wait must not end the next one.
    #[tokio::test(start_paused = true)]
    async fn timer_rearmed_after_cancellation() {
        let mut timer = Timer::new(Clock::Boot);
        let near = Clock::Boot.now() + Duration::from_millis(5);
        let far = near + Duration::from_millis(40);
        // Polled once, then dropped.
        let _ = timeout(Duration::ZERO, timer.sleep_until(near)).await;
        std::thread::sleep(Duration::from_millis(10));
        timer.sleep_until(far).await;
        assert!(Clock::Boot.now() >= far);
        // The kernel accepts even this.
        let never = Moment::from_nanos(u64::MAX);
        assert!(timeout(Duration::from_secs(1), timer.sleep_until(never)).await.is_err());
    }

    #[test]
    fn moment_survives_nanosecond_round_trip() {
        let moment = Clock::Boot.now();
        assert_eq!(Moment::from_nanos(moment.as_nanos()), moment);
        assert_eq!((moment + Duration::MAX).as_nanos(), u64::MAX);
    }
}
