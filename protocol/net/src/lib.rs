//! What every process of ours needs of the outside world: QUIC with mutual TLS, datagrams,
//! certificates, private files, randomness, figures of the process, and the settings that both
//! roles share.
//!
//! **Invariant:** nothing here knows what a command means; messages are whatever the caller's type
//! encodes to. Only [`client`] knows the frames of calls.

pub mod certificate;
pub mod client;
pub mod config;
pub mod datagram;
pub mod development;
pub mod expiry;
pub mod files;
pub mod frame;
pub mod metrics;
pub mod node;
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
pub use tls::{Dialect, Identity, IdentityFiles};
