//! The address of the local agent.

use std::fmt;
use std::path::PathBuf;

/// The default HTTP port of an agent.
pub const DEFAULT_PORT: u16 = 8500;

/// The address that an agent listens on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// A host name or an IP address; IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Default for Address {
    fn default() -> Self {
        Self::Tcp { host: "127.0.0.1".into(), port: DEFAULT_PORT }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}
