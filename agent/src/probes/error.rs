//! The reasons why a probe fails, in Go's words.

use std::net::SocketAddr;

/// The reason why a target did not answer a probe.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The address of the definition is malformed.
    #[error("dial {network}: address {address}: {why}")]
    Address { network: &'static str, address: String, why: &'static str },
    /// The name does not resolve.
    #[error("dial {network}: lookup {name}: {why}")]
    Lookup { network: &'static str, name: String, why: String },
    /// The target does not accept a connection.
    #[error("dial {network} {peer}: {why}")]
    Dial { network: &'static str, peer: SocketAddr, why: String },
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(String),
    /// No request can be made of the definition, or of a redirect.
    #[error("{0}")]
    Request(String),
    /// The target redirects without end.
    #[error("stopped after {0} redirects")]
    Redirects(usize),
    /// The HTTP exchange broke off.
    #[error("{0}")]
    Exchange(String),
    /// The connection for pings cannot be opened.
    #[error("Failed to dial to {address}: {cause}")]
    NoTransport { address: String, cause: Box<Self> },
    /// The ping is not acknowledged.
    #[error("HTTP2 ping failed: {0}")]
    Ping(String),
    /// The call failed with this status of gRPC.
    #[error("rpc error: code = {code} desc = {text}")]
    Rpc { code: &'static str, text: String },
}
