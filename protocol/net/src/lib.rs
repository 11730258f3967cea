//! Transport and operating system for agents and servers: QUIC with mutual TLS, datagrams,
//! certificates, private files, randomness, process metrics, shared settings.
//!
//! **Invariant:** a connection exists only after both certificates were verified, and a peer's
//! certificate alone determines its identity. Nothing here interprets a command; only [`client`]
//! knows the frames of calls.
//!
//! | module | contents |
//! |---|---|
//! | `quic.rs` | connections and streams; the only file that names quinn |
//! | `datagram.rs` | a UDP socket for gossip datagrams |
//! | `metrics/` | metrics that agents and servers share: registry, readings, the process |
//! | `admission.rs` | which connections are accepted, before and after their handshake |
//! | `accept.rs` | failures to accept connections, logged when they begin and end |
//! | `frame.rs` | messages to frames and back, without a socket |
//! | `client.rs` | occasional calls to a server: resolve, connect, call, time out |
//! | `node.rs` | a connection to one agent, reused for repeated challenges |
//! | `random.rs` | random numbers of the system; the only file that names getrandom |
//! | `tls.rs` | mutual TLS; the only file that names rustls |
//! | `certificate.rs` | creates and parses certificates |
//! | `development.rs` | an authority and two certificates, created at the first start |
//! | `config/` | settings that agents and servers share: node, certificate, logs |
//! | `expiry.rs` | warnings before certificates expire |
//! | `files.rs` | atomic files: complete or absent |
//! | `owner.rs` | the owners of files: no file of another user is used |
//! | `private.rs` | folders and files that only their owner can open |

pub mod accept;
pub mod admission;
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
pub mod owner;
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
