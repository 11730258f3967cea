//! A token bucket: a rate limit with a burst.
//!
//! Pure: time is an argument.

use crate::time::Time;

/// A bucket of tokens, refilled over time.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// In millionths: the number refilled per microsecond equals the number of whole tokens per
    /// second.
    tokens: u64,
    full: u64,
    per_second: u64,
    filled: Time,
}

impl TokenBucket {
    /// Creates a full bucket with this capacity.
    pub fn full(now: Time, at_once: u64, per_second: u64) -> Self {
        let full = at_once.saturating_mul(1_000_000);
        Self { tokens: full, full, per_second, filled: now }
    }

    /// Takes this number of tokens, if available.
    pub fn takes(&mut self, now: Time, tokens: u64) -> bool {
        self.fill(now);
        let left = self.tokens.checked_sub(tokens.saturating_mul(1_000_000));
        self.tokens = left.unwrap_or(self.tokens);
        left.is_some()
    }

    /// Returns `true` if the bucket is full: then it has no memory.
    pub fn is_full(&mut self, now: Time) -> bool {
        self.fill(now);
        self.tokens == self.full
    }

    fn fill(&mut self, now: Time) {
        let passed = u64::try_from(now.since(self.filled).as_micros()).unwrap_or(u64::MAX);
        let filled = self.tokens.saturating_add(passed.saturating_mul(self.per_second));
        // An earlier `now` must not refill the same time twice.
        (self.tokens, self.filled) = (filled.min(self.full), self.filled.max(now));
    }
}

#[cfg(test)]
mod tests {
    use super::TokenBucket;
    use crate::time::Time;
    use std::time::Duration;

    fn taken(bucket: &mut TokenBucket, now: Time) -> usize {
        (0..1_000).filter(|_| bucket.takes(now, 1)).count()
    }

    #[test]
    fn allows_burst_then_steady_rate() {
        let begin = Time(5_000_000);
        let mut bucket = TokenBucket::full(Time(0), 10, 100);
        assert_eq!(taken(&mut bucket, begin), 10);
        assert_eq!(taken(&mut bucket, begin), 0);
        assert_eq!(taken(&mut bucket, begin + Duration::from_millis(50)), 5);
        assert!(!bucket.is_full(begin + Duration::from_millis(50)));
        // The bucket never exceeds its capacity.
        assert!(bucket.is_full(begin + Duration::from_secs(60)));
        assert_eq!(taken(&mut bucket, begin + Duration::from_secs(60)), 10);
    }

    #[test]
    fn insufficient_tokens_take_nothing() {
        let mut bucket = TokenBucket::full(Time(0), 10, 1);
        assert!(!bucket.takes(Time(0), 11) && !bucket.takes(Time(0), u64::MAX));
        assert!(bucket.takes(Time(0), 10) && !bucket.takes(Time(0), 1));
    }
}
