//! User events.

use super::Blob;
use serde::{Deserialize, Serialize};

/// An event: the reply of `event/fire`, and an element of `event/list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Event {
    /// Its id, a UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The event's name.
    pub name: String,
    /// The payload; `null` if empty.
    pub payload: Option<Blob>,
    /// A regular expression for the names of the target hosts, like the next two.
    pub node_filter: String,
    /// A regular expression for the id of a service on the target hosts.
    pub service_filter: String,
    /// A regular expression for a tag of that service.
    pub tag_filter: String,
    /// The version of the event's format.
    pub version: u64,
    /// The Lamport time of the event; 0 if it was not fired yet.
    #[serde(rename = "LTime")]
    pub lamport_time: u64,
}
