//! Services and checks in a configuration file, whose errors name their place.

use lockmesh_agent_core::definitions::{Configured, NewCheck, ServiceRegistration};
use lockmesh_agent_core::definitions::{DefinitionError, Spelling, parse_check, parse_service};
use lockmesh_net::config::ConfigError;
use serde_json::Value;

/// Parses the services and checks of a configuration file.
///
/// # Errors
/// The first definition that has to be changed, by its place and its name.
pub fn configured(services: &[Value], checks: &[Value]) -> Result<Configured, ConfigError> {
    let services = services.iter().enumerate().map(|(number, value)| configured_service(number, value));
    let checks = checks.iter().enumerate().map(|(number, value)| configured_check(number, value));
    Ok(Configured {
        services: services.collect::<Result<_, _>>()?,
        checks: checks.collect::<Result<_, _>>()?,
    })
}

/// Parses one service of a configuration file, at this position of its list.
///
/// # Errors
/// It has to be changed.
pub fn configured_service(number: usize, value: &Value) -> Result<ServiceRegistration, ConfigError> {
    parse_service(value, Spelling::Config).map_err(|error| unusable("services", number, value, &error))
}

/// Parses one check of a configuration file, at this position of its list.
///
/// # Errors
/// It has to be changed.
pub fn configured_check(number: usize, value: &Value) -> Result<NewCheck, ConfigError> {
    parse_check(value, Spelling::Config).map_err(|error| unusable("checks", number, value, &error))
}

fn unusable(list: &str, number: usize, value: &Value, error: &DefinitionError) -> ConfigError {
    let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
    let error = error.to_string();
    // The prefix is Consul's for a request, and means nothing in a file.
    let reason = error.trim_start_matches("Request decode failed: ");
    ConfigError::new(&format!("{list}[{number}]"), format!("({name:?}) cannot be used: {reason}"))
}
