//! The merged configuration: defaults < file < environment < flags. The one file that names toml.
//!
//! The key `tcp` of the section `http` is `http.tcp` in `--set http.tcp=…` and
//! `LOCKMESH_CONFIG_HTTP_TCP` in the environment. Unknown keys are an error: in the file with the
//! line number, in the environment and on the command line with the name.
//! `config/unknown.rs` suggests what to do about them, `config/foreign.rs` for files in Consul's
//! formats, which `lockmesh-migrate` converts.

mod foreign;
mod unknown;

use lockmesh_agent::config::{AgentConfig, Origins, rule_key};
use lockmesh_net::config::{ConfigError, LogConfig, Section, TlsConfig};
use lockmesh_server::config::ServerConfig;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};
use unknown::Key;
pub(crate) use unknown::{Spelling, similar};

/// The prefix of all variables that set a key.
pub const PREFIX: &str = "LOCKMESH_CONFIG_";

/// The keys whose values are lists of definitions.
const DEFINITIONS: [&str; 3] = ["services", "checks", "access.users"];

/// The keys whose values are tables of any keys with texts.
const MAPS: [&str; 1] = ["node_meta"];

/// The configuration of a role.
pub trait Role: Clone + Default + Section + Serialize + DeserializeOwned {
    /// Its certificate.
    fn tls(&self) -> &TlsConfig;

    /// Its logs.
    fn log(&self) -> &LogConfig;

    /// Takes over what may change while the process runs: where the certificate is, the log's
    /// level, and the cluster, services, checks, metadata and rules for clients of an agent.
    fn take_reloadable(&mut self, from: &Self);

    /// Records the places where the keys of `[access]` were set.
    fn set_origins(&mut self, origins: Origins);
}

/// Both roles have the same sections for what is asked of them here.
macro_rules! role {
    ($config:ty, $take_own:expr, $set_origins:expr) => {
        impl Role for $config {
            fn tls(&self) -> &TlsConfig {
                &self.tls
            }

            fn log(&self) -> &LogConfig {
                &self.log
            }

            fn take_reloadable(&mut self, from: &Self) {
                self.tls.clone_from(&from.tls);
                self.log.level.clone_from(&from.log.level);
                $take_own(self, from);
            }

            fn set_origins(&mut self, origins: Origins) {
                $set_origins(self, origins);
            }
        }
    };
}

fn take_own(this: &mut AgentConfig, from: &AgentConfig) {
    this.upstream.cluster_id.clone_from(&from.upstream.cluster_id);
    this.services.clone_from(&from.services);
    this.checks.clone_from(&from.checks);
    this.node_meta.clone_from(&from.node_meta);
    this.access.clone_from(&from.access);
}

role!(AgentConfig, take_own, |this: &mut AgentConfig, origins| this.access.origins = origins);
role!(ServerConfig, |_, _| {}, |_, _| {});

/// The sources of a configuration, besides its defaults.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, where there is one.
    pub file: Option<PathBuf>,
    /// The environment of the process; only variables with [`PREFIX`] are used.
    pub environment: Vec<(String, String)>,
    /// `key=value` from the command line.
    pub settings: Vec<String>,
}

impl Sources {
    /// A file, this process's environment and settings from its command line.
    pub fn of_process(file: Option<PathBuf>, settings: Vec<String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            // A variable that is not text is not one of ours.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { file, environment: std::env::vars_os().filter_map(text).collect(), settings }
    }
}

/// The error of an invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file has unknown keys, or is in a format of Consul's.
    #[error("{}: {problem}", file.display())]
    Keys {
        /// Which file.
        file: PathBuf,
        /// Which keys, with their lines and what to do about them.
        problem: String,
    },
    /// The file is not TOML, or has a value of the wrong kind.
    #[error("{}: {error}{}", file.display(), zone_advice(error.message(), text))]
    File {
        /// The file.
        file: PathBuf,
        /// The error, with the line number.
        error: Box<toml::de::Error>,
        /// The value with the error, or the text around it.
        text: String,
    },
    /// A variable or a flag names no key, or its value is of the wrong kind.
    #[error("{origin}: {problem}")]
    Setting {
        /// The variable or the flag.
        origin: String,
        /// The problem.
        problem: String,
    },
    /// A value is out of range.
    #[error("invalid configuration: {0}")]
    Refused(#[from] ConfigError),
}

/// Puts a configuration together and checks it.
///
/// # Errors
/// The error names the file and line, the variable or the flag. Nothing is applied.
pub fn load<T: Role>(sources: &Sources) -> Result<T, LoadError> {
    let mut table = table_of(&T::default());
    let mut text = String::new();
    let mut origins = Origins::default();
    if let Some(file) = &sources.file {
        text = std::fs::read_to_string(file)
            .map_err(|error| LoadError::Unreadable { file: file.clone(), error })?;
        merge(&mut table, parse::<T>(file, &text)?);
        for (key, line) in lines_of_access(&text) {
            origins.insert(&key, format!("line {line} of {}", file.display()));
        }
    }
    for (name, value) in &sources.environment {
        if let Some(key) = name.strip_prefix(PREFIX) {
            // Variable names have no dots: an underscore stands for a dot or for itself.
            let matches = |path: &str| path.replace('.', "_").eq_ignore_ascii_case(key);
            let path = set::<T>(&mut table, name, (key, Spelling::Variable), matches, value)?;
            origins.insert(&path, name.clone());
        }
    }
    for setting in &sources.settings {
        let origin = format!("--set {setting}");
        let (key, value) = setting.split_once('=').ok_or_else(|| LoadError::Setting {
            origin: origin.clone(),
            problem: "write it as key=value, for example http.tcp=127.0.0.1:8501".into(),
        })?;
        set::<T>(&mut table, &origin, (key, Spelling::Dotted), |path| path == key, value)?;
        origins.insert(key, origin);
    }
    let mut config = deserialize::<T>(table, "the configuration")?;
    config.check().map_err(|error| match (&sources.file, line_of_definition(&error.key, &text)) {
        (Some(file), Some(line)) => {
            LoadError::Keys { file: file.clone(), problem: format!("line {line}: {error}") }
        }
        _ if error.key.starts_with("access.") => {
            LoadError::Setting { origin: origins.place(&error.key).into(), problem: error.to_string() }
        }
        _ => error.into(),
    })?;
    config.set_origins(origins);
    Ok(config)
}

/// Parses the text of a TOML file as a JSON value.
///
/// # Errors
/// It is not TOML; the error has the line.
pub fn json_of(text: &str) -> Result<serde_json::Value, impl Display + use<>> {
    toml::from_str(text)
}

/// A configuration as the text of a file that holds what differs from the default.
pub fn text_of<T: Role>(config: &T) -> String {
    let mut table = table_of(config);
    drop_defaults(&mut table, &table_of(&T::default()));
    toml::to_string(&table).expect("a table of plain values is TOML")
}

fn drop_defaults(table: &mut Table, defaults: &Table) {
    table.retain(|key, value| match (value, defaults.get(key)) {
        (Value::Table(inner), Some(Value::Table(defaults))) => {
            drop_defaults(inner, defaults);
            !inner.is_empty()
        }
        (value, default) => default != Some(value),
    });
}

/// The paths of the keys, as `http.tcp`, in which two configurations differ.
pub fn differences<T: Role>(one: &T, other: &T) -> Vec<String> {
    let (mut one, mut other) = (table_of(one), table_of(other));
    let mut paths = paths(&one);
    paths.retain(|path| at(&mut one, path) != at(&mut other, path));
    paths
}

/// Reads a file's text for its keys alone, refusing unknown ones and values of the wrong kind with
/// their line.
fn parse<T: Role>(file: &Path, text: &str) -> Result<Table, LoadError> {
    let failed = |error: toml::de::Error| {
        let value = error.span().and_then(|span| text.get(span)).unwrap_or_default().to_owned();
        LoadError::File { file: file.into(), error: Box::new(error), text: value }
    };
    let rejected = |problem| LoadError::Keys { file: file.into(), problem };
    let document = DeTable::parse(text).map_err(|error| match foreign::rejection(file, text) {
        Some(problem) => rejected(problem),
        None => failed(error),
    })?;
    let mut found = Vec::new();
    keys(document.get_ref(), "", text, &mut found);
    if let Some(problem) = unknown::of_file(found, &paths(&table_of(&T::default()))) {
        return Err(rejected(problem));
    }
    // As a whole first: only here have values of the wrong kind lines.
    toml::from_str::<T>(text).map_err(failed)?;
    text.parse().map_err(failed)
}

/// All keys of a file with their lines; of a section that is empty, the section.
fn keys(table: &DeTable<'_>, prefix: &str, text: &str, found: &mut Vec<Key>) {
    for (name, value) in table.iter() {
        let path = format!("{prefix}{}", name.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() && !MAPS.contains(&path.as_str()) => {
                keys(inner, &format!("{path}."), text, found);
            }
            _ => {
                found.push(Key { path, line: line_at(text, name.span().start) });
            }
        }
    }
}

/// The line of a definition by its place, as `services[1]`.
fn line_of_definition(place: &str, text: &str) -> Option<usize> {
    let (list, number) = place.strip_suffix(']')?.split_once('[')?;
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let (sections, list) = list.rsplit_once('.').unwrap_or(("", list));
    for section in sections.split('.').filter(|section| !section.is_empty()) {
        let DeValue::Table(inner) = table.get(section)?.get_ref() else { return None };
        table = inner;
    }
    let DeValue::Array(definitions) = table.get(list)?.get_ref() else { return None };
    let definition = definitions.get(number.parse::<usize>().ok()?)?;
    Some(line_at(text, definition.span().start))
}

/// The keys of `[access]` in a file, and each of its rules for users, with their lines.
fn lines_of_access(text: &str) -> Vec<(String, usize)> {
    let Ok(document) = DeTable::parse(text) else { return Vec::new() };
    let mut found = Vec::new();
    keys(document.get_ref(), "", text, &mut found);
    let keys = found.into_iter().filter(|key| key.path.starts_with("access."));
    let rules = (0..).map(rule_key).map_while(|key| line_of_definition(&key, text).map(|line| (key, line)));
    keys.map(|key| (key.path, key.line)).chain(rules).collect()
}

fn line_at(text: &str, position: usize) -> usize {
    text[..position].matches('\n').count() + 1
}

fn table_of<T: Role>(config: &T) -> Table {
    Table::try_from(config).expect("a tree of plain values is a table")
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Sets the one key whose path is wanted to the value that a text spells for a value of its kind.
/// Returns the path.
fn set<T: Role>(
    table: &mut Table,
    origin: &str,
    (name, spelling): (&str, Spelling),
    wanted: impl Fn(&str) -> bool,
    text: &str,
) -> Result<String, LoadError> {
    let failed = |problem: String| LoadError::Setting { origin: origin.into(), problem };
    let defaults = table_of(&T::default());
    let known = paths(&defaults);
    let path = known
        .iter()
        .find(|path| wanted(path))
        .ok_or_else(|| failed(unknown::explain(name, &known, spelling)))?;
    if DEFINITIONS.contains(&path.as_str()) {
        return Err(failed(format!("define {path} in the configuration file, as `[[{path}]]`")));
    }
    let place = at(table, path).expect("every key has a default");
    *place = match place {
        // Numbers are grouped as in the file: `1_000`.
        Value::Integer(_) => Value::Integer(
            text.replace('_', "").parse().map_err(|_| failed(format!("{text:?} is not a whole number")))?,
        ),
        Value::Boolean(_) => Value::Boolean(
            text.parse().map_err(|_| failed(format!("{text:?} is neither `true` nor `false`")))?,
        ),
        Value::Array(_) => Value::Array(
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Value::from).collect(),
        ),
        Value::Table(_) => Value::Table(pairs(text).map_err(|error| failed(error.to_string()))?),
        _ => Value::from(text),
    };
    // One setting at a time, so that the error names the one that is wrong.
    deserialize::<T>(table.clone(), origin).map(|_| path.clone()).map_err(|error| match error {
        LoadError::Setting { problem, .. } => failed(format!("{problem}{}", zone_advice(&problem, text))),
        other => other,
    })
}

/// Returns advice about a socket address that cannot be parsed because of its zone; empty for other
/// errors.
fn zone_advice(problem: &str, value: &str) -> &'static str {
    match problem.contains("socket address") && value.contains('%') {
        true => "; a zone such as %eth0 is not supported: use an address that is not link-local, or [::]",
        false => "",
    }
}

/// A part of a text that is no pair.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a pair: write key=value, with a comma between pairs")]
struct NoPair(String);

/// The pairs of a table, as `rack=r1,zone=a`.
fn pairs(text: &str) -> Result<Table, NoPair> {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), Value::from(value.trim()))),
        None => Err(NoPair(pair.into())),
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(pair).collect()
}

fn deserialize<T: Role>(table: Table, origin: &str) -> Result<T, LoadError> {
    T::deserialize(table)
        .map_err(|error| LoadError::Setting { origin: origin.into(), problem: error.message().into() })
}

/// The paths of all keys, as `http.tcp`.
fn paths(table: &Table) -> Vec<String> {
    let below = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) if !MAPS.contains(&key.as_str()) => {
            paths(inner).into_iter().map(|path| format!("{key}.{path}")).collect()
        }
        _ => vec![key.clone()],
    };
    table.iter().flat_map(below).collect()
}

fn at<'a>(table: &'a mut Table, path: &str) -> Option<&'a mut Value> {
    match path.split_once('.') {
        Some((section, rest)) => at(table.get_mut(section)?.as_table_mut()?, rest),
        None => table.get_mut(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent::config::Level;
    use lockmesh_protocol::duration;
    use std::io::Write;

    const AGENT_SAMPLE: &str = include_str!("../../../../deploy/config/agent.toml");
    const SERVER_SAMPLE: &str = include_str!("../../../../deploy/config/server.toml");

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("it can be written");
        file
    }

    fn load_agent(
        text: &str,
        environment: &[(&str, &str)],
        settings: &[&str],
    ) -> Result<AgentConfig, LoadError> {
        let file = file(text);
        load(&Sources {
            file: Some(file.path().into()),
            environment: environment
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            settings: settings.iter().map(ToString::to_string).collect(),
        })
    }

    fn complaint(text: &str, environment: &[(&str, &str)], settings: &[&str]) -> String {
        load_agent(text, environment, settings).expect_err("it is wrong").to_string()
    }

    fn assert_sample_is_default<T: Role + PartialEq + std::fmt::Debug>(sample: &str) {
        let config: T = toml::from_str(sample).expect("the sample is good");
        assert_eq!(config, T::default());
        let table: Table = sample.parse().expect("the sample is TOML");
        let mut known = paths(&table_of(&T::default()));
        known.retain(|path| !DEFINITIONS.iter().chain(&MAPS).any(|example| path == example));
        assert_eq!(paths(&table), known, "the sample has every key with one value");
    }

    #[test]
    fn address_with_zone_is_explained() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(b"[gossip]\nlisten = \"[fe80::1%eth0]:8301\"\n").expect("it is written");
        let of_file = Sources { file: Some(file.path().into()), ..Sources::default() };
        let setting = Sources { settings: vec!["http.tcp=[fe80::1%eth0]:8500".into()], ..Sources::default() };
        for sources in [of_file, setting] {
            let error = load::<AgentConfig>(&sources).expect_err("a zone").to_string();
            assert!(error.contains("a zone such as %eth0 is not supported"), "{error}");
        }
    }

    #[test]
    fn samples_list_every_default() {
        assert_sample_is_default::<AgentConfig>(AGENT_SAMPLE);
        assert_sample_is_default::<ServerConfig>(SERVER_SAMPLE);
    }

    #[test]
    fn the_samples_name_every_range() {
        assert_eq!(count_ranges::<AgentConfig>(AGENT_SAMPLE), 24);
        assert_eq!(count_ranges::<ServerConfig>(SERVER_SAMPLE), 22);
    }

    /// Returns a limit in the words of the samples: `100 ms`, `10 min`, `1 day`, `8 KiB`, `10,000`.
    fn in_words(key: &str, limit: &str) -> String {
        let (count, units): (u128, &[(u128, &str)]) = match limit.parse() {
            Ok(count) if key.ends_with("_bytes") => {
                (count, &[(1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB")])
            }
            Ok(count) => (count, &[]),
            Err(_) => (
                duration::parse(limit).expect("a limit is a number or a duration").as_millis(),
                &[(86_400_000, " day"), (3_600_000, " h"), (60_000, " min"), (1_000, " s"), (1, " ms")],
            ),
        };
        let unit = units.iter().find(|(size, _)| count.is_multiple_of(*size));
        let (size, unit) = unit.filter(|_| count > 0).unwrap_or(&(1, ""));
        let digits = (count / size).to_string();
        let grouped: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        let plural = if *unit == " day" && digits != "1" { "s" } else { "" };
        format!("{}{unit}{plural}", grouped.join(","))
    }

    /// Returns the range of a key from the errors about values that are too large.
    fn range_of<T: Role>(key: &str) -> Option<(String, String)> {
        ["9999h", "4000000000", "9000000000000"].into_iter().find_map(|value| {
            let sources = Sources { settings: vec![format!("{key}={value}")], ..Sources::default() };
            let refused = load::<T>(&sources).err()?.to_string();
            let (least, most) = refused.split_once(", but must be ")?.1.split_once(" to ")?;
            let most = match key {
                "http.default_query_time" => "`max_query_time`".into(),
                "http.max_connections_per_address" => "`max_connections`".into(),
                "tombstones.granularity" => "`ttl`".into(),
                _ => in_words(key, most),
            };
            Some((in_words(key, least), most))
        })
    }

    /// Counts the keys with a range, each of which the comment above the key must name.
    fn count_ranges<T: Role>(sample: &str) -> usize {
        let (mut section, mut comment, mut is_below, mut count) = (String::new(), String::new(), false, 0);
        for line in sample.lines() {
            let text = line.strip_prefix('#');
            // One comment may be about several keys.
            if line.is_empty() || text.is_some() && is_below {
                comment.clear();
            }
            comment.push_str(text.unwrap_or_default());
            is_below = text.is_none();
            if let Some(name) = line.strip_prefix('[') {
                section = format!("{}.", name.trim_end_matches(']'));
            }
            let Some((name, _)) = line.split_once(" = ").filter(|_| is_below) else { continue };
            let key = format!("{section}{name}");
            if let Some((least, most)) = range_of::<T>(&key) {
                let range = format!("{least} to {most}");
                assert!(comment.contains(&range), "the comment of `{key}` lacks {range:?}:{comment}");
                count += 1;
            }
        }
        count
    }

    #[test]
    fn sample_definitions_are_valid() {
        let is_example = |line: &&str| line.starts_with('#') && !line.starts_with("# ") && *line != "#";
        let lines = AGENT_SAMPLE.lines().filter(is_example).map(|line| &line[1..]);
        let text = lines.collect::<Vec<_>>().join("\n");
        let config = load_agent(&text, &[], &[]).expect("the examples are good");
        let configured = config.configured().expect("they were checked");
        let counts =
            (configured.services.len(), configured.services[0].checks.len(), configured.checks.len());
        assert_eq!(counts, (1, 1, 1), "{text}");
        assert_eq!(config.node_meta, [("rack".to_owned(), "r1".to_owned())].into());
        let mut again = load_agent(&text_of(&config), &[], &[]).expect("it is good");
        again.access.origins.clone_from(&config.access.origins);
        assert_eq!(again, config, "except the lines");
    }

    #[test]
    fn access_keys_keep_their_place() {
        let text = "[access]\ntcp = \"locks\"\nsocket = \"read\"\nremote = \"read\"\n\n[[access.users]]\nuser = \"0\"\n\
                    [[access.users]]\ngroup = \"0\"\nprefixes = [\"a\"]\n";
        let environment =
            [("LOCKMESH_CONFIG_ACCESS_SOCKET", "locks"), ("LOCKMESH_CONFIG_ACCESS_REMOTE", "locks")];
        let settings = ["access.remote=all", "access.remote_prefixes=a/,b/"];
        let access = load_agent(text, &environment, &settings).expect("it is good").access;
        assert_eq!((access.tcp, access.socket, access.remote), (Level::Locks, Level::Locks, Level::All));
        assert_eq!(access.remote_prefixes, ["a/", "b/"]);
        let place = |key| access.origins.place(key).to_owned();
        assert!(place("access.tcp").starts_with("line 2 of /"), "{access:?}");
        assert_eq!(place("access.socket"), "LOCKMESH_CONFIG_ACCESS_SOCKET");
        assert_eq!(place("access.remote"), "--set access.remote=all");
        assert_eq!(place("access.tcp_prefixes"), "the default");
        assert!(place("access.users[0]").starts_with("line 6 of "), "{access:?}");
        assert!(place("access.users[1]").starts_with("line 8 of "), "{access:?}");
    }

    #[test]
    fn invalid_access_error_includes_line() {
        for (text, problem) in [
            ("[access]\ntcp = \"write\"\n", "line 2"),
            ("[access]\ntpc = \"all\"\n", ": line 2: unknown key `access.tpc`; did you mean `access.tcp`?"),
            ("[[access.users]]\nuser = \"0\"\nright = \"all\"\n", "line 3"),
            (
                "[access]\nusers = [\n { user = \"0\" },\n { user = \"\" } ]\n",
                ": line 4: `access.users[1]` must have",
            ),
            (
                "\n[[access.users]]\ngroup = \"no-such\"\n",
                ": line 2: `access.users[0]` names the unknown group",
            ),
            ("\n[access]\ntcp_prefixes = [\"/a\"]\n", ": `access.tcp_prefixes` has the prefix \"/a\""),
        ] {
            let refused = complaint(text, &[], &[]);
            assert!(refused.contains(problem), "{refused}");
        }
        let slash = "\n[access]\ntcp_prefixes = [\"/a\"]\n";
        assert!(complaint(slash, &[], &[]).starts_with("line 3 of "));
        let set = complaint(slash, &[], &["access.tcp_prefixes=/b"]);
        assert!(set.starts_with("--set access.tcp_prefixes=/b: `access.tcp_prefixes` has"), "{set}");
        let refused = complaint("", &[], &["access.users=root"]);
        assert!(refused.ends_with("define access.users in the configuration file, as `[[access.users]]`"));
    }

    #[test]
    fn invalid_definition_error_includes_line() {
        let good = "[[services]]\nname = \"a\"\ncheck = { id = \"a-up\", ttl = \"1s\" }\n";
        assert!(load_agent(good, &[], &[]).is_ok());
        let wrong = complaint(&format!("{good}\n[[services]]\nname = \"b\"\nprot = 1\n"), &[], &[]);
        assert!(wrong.contains(": line 5: `services[1]` (\"b\") cannot be used: "), "{wrong}");
        assert!(wrong.contains("\"prot\""), "{wrong}");
        let wrong =
            complaint("checks = [\n  { name = \"c\", ttl = \"1s\" },\n  { ttl = \"1s\" }\n]\n", &[], &[]);
        assert!(wrong.contains(": line 3: `checks[1]` (\"\") cannot be used: Missing check name"), "{wrong}");
        let script = "[[checks]]\nname = \"c\"\nargs = [\"true\"]\ninterval = \"1s\"\n";
        assert!(complaint(script, &[], &[]).contains("`registry.scripts` is \"disabled\""));
        assert!(load_agent(script, &[], &["registry.scripts=config"]).is_ok());
        assert!(complaint("[services]\nname = \"a\"\n", &[], &[]).contains("line 1"));
        let earlier = complaint("[checks]\nmax_checks = 1\n", &[], &[]);
        assert!(earlier.contains("are in `[registry]`"), "{earlier}");
        let wrong = complaint("", &[("LOCKMESH_CONFIG_SERVICES", "web")], &[]);
        assert!(wrong.ends_with("define services in the configuration file, as `[[services]]`"), "{wrong}");
    }

    #[test]
    fn node_meta_accepts_table_or_pairs() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let file = "[node_meta]\nrack = \"r1\"\n\"a.b\" = \"1\"\n";
        let refused = complaint(file, &[], &[]);
        assert!(
            refused.contains("`node_meta` cannot be used: ") && refused.contains("('a.b', '1')"),
            "{refused}"
        );
        let file = "node_meta = { rack = \"r1\", zone = \"x, y\" }\n";
        let config = load_agent(file, &[], &[]).expect("it is good");
        assert_eq!(config.node_meta, [pair("rack", "r1"), pair("zone", "x, y")].into());
        assert_eq!(load_agent(&text_of(&config), &[], &[]).expect("it is good"), config);
        assert_eq!(differences(&config, &AgentConfig::default()), ["node_meta"]);
        let environment = [("LOCKMESH_CONFIG_NODE_META", "rack=r2, url=a=b")];
        let config = load_agent(file, &environment, &[]).expect("it is good");
        assert_eq!(config.node_meta, [pair("rack", "r2"), pair("url", "a=b")].into(), "all are replaced");
        let config = load_agent(file, &environment, &["node_meta="]).expect("it is good");
        assert!(config.node_meta.is_empty());
        let refused = complaint("", &[], &["node_meta=rack"]);
        assert!(
            refused.ends_with("\"rack\" is not a pair: write key=value, with a comma between pairs"),
            "{refused}"
        );
        let refused = complaint("", &[], &["node_meta=consul-x=1"]);
        assert!(
            refused.contains("Key prefix 'consul-' is reserved") && refused.contains("; use at most 64"),
            "{refused}"
        );
        assert!(complaint("[node_meta]\nrack = 1\n", &[], &[]).contains("line 2"));
    }

    #[test]
    fn environment_variables_unique_per_key() {
        for table in [table_of(&AgentConfig::default()), table_of(&ServerConfig::default())] {
            let mut names: Vec<String> =
                paths(&table).into_iter().map(|path| path.replace('.', "_")).collect();
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn partial_section_keeps_role_defaults() {
        let config = load_agent("[tls]\nca = \"/ca.pem\"\n", &[], &[]).expect("it is good");
        assert_eq!(config.tls, TlsConfig { ca: "/ca.pem".into(), ..AgentConfig::default().tls });
    }

    #[test]
    fn precedence_flags_environment_file() {
        let text = "[http]\nsession_ttl_min = \"1s\"\nmax_value_bytes = 1\nsocket_mode = \"0600\"\n";
        let environment = [
            ("LOCKMESH_CONFIG_HTTP_SESSION_TTL_MIN", "2s"),
            ("LOCKMESH_CONFIG_HTTP_MAX_VALUE_BYTES", "2_000"),
            ("LOCKMESH_CONFIG_UPSTREAM_SERVERS", "a:1, [::1]:2"),
            ("LOCKMESH_CONFIG_LISTEN", "[::]:8301"),
            ("LOCKMESH_LOG", "is no key"),
        ];
        let settings = ["http.session_ttl_min=3s", "http.allow_non_loopback=true", "http.tcp="];
        let config = load_agent(text, &environment, &settings).expect("it is good");
        assert_eq!(config.http.session_ttl_min.as_secs(), 3);
        assert_eq!(config.http.max_value_bytes, 2_000);
        assert_eq!(config.http.socket_mode.0, 0o600);
        assert_eq!(config.upstream.servers, ["a:1", "[::1]:2"]);
        assert!(config.http.allow_non_loopback && config.http.tcp.is_none());
    }

    #[test]
    fn unknown_key_error_includes_line() {
        let unknown = complaint("[http]\ntcp = \"\"\nsokket = \"/s\"\n", &[], &[]);
        assert!(
            unknown.ends_with(": line 3: unknown key `http.sokket`; did you mean `http.socket`?"),
            "{unknown}"
        );
        let unknown = complaint("[nodes]\n", &[], &[]);
        assert!(unknown.ends_with(": line 1: unknown key `nodes`; did you mean `node`?"), "{unknown}");
        let unknown = complaint("[nodes]\nname = \"n\"\n", &[], &[]);
        assert!(
            unknown.ends_with(": line 2: unknown key `nodes.name`; did you mean `node.name`?"),
            "{unknown}"
        );
        let unknown = complaint("", &[("LOCKMESH_CONFIG_HTTP_SOKKET", "/s")], &[]);
        assert_eq!(
            unknown,
            "LOCKMESH_CONFIG_HTTP_SOKKET: unknown key; did you mean `LOCKMESH_CONFIG_HTTP_SOCKET`?"
        );
        let unknown = complaint("", &[("LOCKMESH_CONFIG_PORTS_HTTP", "8500")], &[]);
        assert!(unknown.contains("`ports.http` of Consul") && unknown.contains("`http.tcp`"), "{unknown}");
        let unknown = complaint("", &[], &["http.sokket=/s"]);
        assert_eq!(unknown, "--set http.sokket=/s: unknown key `http.sokket`; did you mean `http.socket`?");
        let section = complaint("", &[], &["http=1"]);
        assert!(section.contains("`http` is a section: its keys are `http.allow_non_loopback`"), "{section}");
    }

    #[test]
    fn consul_keys_explained_together() {
        let text = "datacenter = \"dc1\"\nretry_join = [\"a\"]\n[ports]\nhttp = 8500\ndns = 8600\n[acl]\n\
                    enabled = true\ndefault_policy = \"deny\"\n";
        let all = complaint(text, &[], &[]);
        let lines: Vec<_> = all.lines().collect();
        assert_eq!(lines.len(), 6, "one a feature:\n{all}");
        assert!(lines[0].ends_with(": 5 unknown keys"), "{all}");
        assert_eq!(
            lines[1],
            "line 1: unknown key `datacenter` of Consul (name of the datacenter): here it is `node.datacenter`"
        );
        assert!(lines[2].starts_with("line 2: unknown key `retry_join` of Consul"), "{all}");
        assert!(lines[3].starts_with("line 4: unknown key `ports.http` of Consul"), "{all}");
        assert!(
            lines[4].starts_with("line 5: unknown key `ports.dns` of Consul (DNS): not in Lockmesh"),
            "{all}"
        );
        assert!(
            lines[5].starts_with("line 7: unknown key `acl` of Consul (other settings of ACLs): not"),
            "{all}"
        );
    }

    #[test]
    fn consul_format_error_lists_keys() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in [
            ("consul.json", "{\n  \"server\": true,\n  \"ports\": {\"dns\": 8600}\n}\n"),
            ("consul.hcl", "# HCL\nserver = true\nports { dns = 8600 }\n"),
        ] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("it can be written");
            let sources = Sources { file: Some(file), ..Sources::default() };
            let refused = load::<ServerConfig>(&sources).expect_err("it is not TOML").to_string();
            assert!(refused.contains("convert it with `lockmesh config from-consul /"), "{refused}");
            assert!(refused.contains("\nline 2: unknown key `server` of Consul"), "{refused}");
            assert!(refused.contains("\nline 3: unknown key `ports.dns` of Consul"), "{refused}");
        }
    }

    #[test]
    fn consul_remedies_name_existing_keys() {
        let mut known = paths(&table_of(&AgentConfig::default()));
        known.extend(paths(&table_of(&ServerConfig::default())));
        for row in lockmesh_agent::consul::KEYS.iter().chain(lockmesh_agent::consul::OPTIONS) {
            let remedy = row.remedy.to_string();
            for quoted in remedy.split('`').skip(1).step_by(2) {
                let key = quoted.strip_prefix("--set ").unwrap_or(quoted).split(['=', ' ']).next();
                // A list of definitions is named as the file begins one: `[[checks]]`.
                let key = key.unwrap_or_default().trim_matches(['[', ']']);
                let others = ["GET", "PUT", "lockmesh", "ping", "KEY"];
                let is_key = !key.starts_with(['-', '/']) && !others.contains(&key);
                assert!(!is_key || known.iter().any(|path| path == key), "{key:?} of {row:?}");
            }
        }
    }

    #[test]
    fn invalid_value_error_includes_line() {
        let wrong = complaint("[http]\n\nsession_ttl_min = \"10\"\n", &[], &[]);
        assert!(wrong.contains("line 3") && wrong.contains("not a duration"), "{wrong}");
        assert!(complaint("[http]\ntcp = 8500\n", &[], &[]).contains("line 2"));
        assert!(complaint("[http\n", &[], &[]).contains("line 1"));
        let wrong = complaint("", &[("LOCKMESH_CONFIG_HTTP_TCP", "localhost")], &[]);
        assert!(wrong.starts_with("LOCKMESH_CONFIG_HTTP_TCP: ") && wrong.contains("localhost"), "{wrong}");
        assert!(complaint("", &[], &["http.max_value_bytes=-"]).contains("not a whole number"));
        assert!(
            complaint("", &[], &["http.max_value_bytes=-1"]).starts_with("--set http.max_value_bytes=-1: ")
        );
        assert!(complaint("", &[], &["http.allow_non_loopback=yes"]).contains("neither `true` nor `false`"));
        assert!(complaint("", &[], &["http.socket_mode=0999"]).contains("not a file mode"));
        assert!(complaint("", &[], &["http.max_value_bytes"]).contains("key=value"));
        let refused = complaint("[http]\nmax_query_time = \"2h\"\n", &[], &[]);
        assert!(refused.ends_with("`http.max_query_time` is 2h0m0s, but must be 1s to 1h0m0s"), "{refused}");
    }

    #[test]
    fn written_config_reads_back() {
        let mut config = AgentConfig { data_dir: "/a \"b\"".into(), ..AgentConfig::default() };
        config.upstream.servers = vec!["h:1".into()];
        let text = text_of(&config);
        assert_eq!(text.lines().count(), 4, "only what differs:\n{text}");
        assert_eq!(load_agent(&text, &[], &[]).expect("it is good"), config);
        assert_eq!(text_of(&AgentConfig::default()), "");
    }

    #[test]
    fn a_missing_file_is_named() {
        let missing = Sources { file: Some("/nowhere/agent.toml".into()), ..Sources::default() };
        let error = load::<AgentConfig>(&missing).expect_err("there is none").to_string();
        assert!(error.contains("/nowhere/agent.toml"), "{error}");
    }
}
