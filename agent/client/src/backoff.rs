//! Waiting a little longer after each failure, never in step with others.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A random share of `span`, from nothing to all of it. Good for spreading, not for secrets.
pub(crate) fn jitter(span: Duration) -> Duration {
    // Every `RandomState` has a seed of its own, so an empty hash is a random number.
    let random = RandomState::new().build_hasher().finish();
    span.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

/// How long to wait after the next failure in a row.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// After a failure: how long to wait. Between half and all of a span that doubles up to the longest.
    pub(crate) fn failed(&mut self) -> Duration {
        let span = self.next;
        self.next = span.saturating_mul(2).min(self.longest);
        span / 2 + jitter(span / 2)
    }

    /// After a success.
    pub(crate) fn succeeded(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest_and_starts_again() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
        let mut backoff = Backoff::new(first, longest);
        for span in [100, 200, 300, 300] {
            let span = Duration::from_millis(span);
            let wait = backoff.failed();
            assert!(wait >= span / 2 && wait <= span, "{wait:?} of {span:?}");
        }
        backoff.succeeded();
        assert!(backoff.failed() <= first);
    }
}
