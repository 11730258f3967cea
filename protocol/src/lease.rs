//! The node lease: the heartbeats that keep a node's sessions alive, and the servers' replies.
//!
//! An agent holds one lease for all sessions of its node. The lease is bound to an *incarnation*:
//! the agent's process, its kernel's boot and its certificate. It is identified by the log index of
//! its first registration, so no two leases are ever confused. A renewal carries an authentication
//! code, made with a secret that only the agent received with the registration's reply: a member
//! that relays a renewal cannot forge one.
//!
//! The server's `judge` evaluates leases; the agent's `lease` maintains its own.

use crate::given_up::{GivenUp, GivenUpSessions};
use crate::id::{AgentNumber, LogIndex, NodeName, ServerId, Term};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;
use std::time::Duration;

/// The maximum time that an agent may be unreachable after it announced a restart, regardless of
/// the windows of its sessions: it is longer than any of them. Agents and servers must agree on it,
/// so it is not configurable.
pub const RESTART_WINDOW: Duration = Duration::from_secs(30);

const _: () = assert!(RESTART_WINDOW.as_millis() > HealthWindow::Safe.validity().as_millis());

/// The maximum outage of a node before its sessions of this class end, counted from when its next
/// message was due. Shorter windows come first. Stored: only appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HealthWindow {
    /// 1.5 s: for fast failover.
    Fast,
    /// 5 s.
    #[default]
    Default,
    /// 15 s: for holders that prefer waiting to an unnecessary failover.
    Safe,
}

impl HealthWindow {
    /// All windows, the shortest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Safe];

    /// Returns the longest outage that ends no session, regardless of when the last message was
    /// sent. Agents and servers must agree on it, so it is not configurable.
    pub const fn duration(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(1_500),
            Self::Default => Duration::from_secs(5),
            Self::Safe => Duration::from_secs(15),
        }
    }

    /// Returns the interval between an agent's renewals if this is the shortest window in use. A
    /// node is also judged by the default window if no session uses it.
    pub const fn renewal_interval(self) -> Duration {
        let window = match self {
            Self::Fast => Self::Fast,
            Self::Default | Self::Safe => Self::Default,
        };
        Duration::from_micros(window.duration().as_micros() as u64 / 3)
    }

    /// Returns the time for which a renewal keeps sessions of this window alive: until the next
    /// renewal is due, plus the window.
    pub const fn validity(self) -> Duration {
        self.renewal_interval().saturating_add(self.duration())
    }

    /// Returns the API's name of the window.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
        }
    }

    /// Parses the API's name of a window.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.as_str() == word)
    }
}

/// The key from which the cluster's lease secrets are derived. It is generated at the cluster's
/// bootstrap, and is neither in backups nor in replies. Its text is never shown.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseKey(pub [u8; 32]);

/// The secret of one lease. Its text is never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseSecret([u8; 32]);

/// A proof that the sender of a message knows the lease's secret.
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

/// The identity of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    /// The agent that holds it.
    pub agent: AgentNumber,
    /// The index of the registration that began it.
    pub began: LogIndex,
}

/// A proof that an agent is alive: sent periodically, or as the reply to a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The lease.
    pub lease: LeaseId,
    /// The number of the renewal within this lease, from 1.
    pub sequence: u64,
    /// The nonce of the challenge that it answers; 0 if it answers none.
    pub nonce: u64,
    /// The authentication code over all other fields.
    pub code: AuthenticationCode,
}

/// A server's probe of an agent; the reply is a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The lease.
    pub lease: LeaseId,
    /// A random number for this check; never 0.
    pub nonce: u64,
}

/// A request of the leader to an agent to probe another one and to forward its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeQuestion {
    /// The challenge.
    pub challenge: Challenge,
    /// The node of the probed agent: its certificate must name it.
    pub node: NodeName,
    /// The probed agent's address, as `host:port`.
    pub address: String,
}

/// The leader's acknowledgement of a renewal; it was the leader when it received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAck {
    /// The lease.
    pub lease: LeaseId,
    /// The sequence number of the renewal.
    pub sequence: u64,
    /// The shortest window of the sessions on the agent's node, as known to the leader; `None` if
    /// no session depends on the node's health.
    pub shortest: Option<HealthWindow>,
    /// The index before which the node's sessions belong to another host, which registered the node
    /// before. They end with its windows, regardless of this lease.
    pub keeps_from: LogIndex,
    /// The acknowledging leader. A renewal may pass through any server, so this is how an idle
    /// agent learns of an election.
    pub leader: ServerId,
    /// The leader's term.
    pub term: Term,
}

/// The first entry of [`NodeLease::suspected_by`] for a node that answers challenges while none of
/// its own renewals has arrived for its window. It is not a node's name, because names contain no
/// spaces; an agent of an older build shows it unchanged.
pub const MISSING_RENEWALS: &str = "missing renewals";

/// An entry of [`NodeLease::suspected_by`], before the names, for a node that renews its lease
/// while agents have reported failed probes of it for a while. It is not a node's name either.
pub const FAILED_PROBES: &str = "failed probes";

/// The reason of [`Unavailable::Denied`](crate::rpc::Unavailable::Denied) for the first renewals
/// of a lease after a restore, at each leader: the lease lives, and its agent compares the catalog.
/// An agent of an older build only sends another renewal.
pub const RESTORED: &str = "a backup was restored: compare the catalog";

/// The state of a node's lease, as determined by the leader. A leader only knows what it has
/// received itself: none of this is in the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLease {
    /// The lease.
    pub lease: LeaseId,
    /// The shortest window of the sessions that depend on the node's health; `None` if there are
    /// none.
    pub shortest: Option<HealthWindow>,
    /// The time since the last message from the node; `None` if this leader has received none.
    pub heard_ago: Option<Duration>,
    /// The time until the windows end, in the order of [`HealthWindow::ALL`], unless the node is
    /// reached before. `None` while no outage ends anything, for example during an announced
    /// restart.
    pub ends_in: Option<[Duration; HealthWindow::ALL.len()]>,
    /// A few of the nodes that report that this one does not answer their probes, by their folded
    /// names. The first one is [`MISSING_RENEWALS`] if the node does not renew.
    pub suspected_by: Vec<NodeName>,
}

/// A query for node leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLeaseQuery {
    /// The lease of one node.
    Of(NodeName),
    /// The leases of all nodes, from this agent number on, up to the size of one reply.
    From(AgentNumber),
}

/// A part of the states of all node leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLeases {
    /// The leases, in the order of their agents' numbers. Agents without a lease are absent.
    pub leases: Vec<NodeLease>,
    /// The agent number to continue with; `None` for the last part.
    pub next: Option<AgentNumber>,
}

impl NodeLease {
    /// Returns the time until a window ends, unless the node is reached before.
    pub fn ends_in(&self, window: HealthWindow) -> Option<Duration> {
        self.ends_in.map(|ends_in| ends_in[window as usize])
    }

    /// Returns `true` if the node answers challenges but does not renew: see [`MISSING_RENEWALS`].
    pub fn lacks_renewals(&self) -> bool {
        self.suspected_by.first().is_some_and(|first| first.as_str() == MISSING_RENEWALS)
    }

    /// Returns `true` if the node renews, and agents cannot probe it: see [`FAILED_PROBES`].
    pub fn has_failed_probes(&self) -> bool {
        self.suspected_by.iter().any(|entry| entry.as_str() == FAILED_PROBES)
    }

    /// Returns the nodes that report failed probes.
    pub fn suspecting_nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.suspected_by.iter().filter(|entry| ![MISSING_RENEWALS, FAILED_PROBES].contains(&entry.as_str()))
    }

    /// Returns the shortest window that applies to the node.
    pub fn window(&self) -> HealthWindow {
        self.shortest.unwrap_or_default()
    }
}

/// The reason why a lease has ended: its agent must register again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LeaseEnd {
    /// The servers do not know it, for example after the loss of all of them.
    #[error("the servers do not know this registration")]
    Unknown,
    /// Another process registered for the same node.
    #[error("another process registered for this node")]
    Superseded,
    /// A majority of the servers could not reach the node for its window.
    #[error("a majority of the servers declared this node failed")]
    Failed,
    /// The node left, or was forced to leave.
    #[error("this node left the cluster, or was forced to leave")]
    Left,
}

impl LeaseKey {
    /// Derives the secret of a lease.
    pub fn secret(&self, lease: LeaseId) -> LeaseSecret {
        let code = keyed(&self.0, &[b"lease", &lease.agent.0.to_be_bytes(), &lease.began.0.to_be_bytes()]);
        LeaseSecret(code.finalize().into_bytes().into())
    }

    /// Derives a secret of the cluster for another purpose, which reveals nothing about this one.
    pub fn derived(&self, purpose: &str, number: u32) -> [u8; 32] {
        // The zero ends the purpose: no two purposes with their numbers give the same bytes.
        keyed(&self.0, &[purpose.as_bytes(), b"\0", &number.to_be_bytes()]).finalize().into_bytes().into()
    }
}

impl LeaseSecret {
    /// Creates a renewal.
    pub fn renewal(&self, lease: LeaseId, sequence: u64, nonce: u64) -> Renewal {
        Renewal { lease, sequence, nonce, code: self.code(lease, sequence, nonce) }
    }

    /// Creates the list of sessions that guards on the lease's node gave up.
    pub fn give_up(&self, lease: LeaseId, sessions: GivenUpSessions) -> GivenUp {
        let code = self.list(lease, &sessions).finalize().into_bytes();
        let code = AuthenticationCode(code[..16].try_into().expect("it is longer"));
        GivenUp { lease, sessions, code }
    }

    /// Returns `true` if the list was made with this secret.
    pub fn made_list(&self, given_up: &GivenUp) -> bool {
        let code = self.list(given_up.lease, &given_up.sessions);
        code.verify_truncated_left(&given_up.code.0).is_ok()
    }

    /// Returns `true` if the renewal was made with this secret.
    pub fn made(&self, renewal: &Renewal) -> bool {
        let Renewal { lease, sequence, nonce, code } = renewal;
        // In constant time: the time of a rejection must not reveal how much of a code is right.
        self.message(*lease, *sequence, *nonce).verify_truncated_left(&code.0).is_ok()
    }

    fn code(&self, lease: LeaseId, sequence: u64, nonce: u64) -> AuthenticationCode {
        let code = self.message(lease, sequence, nonce).finalize().into_bytes();
        AuthenticationCode(code[..16].try_into().expect("it is longer"))
    }

    fn message(&self, lease: LeaseId, sequence: u64, nonce: u64) -> Hmac<Sha256> {
        let numbers = [u64::from(lease.agent.0), lease.began.0, sequence, nonce].map(u64::to_be_bytes);
        // With its purpose: the secret also authenticates lists of sessions, and neither may pass
        // as the other.
        keyed(&self.0, &[b"renewal", numbers.as_flattened()])
    }

    fn list(&self, lease: LeaseId, sessions: &GivenUpSessions) -> Hmac<Sha256> {
        let numbers = [u64::from(lease.agent.0), lease.began.0].map(u64::to_be_bytes);
        let mut code = keyed(&self.0, &[b"given-up", numbers.as_flattened()]);
        for listed in sessions.as_slice() {
            code.update(listed.session.as_bytes());
            // A datagram has only microsecond precision.
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
    fn renewal_requires_own_lease_secret() {
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
    fn given_up_list_requires_lease_secret() {
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
