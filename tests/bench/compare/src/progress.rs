//! Progress messages: on stderr, with the time since the start.

use std::time::Instant;

/// Prints progress messages.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
}

impl Progress {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now() }
    }

    /// Prints a message.
    pub(crate) fn print(&self, text: &str) {
        let seconds = self.begun.elapsed().as_secs();
        eprintln!("[{:02}:{:02}] {text}", seconds / 60, seconds % 60);
    }
}
