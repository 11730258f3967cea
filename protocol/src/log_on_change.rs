//! One log line for each change of a persistent problem, regardless of the number of retries.

/// The last logged problem of a repeated operation.
#[derive(Clone, Debug, Default)]
pub struct LogOnChange(Option<String>);

impl LogOnChange {
    /// Returns `true` if the text differs from the last one, and remembers it.
    pub fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0.as_deref() != Some(text);
        if is_new {
            self.0 = Some(text.to_owned());
        }
        is_new
    }

    /// Records a success: the next failure is logged, even if it is the same as before.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::LogOnChange;

    #[test]
    fn what_stays_the_same_is_logged_once() {
        let mut log = LogOnChange::default();
        assert!(log.is_new("down") && !log.is_new("down") && log.is_new("lost") && log.is_new("down"));
        log.reset();
        assert!(log.is_new("down"));
    }
}
