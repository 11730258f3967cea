//! The node lease: what an agent says to keep its node's sessions, and what the servers answer.
//!
//! An agent holds one lease for all sessions of its node. The lease hangs on an *incarnation*: the
//! agent's process, its kernel's boot and its certificate. It is known by the log index of the
//! registration that began it, so no two leases are ever taken for one another. A renewal carries
//! an authentication code under a secret that the registration's answer gave to the agent alone:
//! whoever relays a renewal cannot make one.
//!
//! How a lease is judged stands in the server's `judge`; how an agent keeps it, in its `lease`.

use crate::given_up::{GivenUp, GivenUpSessions};
use crate::id::{AgentNumber, LogIndex, NodeName, ServerId, Term};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;
use std::time::Duration;

/// How long an agent that announced a restart may be silent, whatever the windows of its sessions:
/// it is longer than any of them. Agents and servers must agree on it, so it is no setting.
pub const RESTART_WINDOW: Duration = Duration::from_secs(30);

const _: () = assert!(RESTART_WINDOW.as_millis() > HealthWindow::Safe.validity().as_millis());

/// How long an outage of a node may last before its sessions of this class end with it, counted
/// from when its next word was due. Shorter windows come first. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HealthWindow {
    /// 1.5 s: for locks that must pass on at once.
    Fast,
    /// 5 s.
    #[default]
    Default,
    /// 15 s: for holders that would rather wait than fail over in vain.
    Safe,
}

impl HealthWindow {
    /// All, the shortest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Safe];

    /// The longest outage that ends no session, however long before it the node said its last word.
    /// Agents and servers must agree on it, so it is no setting.
    pub const fn duration(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(1_500),
            Self::Default => Duration::from_secs(5),
            Self::Safe => Duration::from_secs(15),
        }
    }

    /// How often an agent renews its lease where this is the shortest window in use. A node is
    /// judged by the default window also where nothing asks for it.
    pub const fn renewal_interval(self) -> Duration {
        let window = match self {
            Self::Fast => Self::Fast,
            Self::Default | Self::Safe => Self::Default,
        };
        Duration::from_micros(window.duration().as_micros() as u64 / 3)
    }

    /// For how long one renewal keeps sessions of this window: until the next one is due, and the
    /// window after that.
    pub const fn validity(self) -> Duration {
        self.renewal_interval().saturating_add(self.duration())
    }

    /// The word that clients use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
        }
    }

    /// Reads the word that clients use.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.as_str() == word)
    }
}

/// What the cluster's lease secrets are derived from: drawn when the cluster begins, in no backup
/// and no answer. Its text is never shown.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseKey(pub [u8; 32]);

/// The secret of one lease. Its text is never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseSecret([u8; 32]);

/// Shows that whoever made a message knows the lease's secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuthenticationCode(pub [u8; 16]);

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseKey(…)")
    }
}

impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret(…)")
    }
}

impl fmt::Debug for AuthenticationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthenticationCode(…)")
    }
}

/// Which lease, of which agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// Whose.
    pub agent: AgentNumber,
    /// The index of the registration that began it.
    pub began: LogIndex,
}

/// An agent lives: sent on its own account, or as the answer to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// Which lease.
    pub lease: LeaseId,
    /// Counts the agent's renewals of this lease, from 1.
    pub sequence: u64,
    /// The challenge that it answers; 0 where it answers none.
    pub nonce: u64,
    /// Over all of this.
    pub code: AuthenticationCode,
}

/// A server asks an agent whether it lives; the answer is a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Which lease.
    pub lease: LeaseId,
    /// Drawn for this check; never 0.
    pub nonce: u64,
}

/// The leader has an agent ask another one whether it lives: the agent hands on what that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeQuestion {
    /// What is asked.
    pub challenge: Challenge,
    /// Of which node: its agent's certificate must name it.
    pub node: NodeName,
    /// Where its agent listens, as `host:port`.
    pub address: String,
}

/// The leader has heard a renewal, and led when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAck {
    /// Which lease.
    pub lease: LeaseId,
    /// The renewal.
    pub sequence: u64,
    /// The shortest window of the sessions on the agent's node, as the leader knows it; none where
    /// no session depends on the node's life.
    pub shortest: Option<HealthWindow>,
    /// Sessions of the node that were made before this index are another host's, that registered
    /// the node in between: they end with its windows, whatever this lease does.
    pub keeps_from: LogIndex,
    /// Who acknowledges. A renewal comes through any server, so this is how an agent that asks for
    /// nothing hears of an election.
    pub leader: ServerId,
    /// In which term.
    pub term: Term,
}

/// The first entry of [`NodeLease::suspected_by`] for a node that answers challenges while none of
/// its own renewals has arrived for its window. It is no node's name, because names have no spaces;
/// an agent of an older build shows it as it is.
pub const MISSING_RENEWALS: &str = "missing renewals";

/// How a node's lease stands, as the leader judges it. A leader knows only what it has heard
/// itself: nothing of this is in the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// Which lease.
    pub lease: LeaseId,
    /// The shortest window of the sessions that depend on the node's life; none where none does.
    pub shortest: Option<HealthWindow>,
    /// How long ago the node was heard; none where this leader has not heard it.
    pub heard_ago: Option<Duration>,
    /// How long until the windows are over, in the order of [`HealthWindow::ALL`], unless the node
    /// is heard before; none while no silence ends anything, as during an announced restart.
    pub ends_in: Option<[Duration; HealthWindow::ALL.len()]>,
    /// Nodes that say that this one does not answer them, by their folded names; at most a few. The
    /// first one is [`MISSING_RENEWALS`] if the node does not renew.
    pub suspected_by: Vec<NodeName>,
}

/// Whose leases somebody wants to know of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLeaseQuery {
    /// That of one node.
    Of(NodeName),
    /// Those of all nodes, from the agent of this number on, as many as one answer has.
    From(AgentNumber),
}

/// A part of how nodes' leases stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLeases {
    /// In the order of their agents' numbers. Who has none is not among them.
    pub leases: Vec<NodeLease>,
    /// The agent from which on to ask for the next part; none where this is the last one.
    pub next: Option<AgentNumber>,
}

impl NodeLease {
    /// How long until a window is over, unless the node is heard before.
    pub fn ends_in(&self, window: HealthWindow) -> Option<Duration> {
        self.ends_in.map(|ends_in| ends_in[window as usize])
    }

    /// `true` if the node answers challenges and does not renew: see [`MISSING_RENEWALS`].
    pub fn lacks_renewals(&self) -> bool {
        self.suspected_by.first().is_some_and(|first| first.as_str() == MISSING_RENEWALS)
    }

    /// The window by which the node is judged first.
    pub fn window(&self) -> HealthWindow {
        self.shortest.unwrap_or_default()
    }
}

/// Why a lease is none any more: its agent must register anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LeaseEnd {
    /// The servers do not know it, as after the loss of all of them.
    #[error("the servers do not know this registration")]
    Unknown,
    /// Another process registered for the same node.
    #[error("another process registered for this node")]
    Superseded,
    /// A majority of the servers did not hear from the node for its window.
    #[error("a majority of the servers did not hear from this node, and failed it")]
    Failed,
    /// The node left, or was made to.
    #[error("this node left the cluster, or was made to leave")]
    Left,
}

impl LeaseKey {
    /// The secret of one lease.
    pub fn secret(&self, lease: LeaseId) -> LeaseSecret {
        let code = keyed(&self.0, &[b"lease", &lease.agent.0.to_be_bytes(), &lease.began.0.to_be_bytes()]);
        LeaseSecret(code.finalize().into_bytes().into())
    }

    /// A secret of the cluster for another purpose, which tells nothing of this one.
    pub fn derived(&self, purpose: &str, number: u32) -> [u8; 32] {
        keyed(&self.0, &[purpose.as_bytes(), b"\0", &number.to_be_bytes()]).finalize().into_bytes().into()
    }
}

impl LeaseSecret {
    /// Makes a renewal.
    pub fn renewal(&self, lease: LeaseId, sequence: u64, nonce: u64) -> Renewal {
        Renewal { lease, sequence, nonce, code: self.code(lease, sequence, nonce) }
    }

    /// Makes the list of sessions that guards on the lease's node gave up.
    pub fn give_up(&self, lease: LeaseId, sessions: GivenUpSessions) -> GivenUp {
        let code = self.list(lease, &sessions).finalize().into_bytes();
        let code = AuthenticationCode(code[..16].try_into().expect("it is longer"));
        GivenUp { lease, sessions, code }
    }

    /// Whether such a list was made with this secret.
    pub fn made_list(&self, given_up: &GivenUp) -> bool {
        let code = self.list(given_up.lease, &given_up.sessions);
        code.verify_truncated_left(&given_up.code.0).is_ok()
    }

    /// Whether a renewal was made with this secret.
    pub fn made(&self, renewal: &Renewal) -> bool {
        let Renewal { lease, sequence, nonce, code } = renewal;
        self.message(*lease, *sequence, *nonce).verify_truncated_left(&code.0).is_ok()
    }

    fn code(&self, lease: LeaseId, sequence: u64, nonce: u64) -> AuthenticationCode {
        let code = self.message(lease, sequence, nonce).finalize().into_bytes();
        AuthenticationCode(code[..16].try_into().expect("it is longer"))
    }

    fn message(&self, lease: LeaseId, sequence: u64, nonce: u64) -> Hmac<Sha256> {
        let numbers = [u64::from(lease.agent.0), lease.began.0, sequence, nonce].map(u64::to_be_bytes);
        keyed(&self.0, &[b"renewal", numbers.as_flattened()])
    }

    fn list(&self, lease: LeaseId, sessions: &GivenUpSessions) -> Hmac<Sha256> {
        let numbers = [u64::from(lease.agent.0), lease.began.0].map(u64::to_be_bytes);
        let mut code = keyed(&self.0, &[b"given-up", numbers.as_flattened()]);
        for listed in sessions.as_slice() {
            code.update(listed.session.as_bytes());
            // A datagram carries no more than microseconds.
            code.update(&listed.silent_for.map_or(0, |silent| silent.as_micros() + 1).to_be_bytes());
        }
        code
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    parts.iter().for_each(|part| code.update(part));
    code
}

#[cfg(test)]
mod tests {
    use super::{LeaseId, LeaseKey, Renewal};
    use crate::given_up::{GivenUp, GivenUpSession, GivenUpSessions, TooManyGivenUp};
    use crate::id::{AgentNumber, LogIndex, SessionId};
    use std::time::Duration;

    #[test]
    fn a_renewal_is_made_with_its_own_lease_s_secret_only() {
        let key = LeaseKey([7; 32]);
        let lease = LeaseId { agent: AgentNumber(3), began: LogIndex(9) };
        let secret = key.secret(lease);
        let renewal = secret.renewal(lease, 1, 0);
        assert!(secret.made(&renewal) && key.secret(lease).made(&renewal));
        let other = LeaseId { began: LogIndex(10), ..lease };
        for forged in [
            Renewal { sequence: 2, ..renewal },
            Renewal { nonce: 1, ..renewal },
            Renewal { lease: other, ..renewal },
            key.secret(other).renewal(lease, 1, 0),
        ] {
            assert!(!secret.made(&forged), "{forged:?}");
        }
        assert!(!LeaseKey([8; 32]).secret(lease).made(&renewal));
    }

    #[test]
    fn a_list_of_given_up_sessions_is_made_with_its_own_lease_s_secret_only() {
        let key = LeaseKey([7; 32]);
        let lease = LeaseId { agent: AgentNumber(3), began: LogIndex(9) };
        let session =
            |number, silent_for| GivenUpSession { session: SessionId::from_random([number; 16]), silent_for };
        let sessions = [session(1, None), session(2, Some(Duration::from_secs(3)))];
        let secret = key.secret(lease);
        let listed = |sessions: &[GivenUpSession]| GivenUpSessions::try_from(sessions).expect("they fit");
        let list = secret.give_up(lease, listed(&sessions));
        assert!(secret.made_list(&list) && list.sessions.as_slice() == sessions);
        let forged = |sessions: &[GivenUpSession]| GivenUp { sessions: listed(sessions), ..list };
        assert!(!secret.made_list(&forged(&sessions[..1])));
        assert!(!secret.made_list(&forged(&[session(1, None), session(3, sessions[1].silent_for)])));
        assert!(!secret.made_list(&forged(&[session(1, Some(Duration::ZERO)), sessions[1]])));
        let other = LeaseId { began: LogIndex(10), ..lease };
        assert!(!key.secret(other).made_list(&list));
        assert_eq!(GivenUpSessions::try_from(&[sessions[0]; 17][..]), Err(TooManyGivenUp(17)));
    }

    #[test]
    fn secrets_are_never_shown() {
        let key = LeaseKey([7; 32]);
        let lease = LeaseId { agent: AgentNumber(3), began: LogIndex(9) };
        let shown = format!("{key:?} {:?} {:?}", key.secret(lease), key.secret(lease).renewal(lease, 1, 0));
        assert!(!shown.contains("7, 7") && shown.contains("LeaseSecret(…)"), "{shown}");
    }
}
