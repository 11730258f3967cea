//! The tree of a filter, before and after its comparisons are checked.
//!
//! The depth of a tree is limited by the parentheses of its text, so recursion over it is too.

/// A boolean expression over comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression<T> {
    /// At least one holds.
    Or(Vec<Self>),
    /// All hold.
    And(Vec<Self>),
    /// It does not hold.
    Not(Box<Self>),
    /// A comparison.
    Leaf(T),
}

impl<T> Expression<T> {
    /// Converts each comparison, in the order of the text, until one fails.
    pub(super) fn try_map<U, E>(
        self,
        convert: &mut impl FnMut(T) -> Result<U, E>,
    ) -> Result<Expression<U>, E> {
        let all = |list: Vec<Self>, convert: &mut _| {
            list.into_iter().map(|one| one.try_map(convert)).collect::<Result<_, _>>()
        };
        Ok(match self {
            Self::Or(list) => Expression::Or(all(list, convert)?),
            Self::And(list) => Expression::And(all(list, convert)?),
            Self::Not(inner) => Expression::Not(Box::new(inner.try_map(convert)?)),
            Self::Leaf(leaf) => Expression::Leaf(convert(leaf)?),
        })
    }
}

/// A comparison as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The names of the fields and map keys, from the row inwards; at least one.
    pub(super) selector: Vec<String>,
    /// The operator.
    pub(super) operator: Operator,
    /// The value; empty for operators without one.
    pub(super) value: String,
}

/// An operator; `contains` is [`Operator::In`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    In,
    NotIn,
    IsEmpty,
    IsNotEmpty,
    Matches,
    NotMatches,
}

impl Operator {
    /// Returns the name that Consul uses in errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Equal => "Equal",
            Self::NotEqual => "Not Equal",
            Self::In => "In",
            Self::NotIn => "Not In",
            Self::IsEmpty => "Is Empty",
            Self::IsNotEmpty => "Is Not Empty",
            Self::Matches => "Matches",
            Self::NotMatches => "Not Matches",
        }
    }

    /// Returns `true` for the negation of another operator.
    pub(super) fn is_negated(self) -> bool {
        matches!(self, Self::NotEqual | Self::NotIn | Self::IsNotEmpty | Self::NotMatches)
    }
}
