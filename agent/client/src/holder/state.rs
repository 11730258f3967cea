//! The state of a hold, as reported by its guard.

use super::moment::Moment;
use crate::loss::Loss;

/// The state of a session or of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// Guaranteed to be held until the deadline, which every renewal extends.
    Safe {
        /// The deadline, on the clock that deadlines rest on.
        deadline: Moment,
    },
    /// Guaranteed to be held until the deadline, but a renewal of the session or of its node's
    /// lease is overdue.
    Jeopardy {
        /// The deadline, on the clock that deadlines rest on.
        deadline: Moment,
    },
    /// The deadline has passed: another session may hold it by now. It becomes safe again only if
    /// the leader confirms that it is still held.
    Suspended,
    /// No longer held.
    Lost(Loss),
}

impl GuardState {
    /// Returns `true` if it is guaranteed to be held.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Safe { .. } | Self::Jeopardy { .. })
    }

    /// Returns `true` if both are equal except for the deadline.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns the reason to stop for a caller that does not wait out a suspension.
    pub fn reason_to_stop(self) -> Option<Loss> {
        match self {
            Self::Safe { .. } | Self::Jeopardy { .. } => None,
            Self::Suspended => Some(Loss::NodeDeadline),
            Self::Lost(loss) => Some(loss),
        }
    }

    /// Returns the state at `now` for this deadline.
    pub(super) fn until(deadline: Moment, jeopardy_at: Moment, now: Moment) -> Self {
        if now >= deadline {
            Self::Suspended
        } else if now >= jeopardy_at {
            Self::Jeopardy { deadline }
        } else {
            Self::Safe { deadline }
        }
    }
}
