//! The settings of the environment, and the notation of addresses.
//!
//! They are evaluated once, when a client is created. The local agent uses plain HTTP on a socket
//! of this host. Settings that require TLS return an error that names them instead of being
//! ignored.

use crate::address::{Address, DEFAULT_PORT};
use crate::error::Error;
use std::str::FromStr;

/// The settings of the environment: an address and an optional token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The agent's address.
    pub address: Address,
    /// The value of `X-Consul-Token`; agents without access control ignore it.
    pub token: Option<String>,
}

/// Consul's settings that require TLS or another login, each with its correction.
const REFUSED: [(&str, &str); 8] = [
    ("CONSUL_CACERT", "the local agent speaks plain HTTP, so there is no certificate to check: unset it"),
    ("CONSUL_CAPATH", "the local agent speaks plain HTTP, so there is no certificate to check: unset it"),
    ("CONSUL_CLIENT_CERT", "the local agent speaks plain HTTP and asks for no certificate: unset it"),
    ("CONSUL_CLIENT_KEY", "the local agent speaks plain HTTP and asks for no certificate: unset it"),
    ("CONSUL_TLS_SERVER_NAME", "the local agent speaks plain HTTP: unset it"),
    ("CONSUL_HTTP_AUTH", "the local agent knows no user names: unset it, or use CONSUL_HTTP_TOKEN"),
    ("CONSUL_NAMESPACE", "there are no namespaces here: unset it"),
    ("CONSUL_PARTITION", "there are no partitions here: unset it"),
];

impl Settings {
    /// Reads the process environment. See [`Settings::from_lookup`].
    ///
    /// # Errors
    /// [`Error::Settings`] names the variable and the correction.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads `LOCKMESH_HTTP_ADDR` and `LOCKMESH_HTTP_TOKEN`; their `CONSUL_` counterparts are the
    /// fallback.
    ///
    /// With `LOCKMESH_HTTP_ADDR` set, Consul's settings, its token included, refer to another
    /// service and are ignored. Without it, settings that require TLS return an error that names
    /// them. An empty variable counts as absent.
    ///
    /// # Errors
    /// [`Error::Settings`] names the variable and the correction.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let token = lookup("LOCKMESH_HTTP_TOKEN");
        if let Some(text) = lookup("LOCKMESH_HTTP_ADDR") {
            return Ok(Self { address: named("LOCKMESH_HTTP_ADDR", &text)?, token });
        }
        let address = consul_address(&lookup)?;
        let token = match token.or_else(|| lookup("CONSUL_HTTP_TOKEN")) {
            Some(token) => Some(token),
            None => lookup("CONSUL_HTTP_TOKEN_FILE").map(|path| read_token(&path)).transpose()?,
        };
        Ok(Self { address, token })
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Parses `unix:///path`, `/path`, `host`, `host:port`, `[v6]:port`, or `http://` and one of
    /// the last three.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once("://") {
            Some(("unix", path)) => unix(path),
            Some(("http", rest)) => tcp(rest),
            Some(("https", rest)) => Err(Error::Settings(format!(
                "the address https://{rest} asks for TLS, but the agent of this host speaks plain HTTP: \
                 write http://{rest}, or unix:// and the path of its socket"
            ))),
            Some((scheme, _)) => Err(Error::Settings(format!(
                "the address {text} has an unknown scheme {scheme:?}: write unix:///path, http://host:port or host:port"
            ))),
            None if text.starts_with('/') => unix(text),
            None => tcp(text),
        }
    }
}

fn consul_address(lookup: &impl Fn(&str) -> Option<String>) -> Result<Address, Error> {
    // Rejected instead of ignored: the user expects a protection that does not exist.
    for (name, advice) in REFUSED {
        if lookup(name).is_some() {
            return Err(Error::Settings(format!("{name} is set, but {advice}")));
        }
    }
    if let Some(value) = lookup("CONSUL_HTTP_SSL")
        // The values that Consul's own client treats as false.
        && !matches!(value.as_str(), "0" | "f" | "F" | "false" | "FALSE" | "False")
    {
        return Err(Error::Settings(format!(
            "CONSUL_HTTP_SSL is {value:?}, but the local agent speaks plain HTTP: unset it or set it to false"
        )));
    }
    lookup("CONSUL_HTTP_ADDR").map_or_else(|| Ok(Address::default()), |text| named("CONSUL_HTTP_ADDR", &text))
}

fn named(name: &str, text: &str) -> Result<Address, Error> {
    text.parse().map_err(|error| Error::Settings(format!("{name}: {error}")))
}

fn read_token(path: &str) -> Result<String, Error> {
    match std::fs::read_to_string(path) {
        // Files end with a line break, which a header cannot contain.
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(Error::Settings(format!(
            "CONSUL_HTTP_TOKEN_FILE: cannot read {path}: {error}; correct or unset it"
        ))),
    }
}

fn unix(path: &str) -> Result<Address, Error> {
    if path.is_empty() {
        return Err(Error::Settings(
            "the address names no socket: write unix:///run/lockmesh/agent.sock".into(),
        ));
    }
    Ok(Address::Unix(path.into()))
}

fn tcp(text: &str) -> Result<Address, Error> {
    let wrong =
        |why: &str| Error::Settings(format!("the address {text:?} {why}: write host:port or unix:///path"));
    let authority = text.strip_suffix('/').unwrap_or(text);
    // Rejected instead of ignored: a request would go to another path, or without a login.
    if authority.contains(['/', '?', '#', '@']) {
        return Err(wrong("has more than a host and a port"));
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("has no closing bracket"))?;
        (host, rest.strip_prefix(':'))
    } else if authority.matches(':').count() > 1 {
        // Several colons without brackets: an IPv6 address, in which a port would be ambiguous.
        (authority, None)
    } else {
        authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong("has no valid port"))?,
        None => DEFAULT_PORT,
    };
    // Consul's users write `:8500` for this host.
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Ok(Address::Tcp { host: host.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        Settings::from_lookup(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn parses_every_address_form() {
        for (text, address) in [
            ("localhost", tcp("localhost", 8500)),
            ("10.0.0.1:80", tcp("10.0.0.1", 80)),
            (":8501", tcp("127.0.0.1", 8501)),
            ("http://h:1/", tcp("h", 1)),
            ("[::1]:7", tcp("::1", 7)),
            ("::1", tcp("::1", 8500)),
            ("unix:///run/a.sock", Address::Unix("/run/a.sock".into())),
            ("/run/a.sock", Address::Unix("/run/a.sock".into())),
        ] {
            assert_eq!(text.parse::<Address>().expect(text), address, "{text}");
        }
        assert_eq!(tcp("::1", 7).to_string(), "[::1]:7");
    }

    #[test]
    fn refuses_what_cannot_be_meant() {
        for text in
            ["https://h:1", "ftp://h", "h:port", "h:99999", "http://h/path", "u@h:1", "[::1", "unix://"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn our_variables_come_before_consuls() {
        let found = settings(&[
            ("LOCKMESH_HTTP_ADDR", "unix:///l"),
            ("CONSUL_HTTP_ADDR", "https://elsewhere"),
            ("CONSUL_CACERT", "/ca.pem"),
            ("CONSUL_HTTP_TOKEN", "theirs"),
            ("CONSUL_HTTP_TOKEN_FILE", "/nowhere"),
        ]);
        let found = found.expect("Consul's settings are about another service");
        assert_eq!(found, Settings { address: Address::Unix("/l".into()), token: None });
        let theirs = settings(&[("CONSUL_HTTP_ADDR", "h:1"), ("CONSUL_HTTP_TOKEN", "theirs")]);
        assert_eq!(theirs.expect("it is good").token.as_deref(), Some("theirs"));
        let ours = [("LOCKMESH_HTTP_ADDR", "h:1"), ("LOCKMESH_HTTP_TOKEN", "ours")];
        assert_eq!(settings(&ours).expect("it is good").token.as_deref(), Some("ours"));
        assert_eq!(settings(&[("CONSUL_HTTP_ADDR", "")]).expect("empty is absent"), Settings::default());
    }

    #[test]
    fn tls_is_refused_by_name() {
        for (name, value) in [
            ("CONSUL_HTTP_SSL", "true"),
            ("CONSUL_HTTP_SSL", "1"),
            ("CONSUL_HTTP_ADDR", "https://h"),
            ("CONSUL_CACERT", "x"),
            ("CONSUL_NAMESPACE", "n"),
        ] {
            let error = settings(&[(name, value)]).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(settings(&[("CONSUL_HTTP_SSL", "false")]).is_ok());
    }
}
