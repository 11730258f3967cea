//! Pauses that grow, each a little different from everybody else's, so that a thousand agents do not come at once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// The next pause: between half and all of a length that doubles up to the limit.
    pub(super) fn next(&mut self) -> Duration {
        let length = self.next;
        self.next = (length * 2).min(self.most);
        // A fresh hasher's keys differ each time; that is all the chance a pause needs.
        let chance = RandomState::new().hash_one(0u8) as u32;
        length / 2 + (length / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    pub(super) fn reset(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use std::time::Duration;

    #[test]
    fn pauses_double_up_to_the_limit_and_start_over() {
        let (least, most) = (Duration::from_millis(10), Duration::from_millis(80));
        let mut backoff = Backoff::new(least, most);
        for length in [10, 20, 40, 80, 80].map(Duration::from_millis) {
            let pause = backoff.next();
            assert!(pause >= length / 2 && pause <= length, "{pause:?} of {length:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= least);
    }
}
