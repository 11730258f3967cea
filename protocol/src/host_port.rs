//! The address of a server as an operator writes it: `host:port`, where the host is an IP address
//! or a DNS name.
//!
//! An IPv6 address has brackets: `[2001:db8::5]:8300`. A link-local one keeps its zone, as a number
//! or as the name of an interface: `[fe80::1%eth0]:8300`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::fmt;
use std::str::FromStr;

/// The longest DNS name, as RFC 1035 limits it.
const MAX_NAME_BYTES: usize = 253;

/// A host and a port above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// An IP address without brackets, with its zone; or a DNS name.
    host: String,
    port: u16,
    /// The address, if no lookup is needed.
    literal: Option<SocketAddr>,
}

/// An address without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name.
    Name(String),
}

/// The text is neither an IP address nor a DNS name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an IP address or a DNS name, such as 10.0.0.7, 2001:db8::7 or web-1.internal")]
pub struct NotHost;

/// The text is not a `host:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a host:port, such as 10.0.0.5:8300, [2001:db8::5]:8300 or s1.internal:8300")]
pub struct NotHostPort;

/// Joins a host and a port; an IPv6 address gets brackets, or the port would look like a part of
/// it.
pub fn join(host: &str, port: u16) -> String {
    let is_bare = host.contains(':') && !host.starts_with('[');
    if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl HostPort {
    /// Returns the host: an IP address without brackets, with its zone; or a DNS name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, which is above 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address if the host is one and needs no lookup. The name of a zone does.
    pub fn literal(&self) -> Option<SocketAddr> {
        self.literal
    }

    /// Parses an address whose port may be missing, as in Consul's lists of servers.
    ///
    /// # Errors
    /// The text is neither a host nor a `host:port`.
    pub fn with_default_port(text: &str, port: u16) -> Result<Self, NotHostPort> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        // Before the port is looked for: an IPv6 address has colons of its own.
        if is_ipv6(bare) {
            return format!("[{bare}]:{port}").parse();
        }
        if text.contains(':') { text.parse() } else { format!("{text}:{port}").parse() }
    }
}

impl FromStr for HostPort {
    type Err = NotHostPort;

    fn from_str(text: &str) -> Result<Self, NotHostPort> {
        let (host, port) = text.rsplit_once(':').ok_or(NotHostPort)?;
        // Digits only: a number may be parsed with a sign.
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port > 0).ok_or(NotHostPort)?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(address) => address.filter(|address| is_ipv6(address)).ok_or(NotHostPort)?,
            None if is_name(host) => host,
            None => return Err(NotHostPort),
        };
        Ok(Self { host: host.to_owned(), port, literal: text.parse().ok() })
    }
}

impl FromStr for Host {
    type Err = NotHost;

    fn from_str(text: &str) -> Result<Self, NotHost> {
        match text.parse() {
            Ok(address) => Ok(Self::Ip(address)),
            Err(_) if is_name(text) => Ok(Self::Name(text.to_owned())),
            Err(_) => Err(NotHost),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match is_ipv6(&self.host) {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Returns `true` for an IPv6 address, with a zone or without.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| !zone.is_empty() && zone.bytes().all(is_name_byte);
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_zone)
}

/// Returns `true` for a DNS name, or an IPv4 address.
fn is_name(text: &str) -> bool {
    // The last label of a name is no number: `10.0.0.256` is a mistyped address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let last = text.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_NAME_BYTES
        && text.bytes().all(is_name_byte)
        && (!is_number(last) || text.parse::<Ipv4Addr>().is_ok())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::{Host, HostPort};

    #[test]
    fn parses_host_and_port() {
        for (text, host, port, is_literal) in [
            ("10.0.0.5:8300", "10.0.0.5", 8300, true),
            ("s1.internal:8300", "s1.internal", 8300, false),
            ("s_1:1", "s_1", 1, false),
            ("[2001:db8::5]:8300", "2001:db8::5", 8300, true),
            ("[fe80::1%3]:8300", "fe80::1%3", 8300, true),
            ("[fe80::1%eth0]:8300", "fe80::1%eth0", 8300, false),
        ] {
            let parsed: HostPort = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!((parsed.host(), parsed.port()), (host, port), "{text}");
            assert_eq!(parsed.literal().is_some(), is_literal, "{text}");
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "s1",
            ":8300",
            "s1:",
            "s1:0",
            "s1:+1",
            "s1:65536",
            "s1:http",
            "s 1:1",
            "::1:8300",
            "[::1]",
            "[::1]x:1",
            "[s1]:8300",
            "[10.0.0.5]:8300",
            "10.0.0.256:8300",
            "10.0.5:8300",
            "[fe80::1%]:8300",
            "https://s1:8300",
        ] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn parses_ip_or_name_host() {
        for (text, is_address) in [("10.0.0.7", true), ("2001:db8::7", true), ("web-1.internal", false)] {
            let host: Host = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!((matches!(host, Host::Ip(_)), host.to_string()), (is_address, text.into()));
        }
        for text in ["", ".", "10.0.0.256", "[::1]", "web-1:8301", "a b"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn missing_port_gets_default() {
        for (text, meant) in [
            ("s1", Some("s1:8300")),
            ("s1:8400", Some("s1:8400")),
            ("10.0.0.1", Some("10.0.0.1:8300")),
            ("::1", Some("[::1]:8300")),
            ("[::1]", Some("[::1]:8300")),
            ("[::1]:8400", Some("[::1]:8400")),
            ("fe80::1%eth0", Some("[fe80::1%eth0]:8300")),
            ("", None),
            (":8300", None),
            ("s1:", None),
            ("s1:0", None),
            ("s1:http", None),
            ("s 1", None),
        ] {
            let parsed = HostPort::with_default_port(text, 8300).ok().map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), meant, "{text}");
        }
    }
}
