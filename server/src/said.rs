//! How long to wait before the next attempt, and what was said of those before: once for each change.

use std::time::Duration;

/// What was said last about something that is tried for ever.
#[derive(Debug, Default)]
pub(crate) struct Said(String);

impl Said {
    /// Whether this was not what was said last. It is now.
    pub(crate) fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0 != text;
        if is_new {
            text.clone_into(&mut self.0);
        }
        is_new
    }

    /// All is well: the next trouble is worth a word, whatever it is.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Pauses that double from one attempt to the next.
#[derive(Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }

    /// The last attempt worked.
    pub(crate) fn reset(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Said};
    use std::time::Duration;

    #[test]
    fn what_stays_the_same_is_said_once() {
        let mut said = Said::default();
        assert!(said.is_new("down") && !said.is_new("down") && said.is_new("lost"));
        said.forget();
        assert!(said.is_new("lost"));
    }

    #[test]
    fn pauses_grow_up_to_their_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(25));
        assert_eq!([(); 3].map(|()| backoff.next().as_millis()), [10, 20, 25]);
        backoff.reset();
        assert_eq!(backoff.next().as_millis(), 10);
    }
}
