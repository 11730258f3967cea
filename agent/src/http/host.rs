//! The check of the `Host` header of requests over TCP.
//!
//! A web page cannot choose the `Host` that a browser sends: it is the page's own. But the owner of
//! that name can resolve it to 127.0.0.1 (DNS rebinding), and then the page may read and write
//! everything that an agent serves. A request for a name that is not configured for this agent is
//! therefore rejected. An IP address cannot be rebound, no browser omits `Host`, and no page can
//! reach the Unix socket.

use super::answer::Failure;
use super::api::Api;
use http::request::Parts;
use http::{StatusCode, header};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Rejects a request that names another host than this one.
pub(super) fn check(api: &Api, head: &Parts) -> Result<(), Failure> {
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
        || api.allowed_hosts.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
}

/// `localhost` and every name under it mean this machine by definition.
fn is_localhost(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::name_of;

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
}
