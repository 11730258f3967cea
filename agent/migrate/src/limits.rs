//! The limits of an agent for keys, values and transactions, which a bulk write keeps.

use lockmesh_agent::go::path;
use lockmesh_client::{Client, Error};
use serde_json::Value;

/// The maximum number of operations of a transaction: small enough to be written quickly, and
/// within the limits of Consul's agents.
const MAX_OPERATIONS: usize = 64;

/// The same of bytes.
pub const MAX_BODY: usize = 256 << 10;

/// The maximum length of a key in bytes: percent-encoded, it must fit into the head of a request.
pub const MAX_KEY: usize = 32 << 10;

/// The size of an operation in a transaction's body besides key and value.
const OPERATION_OVERHEAD: usize = 128;

/// The reason why no request could read a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A character has no form on a screen.
    #[error("has the character U+{:04X}, which cannot be printed; use another name", u32::from(*.0))]
    Unprintable(char),
    /// A path of a URL loses such parts.
    #[error("begins with a slash, or has an empty part, `.` or `..`; use another name")]
    Parts,
    /// It does not fit into the head of a request.
    #[error("is longer than {MAX_KEY} bytes; use a shorter name")]
    Long,
    /// JSON shows bytes that are not UTF-8 as U+FFFD.
    #[error("has bytes that are not UTF-8; use another name")]
    NotText,
}

/// The limits of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of a value.
    pub value: usize,
    /// The maximum size of a transaction's body.
    pub body: usize,
    /// The maximum number of operations in a transaction.
    pub operations: usize,
}

impl Default for Limits {
    /// The limits of an agent that does not report its own.
    fn default() -> Self {
        Self { value: 512 << 10, body: MAX_BODY, operations: MAX_OPERATIONS }
    }
}

impl Limits {
    /// Asks the agent for its limits.
    ///
    /// # Errors
    /// The agent cannot be asked.
    pub async fn of(client: &Client) -> Result<Self, Error> {
        let usual = Self::default();
        let config = match client.agent().describe().await {
            Ok(described) => described.debug_config,
            // An agent with access control may keep them to itself.
            Err(Error::Refused { .. }) => return Ok(usual),
            Err(error) => return Err(error),
        };
        let number = |name: &str| config.get(name)?.as_u64().and_then(|number| usize::try_from(number).ok());
        let value = number("KVMaxValueSize").unwrap_or(usual.value);
        // The agent accepts transactions up to the larger of the two limits.
        let body = number("TxnMaxReqLen").map_or(usual.body, |body| body.max(value));
        let operations = number("TxnMaxOperations").unwrap_or(usual.operations);
        Ok(Self { value, body: body.min(MAX_BODY), operations: operations.clamp(1, MAX_OPERATIONS) })
    }
}

/// Joins a prefix and a key as parts of a path. A slash at the end of a key stays.
pub fn joined(prefix: &str, key: &str) -> String {
    match prefix.trim_matches('/') {
        "" => key.into(),
        prefix => format!("{prefix}/{}", key.trim_start_matches('/')),
    }
}

/// Rejects a key that no request could read.
///
/// # Errors
/// The reason, which follows the name of the key.
pub fn check_key(key: &str) -> Result<(), KeyError> {
    match path::unprintable(key) {
        Some(character) => Err(KeyError::Unprintable(character)),
        None if path::cleaned(&format!("/{key}")).is_some() => Err(KeyError::Parts),
        None if key.len() > MAX_KEY => Err(KeyError::Long),
        None => Ok(()),
    }
}

/// Returns the size of a write in a transaction's body.
pub fn size_of(key: &str, value: &[u8]) -> usize {
    // In JSON, characters of a key are escaped, and a value is in base64.
    let escaped = Value::from(key).to_string().len();
    OPERATION_OVERHEAD + escaped + value.len().div_ceil(3) * 4
}
