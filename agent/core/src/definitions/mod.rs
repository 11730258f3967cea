//! Definitions of services and checks, as applications send them, configuration files hold them,
//! and the catalog has them.
//!
//! All are JSON values here. An application uses the names of Consul's API, in any case, and a
//! configuration file's are the same in `snake_case`.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the spellings of the names, and the errors |
//! | `types.rs` | what can be registered |
//! | `check.rs` | checks, their kinds and their rules |
//! | `service.rs` | services, their metadata and addresses |
//! | `catalog.rs` | nodes, services and checks of the catalog |
//! | `service_mesh.rs` | the fields of a service that are only kept, most of a service mesh |

mod catalog;
mod check;
mod service;
pub mod service_mesh;
mod types;

pub use catalog::{
    ServiceError, check_service, parse_catalog_check, parse_catalog_service, parse_deregistration,
    parse_node, parse_registration,
};
pub use check::{parse_check, parse_check_registration};
pub(crate) use service::check_pairs;
pub use service::{
    MAX_META, MetaError, check_address, check_meta, parse_service, parse_service_registration,
};
pub use types::{
    CheckKind, Configured, DEFINITION_TTL, HttpTarget, MIN_INTERVAL, NewCheck, Probe, ServiceRegistration,
    Sidecar, Target, Thresholds, TlsTarget, sidecar_of,
};

use crate::go::duration::parse;
use crate::go::json::{JsonError, Object};
use crate::go::path;
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
/// The fields of a proxy that are stored with the names in them.
const STORED: [&str; 6] =
    ["AccessLogs", "EnvoyExtensions", "Expose", "MeshGateway", "TransparentProxy", "Upstreams"];
/// The fields in these whose own names are free.
const FREE: [&str; 2] = ["Arguments", "Config"];

/// Returns an object with the API's names, without underscores.
fn folded(value: &Value, spelling: Spelling) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let is_in = |list: &[&str], name: &str| list.iter().any(|known| known.eq_ignore_ascii_case(name));
    let field = |(name, value): (&String, &Value)| {
        let name = match spelling {
            Spelling::Api if !is_in(API_ALIASES, name) => name.clone(),
            _ => name.replace('_', ""),
        };
        let value = match spelling {
            _ if is_in(&OBJECTS, &name) => folded(value, spelling),
            Spelling::Config if is_in(&STORED, &name) => with_api_names(value),
            _ => value.clone(),
        };
        (name, value)
    };
    Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
}

/// Returns a value of a configuration file with the API's names at every depth.
fn with_api_names(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(with_api_names).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let name: String = name.split('_').map(capitalized).collect();
                let is_free = FREE.contains(&name.as_str());
                (name, if is_free { value.clone() } else { with_api_names(value) })
            };
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        _ => value.clone(),
    }
}

/// Returns a word of a name as the API spells it.
fn capitalized(word: &str) -> String {
    match word.split_at_checked(1) {
        _ if word == "json" => "JSON".into(),
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => word.into(),
    }
}

/// Checks that a request can name an id in its path, to change or remove what it stands for.
///
/// # Errors
/// `what` needs another id.
fn check_id(what: &str, id: &str) -> Result<(), DefinitionError> {
    let reason = if path::unprintable(id).is_some() {
        "has a character that cannot be printed"
    } else if path::cleaned(&format!("/{id}")).is_some() {
        "begins with a slash, or has an empty part, `.` or `..`"
    } else {
        return Ok(());
    };
    Err(DefinitionError::Wrong(format!("Invalid {what} ID {id:?}: it {reason}; use another ID")))
}

/// Reads a duration as text, or as a number of nanoseconds; 0 if absent, or empty in a file.
fn duration_field(object: &Object<'_>, name: &str, spelling: Spelling) -> Result<i64, JsonError> {
    match object.value(name) {
        None => Ok(0),
        Some(Value::String(text)) if text.is_empty() && spelling == Spelling::Config => Ok(0),
        Some(Value::String(text)) => parse(text).map_err(|error| JsonError::Value(error.to_string())),
        Some(Value::Number(number)) => {
            number.as_i64().ok_or_else(|| JsonError::Value(format!("time: invalid duration \"{number}\"")))
        }
        Some(other) => Err(object.wrong(name, other, "time.Duration")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configured_proxy_uses_api_names() {
        let definition = json!({"name": "p", "proxy": {
            "destination_service_name": "web",
            "upstreams": [{"destination_name": "db", "mesh_gateway": {"mode": "local"}, "config": {"max_pending": 1}}],
            "expose": {"paths": [{"local_path_port": 80}]},
            "access_logs": {"json_format": "x"},
            "envoy_extensions": [{"Name": "a", "arguments": {"my_key": 1}}],
            "config": {"local_timeout": 1},
        }});
        let proxy = json!({
            "destinationservicename": "web",
            "upstreams": [{"DestinationName": "db", "MeshGateway": {"Mode": "local"}, "Config": {"max_pending": 1}}],
            "expose": {"Paths": [{"LocalPathPort": 80}]},
            "accesslogs": {"JSONFormat": "x"},
            "envoyextensions": [{"Name": "a", "Arguments": {"my_key": 1}}],
            "config": {"local_timeout": 1},
        });
        assert_eq!(folded(&definition, Spelling::Config)["proxy"], proxy);
    }
}
