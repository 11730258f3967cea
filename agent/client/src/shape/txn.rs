//! Transactions.

use super::Blob;
use super::catalog::{Node, Service};
use super::health::Check;
use super::kv::Entry;
use serde::{Deserialize, Serialize};

/// One operation of a request: exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// An operation on a key.
    #[serde(rename = "KV", skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvOperation>,
}

/// An operation on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KvOperation {
    /// `set`, `cas`, `lock`, `unlock`, `get`, `delete`, …
    pub verb: String,
    /// The key or prefix.
    pub key: String,
    /// The value, for writes.
    pub value: Option<Blob>,
    /// The flags, for writes.
    pub flags: u64,
    /// The modify index for a conditional verb.
    pub index: u64,
    /// The session, for locks.
    pub session: String,
}

/// One element of the results: exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TxnResult {
    /// An entry.
    #[serde(rename = "KV", skip_serializing_if = "Option::is_none")]
    pub kv: Option<Entry>,
    /// A node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Node>,
    /// A service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// A check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// The reason why one operation failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TxnError {
    /// The operation's position in the request, from 0.
    pub op_index: u32,
    /// A description of the failure.
    pub what: String,
}

/// The reply to a transaction with a write: results with 200, errors with 409.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TxnAnswer {
    /// The results of the operations; `None` if the transaction failed.
    pub results: Option<Vec<TxnResult>>,
    /// The reasons for the failure.
    pub errors: Option<Vec<TxnError>>,
}

/// The reply to a transaction without a write: results with 200, errors with 409.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TxnReadAnswer {
    /// The results of the operations; `None` if the transaction failed.
    pub results: Option<Vec<TxnResult>>,
    /// The reasons for the failure.
    pub errors: Option<Vec<TxnError>>,
    /// The index of the reply.
    pub index: u64,
    /// The time since the server last had contact with the leader, in nanoseconds.
    pub last_contact: u64,
    /// Set if the server knows a leader.
    pub known_leader: bool,
    /// Always empty.
    pub consistency_level: String,
    /// Always false.
    pub not_modified: bool,
    /// Always 0.
    pub backend: u8,
    /// Set if results are left out to which the token of the request has no right.
    #[serde(rename = "ResultsFilteredByACLs")]
    pub results_filtered_by_acls: bool,
}
