//! The reasons why commands are refused. Replies with their texts are stored, and clients of Consul
//! know most of them, so the texts must not change.

use super::invariants::Violation;
use super::restore::RESTORE_PARTS_MAX;
use super::roster::SERVERS_MAX;
use lockmesh_protocol::command::KvVerb;
use lockmesh_protocol::format::FormatError;
use lockmesh_protocol::id::{CheckId, Key, LogIndex, NodeName, QueryId, ServerId, ServiceId};
use lockmesh_protocol::prepared_query::{QUERIES_MAX, QUERY_BYTES_MAX};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::Refusal;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The reason why a node, a service or a check is not registered.
#[derive(Debug, Error)]
pub(super) enum CatalogError {
    #[error("Must provide node")]
    NoNodeName,
    #[error("Bad node ID: {0}")]
    BadNodeId(UuidError),
    #[error("an agent's node must have an ID: give it one")]
    NoNodeId,
    #[error("Must provide address if SkipNodeUpdate is not set")]
    NoAddress,
    #[error("Must provide service name with ID")]
    NoServiceNameWithId,
    #[error("Must provide service name")]
    NoServiceName,
    #[error("Must provide a check ID or name")]
    NoCheckId,
    #[error("Missing node registration")]
    MissingNode,
    #[error("Missing service registration")]
    MissingService,
    #[error("check node {check:?} does not match node {node:?}")]
    OtherNode { check: NodeName, node: NodeName },
    #[error(
        "Error while renaming Node ID: {claimant}: Node name {name} is reserved by node {} with name {} ({})",
        .owner.id, .owner.name, .owner.address
    )]
    NameReserved { claimant: String, name: NodeName, owner: Arc<Node> },
    #[error("failed inserting node: {0}")]
    Node(Box<Self>),
    #[error("failed inserting service: {0}")]
    Service(Box<Self>),
    #[error("failed inserting check on node {node:?}: {cause}")]
    Check { node: NodeName, cause: Box<Self> },
}

/// The reason why a text is not a UUID.
#[derive(Debug, Error)]
pub(super) enum UuidError {
    #[error("uuid string is wrong length")]
    Length,
    #[error("uuid is improperly formatted")]
    Hyphens,
    #[error("encoding/hex: invalid byte: U+{byte:04X} '{}'", char::from(*.byte))]
    Digit { byte: u8 },
}

/// The reason why an operation of a transaction fails.
#[derive(Debug, Error)]
pub(super) enum OpError {
    #[error("Must provide key")]
    NoKey,
    #[error("unknown KV operation: {0}")]
    UnknownKvVerb(String),
    #[error("unknown KV operation: {0:?}")]
    MisplacedKvVerb(KvVerb),
    #[error("unknown {table} verb {word:?}")]
    UnknownVerb { table: &'static str, word: String },
    #[error("a write inside a read")]
    WriteInRead,
    #[error("failed to {verb} {row}, index is stale")]
    Stale { verb: &'static str, row: Row },
    #[error("{0} doesn't exist")]
    Absent(Row),
    #[error("key {0:?} exists")]
    Exists(Key),
    #[error("failed to check {property}, key {key:?} doesn't exist")]
    NothingToCheck { property: &'static str, key: Key },
    #[error("failed session check for key {key:?}, current session {current:?} != {expected:?}")]
    OtherSession { key: Key, current: String, expected: String },
    #[error("failed index check for key {key:?}, current modify index {current} != {expected}")]
    OtherIndex { key: Key, current: LogIndex, expected: LogIndex },
    #[error("failed to lock key {0:?} due to lock delay")]
    Delayed(Key),
    #[error("failed to lock key {0:?}, lock is already held")]
    Held(Key),
    #[error("failed to unlock key {0:?}, lock isn't held, or is held by another session")]
    NotHeld(Key),
    #[error("missing session")]
    NoSession,
    #[error("invalid session {0:?}")]
    InvalidSession(String),
    #[error("{0}")]
    Refused(Refusal),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The row that an operation of a transaction names.
#[derive(Debug)]
pub(super) enum Row {
    Key(Key),
    Node(NodeName),
    Service(NodeName, ServiceId),
    Check(NodeName, CheckId),
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key {key:?}"),
            Self::Node(name) => write!(f, "node {name:?}"),
            Self::Service(node, id) => write!(f, "service {id:?} on node {node:?}"),
            Self::Check(node, id) => write!(f, "check {id:?} on node {node:?}"),
        }
    }
}

/// The reason why the roster of servers does not change.
#[derive(Debug, Error)]
pub(super) enum RosterError {
    #[error(
        "server {node} reads formats up to {theirs}, but the cluster is at {ours}: install a newer lockmesh there"
    )]
    OldFormat { node: NodeName, theirs: u8, ours: u8 },
    #[error("the cluster has not begun: its first servers have no ids yet")]
    NotBegun,
    #[error("a server needs a node, an address and an instance id")]
    NoIdentity,
    #[error("a server needs a node and an address")]
    NoAddress,
    #[error("the roster holds {max} servers: remove one first", max = SERVERS_MAX)]
    Full,
    #[error("server {0} is not of this quorum")]
    Unknown(ServerId),
}

/// The reason why a prepared query is not written.
#[derive(Debug, Error)]
pub(super) enum QueryError {
    #[error("query id {0} is in use: send the request again")]
    IdInUse(QueryId),
    #[error("Cannot modify non-existent prepared query: '{0}'")]
    Unknown(QueryId),
    #[error("name '{0}' aliases an existing query name")]
    NameInUse(String),
    #[error("name '{0}' aliases an existing query ID")]
    NameIsId(String),
    #[error("a query template with an empty name already exists")]
    SecondCatchAll,
    #[error("failed compiling template: {0}")]
    Template(String),
    #[error("there are {max} prepared queries, the maximum: delete one first", max = QUERIES_MAX)]
    Full,
    #[error("the query has {0} bytes, the maximum is {max}: use fewer or shorter texts", max = QUERY_BYTES_MAX)]
    Large(usize),
}

/// The reason why a backup is not restored.
#[derive(Debug, Error)]
pub(super) enum RestoreError {
    #[error("another restore has begun since, or none has: begin again")]
    NotBegun,
    #[error("it has more than {max} parts", max = RESTORE_PARTS_MAX)]
    TooManyParts,
    #[error("part {0} holds something that is not a row")]
    NotARow(u32),
    #[error("part {number} of {parts} is missing: send it again")]
    MissingPart { number: u32, parts: u32 },
    #[error("part {number} cannot be read: {cause}")]
    Unreadable { number: u32, cause: FormatError },
    #[error("it has {count} parts, not {parts}: begin again")]
    OtherCount { count: usize, parts: u32 },
    #[error("its indexes or fencing tokens are larger than any that was ever given")]
    NumbersTooLarge,
    #[error("its data is inconsistent: {0}")]
    Inconsistent(Violation),
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Self {
        Self::Catalog(error.to_string())
    }
}

impl From<QueryError> for Refusal {
    fn from(error: QueryError) -> Self {
        Self::PreparedQuery(error.to_string())
    }
}

impl From<RosterError> for Refusal {
    fn from(error: RosterError) -> Self {
        Self::Roster(error.to_string())
    }
}

impl From<RestoreError> for Refusal {
    fn from(error: RestoreError) -> Self {
        Self::Restore(error.to_string())
    }
}
