//! The check of the `Host` header of requests over TCP.
//!
//! A web page cannot choose the `Host` that a browser sends: it is the page's own. But the owner of
//! that name can resolve it to 127.0.0.1 (DNS rebinding), and then the page may read and write
//! everything that an agent serves. A request for a name that is not configured for this agent is
//! therefore rejected. An IP address cannot be rebound, no browser omits `Host`, and no page can
//! reach the Unix socket.
//!
//! On a TCP address that other hosts can reach, only requests of browsers are checked. Other
//! clients there reach the agent by names that it does not know, such as that of a Kubernetes
//! service, and a page gains nothing by sending what they could send themselves.

use super::answer::Failure;
use super::api::Api;
use crate::config::{HostPattern, HttpConfig};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use lockmesh_net::config::ConfigError;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The names that are accepted besides this host's own, and the clients that are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCheck {
    allowed: Vec<HostPattern>,
    browsers_only: bool,
}

impl HostCheck {
    /// Creates the check that a configuration asks for.
    ///
    /// # Errors
    /// The first value of `http.allowed_hosts` that can match no request.
    pub fn of(config: &HttpConfig) -> Result<Self, ConfigError> {
        Ok(Self { allowed: config.host_patterns()?, browsers_only: config.is_reached_by_others() })
    }
}

/// Rejects a request that names another host than this one.
pub(super) fn check(api: &Api, head: &Parts) -> Result<(), Failure> {
    if api.hosts.browsers_only && !is_from_browser(&head.headers) {
        return Ok(());
    }
    let named = head.headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("?"));
    // The request line may name a host as well, and then both must match.
    let mut named = named.chain(head.uri.authority().map(|authority| authority.as_str()));
    match named.find(|host| !is_ours(name_of(host), api)) {
        None => Ok(()),
        Some(host) => {
            crate::metrics::LIMITS.with_label_values(&["host"]).inc();
            Err(Failure::new(
                StatusCode::FORBIDDEN,
                format!(
                    "Host {host:?} is not a name of this agent: use localhost or an IP address, or add the name to \
                     `http.allowed_hosts` in the agent's configuration"
                ),
            ))
        }
    }
}

/// Returns `true` if a browser sent these headers. None of the signs alone is enough: `Origin` is
/// missing when a page reads from its own name, and `Sec-Fetch-*` is sent only to secure or local
/// names. A page can change the language, but not remove it.
fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.contains_key(header::ACCEPT_LANGUAGE)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
        || headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
}

/// Returns the name or address in a `Host`, without port, brackets and the root's dot.
fn name_of(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

fn is_ours(name: &str, api: &Api) -> bool {
    name.is_empty()
        || is_localhost(name)
        || name.parse::<Ipv4Addr>().is_ok()
        || name.parse::<Ipv6Addr>().is_ok()
        || name.eq_ignore_ascii_case(api.identity.node.as_str())
        || api.hosts.allowed.iter().any(|pattern| pattern.matches(name))
}

/// `localhost` and every name under it mean this machine by definition.
fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn a_host_is_its_name_without_what_stands_around_it() {
        for (host, name) in [
            ("localhost:8500", "localhost"),
            ("LocalHost.", "LocalHost"),
            ("evil.example:80", "evil.example"),
            ("evil.example.:80", "evil.example"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:8500", "::1"),
            ("localhost:evil", "localhost:evil"),
            ("", ""),
            (":8500", ""),
        ] {
            assert_eq!(name_of(host), name, "{host}");
        }
    }

    #[test]
    fn a_browser_is_recognized_by_any_of_its_headers() {
        let headers = |name: &str, value: &'static str| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
            HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
        };
        for (name, value) in [
            ("Origin", "http://evil.example"),
            ("Origin", "null"),
            ("Sec-Fetch-Site", "same-origin"),
            ("Sec-Fetch-Mode", "cors"),
            ("Accept-Language", ""),
            ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)"),
        ] {
            assert!(is_from_browser(&headers(name, value)), "{name}: {value}");
        }
        for (name, value) in [("User-Agent", "Go-http-client/1.1"), ("Accept", "*/*"), ("Host", "consul")] {
            assert!(!is_from_browser(&headers(name, value)), "{name}: {value}");
        }
        assert!(!is_from_browser(&HeaderMap::new()));
    }

    #[test]
    fn only_a_listener_for_other_hosts_checks_browsers_alone() {
        let check = |tcp: &str| {
            let config = HttpConfig {
                tcp: tcp.parse().ok(),
                allow_non_loopback: true,
                allowed_hosts: vec![".svc.cluster.local".into()],
                ..HttpConfig::default()
            };
            HostCheck::of(&config).expect("a good configuration")
        };
        assert!(check("0.0.0.0:8500").browsers_only && check("[::]:8500").browsers_only);
        assert!(!check("127.0.0.1:8500").browsers_only && !check("").browsers_only);
        assert_eq!(check("").allowed, [HostPattern::Under(".svc.cluster.local".into())]);
    }
}
