//! Access control lists: who sends a request, the tables that say what it may do, and the refusals.
//! The rules and their precedence are Consul's.

pub mod peer;
pub mod record;
pub mod rights;
pub mod rules;

pub use peer::{AuthMethod, BindType, BindingRule, NewBindingRule, UnixPeer};
pub use record::{
    AclChange, AclCommand, AclMode, AclSettings, DefaultPolicy, Links, NewPolicy, NewRole, NewToken,
    NodeIdentity, Policy, Role, ServiceIdentity, TemplatedPolicy, Token,
};
pub use rights::{NoAccess, Rights, Who};
pub use rules::{Access, Level, Resource, Rule, Rules};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// The SHA-256 of a token's secret. Requests and log entries have it instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Returns the hash of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }
}

impl fmt::Debug for SecretHash {
    /// Writes four bytes, enough to tell tokens apart in tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// The identity with which an agent sends a request. Stored: only appended to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Caller {
    /// The agent itself, for its own node.
    #[default]
    Agent,
    /// A client without a token.
    Anonymous,
    /// A client with a token.
    Token(SecretHash),
    /// A client without a token, whose user the kernel names.
    Peer(Arc<UnixPeer>),
}
