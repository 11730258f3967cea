//! A typed change of the state. A change sets or removes one complete row; two kinds affect many
//! rows at once.
//!
//! **Invariant:** the state is the sum of its changes. Store, timers and watchers receive nothing
//! else, and a state that is rebuilt from the rows of a checkpoint equals the state that wrote
//! them.
//!
//! **Invariant:** no change contains a change; otherwise a peer could nest them until its
//! receiver's stack overflows.

use crate::acl::{AclSettings, AuthMethod, BindingRule, Policy, Role, Token};
use crate::deadlock::Deadlocks;
use crate::id::{
    AgentNumber, CheckId, Fence, Key, LogIndex, NodeName, QueryId, ServerId, ServiceId, SessionId,
};
use crate::lease::LeaseKey;
use crate::prepared_query::PreparedQuery;
use crate::record::{
    Agent, Autopilot, Check, Coordinate, Entry, LockDelay, LockRequest, Loss, LossCause, Node,
    ProcessBinding, Server, Service, Session, SharedHold, Waiter,
};
use crate::reply::{Applied, LockRefusal, Refusal, Reply};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The new content of one row; `None` if the row was removed. Stored: variants are only appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A key.
    Entry(Key, Option<Arc<Entry>>),
    /// A session.
    Session(SessionId, Option<Arc<Session>>),
    /// A node, under its folded name.
    Node(NodeName, Option<Arc<Node>>),
    /// A service, under its node's folded name and its own folded id.
    Service(NodeName, ServiceId, Option<Arc<Service>>),
    /// A check, under its node's folded name and its own folded id.
    Check(NodeName, CheckId, Option<Arc<Check>>),
    /// A tombstone with the index of the deletion; the key may be a prefix.
    Tombstone(Key, Option<LogIndex>),
    /// A lock-delay.
    LockDelay(Key, Option<LockDelay>),
    /// A waiter in a key's queue, by its queue position.
    Waiter(Key, LogIndex, Option<Arc<Waiter>>),
    /// An agent's registration.
    Agent(AgentNumber, Option<Arc<Agent>>),
    /// A kept reply: agent, sequence.
    Reply(AgentNumber, u64, Option<Arc<Applied>>),
    /// The sequence below which an agent's commands are rejected, because their replies were
    /// discarded.
    LowestSequence(AgentNumber, u64),
    /// An entry of the loss history, by its number; a new one replaces the oldest.
    Loss(u64, Option<Arc<Loss>>),
    /// The last index that changed a node or one of its services, under the node's folded name.
    NodeIndex(NodeName, Option<LogIndex>),
    /// The last index that changed a table.
    TableIndex(Table, LogIndex),
    /// The last fencing token granted.
    Fence(Fence),
    /// The last agent number assigned.
    LastAgent(AgentNumber),
    /// The offset from a log index to the index that clients see; raised by a restore.
    IndexBase(u64),
    /// The cluster's id.
    ClusterId(String),
    /// A server of the quorum.
    Server(ServerId, Option<Arc<Server>>),
    /// The last server id assigned.
    LastServer(ServerId),
    /// The autopilot configuration, and the index of its last change.
    Autopilot(Autopilot, LogIndex),
    /// A part of a restore in progress: id, number, and its rows as bytes that only the state
    /// parses.
    RestorePart(u64, u32, Option<Bytes>),
    /// The whole state was removed; the changes that follow set every row.
    Cleared,
    /// Every key and every tombstone under a prefix was removed: one change, regardless of their
    /// number.
    TreeDeleted(Key),
    /// The cluster's format version; see [`crate::format`].
    Format(u8),
    /// The newest index of a discarded tombstone.
    ForgottenTombstones(LogIndex),
    /// The key from which the secrets of the cluster's leases are derived. Not part of backups.
    LeaseKey(LeaseKey),
    /// The number of the gossip key in use. Not part of backups.
    GossipKey(u32),
    /// The network coordinate of a node, under the node's folded name.
    Coordinate(NodeName, Option<Arc<Coordinate>>),
    /// A prepared query.
    PreparedQuery(QueryId, Option<Arc<PreparedQuery>>),
    /// The process of a session, under its node's folded name.
    Binding(NodeName, SessionId, Option<ProcessBinding>),
    /// A waiting request, by its position in the queues of its locks. Since format 8, instead of
    /// [`Change::Waiter`].
    LockRequest(LogIndex, Option<Arc<LockRequest>>),
    /// A holder of a lock in shared mode.
    SharedHold(Key, SessionId, Option<SharedHold>),
    /// A lock-delay for exclusive requests: it was a shared holder that ended.
    SharedDelay(Key, Option<LockDelay>),
    /// The policy for deadlocks, and those found.
    Deadlocks(Arc<Deadlocks>),
    /// The nodes whose agents may send operator requests, under their folded names.
    OperatorHosts(Arc<BTreeSet<NodeName>>),
    /// The settings of the access control lists.
    AclSettings(Arc<AclSettings>),
    /// A token, under its accessor id in lower case.
    Token(String, Option<Arc<Token>>),
    /// A policy, under its id in lower case.
    Policy(String, Option<Arc<Policy>>),
    /// A role, under its id in lower case.
    Role(String, Option<Arc<Role>>),
    /// An auth method, under its name in lower case.
    AuthMethod(String, Option<Arc<AuthMethod>>),
    /// A binding rule, under its id in lower case.
    BindingRule(String, Option<Arc<BindingRule>>),
}

impl Change {
    /// Returns the oldest version of the [`format`](crate::format) that supports it.
    pub fn since(&self) -> u8 {
        match self {
            Self::Loss(_, Some(loss)) => match loss.cause {
                LossCause::GivenUp { .. } => 2,
                LossCause::KeyDeleted => 3,
                LossCause::CheckFailed { .. } => 5,
                LossCause::ProcessExited { .. } => 7,
                _ => 1,
            },
            Self::Reply(_, _, Some(applied)) => match applied.reply {
                Reply::Refused(Refusal::PreparedQuery(_)) => 6,
                Reply::Refused(Refusal::Lock(LockRefusal::Deadlock { .. })) => 9,
                Reply::Refused(
                    Refusal::OtherNode(_) | Refusal::NotOperatorHost(_) | Refusal::TooManySessions(..),
                ) => 10,
                Reply::Token(_)
                | Reply::Policy(_)
                | Reply::Role(_)
                | Reply::AuthMethod(_)
                | Reply::BindingRule(_)
                | Reply::Refused(Refusal::NoAccess(_) | Refusal::Acl(_) | Refusal::AclBootstrap(_)) => 11,
                Reply::GrantedAll(_) | Reply::Refused(Refusal::Lock(_)) => 8,
                _ => 1,
            },
            Self::TableIndex(table, _) => table.since(),
            Self::Coordinate(..) | Self::PreparedQuery(..) => 6,
            Self::Binding(..) => 7,
            Self::LockRequest(..) | Self::SharedHold(..) | Self::SharedDelay(..) => 8,
            Self::Deadlocks(_) => 9,
            Self::OperatorHosts(_) => 10,
            Self::AclSettings(_)
            | Self::Token(..)
            | Self::Policy(..)
            | Self::Role(..)
            | Self::AuthMethod(..)
            | Self::BindingRule(..) => 11,
            // Also the removal of a loss or a reply: it has no content of a newer version.
            _ => 1,
        }
    }
}

/// The tables whose last change is stored, for blocking queries. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Table {
    /// Entries.
    Entries,
    /// Tombstones.
    Tombstones,
    /// Sessions.
    Sessions,
    /// Nodes.
    Nodes,
    /// Services.
    Services,
    /// Checks.
    Checks,
    /// Deletions of nodes.
    NodeDeletions,
    /// Coordinates.
    Coordinates,
    /// Prepared queries.
    PreparedQueries,
    /// Tokens.
    Tokens,
    /// Policies.
    Policies,
    /// Roles.
    Roles,
    /// The settings of the access control lists.
    AclSettings,
    /// Auth methods and binding rules.
    AuthMethods,
}

impl Table {
    /// Returns the oldest version of the [`format`](crate::format) that supports it.
    pub fn since(self) -> u8 {
        match self {
            Self::Coordinates | Self::PreparedQueries => 6,
            Self::Tokens | Self::Policies | Self::Roles | Self::AclSettings | Self::AuthMethods => 11,
            _ => 1,
        }
    }
}
