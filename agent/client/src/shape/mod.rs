//! The JSON of the local agent's API: Consul's field names, in Consul's order.
//!
//! Both ends share these types: the agent renders its replies from them, the client parses with
//! them. They hold plain strings and numbers without behavior. The meaning of a field is documented
//! with the state that stores it.
//!
//! | module | contents |
//! |---|---|
//! | [`json`] | the encoding: Go's escapes, Consul's indent |
//! | [`blob`] | bytes as base64 |
//! | [`kv`] | entries |
//! | [`session`] | sessions |
//! | [`txn`] | transactions |
//! | [`catalog`] | nodes, services, registrations |
//! | [`health`] | checks, and services with their checks |
//! | [`event`] | user events |
//! | [`agent`] | an agent's description of itself, its members and its own checks |
//! | [`operator`] | the quorum |
//! | [`acl`] | access control lists |
//! | [`prepared_query`] | prepared queries and their results |
//! | [`lockmesh`] | extensions to Consul: locks and losses |
//!
//! Parsing is lenient: a missing field or a `null` is the default, an unknown field is skipped.

pub mod acl;
pub mod agent;
pub mod blob;
pub mod catalog;
pub mod event;
pub mod health;
pub mod json;
pub mod kv;
pub mod lockmesh;
pub mod operator;
pub mod prepared_query;
pub mod session;
pub mod txn;

pub use blob::Blob;

use serde::{Deserialize, Deserializer};

/// Parses `null` as the default: Go encodes an empty list or map as `null`.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
