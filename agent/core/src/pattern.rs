//! Regular expressions of clients, within limits. This is the only file that names the library for
//! them.
//!
//! The syntax is Go's, because Consul's users write for Go: unanchored, `\w` and `\d` are ASCII,
//! and matching is linear (no back references, no look-around). Unlike in Go, `(?i)` folds ASCII
//! only and there are no Unicode classes.

use regex_lite::{Regex, RegexBuilder};

/// The maximum size of a compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 10;

/// The maximum nesting depth of a pattern.
const MAX_NESTING: u32 = 50;

/// The smallest size limit that [`Pattern::cost`] distinguishes, in bytes.
const SMALLEST_BYTES: usize = 256;

/// The approximate size of one state of a compiled pattern, in bytes.
const STATE_BYTES: usize = 32;

/// The maximum [cost](Pattern::cost) of a pattern.
pub const MAX_PATTERN_STATES: usize = MAX_PATTERN_BYTES / STATE_BYTES;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    cost: usize,
}

/// The reason why a pattern is invalid or too large, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {0}")]
pub struct PatternError(String);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The pattern is invalid or too large.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        // A match visits at most every state for every byte, so the size limit that a pattern keeps
        // bounds its cost.
        let mut limit = SMALLEST_BYTES;
        loop {
            match RegexBuilder::new(text).size_limit(limit).nest_limit(MAX_NESTING).build() {
                Ok(regex) => return Ok(Self { regex, cost: limit / STATE_BYTES }),
                Err(error) if limit >= MAX_PATTERN_BYTES => return Err(PatternError(error.to_string())),
                Err(_) => limit *= 4,
            }
        }
    }

    /// Returns `true` if the pattern matches anywhere in the text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the first match in the text and its groups, each empty if absent; nothing if the
    /// pattern does not match.
    pub fn groups(&self, text: &str) -> Vec<String> {
        let captures = self.regex.captures(text);
        let groups = captures.iter().flat_map(|captures| captures.iter());
        groups.map(|group| group.map(|group| group.as_str().to_owned()).unwrap_or_default()).collect()
    }

    /// The maximum number of steps for each byte of a text.
    pub fn cost(&self) -> usize {
        self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_follows_the_size() {
        let cost = |text: &str| Pattern::new(text).expect("it is valid").cost();
        assert_eq!(cost("^web"), 8);
        assert!(cost(r"^[\w.-]{1,100}$") > cost(r"^web-[0-9]+$"));
        assert!(cost(r"(a{20}){20}") <= MAX_PATTERN_STATES);
    }

    #[test]
    fn large_patterns_rejected_in_one_line() {
        for large in [r"\w{5000}", "((a{50}){50}){50}", &"(".repeat(100), r"(\w{90}){90}"] {
            let error = Pattern::new(large).expect_err(large).to_string();
            assert!(!error.contains('\n') && error.len() < 150, "{error}");
        }
    }
}
