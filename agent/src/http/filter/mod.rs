//! The filters of reads: Consul's `?filter=`, a boolean expression about the fields of each row.
//!
//! ```text
//!  text ──▶ grammar ──▶ Expression of Match ──▶ check ──▶ Filter ──▶ Filter::selects
//!             │ failures    selector, value,     │ fields and operators
//!             ▼             operator             ▼ of the row's type
//!           trace: Consul's texts with line and column
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `grammar.rs` | the grammar; only this file names the parser library |
//! | `trace.rs` | syntax errors, with position and expected tokens, in Consul's words |
//! | `expression.rs` | the tree: `or`, `and`, `not` and comparisons |
//! | `value.rs` | the fields of rows, as filters see them |
//! | `check.rs` | from the parsed to the typed filter: selectors, operators, values |
//! | `evaluate.rs` | evaluation of a row |
//! | `peer.rs` | selectors of binding rules, for the servers |
//!
//! The language is that of go-bexpr 0.1 in Consul 1.8, error texts included. Selectors and
//! operators are checked against the type of the rows, so a wrong filter is an error even without
//! any row.
//!
//! **Limits:** a text has at most [`MAX_TEXT_BYTES`], parentheses nest at most [`MAX_DEPTH`] deep,
//! a regular expression is limited in [`lockmesh_agent_core::pattern`], and a request takes at most
//! [`MAX_STEPS`]. Parsing is linear in the text: no input makes it backtrack twice, and only
//! parentheses recurse.

mod check;
mod evaluate;
mod expression;
mod grammar;
mod peer;
mod trace;
mod value;

#[cfg(test)]
mod tests;

pub(super) use peer::peer_selector;
pub(super) use value::{Count, List, Record, Value};

use crate::go::literal::quoted;
use check::Comparison;
use expression::Expression;
use lockmesh_agent_core::pattern::{MAX_PATTERN_STATES, PatternError};

/// The maximum length of a filter, in bytes: about the longest that fits a request's URL.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;

/// The maximum nesting depth of parentheses. Each level needs some stack; people write two or
/// three.
pub(super) const MAX_DEPTH: usize = 50;

/// The maximum number of states of all regular expressions of a filter: two of the largest.
const MAX_STATES: usize = 2 * MAX_PATTERN_STATES;

/// The maximum number of steps for all rows of a request: about one per comparison, and for a
/// regular expression up to one for each of its states and bytes of text. They take about a
/// second; a common filter of 10,000 rows needs less than a hundredth of them.
pub(super) const MAX_STEPS: u64 = 1 << 28;

/// The reason why a filter is rejected, in Consul's words where Consul has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FilterError {
    /// The text is not of the language. The lines have positions.
    #[error("{0}")]
    Syntax(String),
    /// The rows do not have such a field.
    #[error("Selector {} is not valid", quoted(.0))]
    Selector(String),
    /// The field has no such operator.
    #[error("Invalid match operator \"{operator}\" for selector {}", quoted(.selector))]
    Operator {
        /// The operator's name in Consul.
        operator: &'static str,
        /// The selector.
        selector: String,
    },
    /// The value cannot be converted to the field's type.
    #[error("Failed to coerce value {} for selector {}: {reason}", quoted(.value), quoted(.selector))]
    Value {
        /// The value.
        value: String,
        /// The selector.
        selector: String,
        /// The reason, in the words of Go's standard library.
        reason: String,
    },
    /// The regular expression is invalid, or becomes too large when compiled.
    #[error("Failed to compile regular expression {}: {reason}", quoted(.pattern))]
    Pattern {
        /// The regular expression.
        pattern: String,
        /// The reason.
        reason: PatternError,
    },
    /// The text is longer than [`MAX_TEXT_BYTES`].
    #[error("the filter has {0} bytes, the maximum is {MAX_TEXT_BYTES}; use a shorter filter")]
    TooLong(usize),
    /// The parentheses nest deeper than [`MAX_DEPTH`].
    #[error("the filter nests deeper than {MAX_DEPTH} parentheses; remove parentheses that are not needed")]
    TooDeep,
    /// The evaluation needs more than [`MAX_STEPS`].
    #[error(
        "the filter needs too many steps for these rows; use smaller regular expressions, or read fewer rows"
    )]
    TooExpensive,
}

impl FilterError {
    /// Returns `true` if one of the limits rejects the filter.
    pub(super) fn is_limit(&self) -> bool {
        matches!(self, Self::TooLong(_) | Self::TooDeep | Self::TooExpensive)
    }
}

/// A filter for one type of rows.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    expression: Expression<Comparison>,
}

impl Filter {
    /// Parses a filter for rows of the type of `sample`. The text is not empty.
    pub(super) fn new(text: &str, sample: &dyn Record) -> Result<Self, FilterError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(FilterError::TooLong(text.len()));
        }
        let parsed = grammar::parse(text)?;
        let mut states = 0;
        let expression = parsed.try_map(&mut |parsed| {
            let comparison = Comparison::new(parsed, sample)?;
            states += comparison.pattern_states();
            if states > MAX_STATES { Err(FilterError::TooExpensive) } else { Ok(comparison) }
        })?;
        Ok(Self { expression })
    }

    /// Returns `true` if the filter selects a row, which is of the type that it was made for.
    /// `steps` counts the work for all rows of a request.
    pub(super) fn selects(&self, row: &dyn Record, steps: &mut u64) -> Result<bool, FilterError> {
        evaluate::selects(&self.expression, row, steps)
    }
}
