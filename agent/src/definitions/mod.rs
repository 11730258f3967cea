//! Definitions of services and checks, as applications send them and configuration files hold them.
//!
//! Both are JSON values here. An application uses the names of Consul's API, in any case, and a
//! configuration file's are the same in `snake_case`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the spellings of the names, and the errors |
//! | `check.rs` | checks, their kinds and their rules |
//! | `service.rs` | services, their metadata and addresses |

mod check;
mod service;

pub use check::{parse_check, parse_check_registration};
pub use service::{MAX_META, check_meta, configured, parse_service_registration, tagged_addresses};

use crate::http::go::duration::parse;
use crate::http::go::json::{JsonError, Object};
use serde_json::{Map, Value};

/// The reason why a definition is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The definition is wrong: 400, with this text.
    #[error("{0}")]
    Wrong(String),
    /// The definition cannot be used by this agent: 500, with this text.
    #[error("{0}")]
    Unusable(String),
}

impl From<JsonError> for DefinitionError {
    fn from(error: JsonError) -> Self {
        Self::Wrong(format!("Request decode failed: {error}"))
    }
}

/// The spelling of the names in a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// The API's names, and those in `snake_case` that it knows too.
    Api,
    /// `snake_case`, of a configuration file.
    Config,
}

/// The names in `snake_case` that the API knows.
const API_ALIASES: &[&str] = &[
    "service_id",
    "script_args",
    "deregister_critical_service_after",
    "docker_container_id",
    "tls_server_name",
    "tls_skip_verify",
    "grpc_use_tls",
    "h2ping_use_tls",
    "disable_redirects",
    "tagged_addresses",
    "enable_tag_override",
    "sidecar_service",
    "destination_service_name",
    "destination_service_id",
    "local_service_address",
    "local_service_port",
    "mesh_gateway",
];
/// The fields whose value is an object with names of its own.
const OBJECTS: [&str; 2] = ["Proxy", "Connect"];

/// Returns an object with the API's names, without underscores.
fn folded(value: &Value, spelling: Spelling) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let is_in = |list: &[&str], name: &str| list.iter().any(|known| known.eq_ignore_ascii_case(name));
    let field = |(name, value): (&String, &Value)| {
        let name = match spelling {
            Spelling::Api if !is_in(API_ALIASES, name) => name.clone(),
            _ => name.replace('_', ""),
        };
        let value = if is_in(&OBJECTS, &name) { folded(value, spelling) } else { value.clone() };
        (name, value)
    };
    Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
}

/// Reads a duration as text, or as a number of nanoseconds; 0 if absent or empty.
fn duration_field(object: &Object<'_>, name: &str) -> Result<i64, JsonError> {
    match object.value(name) {
        None => Ok(0),
        Some(Value::String(text)) if text.is_empty() => Ok(0),
        Some(Value::String(text)) => parse(text).map_err(|error| JsonError::Value(error.to_string())),
        Some(Value::Number(number)) => {
            number.as_i64().ok_or_else(|| JsonError::Value(format!("time: invalid duration \"{number}\"")))
        }
        Some(other) => Err(object.wrong(name, other, "time.Duration")),
    }
}
