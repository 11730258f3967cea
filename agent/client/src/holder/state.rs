//! How something that is held stands, as its guard tells it.

use super::moment::Moment;
use crate::loss::Loss;

/// How a session or something that is held under it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// It is surely held until the deadline, which moves on with every renewal.
    Safe {
        /// Until when, on the clock that deadlines rest on.
        deadline: Moment,
    },
    /// It is surely held until the deadline, but a renewal is overdue: of the session, or of the
    /// lease of its node.
    Jeopardy {
        /// Until when, on the clock that deadlines rest on.
        deadline: Moment,
    },
    /// The deadline has passed: somebody else may hold it by now. It becomes safe again only where
    /// the leader confirms that it is still held.
    Suspended,
    /// It is held no more.
    Lost(Loss),
}

impl GuardState {
    /// Whether it is surely held.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Safe { .. } | Self::Jeopardy { .. })
    }

    /// Whether both are the same but for the deadline.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Why whoever does not wait for better news has to stop.
    pub fn reason_to_stop(self) -> Option<Loss> {
        match self {
            Self::Safe { .. } | Self::Jeopardy { .. } => None,
            Self::Suspended => Some(Loss::NodeDeadline),
            Self::Lost(loss) => Some(loss),
        }
    }

    /// How it stands with this deadline.
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
