//! The outcome of a failed request, which the agent sends in a header of every failure.
//!
//! Consul's API uses 500 both for temporary unavailability and for many refusals, and never states
//! if a write took effect. Both ends share these words: the agent writes them, the client parses
//! them.

/// The header's name, in lower case.
pub const HEADER: &str = "x-lockmesh-outcome";

/// The outcome of a failed request, which determines who must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done, and the same request will be rejected again: change it.
    Refused,
    /// Nothing was done, for a temporary reason: retry later.
    NotDone,
    /// It may or may not have been done: read the state, or repeat the request only if it is
    /// idempotent.
    Unknown,
}

impl Outcome {
    /// Returns the header's value.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NotDone => "not-done",
            Self::Unknown => "unknown",
        }
    }

    /// Parses the header's value; `None` for a word that this build does not know.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Refused, Self::NotDone, Self::Unknown].into_iter().find(|outcome| outcome.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn outcome_words_round_trip() {
        for outcome in [Outcome::Refused, Outcome::NotDone, Outcome::Unknown] {
            assert_eq!(Outcome::parse(outcome.word()), Some(outcome));
        }
        assert_eq!(Outcome::parse("Refused"), None);
    }
}
