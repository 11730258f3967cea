//! The limits of an agent for keys, values and transactions, which a bulk write keeps.

use super::super::error::CliError;
use lockmesh_agent::http::go::path;
use lockmesh_client::{Client, Error};
use serde_json::Value;

/// The maximum number of operations and of bytes of a transaction: small enough to be written
/// quickly, and within the limits of Consul's agents.
const MAX_OPERATIONS: usize = 64;
pub(super) const MAX_BODY: usize = 256 << 10;

/// The maximum length of a key in bytes: percent-encoded, it must fit into the head of a request.
pub(super) const MAX_KEY: usize = 32 << 10;

/// The size of an operation in a transaction's body besides key and value.
const OPERATION_OVERHEAD: usize = 128;

/// The limits of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::command) struct Limits {
    /// The maximum size of a value.
    pub(in crate::command) value: usize,
    /// The maximum size of a transaction's body.
    pub(in crate::command) body: usize,
    /// The maximum number of operations in a transaction.
    pub(in crate::command) operations: usize,
}

impl Default for Limits {
    /// The limits of an agent that does not report its own.
    fn default() -> Self {
        Self { value: 512 << 10, body: MAX_BODY, operations: MAX_OPERATIONS }
    }
}

impl Limits {
    /// Asks the agent for its limits.
    pub(in crate::command) async fn of(client: &Client) -> Result<Self, CliError> {
        let usual = Self::default();
        let config = match client.agent().describe().await {
            Ok(described) => described.debug_config,
            // An agent with access control may keep them to itself.
            Err(Error::Refused { .. }) => return Ok(usual),
            Err(error) => return Err(error.into()),
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
pub(in crate::command) fn joined(prefix: &str, key: &str) -> String {
    match prefix.trim_matches('/') {
        "" => key.into(),
        prefix => format!("{prefix}/{}", key.trim_start_matches('/')),
    }
}

/// Rejects a key that no request could read.
pub(in crate::command) fn check_key(key: &str) -> Result<(), String> {
    if let Some(character) = path::unprintable(key) {
        let code = u32::from(character);
        return Err(format!("has the character U+{code:04X}, which cannot be printed; use another name"));
    }
    if path::cleaned(&format!("/{key}")).is_some() {
        return Err("begins with a slash, or has an empty part, `.` or `..`; use another name".into());
    }
    if key.len() > MAX_KEY {
        return Err(format!("is longer than {MAX_KEY} bytes; use a shorter name"));
    }
    Ok(())
}

/// Returns the size of a write in a transaction's body.
pub(in crate::command) fn size_of(key: &str, value: &[u8]) -> usize {
    let escaped = Value::from(key).to_string().len();
    OPERATION_OVERHEAD + escaped + value.len().div_ceil(3) * 4
}
