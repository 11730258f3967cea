//! The evaluation of a filter, row by row, with a limit on the work for all rows together.

use super::check::{Comparison, Test};
use super::expression::Expression;
use super::value::{Record, Value};
use super::{FilterError, MAX_STEPS};

/// The steps that a comparison costs in any case.
const COMPARISON_STEPS: u64 = 16;

/// The number of bytes that are compared in one step.
const STEP_BYTES: usize = 16;

/// Returns `true` if an expression holds for a row, and adds the work to `steps`.
pub(super) fn selects(
    expression: &Expression<Comparison>,
    row: &dyn Record,
    steps: &mut u64,
) -> Result<bool, FilterError> {
    let mut run = Run { steps: *steps };
    let selects = run.holds(expression, row);
    *steps = run.steps;
    if run.steps > MAX_STEPS { Err(FilterError::TooExpensive) } else { Ok(selects) }
}

/// The evaluation of one row.
struct Run {
    /// The work so far, for this row and those before.
    steps: u64,
}

impl Run {
    fn holds(&mut self, expression: &Expression<Comparison>, row: &dyn Record) -> bool {
        match expression {
            Expression::Or(list) => list.iter().any(|one| self.holds(one, row)),
            Expression::And(list) => list.iter().all(|one| self.holds(one, row)),
            Expression::Not(inner) => !self.holds(inner, row),
            Expression::Leaf(comparison) => self.fits(comparison, 0, row),
        }
    }

    /// Applies a comparison to a struct; the path goes on at this position.
    fn fits(&mut self, comparison: &Comparison, position: usize, record: &dyn Record) -> bool {
        let Some(value) = record.field(&comparison.path[position]) else { return false };
        let next = position + 1;
        let Some(name) = comparison.path.get(next) else { return self.passes(comparison, &value) };
        match value {
            Value::Record(inner) => self.fits(comparison, next, &*inner),
            Value::Records(list) => list.any(&mut |element| self.fits(comparison, next, element)),
            Value::TextMap(map) => match map.get(name) {
                Some(text) => self.passes(comparison, &Value::Text(text)),
                None => self.lacks(comparison),
            },
            Value::RecordMap(map) => match map.entry(name) {
                Some(entry) => self.fits(comparison, next + 1, entry),
                None => self.lacks(comparison),
            },
            _ => false,
        }
    }

    /// The result for a key that a map does not have: nothing is equal to it or part of it, and
    /// every other operator holds, `matches` included.
    fn lacks(&mut self, comparison: &Comparison) -> bool {
        self.steps += COMPARISON_STEPS;
        match comparison.test {
            Test::Text(_) | Test::Number(_) | Test::Bool(_) | Test::In(_) => comparison.is_negated,
            Test::Empty => !comparison.is_negated,
            Test::Matches(_) => true,
        }
    }

    fn passes(&mut self, comparison: &Comparison, value: &Value<'_>) -> bool {
        self.steps += COMPARISON_STEPS + cost(&comparison.test, value);
        // Beyond the limit the result does not matter any more.
        if self.steps > MAX_STEPS {
            return false;
        }
        let passes = match (&comparison.test, value) {
            (Test::Text(wanted), Value::Text(text)) => text == wanted,
            (Test::Number(wanted), Value::Number(number)) => number == wanted,
            (Test::Bool(wanted), Value::Bool(flag)) => flag == wanted,
            (Test::In(part), Value::Text(text)) => text.contains(part),
            (Test::In(element), Value::Texts(list)) => list.contains(element),
            (Test::In(key), Value::TextMap(map)) => map.contains_key(key),
            (Test::In(key), Value::RecordMap(map)) => map.entry(key).is_some(),
            (Test::Empty, Value::Texts(list)) => list.is_empty(),
            (Test::Empty, Value::TextMap(map)) => map.is_empty(),
            (Test::Empty, Value::RecordMap(map)) => map.has_none(),
            (Test::Empty, Value::Records(list)) => list.has_none(),
            (Test::Matches(pattern), Value::Text(text)) => pattern.is_match(text),
            // The check of the filter excludes all other pairs.
            _ => return false,
        };
        passes != comparison.is_negated
    }
}

/// The steps that a test of this value costs, in addition to the comparison.
fn cost(test: &Test, value: &Value<'_>) -> u64 {
    let steps = match (test, value) {
        (Test::Matches(pattern), Value::Text(text)) => (text.len() + 1).saturating_mul(pattern.cost()),
        (Test::In(_), Value::Text(text)) => text.len() / STEP_BYTES,
        (Test::In(_), Value::Texts(list)) => list.len(),
        (Test::Text(wanted), Value::Text(_)) => wanted.len() / STEP_BYTES,
        _ => 0,
    };
    steps as u64
}
