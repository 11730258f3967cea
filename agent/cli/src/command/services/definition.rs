//! Definitions of services: from options, and from files with the fields of `[[services]]` in
//! `agent.toml`, which Consul's service definitions have too.
//!
//! The agent checks a definition; this only converts the names of its fields to the API's names,
//! which have no underscores and in which case is ignored.

use super::super::arguments::pair;
use super::super::error::CliError;
use crate::config;
use lockmesh_client::shape::agent::{NewCheck, NewService};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The interval of a check that is given without one.
const DEFAULT_INTERVAL: &str = "10s";

// A service by its options, or files. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug, Default)]
pub(super) struct DefinitionArgs {
    /// Service name
    #[arg(long, value_name = "NAME", required_unless_present = "files")]
    name: Option<String>,
    /// Service ID, unique on this agent [default: the name]
    #[arg(long, value_name = "ID", requires = "name")]
    id: Option<String>,
    /// Port
    #[arg(long, value_name = "PORT", requires = "name")]
    port: Option<u16>,
    /// Address [default: the node's]
    #[arg(long, value_name = "ADDR", requires = "name")]
    address: Option<String>,
    /// Tag; repeatable
    #[arg(long = "tag", value_name = "TAG", requires = "name")]
    tags: Vec<String>,
    /// Metadata; repeatable
    #[arg(long, value_name = "KEY=VALUE", requires = "name", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Check: the application reports within this time
    #[arg(long, value_name = "DURATION", requires = "name", group = "check")]
    check_ttl: Option<String>,
    /// Check: this URL replies with a 2xx status
    #[arg(long, value_name = "URL", requires = "name", groups = ["check", "probe"])]
    check_http: Option<String>,
    /// Check: this address accepts connections
    #[arg(long, value_name = "HOST:PORT", requires = "name", groups = ["check", "probe"])]
    check_tcp: Option<String>,
    /// Check: this gRPC server reports that it serves
    #[arg(long, value_name = "HOST:PORT[/SERVICE]", requires = "name", groups = ["check", "probe"])]
    check_grpc: Option<String>,
    /// Interval of the check [default: 10s]
    #[arg(long, value_name = "DURATION", requires = "probe", conflicts_with = "check_ttl")]
    check_interval: Option<String>,
    /// Timeout of the check [default: 10s]
    #[arg(long, value_name = "DURATION", requires = "probe", conflicts_with = "check_ttl")]
    check_timeout: Option<String>,
    /// Deregister the service when the check has been critical for this time
    #[arg(long, value_name = "DURATION", requires = "check")]
    check_deregister_after: Option<String>,
    /// Files with definitions, in JSON or TOML
    #[arg(value_name = "FILE", conflicts_with_all = ["name", "id", "port", "address", "tags", "meta", "check"])]
    #[arg(conflicts_with_all = ["check_interval", "check_timeout", "check_deregister_after"])]
    files: Vec<PathBuf>,
}

/// The reason why a file has no definitions. The text follows the name of the file.
#[derive(Debug, thiserror::Error)]
enum DefinitionError {
    #[error("is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("is neither JSON nor TOML: {0}")]
    NotToml(String),
    #[error("must be an object")]
    NotObject,
    #[error("must have an object as `service`")]
    Service,
    #[error("must have a list as `services`")]
    Services,
    #[error("has no object at {0}")]
    NoObjectAt(String),
    #[error("has {0:?}, but must have only `service`, or a list `services`")]
    UnknownKey(String),
    #[error("has no service: define it in `service`, or in a list `services`")]
    Empty,
    #[error("must have a string as `{name}` of {place}")]
    NotText { name: &'static str, place: String },
    #[error("has no `name` in {0}")]
    Unnamed(String),
}

impl DefinitionArgs {
    /// The services to register.
    pub(super) fn services(self) -> Result<Vec<NewService>, CliError> {
        match self.files.is_empty() {
            true => Ok(vec![self.service()]),
            false => of_files(&self.files),
        }
    }

    fn service(self) -> NewService {
        let is_probe = self.check_http.is_some() || self.check_tcp.is_some() || self.check_grpc.is_some();
        // As in Consul, a probe without an interval is rejected, and a TTL with one, too.
        let interval = self.check_interval.or_else(|| is_probe.then(|| DEFAULT_INTERVAL.into()));
        let check = NewCheck {
            ttl: self.check_ttl.unwrap_or_default(),
            http: self.check_http.unwrap_or_default(),
            tcp: self.check_tcp.unwrap_or_default(),
            grpc: self.check_grpc.unwrap_or_default(),
            interval: interval.unwrap_or_default(),
            timeout: self.check_timeout.unwrap_or_default(),
            deregister_critical_service_after: self.check_deregister_after.unwrap_or_default(),
            ..NewCheck::default()
        };
        NewService {
            id: self.id.unwrap_or_default(),
            name: self.name.unwrap_or_default(),
            tags: self.tags,
            address: self.address.unwrap_or_default(),
            port: self.port,
            meta: self.meta.into_iter().collect(),
            checks: Some(check).filter(|check| *check != NewCheck::default()).into_iter().collect(),
            more: Map::new(),
        }
    }
}

/// The services of files, in their order.
///
/// # Errors
/// A file cannot be read, or has something else; the error names it. Nothing was sent.
pub(super) fn of_files(files: &[PathBuf]) -> Result<Vec<NewService>, CliError> {
    let mut services = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file)
            .map_err(|error| CliError::failed(format!("cannot read {}: {error}", file.display())))?;
        services.extend(of_text(file, &text)?);
    }
    Ok(services)
}

fn of_text(file: &Path, text: &str) -> Result<Vec<NewService>, CliError> {
    let parsed = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(DefinitionError::NotJson),
        false => config::json_of(text).map_err(|error| DefinitionError::NotToml(error.to_string())),
    };
    parsed
        .and_then(of_document)
        .map_err(|error| CliError::usage(format!("{} {}", file.display(), error.to_string().trim_end())))
}

fn of_document(document: Value) -> Result<Vec<NewService>, DefinitionError> {
    let Value::Object(keys) = document else { return Err(DefinitionError::NotObject) };
    let mut services = Vec::new();
    for (key, value) in keys {
        match (key.as_str(), value) {
            ("service", Value::Object(fields)) => services.push(definition(&key, fields)?),
            ("services", Value::Array(list)) => {
                for (number, value) in list.into_iter().enumerate() {
                    let place = format!("services[{number}]");
                    let Value::Object(fields) = value else {
                        return Err(DefinitionError::NoObjectAt(place));
                    };
                    services.push(definition(&place, fields)?);
                }
            }
            ("service", _) => return Err(DefinitionError::Service),
            ("services", _) => return Err(DefinitionError::Services),
            (other, _) => return Err(DefinitionError::UnknownKey(other.into())),
        }
    }
    match services.is_empty() {
        true => Err(DefinitionError::Empty),
        false => Ok(services),
    }
}

/// A definition with the names of the API.
fn definition(place: &str, fields: Map<String, Value>) -> Result<NewService, DefinitionError> {
    let mut more = folded(fields);
    for (name, value) in &mut more {
        match (name.as_str(), value) {
            ("check", Value::Object(check)) => *check = check_type(std::mem::take(check)),
            ("checks", Value::Array(checks)) => {
                for check in checks.iter_mut().filter_map(Value::as_object_mut) {
                    *check = check_type(std::mem::take(check));
                }
            }
            _ => {}
        }
    }
    let mut text = |name| match more.remove(name) {
        Some(Value::String(text)) => Ok(text),
        None => Ok(String::new()),
        Some(_) => Err(DefinitionError::NotText { name, place: place.into() }),
    };
    let (id, name) = (text("id")?, text("name")?);
    match name.is_empty() {
        true => Err(DefinitionError::Unnamed(place.into())),
        false => Ok(NewService { id, name, more, ..NewService::default() }),
    }
}

/// A check inside a service, whose id has another name in the API than in a file.
fn check_type(fields: Map<String, Value>) -> Map<String, Value> {
    let named = |(name, value)| (if name == "id" { "checkid".into() } else { name }, value);
    folded(fields).into_iter().map(named).collect()
}

/// The same fields with names in lower case and without underscores.
fn folded(fields: Map<String, Value>) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.replace('_', "").to_lowercase(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};
    use serde_json::json;

    fn parsed(line: &str) -> Result<DefinitionArgs, clap::Error> {
        let command = DefinitionArgs::augment_args(clap::Command::new("register").no_binary_name(true));
        DefinitionArgs::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
    }

    fn body(line: &str) -> Value {
        let services = parsed(line).expect("the line is good").services().expect("no file");
        serde_json::to_value(&services[0]).expect("it is JSON")
    }

    fn read(text: &str) -> Result<Value, String> {
        let services = of_text(Path::new("web.toml"), text).map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(services).expect("it is JSON"))
    }

    #[test]
    fn options_become_a_definition() {
        assert_eq!(body("--name web"), json!({ "Name": "web" }));
        assert_eq!(
            body("--name web --id w1 --port 80 --address ::1 --tag a --tag b --meta k=v=w --check-ttl 15s"),
            json!({
                "ID": "w1", "Name": "web", "Tags": ["a", "b"], "Address": "::1", "Port": 80,
                "Meta": { "k": "v=w" }, "Checks": [{ "TTL": "15s" }],
            })
        );
        assert_eq!(
            body("--name web --check-http http://localhost/ --check-deregister-after 1h")["Checks"],
            json!([{
                "HTTP": "http://localhost/", "Interval": "10s", "DeregisterCriticalServiceAfter": "1h",
            }])
        );
        assert_eq!(
            body("--name web --check-tcp localhost:80 --check-interval 5s --check-timeout 1s")["Checks"],
            json!([{ "TCP": "localhost:80", "Interval": "5s", "Timeout": "1s" }])
        );
        for line in [
            "",
            "--id w1",
            "--port 80 web.json",
            "--name web web.json",
            "--check-interval 1s web.json",
            "--name web --check-timeout 1s",
            "--name web --check-ttl 1s --check-http http://localhost/",
            "--name web --check-ttl 1s --check-interval 1s",
            "--name web --check-deregister-after 1h",
            "--name web --meta k",
            "--name web --port 70000",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("a.json b.toml").is_ok());
    }

    #[test]
    fn accepts_single_and_multiple_services() {
        let expected = json!([{
            "ID": "w1", "Name": "web", "port": 80, "enabletagoverride": true,
            "taggedaddresses": { "lan_ipv4": { "address": "10.0.0.1", "port": 80 } },
            "meta": { "a_b": "c" },
            "check": { "checkid": "c1", "http": "http://localhost/", "interval": "5s",
                "header": { "X_Y": ["z"] }, "tlsskipverify": true },
        }]);
        let toml = "[service]\nname = \"web\"\nid = \"w1\"\nport = 80\nenable_tag_override = true\n\
                    meta = { a_b = \"c\" }\n\
                    tagged_addresses = { lan_ipv4 = { address = \"10.0.0.1\", port = 80 } }\n\
                    [service.check]\nid = \"c1\"\nhttp = \"http://localhost/\"\ninterval = \"5s\"\n\
                    tls_skip_verify = true\nheader = { X_Y = [\"z\"] }\n";
        assert_eq!(read(toml).expect("it is good"), expected);
        let list = r#" {"services": [{"Name": "a", "Checks": [{"TTL": "1s"}]}, {"name": "b", "ID": "b2"}]}"#;
        let expected = json!([{ "Name": "a", "checks": [{ "ttl": "1s" }] }, { "ID": "b2", "Name": "b" }]);
        assert_eq!(read(list).expect("it is good"), expected);
    }

    #[test]
    fn missing_service_error_names_requirement() {
        for (text, expected) in [
            ("", "web.toml has no service: define it in `service`"),
            ("{", "web.toml is not JSON: "),
            ("service \"web\" {\n port = 80\n}\n", "web.toml is neither JSON nor TOML: "),
            ("{\"Name\": \"web\"}", "web.toml has \"Name\", but must have only `service`"),
            ("service = 1", "must have an object as `service`"),
            ("services = 1", "must have a list as `services`"),
            ("services = [1]", "has no object at services[0]"),
            ("[service]\nport = 80\n", "has no `name` in service"),
            (
                "[[services]]\nname = \"a\"\n[[services]]\nname = 5\n",
                "must have a string as `name` of services[1]",
            ),
        ] {
            let problem = read(text).expect_err("it is wrong");
            assert!(problem.contains(expected), "{text}: {problem}");
        }
        let missing = of_files(&["/nowhere.json".into()]).expect_err("there is none").to_string();
        assert!(missing.starts_with("cannot read /nowhere.json: "), "{missing}");
    }
}
