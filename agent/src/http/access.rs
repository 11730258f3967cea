//! The rules of `[access]`: a ceiling on the requests of each client, judged before everything
//! else.
//!
//! A rule has a level (see [`Level`]) and prefixes of keys. The table of endpoints has the level
//! that each request needs and the place of its keys. The router judges both before the endpoint
//! runs, except keys and operations in a body: the endpoint has them judged when it has parsed the
//! body, before anything is done.
//!
//! The kernel names the user and the group of a client on the Unix socket. If it cannot, because
//! the client is in another user or PID namespace, the client matches no rule of `access.users`.
//! Such a request has to be permitted by all of them and by `access.socket`: a restricted user must
//! not gain rights by hiding.

use super::answer::Failure;
use super::call::Call;
use super::endpoint::table::{KeyPlace, Right, Verb};
use super::peer::Peer;
use crate::config::{AccessConfig, Level, OVERFLOW_ID, Subject, rule_key};
use crate::metrics::LIMITS;
use crate::monitor::cut;
use http::StatusCode;
use lockmesh_net::config::ConfigError;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The maximum length of a rule or a key in a refusal, in bytes.
const MAX_SHOWN: usize = 256;

/// The facts of a request, or of one operation of its body, that rules judge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need<'a> {
    /// The level that permits it.
    pub(super) level: Level,
    /// The keys that it names.
    pub(super) keys: Keys<'a>,
    /// The change with which the right `locks` permits the request; empty if no change does.
    pub(super) instead: &'static str,
}

/// The keys that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys<'a> {
    /// None.
    None,
    /// A key, or all keys with this prefix.
    Below(&'a str),
    /// All keys.
    All,
}

/// The rules of all clients.
#[derive(Debug, Default)]
pub struct Rules {
    socket: Rule,
    tcp: Rule,
    remote: Rule,
    users: Vec<(Subject, Rule)>,
    /// Set if a rule may refuse a request.
    has_limits: bool,
}

/// The rules in use, shared by all parts of the agent. A reload replaces them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedRules(Arc<RwLock<Rules>>);

/// A ceiling on the requests of some clients.
#[derive(Clone, Debug, Default)]
struct Rule {
    level: Level,
    prefixes: Vec<String>,
    /// The configured level and prefixes with their places, for refusals.
    level_source: String,
    prefixes_source: String,
}

/// The reason why a rule refuses a request.
#[derive(Debug, PartialEq, Eq)]
enum Refusal<'a> {
    /// It needs a higher level than that of the rule.
    Level { needed: Level, given: Level, rule: &'a str },
    /// It names a key, or a prefix, outside the prefixes of the rule.
    Key { key: &'a str, rule: &'a str },
    /// It names all keys.
    AllKeys { rule: &'a str },
}

impl Rules {
    /// Returns the rules of this configuration.
    ///
    /// # Errors
    /// A rule names an unknown user or group.
    pub fn new(config: &AccessConfig) -> Result<Self, ConfigError> {
        let source = |key: &str, value: String| format!("`{key} = {value}` ({})", config.origins.place(key));
        let listener = |name: &str, level: Level, prefixes: &[String]| {
            let (key, prefixes_key) = (format!("access.{name}"), format!("access.{name}_prefixes"));
            Rule {
                level,
                prefixes: prefixes.into(),
                level_source: source(&key, format!("\"{level}\"")),
                prefixes_source: source(&prefixes_key, cut(format!("{prefixes:?}"), MAX_SHOWN)),
            }
        };
        let of_user = |(number, subject): (usize, Subject)| {
            let (key, rule) = (rule_key(number), &config.users[number]);
            let source = |value: String| {
                let (kind, name) =
                    if rule.user.is_empty() { ("group", &rule.group) } else { ("user", &rule.user) };
                format!("`{value}` of {kind} {name:?} in `access.users` ({})", config.origins.place(&key))
            };
            let prefixes_source = source(cut(format!("prefixes = {:?}", rule.prefixes), MAX_SHOWN));
            let level_source = source(format!("rights = \"{}\"", rule.rights));
            (
                subject,
                Rule { level: rule.rights, prefixes: rule.prefixes.clone(), level_source, prefixes_source },
            )
        };
        let [socket, tcp, remote] = [
            listener("socket", config.socket, &config.socket_prefixes),
            listener("tcp", config.tcp, &config.tcp_prefixes),
            listener("remote", config.remote, &config.remote_prefixes),
        ];
        let users: Vec<_> = config.subjects()?.into_iter().enumerate().map(of_user).collect();
        let of_users = users.iter().map(|(_, rule)| rule);
        let has_limits = of_users.chain([&socket, &tcp, &remote]).any(Rule::has_limits);
        Ok(Self { socket, tcp, remote, users, has_limits })
    }

    /// Judges a request by the rules for its client. Pure.
    fn judge<'a>(&'a self, peer: Peer, need: &Need<'a>) -> Result<(), Refusal<'a>> {
        let (uid, gid) = match peer {
            Peer::Tcp(_) if peer.is_loopback() => return self.tcp.judge(need),
            Peer::Tcp(_) => return self.remote.judge(need),
            Peer::Unix { uid: Some(uid), gid, pid: Some(1..), .. }
                if uid != OVERFLOW_ID && gid != Some(OVERFLOW_ID) =>
            {
                (uid, gid)
            }
            Peer::Unix { .. } => {
                self.users.iter().try_for_each(|(_, rule)| rule.judge(need))?;
                return self.socket.judge(need);
            }
        };
        let matches = |subject: &Subject| match subject {
            Subject::User(user) => *user == uid,
            Subject::Group(group, members) => gid == Some(*group) || members.contains(&uid),
        };
        let rule = self.users.iter().find(|(subject, _)| matches(subject)).map(|(_, rule)| rule);
        rule.unwrap_or(&self.socket).judge(need)
    }
}

impl Rule {
    fn has_limits(&self) -> bool {
        self.level < Level::All || !self.prefixes.is_empty()
    }

    fn judge<'a>(&'a self, need: &Need<'a>) -> Result<(), Refusal<'a>> {
        if need.level > self.level {
            let (needed, given, rule) = (need.level, self.level, self.level_source.as_str());
            return Err(Refusal::Level { needed, given, rule });
        }
        let rule = self.prefixes_source.as_str();
        match need.keys {
            Keys::None => Ok(()),
            _ if self.prefixes.is_empty() => Ok(()),
            Keys::All | Keys::Below("") => Err(Refusal::AllKeys { rule }),
            // A wider prefix is refused: a list that was cut silently would look complete.
            Keys::Below(name) if self.prefixes.iter().any(|prefix| name.starts_with(prefix)) => Ok(()),
            Keys::Below(key) => Err(Refusal::Key { key, rule }),
        }
    }
}

impl From<Rules> for SharedRules {
    fn from(rules: Rules) -> Self {
        Self(Arc::new(RwLock::new(rules)))
    }
}

impl SharedRules {
    /// Replaces the rules. Requests under way continue.
    pub(crate) fn replace(&self, rules: Rules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}

/// Returns the facts of a request, except what its body names.
pub(super) fn need_of<'a>(verb: &Verb, call: &'a Call<'_>) -> Need<'a> {
    let (level, instead) = match verb.right {
        Right::Read | Right::Operations => (Level::Read, ""),
        Right::Lock => (Level::Locks, ""),
        Right::WriteUnless(conditions, _) if conditions.iter().any(|name| call.params.has(name)) => {
            (Level::Locks, "")
        }
        Right::WriteUnless(_, instead) => (Level::All, instead),
        Right::Write | Right::Operate => (Level::All, ""),
    };
    let keys = match verb.keys {
        KeyPlace::None | KeyPlace::Body => Keys::None,
        KeyPlace::Path => Keys::Below(call.tail),
        KeyPlace::Prefix => Keys::Below(call.params.value("prefix").unwrap_or_default()),
        KeyPlace::All => Keys::All,
    };
    Need { level, keys, instead }
}

/// Rejects a request unless the rules for its client permit all of its operations.
pub(super) fn check<'a>(call: &Call<'_>, needs: impl IntoIterator<Item = Need<'a>>) -> Result<(), Failure> {
    let rules = call.api.access.rules.0.read().unwrap_or_else(PoisonError::into_inner);
    if !rules.has_limits {
        return Ok(());
    }
    needs.into_iter().try_for_each(|need| {
        rules.judge(call.peer, &need).map_err(|refusal| {
            LIMITS.with_label_values(&["access"]).inc();
            let (method, path) = (call.method(), call.head.uri.path());
            let advice = advice(call, &rules, &need, &refusal);
            Failure::new(StatusCode::FORBIDDEN, format!("{method} {path} {refusal}: {advice}"))
        })
    })
}

/// Returns `true` if the rules permit this client every request of applications.
pub(super) fn permits_all(call: &Call<'_>) -> bool {
    let rules = call.api.access.rules.0.read().unwrap_or_else(PoisonError::into_inner);
    let everything = Need { level: Level::All, keys: Keys::None, instead: "" };
    !rules.has_limits || rules.judge(call.peer, &everything).is_ok()
}

/// Returns the requests that the client can send instead.
fn advice(call: &Call<'_>, rules: &Rules, need: &Need<'_>, refusal: &Refusal<'_>) -> String {
    let mut ways = Vec::new();
    match refusal {
        Refusal::Level { given: Level::Locks, .. } if !need.instead.is_empty() => {
            ways.push(need.instead.to_owned());
        }
        Refusal::Key { .. } => ways.push("use a key below one of these prefixes".into()),
        _ => {}
    }
    if let Some(socket) = &call.api.access.operator_socket
        && call.peer.is_loopback()
        && rules.socket.judge(need).is_ok()
    {
        ways.push(format!("use the Unix socket with CONSUL_HTTP_ADDR=unix://{}", socket.display()));
    }
    ways.push("change this rule in the agent's configuration".into());
    ways.join(", or ")
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level { needed, rule, .. } => {
                write!(f, "needs the right \"{needed}\", which {rule} does not give")
            }
            Self::Key { key, rule } => {
                write!(f, "names the key {:?}, which {rule} does not include", cut((*key).into(), MAX_SHOWN))
            }
            Self::AllKeys { rule } => write!(f, "names all keys, which {rule} does not include"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UserRule;
    use std::time::Duration;

    fn rule(level: Level, prefixes: &[&str]) -> Rule {
        let prefixes = prefixes.iter().map(|prefix| prefix.to_string()).collect();
        Rule { level, prefixes, level_source: "level".into(), prefixes_source: "prefixes".into() }
    }

    #[test]
    fn rule_compares_level_then_keys() {
        use Keys::Below;
        use Level::{Locks, Read};
        let level = |given, needed| Some(Refusal::Level { needed, given, rule: "level" });
        let key = |key| Some(Refusal::Key { key, rule: "prefixes" });
        let all_keys = || Some(Refusal::AllKeys { rule: "prefixes" });
        for (given, prefixes, needed, keys, refusal) in [
            (Level::All, &[][..], Level::All, Keys::All, None),
            (Locks, &[], Level::All, Keys::None, level(Locks, Level::All)),
            (Locks, &[], Locks, Below("a"), None),
            (Read, &[], Locks, Below("a"), level(Read, Locks)),
            (Read, &[], Read, Keys::All, None),
            (Read, &["a/"], Read, Keys::None, None),
            (Read, &["a/", "b"], Read, Below("a/x"), None),
            (Read, &["a/", "b"], Read, Below("bc"), None),
            (Read, &["a/", "b"], Read, Below("a"), key("a")),
            (Read, &["a/", "b"], Read, Below(""), all_keys()),
            (Read, &["a/"], Locks, Below("b"), level(Read, Locks)),
            (Level::All, &["a/"], Level::All, Keys::All, all_keys()),
        ] {
            let need = Need { level: needed, keys, instead: "" };
            assert_eq!(rule(given, prefixes).judge(&need).err(), refusal, "{given} {prefixes:?} {need:?}");
        }
    }

    #[test]
    fn first_matching_rule_replaces_socket() {
        let of = |user: &str, group: &str, rights| UserRule {
            user: user.into(),
            group: group.into(),
            rights,
            ..UserRule::default()
        };
        let users = vec![
            of("4000001", "", Level::Locks),
            of("", "4000002", Level::All),
            of("4000001", "", Level::All),
            of("", "root", Level::Read),
        ];
        let config =
            AccessConfig { socket: Level::Locks, tcp: Level::Read, users, ..AccessConfig::default() };
        let rules = Rules::new(&config).expect("numbers are known");
        let unix = |uid, gid, pid| Peer::Unix { uid, gid, pid, accepted_at: Duration::ZERO };
        let tcp = |address: &str| Peer::Tcp(address.parse().expect("an address"));
        for (client, level) in [
            (unix(Some(4_000_001), Some(4_000_002), Some(7)), Level::Locks),
            (unix(Some(4_000_003), Some(4_000_002), Some(7)), Level::All),
            (unix(Some(4_000_003), Some(4_000_003), Some(7)), Level::Locks),
            // A member of the group, with another effective group.
            (unix(Some(0), Some(4_000_003), Some(7)), Level::Read),
            (unix(Some(4_000_003), None, Some(7)), Level::Locks),
            // All rules together, because the kernel does not show the user or the process.
            (unix(None, None, None), Level::Read),
            (unix(Some(OVERFLOW_ID), Some(4_000_002), Some(7)), Level::Read),
            (unix(Some(4_000_001), Some(4_000_002), Some(0)), Level::Read),
            (unix(Some(4_000_001), Some(4_000_002), None), Level::Read),
            (tcp("127.0.0.9:1"), Level::Read),
            (tcp("[::1]:1"), Level::Read),
            (tcp("[::ffff:127.0.0.1]:1"), Level::Read),
            (tcp("10.0.0.1:1"), Level::All),
            (tcp("[::ffff:10.0.0.1]:1"), Level::All),
        ] {
            let judged = |level| rules.judge(client, &Need { level, keys: Keys::None, instead: "" }).is_ok();
            let highest = [Level::All, Level::Locks, Level::Read].into_iter().find(|level| judged(*level));
            assert_eq!(highest, Some(level), "{client:?}");
        }
    }

    #[test]
    fn default_rules_have_no_limits() {
        assert!(!Rules::default().has_limits);
        let rules = |change: fn(&mut AccessConfig)| {
            let mut config = AccessConfig::default();
            change(&mut config);
            Rules::new(&config).expect("numbers are known").has_limits
        };
        assert!(!rules(|_| {}) && rules(|config| config.remote = Level::Locks));
        assert!(rules(|config| config.socket_prefixes = vec!["a".into()]));
        let user = |config: &mut AccessConfig| {
            config.users = vec![UserRule { user: "7".into(), rights: Level::Read, ..UserRule::default() }];
        };
        assert!(rules(user));
    }
}
