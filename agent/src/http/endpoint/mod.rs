//! The endpoints, one file per family, and the table that lists them all.
//!
//! An endpoint parses, asks the state once, and renders. It keeps no state between requests.

pub mod session;
pub mod txn;

mod acl;
mod agent;
mod autopilot;
mod catalog;
mod check;
mod coordinate;
mod event;
mod gossip;
mod health;
mod instances;
mod kv;
mod lockmesh;
mod machine;
mod membership;
mod misfit;
mod monitoring;
mod operator;
mod prepared_query;
mod prepared_query_body;
mod registration;
mod service;
mod session_events;
mod snapshot;
mod status;
pub(super) mod table;
