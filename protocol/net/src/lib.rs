//! How machines' words travel: QUIC with mutual TLS, and the certificates that say who is who.
//!
//! **Invariant:** nothing here knows what a command means; messages are whatever the caller's type
//! encodes to. Only [`client`] knows the frames of calls.

#![warn(clippy::missing_errors_doc)]

pub mod certificate;
pub mod client;
pub mod config;
pub mod development;
pub mod expiry;
pub mod files;
pub mod frame;
pub mod private;
pub mod quic;
pub mod random;
pub mod tls;

pub use certificate::{Authority, CertificateError};
pub use client::CallClient;
pub use development::Development;
pub use expiry::CertificateLife;
pub use lockmesh_protocol::peer::{self, Peer, Role};
pub use quic::{Close, Connection, Endpoint, LinkError, Purpose, QuicOptions};
pub use tls::{Identity, IdentityFiles};
