//! What every command that talks to the agent is given: where the agent is and how to speak to it.
//!
//! Decided once, from flags, then `LOCKMESH_*`, then `CONSUL_*`, then defaults; no command looks at the
//! environment for these again. What cannot be honoured is refused by its name, never ignored.

use super::error::CliError;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The socket that is tried first where nobody says where the agent is.
pub const DEFAULT_SOCKET: &str = "/run/lockmesh/agent.sock";

/// The address that is used where that socket does not answer.
pub const DEFAULT_TCP: &str = "127.0.0.1:8500";

/// Options of every command that talks to the agent.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reaching the agent")]
pub struct ConnectionArgs {
    /// Where the agent is: `host:port`, `http://host:port` or `unix:///path`
    ///
    /// Without it LOCKMESH_HTTP_ADDR, then CONSUL_HTTP_ADDR, then /run/lockmesh/agent.sock if it answers, then
    /// 127.0.0.1:8500.
    #[arg(long, value_name = "ADDR", global = true)]
    http_addr: Option<String>,
    /// The token to send [env: LOCKMESH_HTTP_TOKEN, CONSUL_HTTP_TOKEN]
    #[arg(long, value_name = "TOKEN", global = true)]
    token: Option<String>,
    /// A file with the token [env: LOCKMESH_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "token")]
    token_file: Option<PathBuf>,
}

/// Where the local agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`, plain HTTP.
    Tcp(String),
}

/// What a command is given besides its own arguments.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where the agent is.
    pub address: Address,
    /// The token to send, where one was given. Agents take any token today.
    pub token: Option<String>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

impl Address {
    /// Reads an address as flags and variables spell it. The error says what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        match scheme {
            "unix" if rest.is_empty() => Err("names no path: write unix:///run/lockmesh/agent.sock".into()),
            "unix" => Ok(Self::Unix(rest.into())),
            "http" | "tcp" => host_and_port(rest.trim_end_matches('/')).map(Self::Tcp),
            "https" => {
                Err("asks for TLS, which the local agent does not speak: use http:// or unix://".into())
            }
            other => Err(format!("has the unknown scheme {other:?}: use http:// or unix://")),
        }
    }
}

impl Context {
    /// Decides where the agent is, by this process's environment.
    pub fn resolve(arguments: &ConnectionArgs) -> Result<Self, CliError> {
        let answers = |path: &Path| UnixStream::connect(path).is_ok();
        resolve(arguments, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()), &answers)
    }
}

fn resolve(
    arguments: &ConnectionArgs,
    variable: &dyn Fn(&str) -> Option<String>,
    answers: &dyn Fn(&Path) -> bool,
) -> Result<Context, CliError> {
    let address = match &arguments.http_addr {
        Some(text) => named_address("--http-addr", text)?,
        None => match (variable("LOCKMESH_HTTP_ADDR"), variable("CONSUL_HTTP_ADDR")) {
            (Some(text), _) => named_address("LOCKMESH_HTTP_ADDR", &text)?,
            (None, Some(text)) => named_address("CONSUL_HTTP_ADDR", &text)?,
            (None, None) if answers(Path::new(DEFAULT_SOCKET)) => Address::Unix(DEFAULT_SOCKET.into()),
            (None, None) => Address::Tcp(DEFAULT_TCP.into()),
        },
    };
    // Our own variable is meant for us, whatever the others ask of a Consul elsewhere.
    if variable("LOCKMESH_HTTP_ADDR").is_none() || arguments.http_addr.is_some() {
        refuse_what_cannot_be_honoured(variable)?;
    }
    Ok(Context { address, token: token(arguments, variable)? })
}

fn named_address(origin: &str, text: &str) -> Result<Address, CliError> {
    Address::parse(text).map_err(|problem| CliError::usage(format!("{origin} is {text:?}, which {problem}")))
}

fn host_and_port(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Err("has a path, but the agent is not served below one: write host:port".into());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && !port.contains(']') => {
            let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
            if is_bare_ipv6 || host.is_empty() || !matches!(port.parse::<u16>(), Ok(1..)) {
                return Err("is no host:port; an IPv6 address is written [::1]:8500".into());
            }
            Ok(text.into())
        }
        _ => Err(format!("has no port: did you mean {text}:8500?")),
    }
}

/// Consul's variables that would change where a request goes or what it means. Those that only matter together with
/// TLS (`CONSUL_CACERT` and its like) are without effect there too as long as TLS is not asked for.
fn refuse_what_cannot_be_honoured(variable: &dyn Fn(&str) -> Option<String>) -> Result<(), CliError> {
    let refuse = |name: &str, why: &str| Err(CliError::usage(format!("{name} is set, but {why}")));
    if let Some(text) = variable("CONSUL_HTTP_SSL") {
        match text.as_str() {
            "0" | "f" | "F" | "false" | "FALSE" | "False" => {}
            _ => {
                let why = "the local agent does not speak TLS: unset it, or say where the agent is with \
                           LOCKMESH_HTTP_ADDR";
                return refuse("CONSUL_HTTP_SSL", why);
            }
        }
    }
    if variable("CONSUL_HTTP_AUTH").is_some() {
        return refuse("CONSUL_HTTP_AUTH", "the local agent has no basic authentication: unset it");
    }
    for name in ["CONSUL_NAMESPACE", "CONSUL_PARTITION"] {
        if variable(name).is_some() {
            return refuse(name, "there are no namespaces and no partitions here: unset it");
        }
    }
    Ok(())
}

fn token(
    arguments: &ConnectionArgs,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, CliError> {
    if let Some(token) = &arguments.token {
        return Ok(Some(token.clone()));
    }
    if let Some(file) = &arguments.token_file {
        return read_token(file).map(Some);
    }
    for family in ["LOCKMESH", "CONSUL"] {
        if let Some(token) = variable(&format!("{family}_HTTP_TOKEN")) {
            return Ok(Some(token));
        }
        if let Some(file) = variable(&format!("{family}_HTTP_TOKEN_FILE")) {
            return read_token(Path::new(&file)).map(Some);
        }
    }
    Ok(None)
}

fn read_token(file: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(file)
        .map(|text| text.trim().to_string())
        .map_err(|error| CliError::failed(format!("cannot read the token file {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(flag: Option<&str>, variables: &[(&str, &str)], socket: bool) -> Result<Context, CliError> {
        let arguments = ConnectionArgs { http_addr: flag.map(String::from), ..ConnectionArgs::default() };
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        resolve(&arguments, &lookup, &|_| socket)
    }

    fn address(flag: Option<&str>, variables: &[(&str, &str)]) -> String {
        context(flag, variables, false).expect("it is good").address.to_string()
    }

    fn complaint(variables: &[(&str, &str)]) -> String {
        let error = context(None, variables, false).expect_err("it is refused");
        assert!(matches!(error, CliError::Usage(_)));
        error.to_string()
    }

    #[test]
    fn flags_win_over_our_variables_and_those_over_consuls() {
        let variables = [("LOCKMESH_HTTP_ADDR", "ours:1"), ("CONSUL_HTTP_ADDR", "theirs:2")];
        assert_eq!(address(Some("flag:3"), &variables), "http://flag:3");
        assert_eq!(address(None, &variables), "http://ours:1");
        assert_eq!(address(None, &variables[1..]), "http://theirs:2");
        let socket = context(None, &[], true).expect("it is good").address;
        assert_eq!(socket, Address::Unix(DEFAULT_SOCKET.into()));
        assert_eq!(address(None, &[]), "http://127.0.0.1:8500");
    }

    #[test]
    fn addresses_are_written_as_consuls_users_write_them() {
        let known = [
            ("unix:///run/x.sock", "unix:///run/x.sock"),
            ("unix://x.sock", "unix://x.sock"),
            ("http://localhost:8500/", "http://localhost:8500"),
            ("[::1]:8500", "http://[::1]:8500"),
        ];
        for (text, shown) in known {
            assert_eq!(address(None, &[("CONSUL_HTTP_ADDR", text)]), shown);
        }
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_with_the_way_out() {
        let refusal = |text| complaint(&[("CONSUL_HTTP_ADDR", text)]);
        assert!(refusal("https://localhost:8501").contains("CONSUL_HTTP_ADDR is \"https://localhost:8501\""));
        assert!(refusal("localhost").contains("did you mean localhost:8500?"));
        assert!(refusal("[::1]").contains("did you mean [::1]:8500?"));
        assert!(refusal("::1:8500").contains("[::1]:8500"));
        assert!(refusal("localhost:0").contains("no host:port"));
        assert!(refusal("localhost:8500/consul").contains("has a path"));
        assert!(refusal("ftp://localhost").contains("unknown scheme \"ftp\""));
        assert!(refusal("unix://").contains("names no path"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        assert!(complaint(&[("CONSUL_HTTP_SSL", "true")]).starts_with("CONSUL_HTTP_SSL is set"));
        assert!(complaint(&[("CONSUL_HTTP_AUTH", "u:p")]).starts_with("CONSUL_HTTP_AUTH is set"));
        assert!(complaint(&[("CONSUL_NAMESPACE", "x")]).starts_with("CONSUL_NAMESPACE is set"));
        assert!(complaint(&[("CONSUL_PARTITION", "x")]).starts_with("CONSUL_PARTITION is set"));
        let plain = [("CONSUL_HTTP_SSL", "false"), ("CONSUL_CACERT", "/ca.pem")];
        assert_eq!(address(None, &plain), "http://127.0.0.1:8500");
        let ours = [("CONSUL_HTTP_SSL", "true"), ("LOCKMESH_HTTP_ADDR", "h:1")];
        assert_eq!(address(None, &ours), "http://h:1", "our own variable is meant for us");
    }

    #[test]
    fn a_token_comes_from_flag_variable_or_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), " secret \n").expect("it can be written");
        let path = file.path().to_str().expect("it is text");
        let token = |variables: &[(&str, &str)]| context(None, variables, false).expect("it is good").token;
        assert_eq!(token(&[]), None);
        assert_eq!(
            token(&[("CONSUL_HTTP_TOKEN", "t"), ("CONSUL_HTTP_TOKEN_FILE", path)]).as_deref(),
            Some("t")
        );
        assert_eq!(
            token(&[("CONSUL_HTTP_TOKEN", "t"), ("LOCKMESH_HTTP_TOKEN_FILE", path)]).as_deref(),
            Some("secret")
        );
        let error =
            context(None, &[("CONSUL_HTTP_TOKEN_FILE", "/nowhere")], false).expect_err("there is none");
        assert!(error.to_string().contains("/nowhere"));
    }
}
