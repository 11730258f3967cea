//! One log line when a persistent problem begins and one when it ends, regardless of the number of
//! retries, and of problems that alternate.

/// The maximum number of problems that are told apart until a success.
const MAX_PROBLEMS: usize = 16;

/// The logged problems of a repeated operation since its last success.
#[derive(Clone, Debug, Default)]
pub struct LogOnChange {
    /// The texts that were logged.
    logged: Vec<String>,
}

impl LogOnChange {
    /// Returns `true` if the text is to be logged: it is a problem that has not been logged since
    /// the last success. Two that alternate are logged once each.
    pub fn is_new(&mut self, text: &str) -> bool {
        // A text that differs each time would be logged each time.
        if self.logged.len() >= MAX_PROBLEMS || self.logged.iter().any(|logged| logged == text) {
            return false;
        }
        self.logged.push(text.to_owned());
        true
    }

    /// Returns `true` if a problem was logged since the last success.
    pub fn has_problem(&self) -> bool {
        !self.logged.is_empty()
    }

    /// Records a success: the next problem is logged, even if it is the same as before. Returns
    /// `true` if a problem was logged, so that its end is logged too.
    pub fn reset(&mut self) -> bool {
        let had_problem = self.has_problem();
        self.logged.clear();
        had_problem
    }
}

#[cfg(test)]
mod tests {
    use super::{LogOnChange, MAX_PROBLEMS};

    #[test]
    fn problem_and_recovery_logged_once() {
        let mut log = LogOnChange::default();
        assert!(!log.reset(), "there was no problem");
        assert!(log.is_new("down") && !log.is_new("down") && log.has_problem());
        assert!(log.reset() && !log.reset());
        assert!(log.is_new("down"));
    }

    #[test]
    fn alternating_problems_logged_once_each() {
        let mut log = LogOnChange::default();
        let lines = (0..100).filter(|at| log.is_new(if at % 2 == 0 { "down" } else { "lost" })).count();
        assert_eq!(lines, 2);
        assert!(log.reset());
    }

    #[test]
    fn distinct_problems_capped() {
        let mut log = LogOnChange::default();
        assert_eq!((0..100).filter(|at| log.is_new(&format!("after {at} ms"))).count(), MAX_PROBLEMS);
    }
}
