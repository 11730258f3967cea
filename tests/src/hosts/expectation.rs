//! What is expected of a lock while a fault lasts: the one table that a run is held to.
//!
//! An outage of at most four fifths of a node's window never costs a guard its hold; one that is
//! longer than the window, and the time that a verdict takes, always does. In between either may
//! happen. A TTL counts from the last renewal, so it bears less.

use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// How long a node may be silent before its sessions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// The `fast` class of sessions.
    Fast,
    /// The `default` class.
    Default,
    /// The `safe` class.
    Safe,
    /// No class is named; a short TTL ends the session, at twice its length.
    Ttl,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Default, Self::Safe, Self::Ttl];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
            Self::Ttl => "ttl",
        }
    }

    /// The class that the session names.
    pub const fn class(self) -> Option<&'static str> {
        match self {
            Self::Ttl => None,
            class => Some(class.name()),
        }
    }

    /// The session's TTL: longer than the window is, so that the node's silence comes first.
    pub const fn ttl(self) -> &'static str {
        match self {
            Self::Ttl => "2s",
            _ => "30s",
        }
    }

    /// How long a guard believes without hearing anything, about.
    pub const fn length(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(1_500),
            Self::Default => Duration::from_secs(5),
            Self::Safe => Duration::from_secs(15),
            Self::Ttl => Duration::from_secs(2),
        }
    }

    /// How long after a host's end the next contender holds the lock, in the median.
    pub const fn limit(self) -> Duration {
        match self {
            Self::Fast => Duration::from_secs(3),
            Self::Default => Duration::from_secs(7),
            Self::Safe => Duration::from_secs(19),
            Self::Ttl => Duration::from_secs(6),
        }
    }

    /// The longest outage that never costs a guard its hold.
    pub fn borne(self) -> Duration {
        match self {
            Self::Ttl => self.length() / 2,
            class => class.length() * 4 / 5,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What must become of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expectation {
    /// Its holder keeps it all the time.
    Kept,
    /// A contender holds it after at most so long, in the median.
    #[serde(rename = "passes_within_seconds", serialize_with = "seconds")]
    Passes(Duration),
    /// Its holder keeps it, or a contender gets it.
    Either,
}

fn seconds<S: Serializer>(limit: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(limit.as_secs_f64())
}

/// What is expected where a host is silent for so long; `None` for good.
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
    fn short_silence_is_borne_and_long_silence_is_not() {
        let of = |seconds, window| of_silence(Some(Duration::from_secs(seconds)), window);
        let within = |seconds| Passes(Duration::from_secs(seconds));
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Fast)), [Kept, within(3), within(3)]);
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Default)), [Kept, Kept, within(7)]);
        assert_eq!([10, 12, 13].map(|seconds| of(seconds, Window::Safe)), [Kept, Kept, Either]);
        assert_eq!([1, 4, 10].map(|seconds| of(seconds, Window::Ttl)), [Kept, Either, within(6)]);
        assert_eq!(of_silence(None, Window::Fast), within(3));
    }
}
