//! The JSON that the local agent speaks: Consul's field names, in Consul's order.
//!
//! One set of types for both ends: the agent renders its answers from them, the client parses with
//! them. They hold plain strings and numbers and never any behaviour; what a field means is said
//! where the state keeps it.
//!
//! | module | is |
//! |---|---|
//! | [`json`] | how they become bytes: Go's escapes, Consul's indent |
//! | [`blob`] | bytes as base64 |
//! | [`kv`] | entries |
//! | [`session`] | sessions |
//! | [`txn`] | transactions |
//! | [`catalog`] | nodes, services, registrations |
//! | [`health`] | checks, and services with their checks |
//! | [`event`] | user events |
//! | [`agent`] | what an agent says of itself, its members and its own checks |
//! | [`operator`] | the quorum |
//! | [`lockmesh`] | what Consul lacks: locks and losses |
//!
//! Parsing is lenient: a missing field or a `null` is the default, an unknown field is skipped.

pub mod agent;
pub mod blob;
pub mod catalog;
pub mod event;
pub mod health;
pub mod json;
pub mod kv;
pub mod lockmesh;
pub mod operator;
pub mod session;
pub mod txn;

pub use blob::Blob;

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default: Go writes it for a list or a map that is empty.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
