//! User events.

use super::Blob;
use serde::{Deserialize, Serialize};

/// An event: the answer of `event/fire`, and an element of `event/list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Event {
    /// Its id, a UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// What it is about.
    pub name: String,
    /// Any bytes; `null` for none.
    pub payload: Option<Blob>,
    /// For hosts with such a name: a regular expression, as the next two.
    pub node_filter: String,
    /// For hosts with such a service, by its id.
    pub service_filter: String,
    /// For hosts on which such a service has such a tag.
    pub tag_filter: String,
    /// By what it is to be understood.
    pub version: u64,
    /// When it was fired, in the order of events; 0 where it has not been.
    #[serde(rename = "LTime")]
    pub lamport_time: u64,
}
