//! What became of a request that failed, as the agent says it in a header of every failure.
//!
//! Consul's dialect says 500 for "cannot at present" and for a good many refusals alike, and
//! nothing at all about whether a write took effect. One set of words for both ends: the agent
//! writes them, the client reads them.

/// The header's name, in lower case.
pub const HEADER: &str = "x-lockmesh-outcome";

/// What became of a request that failed, and so who must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done, and the same request will be refused again: change it.
    Refused,
    /// Nothing was done, for a reason that passes: try again later.
    NotDone,
    /// It may have been done or not: look, or repeat only what may be done twice.
    Unknown,
}

impl Outcome {
    /// The header's value.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NotDone => "not-done",
            Self::Unknown => "unknown",
        }
    }

    /// Reads the header's value; `None` for a word that this build does not know.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Refused, Self::NotDone, Self::Unknown].into_iter().find(|outcome| outcome.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn each_word_is_read_as_it_is_written() {
        for outcome in [Outcome::Refused, Outcome::NotDone, Outcome::Unknown] {
            assert_eq!(Outcome::parse(outcome.word()), Some(outcome));
        }
        assert_eq!(Outcome::parse("Refused"), None);
    }
}
