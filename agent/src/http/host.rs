//! The check of the `Host` header of browsers' requests over TCP.
//!
//! A web page cannot choose the `Host` that a browser sends: it is the page's own. But the owner of
//! that name can resolve it to 127.0.0.1 (DNS rebinding), and then the page may read and write
//! everything that an agent serves. A browser's request for a name that is not configured for this
//! agent is therefore rejected. An IP address cannot be rebound, no browser omits `Host`, and no
//! page can reach the Unix socket.
//!
//! Other clients may use any name, as with Consul: they reach the agent by names that it does not
//! know, such as that of a container or of a Kubernetes service.

use super::answer::Failure;
use super::api::Api;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Rejects a browser's request that names another host than this one.
pub(super) fn check(api: &Api, head: &Parts) -> Result<(), Failure> {
    if !is_from_browser(&head.headers) {
        return Ok(());
    }
    // A value that is not text becomes `?`, which is no agent's name.
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

/// What the engines of browsers write into their `User-Agent`, also one without a window, which
/// sends no language.
const ENGINES: [&str; 3] = ["AppleWebKit/", "Gecko/", "HeadlessChrome"];

/// Returns `true` if a browser sent these headers. `Accept-Language` alone decides for a page that
/// reads from its own name over plain HTTP: such a request has no `Origin` and no `Sec-Fetch-*`.
/// The page can suppress `Referer` and set `Accept`, but cannot remove the language.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let has = |name, text: &str| {
        let values = headers.get_all(name).iter();
        values.filter_map(|value| value.to_str().ok()).any(|value| value.contains(text))
    };
    [header::ORIGIN, header::REFERER, header::ACCEPT_LANGUAGE].iter().any(|name| headers.contains_key(name))
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
        || (has(header::USER_AGENT, "Mozilla/") && has(header::ACCEPT, "text/html"))
        || ENGINES.iter().any(|engine| has(header::USER_AGENT, engine))
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
        || api.access.allowed_hosts.iter().any(|pattern| pattern.matches(name))
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
    fn strips_port_brackets_and_trailing_dot() {
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
    fn browser_detected_by_headers() {
        let mozilla = ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)");
        let headers = |list: &[(&str, &'static str)]| {
            let header = |(name, value): &(&str, &'static str)| {
                let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
                (name, HeaderValue::from_static(value))
            };
            list.iter().map(header).collect::<HeaderMap>()
        };
        for browser in [
            &[("Origin", "http://evil.example")][..],
            &[("Origin", "null")],
            &[("Referer", "http://evil.example/")],
            &[("Sec-Fetch-Site", "same-origin")],
            &[("Sec-Fetch-Mode", "cors")],
            &[("Accept-Language", "")],
            &[("User-Agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/120.0.0.0")],
            &[mozilla, ("Accept", "text/html,application/xhtml+xml")],
        ] {
            assert!(is_from_browser(&headers(browser)), "{browser:?}");
        }
        let other_mozilla = ("User-Agent", "Mozilla/5.0 (Windows NT; de-DE) WindowsPowerShell/5.1");
        for other in [
            &[][..],
            &[("User-Agent", "Go-http-client/1.1"), ("Host", "consul")],
            &[("Accept", "text/html, image/gif, *; q=.2"), ("User-Agent", "Java/1.8.0_402")],
            &[other_mozilla, ("Accept", "*/*")],
        ] {
            assert!(!is_from_browser(&headers(other)), "{other:?}");
        }
    }
}
