//! The context of a command that connects to the agent: the agent's address and the token.
//!
//! Resolved once, from flags, then `LOCKMESH_*`, then `CONSUL_*`, then defaults; no command reads
//! these variables again. The client library knows the variables, and rejects unsupported ones by
//! name.

use super::error::CliError;
use lockmesh_client::{Client, Read, Settings};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use lockmesh_client::Address;

/// The socket that is tried first if no address is given.
pub const DEFAULT_SOCKET: &str = "/run/lockmesh/agent.sock";

const ADDRESS_VARIABLES: [&str; 2] = ["LOCKMESH_HTTP_ADDR", "CONSUL_HTTP_ADDR"];

/// Options of every command that connects to the agent. The topic `agent-address` of the help shows
/// them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ConnectionArgs {
    /// Agent address: `host:port`, `http://host:port` or `unix:///path`
    #[arg(long, value_name = "ADDR", global = true, hide = true)]
    http_addr: Option<String>,
    /// Token to send; other users of this host can read it, so prefer the file or the environment
    /// [env: LOCKMESH_HTTP_TOKEN, CONSUL_HTTP_TOKEN]
    #[arg(long, value_name = "TOKEN", global = true, hide = true)]
    token: Option<String>,
    /// File with the token [env: CONSUL_HTTP_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true, hide = true, conflicts_with = "token")]
    token_file: Option<PathBuf>,
}

/// The consistency of a read.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct ConsistencyArgs {
    /// Allow a stale answer from any server
    #[arg(long, conflicts_with = "consistent")]
    stale: bool,
    /// Linearizable read
    #[arg(long)]
    consistent: bool,
}

impl ConsistencyArgs {
    /// The same for the client library.
    pub fn read(self) -> Read {
        match (self.stale, self.consistent) {
            (true, _) => Read::stale(),
            (false, true) => Read::consistent(),
            (false, false) => Read::default(),
        }
    }
}

/// The context of a command, besides its own arguments.
#[derive(Clone, Debug)]
pub struct Context {
    /// The agent's address.
    pub address: Address,
    /// The token to send, if one was given. Clusters without access control ignore it.
    pub token: Option<String>,
}

impl Context {
    /// Resolves the address and the token in this process's environment.
    ///
    /// # Errors
    /// A flag, a variable or the token file cannot be used; the error names it. Nothing was sent.
    pub fn resolve(arguments: &ConnectionArgs) -> Result<Self, CliError> {
        // The file alone proves nothing: a killed agent leaves it behind.
        let answers = |path: &Path| UnixStream::connect(path).is_ok();
        resolve(arguments, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()), &answers)
    }

    /// A client of the agent. It connects on first use.
    ///
    /// # Errors
    /// The token cannot be sent in a header. Nothing was sent.
    pub fn client(&self) -> Result<Client, CliError> {
        match &self.token {
            Some(token) => Ok(Client::with_token(self.address.clone(), token)?),
            None => Ok(Client::new(self.address.clone())),
        }
    }
}

fn resolve(
    arguments: &ConnectionArgs,
    variable: &dyn Fn(&str) -> Option<String>,
    answers: &dyn Fn(&Path) -> bool,
) -> Result<Context, CliError> {
    let flag = arguments.http_addr.as_deref();
    // Checked here, so that the error names the flag and not the variable that it replaces.
    if let Some(text) = flag {
        Address::from_str(text).map_err(|error| CliError::usage(format!("--http-addr: {error}")))?;
    }
    // The flag replaces our own variable, which has priority over Consul's.
    let settings = Settings::from_lookup(|name| match (name, flag) {
        ("LOCKMESH_HTTP_ADDR", Some(flag)) => Some(flag.to_string()),
        _ => variable(name),
    })?;
    // An existing socket must not replace an explicit address.
    let is_given = flag.is_some() || ADDRESS_VARIABLES.into_iter().any(|name| variable(name).is_some());
    let address = match !is_given && answers(Path::new(DEFAULT_SOCKET)) {
        true => Address::Unix(DEFAULT_SOCKET.into()),
        false => settings.address,
    };
    let token = match (&arguments.token, &arguments.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(file)) => Some(read_token(file)?),
        (None, None) => settings.token,
    };
    Ok(Context { address, token })
}

fn read_token(file: &Path) -> Result<String, CliError> {
    // A header cannot contain the newline at the end of the file.
    std::fs::read_to_string(file)
        .map(|text| text.trim().to_string())
        .map_err(|error| CliError::failed(format!("cannot read the token file {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(
        arguments: ConnectionArgs,
        variables: &[(&str, &str)],
        socket: bool,
    ) -> Result<Context, CliError> {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        resolve(&arguments, &lookup, &|_| socket)
    }

    fn flag(text: &str) -> ConnectionArgs {
        ConnectionArgs { http_addr: Some(text.into()), ..ConnectionArgs::default() }
    }

    fn address(arguments: ConnectionArgs, variables: &[(&str, &str)]) -> String {
        context(arguments, variables, true).expect("it is good").address.to_string()
    }

    #[test]
    fn address_precedence_flag_lockmesh_consul() {
        let variables = [("LOCKMESH_HTTP_ADDR", "ours:1"), ("CONSUL_HTTP_ADDR", "unix:///theirs")];
        let none = ConnectionArgs::default;
        assert_eq!(address(flag("flag:3"), &variables), "flag:3");
        assert_eq!(address(none(), &variables), "ours:1");
        assert_eq!(address(none(), &variables[1..]), "unix:///theirs");
        assert_eq!(address(none(), &[]), "unix:///run/lockmesh/agent.sock");
        let silent = context(none(), &[], false).expect("it is good");
        assert_eq!(silent.address.to_string(), "127.0.0.1:8500");
    }

    #[test]
    fn tls_request_rejected_unless_overridden() {
        let refused = context(ConnectionArgs::default(), &[("CONSUL_HTTP_SSL", "true")], true);
        let refused = refused.expect_err("the agent speaks plain HTTP");
        assert!(matches!(&refused, CliError::Usage(text) if text.contains("CONSUL_HTTP_SSL")), "{refused}");
        assert_eq!(address(flag("h:1"), &[("CONSUL_HTTP_SSL", "true")]), "h:1");
        let refused = context(flag("https://h:1"), &[], true).expect_err("the agent speaks plain HTTP");
        assert!(refused.to_string().starts_with("--http-addr: "), "{refused}");
    }

    #[test]
    fn token_from_flag_file_or_variable() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), " secret \n").expect("it can be written");
        let variables = [("CONSUL_HTTP_TOKEN", "t")];
        let token = |arguments| context(arguments, &variables, false).expect("it is good").token;
        assert_eq!(token(ConnectionArgs::default()).as_deref(), Some("t"));
        assert_eq!(token(flag("h:1")), None, "the token of Consul is for another service");
        let by_file = ConnectionArgs { token_file: Some(file.path().into()), ..ConnectionArgs::default() };
        assert_eq!(token(by_file).as_deref(), Some("secret"));
        let by_flag = ConnectionArgs { token: Some("f".into()), ..ConnectionArgs::default() };
        assert_eq!(token(by_flag).as_deref(), Some("f"));
        let lost = ConnectionArgs { token_file: Some("/nowhere".into()), ..ConnectionArgs::default() };
        assert!(context(lost, &[], false).expect_err("there is none").to_string().contains("/nowhere"));
    }
}
