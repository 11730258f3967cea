//! Settings that agents and servers share: node, certificate, logs.
//!
//! These are the sections of a configuration and the checks that reject a value by its key. The
//! other settings are defined with each role.

use crate::tls::IdentityFiles;
use lockmesh_protocol::duration;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The identity of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// The node's name; empty for the host name. Compared case-insensitively.
    pub name: String,
    /// The node's UUID; empty to generate one at the first start and keep it in the data folder.
    pub id: String,
    /// The datacenter's name: lower-case letters, digits, `-` and `_`.
    pub datacenter: String,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { name: String::new(), id: String::new(), datacenter: "dc1".into() }
    }
}

impl NodeConfig {
    /// Rejects names that are invalid in a URL or a certificate, or that cannot be compared.
    ///
    /// # Errors
    /// The first key with an invalid value, and the valid values.
    pub fn check(&self) -> Result<(), ConfigError> {
        let printable = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
        if !self.name.chars().all(printable) || self.name.len() > 253 {
            let problem = "must be at most 253 printable characters without spaces and slashes";
            return Err(ConfigError::new("node.name", problem));
        }
        if !self.id.is_empty() && !is_uuid(&self.id) {
            let problem = "must be a UUID such as 6f2d5f5e-0c3a-4b5e-9d0f-3c1a5c1f7a10, or empty to draw one";
            return Err(ConfigError::new("node.id", problem));
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if self.datacenter.is_empty() || !self.datacenter.chars().all(allowed) {
            let problem = "must be lower-case letters, digits, `-` and `_`, and not empty";
            return Err(ConfigError::new("node.datacenter", problem));
        }
        Ok(())
    }
}

/// Certificates for mutual TLS. The certificate names the role and the node.
///
/// The default has no paths, which [`TlsConfig::check`] rejects; each role has its own default,
/// [`TlsConfig::of_role`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// The trusted authorities, as PEM.
    pub ca: PathBuf,
    /// This machine's certificate, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM; readable only by this process.
    pub key: PathBuf,
}

impl TlsConfig {
    /// Returns the default paths of a role's files.
    pub fn of_role(role: &str) -> Self {
        Self {
            ca: "/etc/lockmesh/tls/ca.pem".into(),
            certificate: format!("/etc/lockmesh/tls/{role}.pem").into(),
            key: format!("/etc/lockmesh/tls/{role}-key.pem").into(),
        }
    }

    /// Rejects empty paths; the files are checked when they are read.
    ///
    /// # Errors
    /// The first key with an invalid value, and the valid values.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_path("tls.ca", &self.ca)?;
        check_path("tls.certificate", &self.certificate)?;
        check_path("tls.key", &self.key)
    }

    /// Returns the paths of the certificate's files.
    pub fn files(&self) -> IdentityFiles {
        IdentityFiles {
            authorities: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}

/// The logging settings. Logs are written to stderr.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The log level: `error`, `warn`, `info`, `debug`, `trace` or `off`, optionally by module:
    /// `info,lockmesh_server=debug`.
    pub level: String,
    /// Human-readable text, or one JSON object per line.
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For humans.
    #[default]
    Text,
    /// For machines.
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

/// The reason why a configuration is rejected; names the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct ConfigError {
    /// The key with its sections, such as `limits.watches`.
    pub key: String,
    /// The defect and the valid values.
    pub problem: String,
}

impl ConfigError {
    /// Creates an error about a key.
    pub fn new(key: &str, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// Rejects an empty path.
///
/// # Errors
/// The key and the requirement.
pub fn check_path(key: &str, path: &Path) -> Result<(), ConfigError> {
    match path.as_os_str().is_empty() {
        true => Err(ConfigError::new(key, "must not be empty")),
        false => Ok(()),
    }
}

/// Rejects a number outside its range.
///
/// # Errors
/// The key, its value and the valid range.
pub fn check_range(key: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::new(key, format!("is {value}, but must be {least} to {most}"))),
    }
}

/// Rejects a duration outside its range.
///
/// # Errors
/// The key, its value and the valid range.
pub fn check_length(key: &str, value: Duration, least: Duration, most: Duration) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => {
            let [value, least, most] = [value, least, most].map(duration::format);
            Err(ConfigError::new(key, format!("is {value}, but must be {least} to {most}")))
        }
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
}
/// An optional value in a file in which every key has a value: the empty string is `None`.
pub mod empty_is_none {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    /// Serializes the value, or the empty string.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S, T>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Display,
    {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_str(""),
        }
    }

    /// Deserializes the value, or `None` from the empty string.
    ///
    /// # Errors
    /// The text is neither empty nor a valid value.
    pub fn deserialize<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr,
        T::Err: Display,
    {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
    }
}
