//! The shell around the core: driver loop, redb store, watches, QUIC service.

pub mod config;
pub mod mailbox;
pub mod rpc;
pub mod store;
