//! Conversion of a Consul agent's configuration files.
//!
//! Every key is either converted or in the list of findings, each with its place and a remedy.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the files, and the findings |
//! | `keys.rs` | all keys of Consul and the kinds of their values |
//! | `read.rs` | the merged files, and the check of their kinds |
//! | `convert.rs` | Lockmesh's keys for Consul's |

mod convert;
mod keys;
mod read;

use lockmesh_agent::config::AgentConfig;
use lockmesh_agent_core::hcl::Format;
use lockmesh_net::config::{ConfigError, listed};
use lockmesh_server::config::ServerConfig;
use serde::{Serialize, Serializer};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The maximum size of a file in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A key that is not converted, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Its dotted path.
    pub key: String,
    /// The reason and a remedy, one sentence with the key.
    pub advice: String,
}

/// The converted configuration.
#[derive(Debug)]
pub struct Conversion {
    /// That of the agent.
    pub agent: AgentConfig,
    /// That of a server, if Consul's agent was one.
    pub server: Option<ServerConfig>,
    /// In the order of the files and lines.
    pub findings: Vec<Finding>,
}

impl Serialize for Conversion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'c> {
            agent: &'c AgentConfig,
            server: Option<&'c ServerConfig>,
            not_converted: &'c [Finding],
        }
        let shown = Shown { agent: &self.agent, server: self.server.as_ref(), not_converted: &self.findings };
        shown.serialize(serializer)
    }
}

/// The reason why files are not converted.
#[derive(Debug, thiserror::Error)]
pub enum ConversionError {
    /// A file or a folder cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file or the folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The name of a file has another ending.
    #[error("{}: the name of a file must end with .hcl or .json", .0.display())]
    Name(PathBuf),
    /// A file is too large.
    #[error("{}: larger than {} bytes", .0.display(), MAX_BYTES)]
    Large(PathBuf),
    /// Files cannot be parsed, or have wrong values or definitions; one line each.
    #[error("{}", listed(.0))]
    Wrong(Vec<String>),
    /// The values contradict each other.
    #[error("the converted configuration is invalid: {0}")]
    Invalid(ConfigError),
}

/// Converts files, and folders with all their `.hcl` and `.json` files in alphabetical order.
///
/// # Errors
/// A file cannot be read or parsed, or has values of the wrong kind. The text lists all of them.
pub fn convert(paths: &[PathBuf]) -> Result<Conversion, ConversionError> {
    let mut merged = read::Merged::default();
    for path in paths {
        if !path.is_dir() {
            let format = format_of(path).ok_or_else(|| ConversionError::Name(path.clone()))?;
            merged.add(path, &text_of(path)?, format);
            continue;
        }
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut files: Vec<_> =
            entries.map_err(|error| unreadable(path, error))?.into_iter().map(|entry| entry.path()).collect();
        files.sort();
        for file in files.iter().filter(|file| !file.is_dir()) {
            // As in Consul, other files in a folder are ignored; only a named one is an error.
            if let Some(format) = format_of(file) {
                merged.add(file, &text_of(file)?, format);
            }
        }
    }
    // Only now, so that one run lists the errors of all files.
    if !merged.errors.is_empty() {
        return Err(ConversionError::Wrong(merged.errors));
    }
    convert::convert(merged)
}

fn format_of(file: &Path) -> Option<Format> {
    match file.extension()?.to_str()? {
        "hcl" => Some(Format::Hcl),
        "json" => Some(Format::Json),
        _ => None,
    }
}

fn unreadable(path: &Path, error: io::Error) -> ConversionError {
    ConversionError::Unreadable { path: path.into(), error }
}

fn text_of(file: &Path) -> Result<String, ConversionError> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    // One byte more, to distinguish a larger file from one of exactly this size.
    let read = opened.and_then(|opened| opened.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read.map_err(|error| unreadable(file, error))? as u64 > MAX_BYTES {
        true => Err(ConversionError::Large(file.into())),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::keys::{CHECK, ROOT, SERVICE};
    use super::*;
    use lockmesh_agent::consul;
    use lockmesh_net::config::Section;
    use serde::de::DeserializeOwned;
    use toml::Table;

    /// Converts files by their names and texts.
    fn converted(files: &[(&str, &str)]) -> Result<Conversion, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("it can be written");
        }
        let place = format!("{}/", folder.path().display());
        convert(&[folder.path().into()]).map_err(|error| error.to_string().replace(&place, "")).map(
            |mut found| {
                for finding in &mut found.findings {
                    finding.place.file = finding.place.file.file_name().expect("it has a name").into();
                }
                found
            },
        )
    }

    fn of(text: &str) -> Conversion {
        converted(&[("a.hcl", text)]).expect("it is converted")
    }

    fn findings(of: &Conversion) -> Vec<String> {
        of.findings.iter().map(|finding| format!("{} {}", finding.place, finding.key)).collect()
    }

    fn toml_of<T: Serialize>(config: &T) -> String {
        Table::try_from(config).expect("a table of plain values").to_string()
    }

    /// The text that is read back as the same valid configuration.
    fn text<T: Section + Serialize + DeserializeOwned + PartialEq + fmt::Debug>(config: &T) -> String {
        let text = toml_of(config);
        assert_eq!(&toml::from_str::<T>(&text).expect("it has all keys"), config, "{text}");
        config.check().expect("it is valid");
        text
    }

    #[test]
    fn a_client_is_converted() {
        let found = of(
            "node_name = \"web-1\"\ndatacenter = \"East\"\ndata_dir = \"/opt/consul\"\nbind_addr = \"10.0.0.7\"\n\
             advertise_addr = \"10.0.0.8\"\nretry_join = [\"10.0.0.5\", \"s2.internal:8301\", \
             \"provider=aws secret_access_key=x7\"]\n\
             ports { http = 8501 dns = -1 }\nleave_on_terminate = true\nlog_level = \"ERR\"\nlog_json = true\n\
             session_ttl_min = \"20s\"\nlimits { kv_max_value_size = 1000 }\nencrypt = \"x\"\n\
             performance { rpc_hold_timeout = \"9s\" }\nui = false\n",
        );
        let text = text(&found.agent);
        for line in [
            "data_dir = \"/opt/consul-lockmesh/agent\"",
            "listen = \"10.0.0.7:8301\"",
            "advertise = \"10.0.0.8\"",
            "leave_on_terminate = true",
            "name = \"web-1\"",
            "datacenter = \"east\"",
            "tcp = \"127.0.0.1:8501\"",
            "session_ttl_min = \"20s\"",
            "max_value_bytes = 1000",
            "servers = [\"10.0.0.5:8300\", \"s2.internal:8300\"]",
            "hold_timeout = \"9s\"",
            "level = \"error\"",
            "format = \"json\"",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
        assert_eq!(found.server, None);
        let listed = ["3 data_dir", "6 retry_join", "7 ports.dns", "13 encrypt", "15 ui"];
        assert_eq!(findings(&found), listed.map(|line| format!("a.hcl:{line}")));
        let provider = &found.findings[1].advice;
        assert!(provider.contains("\"provider=aws\" looks servers up at a cloud provider"), "{provider}");
        assert!(!provider.contains("x7"), "a secret is printed: {provider}");
        assert!(found.findings[4].advice.contains("off there"), "{:?}", found.findings);
    }

    #[test]
    fn server_converted_to_two_files() {
        let found = of(
            "server = true\nbootstrap_expect = 3\nbind_addr = \"0.0.0.0\"\nadvertise_addr = \"10.0.0.5\"\n\
             retry_join = [\"10.0.0.6\"]\nports { server = 7300 serf_lan = 7301 }\nreconnect_timeout = \"96h\"\n",
        );
        let server = text(found.server.as_ref().expect("a server"));
        for line in [
            "listen = \"0.0.0.0:7300\"",
            "advertise = \"10.0.0.5:7300\"",
            "bootstrap_expect = 3",
            "join = [\"10.0.0.6:7300\"]",
            "reap_failed_after = \"96h0m0s\"",
        ] {
            assert!(server.contains(line), "{line}:\n{server}");
        }
        let agent = text(&found.agent);
        assert!(agent.contains("servers = [\"10.0.0.5:7300\", \"10.0.0.6:7300\"]"), "{agent}");
        assert!(agent.contains("listen = \"0.0.0.0:7301\""), "{agent}");
        assert!(found.findings.is_empty(), "{:?}", found.findings);
        let bare = of("\nserver = true\nbootstrap = true\n");
        assert!(text(bare.server.as_ref().expect("a server")).contains("bootstrap_expect = 1"));
        assert_eq!(findings(&bare), ["a.hcl:2 bind_addr"]);
    }

    #[test]
    fn services_and_checks_are_converted() {
        let found = of(
            "enable_local_script_checks = true\nservice {\n name = \"web\"\n port = 80\n token = \"x\"\n\
             tags = [\"v1\"]\n meta { team = \"shop\" }\n weights { passing = 2 warning = 1 }\n\
             tagged_addresses { lan { address = \"10.0.0.7\" port = 81 } }\n\
             check { http = \"http://localhost\" interval = \"10s\" header { a = [\"b\"] } }\n\
             connect { sidecar_service { proxy { upstreams { destination_name = \"db\" local_bind_port = 5000 } } } }\n}\n\
             checks { name = \"disk\" args = [\"df\"] interval = \"1m\" }\n\
             checks { name = \"box\" docker_container_id = \"x\" args = [\"a\"] interval = \"1m\" }\n",
        );
        let text = text(&found.agent);
        for part in
            ["[[services]]", "team = \"shop\"", "sidecar_service", "[[checks]]", "scripts = \"config\""]
        {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let proxy = found.agent.services[0].pointer("/connect/sidecar_service/proxy");
        let upstreams = serde_json::json!([{"destination_name": "db", "local_bind_port": 5000}]);
        assert_eq!(proxy, Some(&serde_json::json!({ "upstreams": upstreams })), "a list of one");
        assert_eq!(found.agent.checks.len(), 1);
        assert_eq!(findings(&found), ["a.hcl:2 service.token", "a.hcl:14 check.docker_container_id"]);
        let json = "{\"Service\": {\"ID\": \"a\", \"Name\": \"a\", \"Check\": {\"ScriptArgs\": [\"x\"], \
                    \"Interval\": \"1s\"}}}";
        let found = converted(&[("a.json", json)]).expect("it is converted");
        assert_eq!(findings(&found), ["a.json:1 service.check.args"], "scripts are disabled");
        assert_eq!(found.agent.services, [serde_json::json!({"id": "a", "name": "a"})]);
    }

    #[test]
    fn check_with_script_is_named() {
        let json = "{\"services\": [{\"name\": \"a\"}, {\"name\": \"b\", \"check\": \
                    {\"script\": \"/bin/x\", \"interval\": \"10s\"}}]}";
        let found = converted(&[("a.json", json)]).expect("it is converted");
        assert_eq!(findings(&found), ["a.json:1 service.check.script"]);
        assert_eq!(found.agent.services.len(), 2);
        let json =
            "{\"services\": [{\"name\": \"a\"}, {\"name\": \"b\", \"check\": {\"interval\": \"1s\"}}]}";
        let error = converted(&[("a.json", json)]).expect_err("no kind");
        assert!(error.contains("`services[1]` (\"b\") cannot be used"), "{error}");
    }

    #[test]
    fn later_files_override_and_extend() {
        let found = converted(&[
            (
                "b.json",
                "{\"node_name\": \"b\", \"retry_join\": [\"10.0.0.2\"], \"service\": {\"name\": \"y\"}}",
            ),
            ("a.hcl", "node_name = \"a\"\nretry_join = [\"10.0.0.1\"]\nservice { name = \"x\" }\n"),
            ("c.txt", "not read"),
        ])
        .expect("they are converted");
        assert_eq!(found.agent.node.name, "b");
        assert_eq!(found.agent.upstream.servers, ["10.0.0.1:8300", "10.0.0.2:8300"]);
        assert_eq!(found.agent.services.len(), 2);
    }

    #[test]
    fn client_address_converted() {
        for (text, tcp, socket, count) in [
            ("client_addr = \"0.0.0.0\"", "0.0.0.0:8500", "/run/lockmesh/agent.sock", 1),
            ("client_addr = \"127.0.0.1 10.0.0.7\"", "127.0.0.1:8500", "/run/lockmesh/agent.sock", 1),
            ("addresses { http = \"unix:///run/c.sock\" }", "", "/run/c.sock", 0),
            ("ports { http = -1 }", "", "/run/lockmesh/agent.sock", 0),
            ("client_addr = \"{{ GetPrivateIP }}\"", "127.0.0.1:8500", "/run/lockmesh/agent.sock", 1),
        ] {
            let found = of(text);
            let shown = found.agent.http.tcp.map(|address| address.to_string()).unwrap_or_default();
            assert_eq!(
                (shown.as_str(), found.agent.http.socket.as_path()),
                (tcp, Path::new(socket)),
                "{text}"
            );
            assert_eq!(found.findings.len(), count, "{text}: {:?}", found.findings);
            let _ = tests::text(&found.agent);
        }
    }

    #[test]
    fn type_mismatch_error_includes_line() {
        for (text, expected) in [
            ("\nserver = \"true\"", "a.hcl:2: `server` is text, but must be `true` or `false`"),
            ("service {\n port = \"80\"\n}", "a.hcl:2: `service.port` is text, but must be a whole number"),
            ("retry_join = \"a\"", "a.hcl:1: `retry_join` is text, but must be a list of texts"),
            (
                "ports { http = 1 }\nports { dns = 1 }",
                "a.hcl:1: `ports` is a list of 2, but must be one section",
            ),
            ("service { name = \"a\" }\nservice { name = \"b\" }", "a.hcl:1: `service` is a list of 2"),
            ("node_meta { a = 1 }", "a.hcl:1: `node_meta.a` is 1, but must be text in quotes"),
            ("a b = 1", "a.hcl: line 1: expected `=`"),
            ("\nservice { port = 1 }", "a.hcl:2: `services[0]` (\"\") cannot be used: Missing service name"),
        ] {
            let error = converted(&[("a.hcl", text)]).expect_err("it is wrong");
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(
            convert(&["/nowhere.hcl".into()]).is_err_and(|error| error.to_string().contains("/nowhere.hcl"))
        );
        assert!(
            convert(&["/nowhere".into()]).is_err_and(|error| error.to_string().contains("must end with"))
        );
    }

    #[test]
    fn out_of_range_value_listed() {
        let found = of("session_ttl_min = \"48h\"\nmax_query_time = \"2m\"\nnode_id = \"x\"\nfoo = 1\n");
        assert_eq!(findings(&found), ["a.hcl:1 session_ttl_min", "a.hcl:3 node_id", "a.hcl:4 foo"]);
        assert!(found.findings[0].advice.contains("must be 100ms to 24h0m0s"), "{:?}", found.findings);
        let _ = text(&found.agent);
    }

    /// A value of the kind of a key, other than its default.
    fn sample(name: &str, kind: &keys::Kind) -> &'static str {
        match (name, kind) {
            ("advertise_addr" | "bind_addr" | "serf_lan", keys::Kind::Text) => "\"10.0.0.9\"",
            ("client_addr" | "http", keys::Kind::Text) => "\"127.0.0.2\"",
            ("log_level", _) => "\"WARN\"",
            ("node_id", _) => "\"6f2d5f5e-0c3a-4b5e-9d0f-3c1a5c1f7a10\"",
            ("mode", _) => "\"0600\"",
            ("retry_join" | "start_join", _) => "[\"10.0.0.1\"]",
            ("server", keys::Kind::Integer) => "7300",
            (_, keys::Kind::Text) => "\"70h\"",
            (_, keys::Kind::Flag) => "true",
            (_, keys::Kind::Integer | keys::Kind::Number) => "5",
            (_, keys::Kind::Texts) => "[\"a\"]",
            (_, keys::Kind::TextMap) => "{\"a\": \"b\"}",
            (_, keys::Kind::Sections(_)) => "[]",
            _ => "{}",
        }
    }

    /// The dotted paths of keys, and files with each alone.
    fn files(fields: keys::Fields, opening: &str, closing: &str) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for (names, kind) in fields {
            for name in names.split_whitespace() {
                match kind {
                    keys::Kind::Section(inner)
                        if !["service", "check", "sidecar_service"].contains(&name) =>
                    {
                        let opening = format!("{opening}\"{name}\": {{");
                        let inner = files_below(name, inner, &opening, &format!("}}{closing}"));
                        files.extend(inner);
                    }
                    _ => {
                        let value = match name {
                            "default_query_time"
                            | "hold_timeout"
                            | "rpc_hold_timeout"
                            | "session_ttl_min"
                            | "max_query_time"
                            | "check_update_interval" => "\"11s\"",
                            _ => sample(name, kind),
                        };
                        files.push((name.to_string(), format!("{opening}\"{name}\": {value}{closing}")));
                    }
                }
            }
        }
        files
    }

    fn files_below(name: &str, inner: keys::Fields, opening: &str, closing: &str) -> Vec<(String, String)> {
        let below = files(inner, opening, closing);
        below.into_iter().map(|(path, text)| (format!("{name}.{path}"), text)).collect()
    }

    #[test]
    fn every_key_converted_or_listed() {
        let both = |found: &Conversion| {
            let server = found.server.as_ref().map(toml_of).unwrap_or_default();
            format!("{}\n{server}", toml_of(&found.agent))
        };
        let opening = "{\"server\": true, \"bind_addr\": \"10.0.0.7\", ";
        let default =
            both(&converted(&[("a.json", &format!("{opening}\"ui\": true}}"))]).expect("it is converted"));
        let (mut counts, mut lost, mut without_row) = ([0, 0], Vec::new(), Vec::new());
        let all = files(ROOT, opening, "}");
        for (path, text) in &all {
            if ["server", "service", "services", "check", "checks"].contains(&path.as_str()) {
                continue;
            }
            let found = converted(&[("a.json", text)]).unwrap_or_else(|error| panic!("{path}: {error}"));
            let is_changed = both(&found) != default;
            let is_listed = found.findings.iter().any(|finding| finding.key == *path);
            counts[usize::from(!is_changed)] += 1;
            if !is_changed && !is_listed {
                lost.push(path);
            }
            if consul::key(path).is_none() && !["data_dir", "pid_file"].contains(&path.as_str()) {
                without_row.push(path);
            }
        }
        assert!(lost.is_empty(), "neither converted nor listed: {lost:?}");
        assert!(without_row.is_empty(), "agent::consul::KEYS has no row for {without_row:?}");
        let [converted_keys, listed_keys] = counts;
        assert!(converted_keys >= 30 && listed_keys >= 250, "{counts:?}");
    }

    #[test]
    fn every_definition_field_converted_or_listed() {
        for (list, fields, start) in
            [("service", SERVICE, "\"name\": \"a\""), ("check", CHECK, "\"name\": \"a\"")]
        {
            for (path, text) in files(fields, &format!("{{\"{list}\": {{{start}, "), "}}") {
                // A definition that is not valid with this field alone is an error, and so not
                // lost.
                let Ok(found) = converted(&[("a.json", &text)]) else { continue };
                let definition = found.agent.services.iter().chain(&found.agent.checks).next();
                let pointer = format!("/{}", path.replace('.', "/"));
                let is_kept = definition.is_some_and(|definition| definition.pointer(&pointer).is_some());
                let is_listed = found.findings.iter().any(|finding| finding.key == format!("{list}.{path}"));
                assert!(is_kept || is_listed, "{list}.{path} is lost: {text}");
            }
        }
    }
}
