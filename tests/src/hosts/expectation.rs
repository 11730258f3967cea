//! The expectations for a lock during a fault: the one table against which runs are judged.
//!
//! All bounds follow from the session's window, TTL and lock-delay. Sessions use the defaults of
//! `lockmesh lock` unless a run specifies others.
//!
//! An outage of at most four fifths of a node's window never costs a guard its hold, if the TTL
//! tolerates as much. An outage longer than the window plus the time for a verdict always does.
//! Between these, either may happen. A TTL counts from the last renewal, so it tolerates less.

use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// The time for which a node may be silent before its sessions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// The `fast` class of sessions.
    Fast,
    /// The `default` class.
    Default,
    /// The `safe` class.
    Safe,
    /// No class; a short TTL ends the session, after twice its length.
    Ttl,
}

impl Window {
    /// All windows.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Default, Self::Safe, Self::Ttl];

    /// Returns the window's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
            Self::Ttl => "ttl",
        }
    }

    /// Returns the class that the session requests.
    pub const fn class(self) -> Option<&'static str> {
        match self {
            Self::Ttl => None,
            class => Some(class.name()),
        }
    }

    /// Returns the TTL that the session requests; `None` for the default of its window.
    pub const fn asked_ttl(self) -> Option<&'static str> {
        match self {
            Self::Ttl => Some("2s"),
            _ => None,
        }
    }

    /// Returns the minimum TTL that agents must allow for sessions of these windows; `None` if the
    /// default suffices.
    pub fn shortest_ttl(windows: &[Self]) -> Option<&'static str> {
        windows.iter().find_map(|window| window.asked_ttl())
    }

    /// Returns the session's TTL. The default depends on the window, so that each window tolerates
    /// the outages that it promises to tolerate.
    pub const fn ttl(self) -> Duration {
        match self {
            Self::Ttl => Duration::from_secs(2),
            Self::Fast | Self::Default => Duration::from_secs(15),
            Self::Safe => Duration::from_secs(30),
        }
    }

    /// Returns the approximate time for which a guard believes without a renewal.
    pub const fn length(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(1_500),
            Self::Default => Duration::from_secs(5),
            Self::Safe => Duration::from_secs(15),
            Self::Ttl => Duration::from_secs(2),
        }
    }

    /// Returns the maximum time from a host's end until the next contender holds the lock, in the
    /// median.
    pub const fn limit(self) -> Duration {
        match self {
            Self::Fast => Duration::from_secs(3),
            Self::Default => Duration::from_secs(7),
            Self::Safe => Duration::from_secs(19),
            Self::Ttl => Duration::from_secs(6),
        }
    }

    /// Returns the longest outage that never costs a guard its hold. A TTL is renewed after a third
    /// of it, so at least two thirds minus the guard's margin remain when an outage begins.
    pub fn borne(self) -> Duration {
        match self {
            Self::Ttl => self.length() / 2,
            class => (class.length() * 4 / 5).min(class.ttl() * 3 / 5),
        }
    }

    /// Returns the maximum time from a fault until the lock is held: believed by its guard, or
    /// passed on. It covers two windows, reconnecting and the grant.
    pub fn settled(self) -> Duration {
        self.length() * 2 + Duration::from_secs(2)
    }
}

/// The time for which the lock stays closed after its holder's session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockDelay {
    /// No delay, so nothing hides two holders at the same moment.
    None,
    /// One second.
    Second,
    /// The default.
    Shipped,
}

impl LockDelay {
    /// Returns the option's value; `None` for the default.
    pub const fn asked(self) -> Option<&'static str> {
        match self {
            Self::None => Some("0s"),
            Self::Second => Some("1s"),
            Self::Shipped => None,
        }
    }

    /// Returns the length.
    pub const fn length(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Second => Duration::from_secs(1),
            Self::Shipped => Duration::from_secs(15),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The expected outcome for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    /// Its holder keeps it all the time.
    Kept,
    /// A contender holds it after at most this time, in the median.
    #[serde(rename = "passes_within_seconds", serialize_with = "seconds")]
    Passes(Duration),
    /// Its holder keeps it, or a contender acquires it.
    Either,
}

fn seconds<S: Serializer>(limit: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(limit.as_secs_f64())
}

impl Expectation {
    /// Returns the expectation for a lock with this lock-delay.
    pub fn after(self, lock_delay: LockDelay) -> Self {
        match self {
            Self::Passes(limit) => Self::Passes(limit + lock_delay.length()),
            other => other,
        }
    }
}

/// Returns the expectation for a host that is silent for `length`; `None` means forever.
pub fn of_silence(length: Option<Duration>, window: Window) -> Expectation {
    let Some(length) = length else { return Expectation::Passes(window.limit()) };
    if length <= window.borne() {
        Expectation::Kept
    } else if length < window.limit() {
        Expectation::Either
    } else {
        Expectation::Passes(window.limit())
    }
}

#[cfg(test)]
mod tests {
    use super::Expectation::{Either, Kept, Passes};
    use super::*;

    #[test]
    fn only_long_silence_passes_lock() {
        let of = |seconds, window| of_silence(Some(Duration::from_secs(seconds)), window);
        let within = |seconds| Passes(Duration::from_secs(seconds));
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Fast)), [Kept, within(3), within(3)]);
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Default)), [Kept, Kept, within(7)]);
        assert_eq!([10, 12, 13].map(|seconds| of(seconds, Window::Safe)), [Kept, Kept, Either]);
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Ttl)), [Kept, Either, within(6)]);
        assert_eq!(of_silence(None, Window::Fast), within(3));
    }

    #[test]
    fn bounds_follow_window_and_delay() {
        let seconds = |time: Duration| time.as_secs_f64();
        assert_eq!(Window::ALL.map(|window| seconds(window.borne())), [1.2, 4.0, 12.0, 1.0]);
        assert_eq!(Window::ALL.map(|window| seconds(window.settled())), [5.0, 12.0, 32.0, 6.0]);
        let passes = Passes(Duration::from_secs(3));
        assert_eq!(passes.after(LockDelay::None), passes);
        assert_eq!(passes.after(LockDelay::Shipped), Passes(Duration::from_secs(18)));
        assert_eq!(Kept.after(LockDelay::Shipped), Kept);
    }
}
