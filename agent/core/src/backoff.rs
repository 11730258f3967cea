//! Pauses that grow, each a little different from everybody else's.

use crate::jitter::Jitter;
use std::time::Duration;

/// A pause that doubles with every attempt.
#[derive(Clone, Debug)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// Pauses from `least` to `most`. Equal seeds give equal pauses.
    pub fn new(least: Duration, most: Duration, seed: u64) -> Self {
        Self { least, most, next: least, jitter: Jitter::new(seed) }
    }

    /// The next pause: between half and all of a length that doubles up to the limit.
    pub fn next_pause(&mut self) -> Duration {
        let length = self.next;
        self.next = (length * 2).min(self.most);
        length / 2 + (length / 2).mul_f64(self.jitter.fraction())
    }

    /// The next pause is the shortest again.
    pub fn reset(&mut self) {
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
        let mut backoff = Backoff::new(least, most, 7);
        for length in [10, 20, 40, 80, 80].map(Duration::from_millis) {
            let pause = backoff.next_pause();
            assert!(pause >= length / 2 && pause <= length, "{pause:?} of {length:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= least);
    }
}
