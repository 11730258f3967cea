//! The agent's own tokens. Only the default token is used: it is that of requests without one. The
//! agent's other requests need none, because its certificate names its node.

use crate::node::write_durably;
use lockmesh_net::owner;
use lockmesh_protocol::acl::record::ANONYMOUS_SECRET;
use lockmesh_protocol::acl::{Caller, SecretHash};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file in the data directory.
const FILE: &str = "acl-tokens.json";

/// The names of the default token, and of the tokens that are accepted without a use.
const DEFAULT_NAMES: [&str; 2] = ["default", "acl_token"];
const UNUSED_NAMES: [&str; 9] = [
    "agent",
    "acl_agent_token",
    "agent_recovery",
    "agent_master",
    "acl_agent_master_token",
    "replication",
    "acl_replication_token",
    "config_file_service_registration",
    "dns",
];

/// The contents of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    default: String,
}

/// The reason why the tokens of an earlier process are unknown.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("cannot read the agent's tokens {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file does not hold tokens. Its content may be a secret.
    #[error("{0} does not hold an agent's tokens: remove it, and set the tokens again")]
    Damaged(PathBuf),
}

/// The tokens of an agent.
#[derive(Debug, Default)]
pub struct AgentTokens {
    /// The caller of requests without a token; `None` without a default token.
    default: Mutex<Option<Caller>>,
    /// The file; `None` if tokens are not kept.
    path: Option<PathBuf>,
}

impl AgentTokens {
    /// Returns the tokens of an agent with this default token, empty for none. If `folder` is
    /// given, tokens are kept there, and those of an earlier process count.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold tokens.
    pub fn open(default: &str, folder: Option<&Path>) -> Result<Self, TokenFileError> {
        let path = folder.map(|folder| folder.join(FILE));
        let kept = path.as_deref().map(read).transpose()?.flatten();
        let default = kept.map_or_else(|| default.to_owned(), |kept| kept.default);
        Ok(Self { default: Mutex::new(caller(&default)), path })
    }

    /// Returns the caller of a request without a token.
    pub(crate) fn default_caller(&self) -> Caller {
        let default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        default.clone().unwrap_or(Caller::Anonymous)
    }

    /// Replaces the token of this name; an empty one removes it. Returns `false` for an unknown
    /// name. Waits for the disk.
    ///
    /// # Errors
    /// The token is not kept. It counts until the process ends.
    pub(crate) fn replace(&self, name: &str, secret: &str) -> io::Result<bool> {
        if !DEFAULT_NAMES.contains(&name) {
            return Ok(UNUSED_NAMES.contains(&name));
        }
        let mut default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        *default = caller(secret);
        if let Some(path) = &self.path {
            let kept = Kept { default: secret.into() };
            write_durably(path, &serde_json::to_string(&kept)?)?;
        }
        Ok(true)
    }
}

/// Returns the caller with this secret; `None` if it is empty.
pub(crate) fn caller(secret: &str) -> Option<Caller> {
    match secret {
        "" => None,
        ANONYMOUS_SECRET => Some(Caller::Anonymous),
        secret => Some(Caller::Token(SecretHash::of(secret))),
    }
}

fn read(path: &Path) -> Result<Option<Kept>, TokenFileError> {
    match owner::read(path) {
        // The parser's error may quote the secret.
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|_| TokenFileError::Damaged(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TokenFileError::Unreadable { path: path.into(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn token(secret: &str) -> Caller {
        Caller::Token(SecretHash::of(secret))
    }

    /// Contract: 163.
    #[test]
    fn kept_token_precedes_configured_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |folder| AgentTokens::open("configured", folder).expect("no file, or a good one");
        let tokens = open(Some(folder.path()));
        assert_eq!(tokens.default_caller(), token("configured"));
        for (name, is_known) in [("acl_token", true), ("dns", true), ("master", false), ("", false)] {
            assert_eq!(tokens.replace(name, "new").expect("it is written"), is_known, "{name}");
        }
        let mode = std::fs::metadata(folder.path().join(FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(open(Some(folder.path())).default_caller(), token("new"));
        assert_eq!(open(None).default_caller(), token("configured"));
        tokens.replace("default", "").expect("it is written");
        assert_eq!(open(Some(folder.path())).default_caller(), Caller::Anonymous);
    }

    #[test]
    fn damaged_file_error_without_content() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), "{\"default\":\"s3cret\"").expect("a file");
        let error = AgentTokens::open("", Some(folder.path())).expect_err("damaged").to_string();
        assert!(error.contains(FILE) && !error.contains("s3cret"), "{error}");
    }
}
