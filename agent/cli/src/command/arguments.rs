//! Values of options that several commands have, and the reasons to reject them.

/// The reason why the value of an option is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    /// Not a pair.
    #[error("write it as KEY=VALUE")]
    Pair,
    /// Not a number of servers.
    #[error("must be 1, 3 or 5: an even number tolerates no more failures than the odd one below it")]
    Servers,
    /// Not a format of logs.
    #[error("must be `text` or `json`")]
    LogFormat,
    /// Not a default policy of access control lists.
    #[error("must be `allow` or `deny`")]
    DefaultPolicy,
    /// Not a number of holders.
    #[error("not a number of holders, 1 or more; to fail at once, use --once")]
    Holders,
    /// Not a node and its datacenter.
    #[error("write it as NODE:DATACENTER")]
    NodeIdentity,
    /// Not a variable of a template.
    #[error("write it as NAME:VALUE, such as name:web")]
    Variable,
    /// Not a permission.
    #[error("write it as RESOURCE:ACCESS, such as key:write or operator:read")]
    Permission,
    /// Not a role of certificates.
    #[error("must be `server` or `agent`")]
    Role,
}

/// Reads `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), ValueError> {
    let (key, value) = text.split_once('=').ok_or(ValueError::Pair)?;
    Ok((key.into(), value.into()))
}
