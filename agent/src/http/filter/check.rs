//! The check of a comparison against the type of the rows: the field exists, it has the operator,
//! and the value is of its type.

use super::FilterError;
use super::expression::{Match, Operator};
use super::value::{Record, Value};
use crate::go::literal::quoted;
use crate::go::number::{parse_bool, parse_i64};
use lockmesh_agent_core::pattern::Pattern;

/// A comparison that is valid for its rows.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// The names of the fields and map keys, from the row inwards.
    pub(super) path: Vec<String>,
    /// The test of the value there.
    pub(super) test: Test,
    /// Set if rows are selected that fail the test.
    pub(super) is_negated: bool,
}

/// The test of a value.
#[derive(Clone, Debug)]
pub(super) enum Test {
    /// A string is this one.
    Text(String),
    /// An integer is this one.
    Number(i64),
    /// A boolean is this one.
    Bool(bool),
    /// A string has this part, a list this element, or a map this key.
    In(String),
    /// A list or map is empty.
    Empty,
    /// A string matches somewhere.
    Matches(Pattern),
}

/// The type of a field, as far as operators are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Bool,
    /// A list of strings, or any map.
    Set,
    /// A list of structs.
    Records,
    /// A struct, which has no operators.
    Record,
}

impl Comparison {
    /// Checks a comparison for rows of the type of `sample`.
    pub(super) fn new(parsed: Match, sample: &dyn Record) -> Result<Self, FilterError> {
        let Match { selector: path, operator, value } = parsed;
        let selector = || path.join(".");
        let kind =
            kind_in(sample, &path, 0).map_err(|unknown| FilterError::Selector(path[..=unknown].join(".")))?;
        if !kind.has(operator) {
            return Err(FilterError::Operator { operator: operator.name(), selector: selector() });
        }
        let wrong = |reason| FilterError::Value { value: value.clone(), selector: selector(), reason };
        let test = match (operator, kind) {
            (Operator::IsEmpty | Operator::IsNotEmpty, _) => Test::Empty,
            (Operator::In | Operator::NotIn, _) => Test::In(value),
            (Operator::Matches | Operator::NotMatches, _) => match Pattern::new(&value) {
                Ok(pattern) => Test::Matches(pattern),
                Err(reason) => return Err(FilterError::Pattern { pattern: value, reason }),
            },
            (_, Kind::Number) => Test::Number(parse_i64(&value).map_err(|error| wrong(error.to_string()))?),
            (_, Kind::Bool) => Test::Bool(parse_bool(&value).ok_or_else(|| {
                wrong(format!("strconv.ParseBool: parsing {}: invalid syntax", quoted(&value)))
            })?),
            (Operator::Equal | Operator::NotEqual, _) => Test::Text(value),
        };
        Ok(Self { path, test, is_negated: operator.is_negated() })
    }

    /// Returns the number of states of its regular expression; 0 without one.
    pub(super) fn pattern_states(&self) -> usize {
        match &self.test {
            Test::Matches(pattern) => pattern.cost(),
            _ => 0,
        }
    }
}

impl Kind {
    fn has(self, operator: Operator) -> bool {
        match operator {
            Operator::Equal | Operator::NotEqual => matches!(self, Self::Text | Self::Number | Self::Bool),
            Operator::In | Operator::NotIn => matches!(self, Self::Text | Self::Set),
            Operator::IsEmpty | Operator::IsNotEmpty => matches!(self, Self::Set | Self::Records),
            Operator::Matches | Operator::NotMatches => self == Self::Text,
        }
    }
}

/// Returns the type of what a path selects in a struct, from this position on; or the position of
/// the first name that does not exist.
fn kind_in(record: &dyn Record, path: &[String], position: usize) -> Result<Kind, usize> {
    let value = record.field(&path[position]).ok_or(position)?;
    let next = position + 1;
    let is_last = next == path.len();
    match value {
        Value::Text(_) if is_last => Ok(Kind::Text),
        Value::Number(_) if is_last => Ok(Kind::Number),
        Value::Bool(_) if is_last => Ok(Kind::Bool),
        Value::Texts(_) | Value::TextMap(_) | Value::RecordMap(_) if is_last => Ok(Kind::Set),
        Value::Records(_) if is_last => Ok(Kind::Records),
        Value::Record(_) if is_last => Ok(Kind::Record),
        Value::Record(inner) => kind_in(&*inner, path, next),
        Value::Records(list) => kind_in(&*list.sample(), path, next),
        // Any key is valid.
        Value::TextMap(_) if next + 1 == path.len() => Ok(Kind::Text),
        Value::TextMap(_) => Err(next + 1),
        Value::RecordMap(_) if next + 1 == path.len() => Ok(Kind::Record),
        Value::RecordMap(map) => kind_in(&*map.sample(), path, next + 1),
        Value::Text(_) | Value::Number(_) | Value::Bool(_) | Value::Texts(_) => Err(next),
    }
}
