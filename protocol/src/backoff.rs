//! Exponential backoff with jitter. Pure: the caller has the clock.

use crate::random::Random;
use std::time::Duration;

/// A delay that doubles with every attempt.
#[derive(Clone, Debug)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
    random: Random,
}

impl Backoff {
    /// Creates a backoff with delays from `least` to `most`. Equal seeds give equal delays.
    pub fn new((least, most): (Duration, Duration), seed: u64) -> Self {
        Self { least, most, next: least, random: Random::new(seed) }
    }

    /// Returns the next delay: between half and all of a length that doubles up to the limit.
    pub fn next_pause(&mut self) -> Duration {
        let length = self.next;
        self.next = length.saturating_mul(2).min(self.most);
        // Callers that failed together must not retry together.
        length / 2 + (length / 2).mul_f64(self.random.fraction())
    }

    /// Limits the delays to `most` from now on, but not below the shortest one.
    pub fn limit(&mut self, most: Duration) {
        self.most = most.max(self.least);
        self.next = self.next.min(self.most);
    }

    /// Resets the next delay to the shortest.
    pub fn reset(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    const LIMITS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(80));

    #[test]
    fn doubles_to_limit_and_resets() {
        let mut backoff = Backoff::new(LIMITS, 7);
        for length in [10, 20, 40, 80, 80].map(Duration::from_millis) {
            let pause = backoff.next_pause();
            assert!(pause >= length / 2 && pause <= length, "{pause:?} of {length:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= LIMITS.0);
    }

    #[test]
    fn seeds_jitter_independently() {
        let (mut one, mut other) = (Backoff::new(LIMITS, 1), Backoff::new(LIMITS, 2));
        assert_ne!(one.next_pause(), other.next_pause());
    }

    #[test]
    fn lowered_limit_shortens_next_pause() {
        let mut backoff = Backoff::new(LIMITS, 7);
        for _ in 0..4 {
            backoff.next_pause();
        }
        backoff.limit(Duration::from_millis(20));
        assert!(backoff.next_pause() <= Duration::from_millis(20));
        backoff.limit(Duration::ZERO);
        assert!(backoff.next_pause() >= LIMITS.0 / 2, "the shortest pause stays");
    }
}
