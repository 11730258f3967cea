//! What is said while it runs: on stderr, with the time since the start.

use std::time::Instant;

/// Says what happens.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
}

impl Progress {
    /// Begins to count the time.
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now() }
    }

    /// Says something.
    pub(crate) fn say(&self, text: &str) {
        let seconds = self.begun.elapsed().as_secs();
        eprintln!("[{:02}:{:02}] {text}", seconds / 60, seconds % 60);
    }
}
