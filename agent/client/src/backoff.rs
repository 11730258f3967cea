//! Exponential backoff with jitter. Pure: randomness comes from a seed.
//!
//! The library depends on none of Lockmesh's crates, so that an application does not pull them in.
//! It therefore duplicates the backoff of agents and servers.

use std::time::Duration;

/// A pseudorandom generator, determined by its seed. For jitter, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Jitter(fastrand::Rng);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns the next number, uniformly distributed from 0 to 1 (exclusive).
    pub(crate) fn fraction(&mut self) -> f64 {
        self.0.f64()
    }

    /// Returns a random part of `span`, from zero to all of it.
    pub(crate) fn share(&mut self, span: Duration) -> Duration {
        span.mul_f64(self.fraction())
    }
}

/// The delay after the next consecutive failure.
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

    /// Returns the delay after a failure: between half and all of a span, which doubles up to the
    /// maximum.
    pub(crate) fn failed(&mut self, jitter: &mut Jitter) -> Duration {
        let span = self.next;
        self.next = span.saturating_mul(2).min(self.longest);
        span / 2 + jitter.share(span / 2)
    }

    /// Resets the delay after a success.
    pub(crate) fn succeeded(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_maximum_and_resets() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
        let mut backoff = Backoff::new(first, longest);
        let mut jitter = Jitter::new(7);
        for span in [100, 200, 300, 300] {
            let span = Duration::from_millis(span);
            let wait = backoff.failed(&mut jitter);
            assert!(wait >= span / 2 && wait <= span, "{wait:?} of {span:?}");
        }
        backoff.succeeded();
        assert!(backoff.failed(&mut jitter) <= first);
    }
}
