//! Sessions: what a client sends to make one, and what it is told of them.

use super::agent::NodeLease;
use super::null_as_default;
use serde::{Deserialize, Serialize};

/// A session as the agent shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Session {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// A name for people.
    pub name: String,
    /// The node that it dies with.
    pub node: String,
    /// In nanoseconds.
    pub lock_delay: i64,
    /// `release` or `delete`.
    pub behavior: String,
    /// As its creator wrote it; empty for none.
    #[serde(rename = "TTL")]
    pub ttl: String,
    /// Checks of the node that it depends on.
    #[serde(deserialize_with = "null_as_default")]
    pub node_checks: Vec<String>,
    /// Checks of services that it depends on.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The deprecated list of checks.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub checks: Vec<String>,
    /// How long its node may stay silent: `fast` or `safe`; left out for the default. Consul has no
    /// such field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub health_window: String,
    /// The index that created it.
    pub create_index: u64,
    /// The same for ever.
    pub modify_index: u64,
    /// How its node's lease stands: where `?lease` asks for it, and the servers' leader answers.
    /// Consul has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_lease: Option<NodeLease>,
}

/// A service's check that a session depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceCheck {
    /// The check's id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Carried, without a meaning.
    pub namespace: String,
}

/// The body of `PUT /v1/session/create`. What is `None` is left out, and the agent's default
/// stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewSession {
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The node; the agent's own where none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A Go duration such as `15s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_delay: Option<String>,
    /// `release` or `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behavior: Option<String>,
    /// A Go duration such as `15s`.
    #[serde(rename = "TTL", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Checks of the node; `Some` of an empty list for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_checks: Option<Vec<String>>,
    /// Checks of services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// The deprecated list of checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<String>>,
    /// How long its node may stay silent: `fast`, `default` or `safe`. Consul's agents overlook it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_window: Option<String>,
}

/// How a session stands, as `GET /v1/session/events/<id>` of its own node's agent says it: the data
/// of an event, and the answer to a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionEvent {
    /// Which session.
    pub session: String,
    /// `safe`, `jeopardy`, `suspended` or `lost`.
    pub state: String,
    /// Until when the session is surely alive, as far as its node is concerned: nanoseconds of this
    /// host's `CLOCK_BOOTTIME`. 0 where the node sets no deadline, or none is known.
    pub deadline: u64,
    /// From when on the next renewal is overdue, on the same clock; 0 where there is no deadline.
    pub jeopardy_at: u64,
    /// How long the deadline was away when this was written, in milliseconds.
    #[serde(rename = "RemainingMS")]
    pub remaining_ms: u64,
    /// Why it is not `safe`, or has no deadline; empty where there is nothing to say.
    pub reason: String,
    /// What to wait behind for the next one; never goes back.
    pub index: u64,
}

/// The answer to `PUT /v1/session/create`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The new session's id.
    #[serde(rename = "ID")]
    pub id: String,
}
