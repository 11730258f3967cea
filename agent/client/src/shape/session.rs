//! Sessions: the requests that create them, and their descriptions.

use super::agent::NodeLease;
use super::null_as_default;
use serde::{Deserialize, Serialize};

/// A session as returned by the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Session {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// A human-readable name.
    pub name: String,
    /// The node whose failure ends the session.
    pub node: String,
    /// The lock-delay in nanoseconds.
    pub lock_delay: i64,
    /// `release` or `delete`.
    pub behavior: String,
    /// The TTL as specified by its creator; empty for none.
    #[serde(rename = "TTL")]
    pub ttl: String,
    /// The node checks that it depends on.
    #[serde(deserialize_with = "null_as_default")]
    pub node_checks: Vec<String>,
    /// The service checks that it depends on.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The deprecated list of checks.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub checks: Vec<String>,
    /// The maximum time that its node may be unreachable: `fast` or `safe`; absent for the default.
    /// Consul has no such field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub health_window: String,
    /// The index of its creation.
    pub create_index: u64,
    /// Always the same as `create_index`.
    pub modify_index: u64,
    /// The state of its node's lease, if requested with `?lease` and available from the servers'
    /// leader. Consul has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_lease: Option<NodeLease>,
}

/// A service check that a session depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceCheck {
    /// The check's id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Unused.
    pub namespace: String,
}

/// The body of `PUT /v1/session/create`. A `None` is omitted, which selects the agent's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewSession {
    /// A human-readable name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node; `None` for the agent's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The lock-delay, as a Go duration such as `15s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_delay: Option<String>,
    /// `release` or `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behavior: Option<String>,
    /// The TTL, as a Go duration such as `15s`.
    #[serde(rename = "TTL", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// The node checks; an empty list for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_checks: Option<Vec<String>>,
    /// The service checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The deprecated list of checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<String>>,
    /// The maximum time that its node may be unreachable: `fast`, `default` or `safe`. Consul's
    /// agents ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_window: Option<String>,
    /// Set if the session ends with the client's process, on the Unix socket only. Consul's agents
    /// ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_process: Option<bool>,
    /// The process of the same user that ends the session, as `bind_process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// The state of a session, returned by `GET /v1/session/events/<id>` of its own node's agent: the
/// data of an event, and the reply to a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionEvent {
    /// The session's id.
    pub session: String,
    /// `safe`, `jeopardy`, `suspended` or `lost`.
    pub state: String,
    /// The time until which the node's lease guarantees the session: nanoseconds of this host's
    /// `CLOCK_BOOTTIME`. 0 if the node sets no deadline, or if it is unknown.
    pub deadline: u64,
    /// The time from which the next renewal is overdue, on the same clock; 0 if there is no
    /// deadline.
    pub jeopardy_at: u64,
    /// The time until the deadline when this was written, in milliseconds.
    #[serde(rename = "RemainingMS")]
    pub remaining_ms: u64,
    /// The reason why it is not `safe`, or has no deadline; otherwise empty.
    pub reason: String,
    /// The index for the next blocking query; it never decreases.
    pub index: u64,
}

/// The reply to `PUT /v1/session/create`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The new session's id.
    #[serde(rename = "ID")]
    pub id: String,
}
