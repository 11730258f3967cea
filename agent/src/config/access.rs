//! `[access]`: rules for the requests of clients, by listener and, on the Unix socket, by user or
//! group.

use crate::accounts::Accounts;
use lockmesh_net::config::ConfigError;
use lockmesh_net::sections;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The maximum number of rules for users and groups.
const MAX_RULES: usize = 64;

/// The maximum number of prefixes of a rule.
const MAX_PREFIXES: usize = 64;

/// The maximum length of a prefix, in bytes.
const MAX_PREFIX: usize = 512;

/// The number that the kernel shows for a user or group without a number in this user namespace.
pub const OVERFLOW_ID: u32 = 65_534;

sections! {
    /// The requests that clients may send: a ceiling for each listener. Rights are `all`, `locks`
    /// or `read`. Prefixes limit them to keys below one of these; without prefixes they are for all
    /// keys.
    pub struct AccessConfig by Self::check_users {
        /// The rights of clients on the Unix socket, unless a rule of `users` matches.
        socket: Level = Level::All;
        /// The prefixes for these clients: at most 64, of up to 512 bytes.
        socket_prefixes: Vec<String> = Vec::new(), by check_prefixes;
        /// The rights of clients that connect from this host over loopback TCP.
        tcp: Level = Level::All;
        /// The prefixes for these clients.
        tcp_prefixes: Vec<String> = Vec::new(), by check_prefixes;
        /// The rights of clients that connect over TCP from any other address.
        remote: Level = Level::All;
        /// The prefixes for these clients.
        remote_prefixes: Vec<String> = Vec::new(), by check_prefixes;
        /// The rules for users and groups on the Unix socket, of which the first match replaces
        /// `socket`: at most 64.
        users: Vec<UserRule> = Vec::new();
        /// The place where each key was set, for refusals.
        #[serde(skip)]
        origins: Origins = Origins::default();
    }
}

/// The requests that a rule permits. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Reads.
    Read,
    /// Also sessions, locks, writes under a condition, and services and checks of this agent.
    Locks,
    /// Every request.
    #[default]
    All,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Locks => "locks",
            Self::All => "all",
        })
    }
}

/// A rule for a user or a group on the Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserRule {
    /// The user, by name or number; empty if the rule is for a group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The group, by name or number; empty if the rule is for a user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The rights.
    pub rights: Level,
    /// The prefixes of the keys; empty for all keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
}

/// The clients that a rule matches, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// This user.
    User(u32),
    /// The processes that connect with this group, and its members as of the last reload.
    Group(u32, BTreeSet<u32>),
}

/// The places where keys were set, by key, such as `line 4 of agent.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<String, String>);

impl Origins {
    /// Records a key of `[access]`; ignores other keys. A later place overrides an earlier one.
    pub fn insert(&mut self, key: &str, place: String) {
        if key.starts_with("access.") {
            self.0.insert(key.into(), place);
        }
    }

    /// Returns the place where a key was set.
    pub fn place(&self, key: &str) -> &str {
        self.0.get(key).map_or("the default", String::as_str)
    }
}

impl AccessConfig {
    /// Returns the clients of each rule of `users`.
    ///
    /// # Errors
    /// The first rule whose user or group is missing or unknown.
    pub fn subjects(&self) -> Result<Vec<Subject>, ConfigError> {
        if self.users.is_empty() {
            return Ok(Vec::new());
        }
        let accounts = Accounts::read();
        let numbered = self.users.iter().enumerate();
        numbered.map(|(number, rule)| rule.subject(&accounts, &rule_key(number))).collect()
    }

    fn check_users(&self) -> Result<(), ConfigError> {
        if self.users.len() > MAX_RULES {
            return Err(ConfigError::new("access.users", format!("must have at most {MAX_RULES} rules")));
        }
        for (number, rule) in self.users.iter().enumerate() {
            check_prefixes(&rule.prefixes, &rule_key(number))?;
        }
        self.subjects().map(drop)
    }
}

/// Returns the key of a rule of `users`.
pub fn rule_key(number: usize) -> String {
    format!("access.users[{number}]")
}

impl UserRule {
    fn subject(&self, accounts: &Accounts, key: &str) -> Result<Subject, ConfigError> {
        let wrong = |problem: String| Err(ConfigError::new(key, problem));
        let (kind, name, number) = match (self.user.as_str(), self.group.as_str()) {
            (user, "") if !user.is_empty() => ("user", user, accounts.user(user)),
            ("", group) if !group.is_empty() => ("group", group, accounts.group(group)),
            _ => return wrong("must have either `user` or `group`, by name or number".into()),
        };
        match number {
            None => wrong(format!(
                "names the unknown {kind} {name:?}: use a name in /etc/{}, or a number",
                if kind == "user" { "passwd" } else { "group" }
            )),
            Some(OVERFLOW_ID) => wrong(format!(
                "names the {kind} {name:?}, and {OVERFLOW_ID} is the number of every unknown {kind}: remove the rule"
            )),
            Some(number) if kind == "user" => Ok(Subject::User(number)),
            Some(number) => Ok(Subject::Group(number, accounts.members(number))),
        }
    }
}

fn check_prefixes(prefixes: &[String], key: &str) -> Result<(), ConfigError> {
    if prefixes.len() > MAX_PREFIXES {
        return Err(ConfigError::new(key, format!("must have at most {MAX_PREFIXES} prefixes")));
    }
    let problem = prefixes.iter().find_map(|prefix| match prefix.strip_prefix('/') {
        _ if prefix.is_empty() => {
            Some("has an empty prefix: remove it; without prefixes all keys are permitted".into())
        }
        _ if prefix.len() > MAX_PREFIX => {
            Some(format!("has a prefix of {} bytes: use at most {MAX_PREFIX}", prefix.len()))
        }
        Some(rest) => {
            Some(format!("has the prefix {prefix:?}, but keys do not begin with a slash: use {rest:?}"))
        }
        None => None,
    });
    problem.map_or(Ok(()), |problem| Err(ConfigError::new(key, problem)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_net::config::Section;

    fn complaint(change: impl FnOnce(&mut AccessConfig)) -> String {
        let mut config = AccessConfig::default();
        change(&mut config);
        config.check_at("access").expect_err("the value is wrong").to_string()
    }

    #[test]
    fn invalid_rule_names_its_key() {
        let rule = |user: &str, group: &str| UserRule {
            user: user.into(),
            group: group.into(),
            ..UserRule::default()
        };
        let second = |wrong: UserRule| complaint(|config| config.users = vec![rule("0", ""), wrong]);
        for (user, group, problem) in [
            ("", "", "must have either `user` or `group`"),
            ("root", "root", "must have either `user` or `group`"),
            ("no-such-user", "", "unknown user \"no-such-user\": use a name in /etc/passwd, or a number"),
            ("", "no-such-group", "unknown group \"no-such-group\": use a name in /etc/group"),
            ("65534", "", "is the number of every unknown user"),
            ("", "65534", "is the number of every unknown group"),
        ] {
            let refused = second(rule(user, group));
            assert!(refused.starts_with("`access.users[1]` ") && refused.contains(problem), "{refused}");
        }
        let prefixes = second(UserRule { prefixes: vec![String::new()], ..rule("0", "") });
        assert!(prefixes.starts_with("`access.users[1]` has an empty prefix"), "{prefixes}");
        assert!(complaint(|config| config.users = vec![rule("0", ""); 65]).contains("at most 64 rules"));
    }

    #[test]
    fn invalid_prefix_explained() {
        let refused = |prefixes: &[&str]| {
            let prefixes = prefixes.iter().map(|prefix| prefix.to_string()).collect();
            complaint(|config| config.tcp_prefixes = prefixes)
        };
        assert!(refused(&["a/", ""]).starts_with("`access.tcp_prefixes` has an empty prefix"));
        assert!(refused(&["/jobs/"]).ends_with("keys do not begin with a slash: use \"jobs/\""));
        assert!(refused(&["x".repeat(513).as_str()]).contains("513 bytes"));
        assert!(refused(&["a"; 65]).contains("at most 64 prefixes"));
    }

    #[test]
    fn groups_resolve_to_members() {
        let rule = UserRule { group: "0".into(), ..UserRule::default() };
        let config = AccessConfig { users: vec![rule], ..AccessConfig::default() };
        let subjects = config.subjects().expect("the group has a number");
        assert!(
            matches!(&subjects[..], [Subject::Group(0, members)] if members.contains(&0)),
            "{subjects:?}"
        );
    }
}
