//! The sessions that guards on a node gave up, as reported by the node: an authenticated list in
//! each reply to a challenge.
//!
//! A node that no server reaches stays alive by its replies to challenges that other agents relay.
//! Its guards receive no acknowledgement and give up their sessions, but no command of the node
//! reaches a server. The list is the only way to end those sessions.
//!
//! **Invariant:** the list ends sessions and keeps none alive. It is bound to the lease but not to
//! a challenge: a session that was given up never becomes valid again, so a repeated or relayed
//! list does no harm.

use crate::id::SessionId;
use crate::lease::{AuthenticationCode, LeaseId, Renewal};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum number of sessions in one list, so that a gossip datagram stays within its limit.
pub const MAX_GIVEN_UP: usize = 16;

/// A session that its guard gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUpSession {
    /// The session.
    pub session: SessionId,
    /// The time without an acknowledged renewal when it was given up; `None` if its client closed
    /// it for another reason.
    pub silent_for: Option<Duration>,
}

/// Sessions that guards on one node gave up, at most [`MAX_GIVEN_UP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<GivenUpSession>", into = "Vec<GivenUpSession>")]
pub struct GivenUpSessions {
    sessions: [GivenUpSession; MAX_GIVEN_UP],
    length: usize,
}

/// A node's list of sessions that its guards gave up and that have not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// The node's lease, under whose secret the list was made.
    pub lease: LeaseId,
    /// The sessions.
    pub sessions: GivenUpSessions,
    /// The authentication code over all other fields.
    pub code: AuthenticationCode,
}

/// More than [`MAX_GIVEN_UP`] sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} sessions were given up in one list; the maximum is {MAX_GIVEN_UP}")]
pub struct TooManyGivenUp(pub usize);

impl GivenUpSessions {
    /// Returns the sessions.
    pub fn as_slice(&self) -> &[GivenUpSession] {
        &self.sessions[..self.length]
    }
}

impl TryFrom<&[GivenUpSession]> for GivenUpSessions {
    type Error = TooManyGivenUp;

    fn try_from(sessions: &[GivenUpSession]) -> Result<Self, TooManyGivenUp> {
        // An array, so that a gossip message with the list can be copied; the rest is filler.
        let mut list = [GivenUpSession { session: SessionId::NIL, silent_for: None }; MAX_GIVEN_UP];
        let listed = list.get_mut(..sessions.len()).ok_or(TooManyGivenUp(sessions.len()))?;
        listed.copy_from_slice(sessions);
        Ok(Self { sessions: list, length: sessions.len() })
    }
}

impl TryFrom<Vec<GivenUpSession>> for GivenUpSessions {
    type Error = TooManyGivenUp;

    fn try_from(sessions: Vec<GivenUpSession>) -> Result<Self, TooManyGivenUp> {
        sessions.as_slice().try_into()
    }
}

impl From<GivenUpSessions> for Vec<GivenUpSession> {
    fn from(sessions: GivenUpSessions) -> Self {
        sessions.as_slice().to_vec()
    }
}

/// A node's reply to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// The renewal of its lease.
    pub renewal: Renewal,
    /// The sessions that its guards gave up; `None` if there are none, or if the reply's path
    /// cannot carry them.
    pub given_up: Option<GivenUp>,
}

impl From<Renewal> for NodeAnswer {
    fn from(renewal: Renewal) -> Self {
        Self { renewal, given_up: None }
    }
}
