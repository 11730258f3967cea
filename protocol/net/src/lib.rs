//! How machines' words travel: QUIC with mutual TLS, and the certificates that say who is who.
//!
//! **Invariant:** nothing here knows what a command means; messages are whatever the caller's type encodes to.

pub mod peer;

pub use peer::{Peer, Role};
