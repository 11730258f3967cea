//! Settings that agents and servers share: node, certificate, logs.
//!
//! These are the sections of a configuration and the checks that reject a value by its key. The
//! other settings are defined with each role.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the shared sections |
//! | `section.rs` | the macro that describes sections: each key once, with default and range |

mod section;

pub use section::{Bounded, Section, check_path, check_range, hours, mins, ms, path, secs};

use crate::sections;
use crate::tls::IdentityFiles;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

sections! {
    /// The identity of this machine.
    pub struct NodeConfig {
        /// The node's name; empty for the host name. Compared case-insensitively.
        name: String = String::new(), by check_name;
        /// The node's UUID; empty to generate one at the first start and keep it in the data
        /// folder.
        id: String = String::new(), by check_id;
        /// The datacenter's name: lower-case letters, digits, `-` and `_`.
        datacenter: String = "dc1".into(), by check_datacenter;
    }

    /// Certificates for mutual TLS. The certificate names the role and the node. The default has
    /// no paths, which is invalid; each role has its own default, [`TlsConfig::of_role`].
    pub struct TlsConfig {
        /// The trusted authorities, as PEM.
        ca: PathBuf = PathBuf::new(), by check_path;
        /// This machine's certificate, as PEM.
        certificate: PathBuf = PathBuf::new(), by check_path;
        /// Its private key, as PEM; readable only by this process.
        key: PathBuf = PathBuf::new(), by check_path;
    }

    /// The logging settings. Logs are written to stderr.
    pub struct LogConfig {
        /// The log level: `error`, `warn`, `info`, `debug`, `trace` or `off`, optionally by module:
        /// `info,lockmesh_server=debug`.
        level: String = "info".into();
        /// Human-readable text, or one JSON object per line.
        format: LogFormat = LogFormat::Text;
    }
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

    /// Returns the paths of the certificate's files.
    pub fn files(&self) -> IdentityFiles {
        IdentityFiles {
            authorities: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
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

fn check_name(name: &str, key: &str) -> Result<(), ConfigError> {
    // Without spaces, which distinguish `MISSING_RENEWALS` in a list of nodes from a name.
    let printable = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    if !name.chars().all(printable) || name.len() > 253 {
        let problem = "must be at most 253 printable characters without spaces and slashes";
        return Err(ConfigError::new(key, problem));
    }
    Ok(())
}

fn check_id(id: &str, key: &str) -> Result<(), ConfigError> {
    if !id.is_empty() && !is_uuid(id) {
        let problem = "must be a UUID such as 6f2d5f5e-0c3a-4b5e-9d0f-3c1a5c1f7a10, or empty to draw one";
        return Err(ConfigError::new(key, problem));
    }
    Ok(())
}

fn check_datacenter(name: &str, key: &str) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(allowed) {
        let problem = "must be lower-case letters, digits, `-` and `_`, and not empty";
        return Err(ConfigError::new(key, problem));
    }
    Ok(())
}

/// The maximum number of faults that one error lists.
pub const MAX_LISTED: usize = 40;

/// The faults of a file, a line each and a limited number of them.
pub fn listed(faults: &[String]) -> String {
    let shown = faults[..faults.len().min(MAX_LISTED)].join("\n");
    match faults.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        more => format!("{shown}\nand {more} more"),
    }
}

/// Returns `true` for a UUID with its hyphens.
pub fn is_uuid(text: &str) -> bool {
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
