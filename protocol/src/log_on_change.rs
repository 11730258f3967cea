//! One log line for each change of what keeps going wrong, however often it is tried again.

/// What was logged last about something that is tried again and again.
#[derive(Clone, Debug, Default)]
pub struct LogOnChange(Option<String>);

impl LogOnChange {
    /// Whether this is not what was logged last. It is from now on.
    pub fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.0.as_deref() != Some(text);
        if is_new {
            self.0 = Some(text.to_owned());
        }
        is_new
    }

    /// All is well: the next failure is logged, also when it is the one of before.
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
