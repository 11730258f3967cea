//! The token of a request, and requests that carry one while access control is off: the token is
//! rejected (`http.refuse_tokens`), or ignored with one warning per client.
//!
//! A client is an IP address, or a user on the Unix socket. [`MAX_CLIENTS`] are remembered and
//! warned about; `lockmesh_http_limits_total{limit="token"}` counts all rejections.

use super::answer::Failure;
use super::peer::Peer;
use crate::go::query::Params;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The maximum number of clients that are remembered: about 64 KiB.
const MAX_CLIENTS: usize = 1_024;

const REFUSED: &str = "ACL support disabled, and `http.refuse_tokens` is set: send the request without a \
                       token, or set `http.refuse_tokens = false` in the agent's configuration to have tokens ignored";

/// A client, with all its connections and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    Address(IpAddr),
    User(Option<u32>),
}

/// The treatment of tokens, and the clients that were warned.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    refuse: bool,
    warned: Mutex<BTreeSet<Client>>,
}

/// The warning in the log about a client that sent a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warning {
    /// Its first token.
    First,
    /// The same, and the last client that is remembered.
    Last,
    /// None: it was warned before, or too many clients were.
    None,
}

impl Tokens {
    /// Tokens are rejected if `refuse` is set, and ignored otherwise.
    pub(super) fn new(refuse: bool) -> Self {
        Self { refuse, ..Self::default() }
    }

    /// Rejects a request that carries a token, or warns about its client.
    ///
    /// # Errors
    /// Tokens are rejected. Nothing was done.
    pub(super) fn judge(&self, peer: Peer) -> Result<(), Failure> {
        let warning = self.warning(peer);
        let (uid, address) = (peer.uid(), peer.ip().map(tracing::field::display));
        if self.refuse {
            crate::metrics::LIMITS.with_label_values(&["token"]).inc();
        }
        match (warning, self.refuse) {
            (Warning::None, _) => {}
            (_, true) => {
                tracing::warn!(listener = peer.listener(), uid, address, "rejected a request with a token");
            }
            (_, false) => tracing::warn!(
                listener = peer.listener(),
                uid,
                address,
                reject_with = "http.refuse_tokens",
                "ignored a token, because access control is off"
            ),
        }
        if warning == Warning::Last {
            tracing::warn!(clients = MAX_CLIENTS, "suppressing warnings about tokens of further clients");
        }
        if self.refuse { Err(Failure::new(StatusCode::FORBIDDEN, REFUSED)) } else { Ok(()) }
    }

    fn warning(&self, peer: Peer) -> Warning {
        // An IPv4 address and its mapped IPv6 form are one client.
        let client = peer.ip().map_or(Client::User(peer.uid()), |ip| Client::Address(ip.to_canonical()));
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= MAX_CLIENTS || !warned.insert(client) {
            return Warning::None;
        }
        if warned.len() == MAX_CLIENTS { Warning::Last } else { Warning::First }
    }
}

/// Returns the secret that a request carries, as Consul reads it: the first that is not empty of
/// `?token=`, `X-Consul-Token` and `Authorization: Bearer`.
pub(super) fn sent<'a>(headers: &'a HeaderMap, params: &'a Params<'_>) -> Option<&'a str> {
    let text = |value: &'a HeaderValue| value.to_str().ok().map(str::trim);
    let bearer = |value: &'a HeaderValue| {
        let (scheme, token) = text(value)?.split_once(' ')?;
        Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
    };
    // A value that is not text is the secret of no token.
    let header = |value: &'a HeaderValue| Some(text(value).unwrap_or("?")).filter(|text| !text.is_empty());
    params
        .non_empty("token")
        .or_else(|| headers.get_all("x-consul-token").iter().find_map(header))
        .or_else(|| headers.get_all(header::AUTHORIZATION).iter().find_map(bearer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go::query;
    use std::time::Duration;

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(address.parse().expect("an address"))
    }

    #[test]
    fn each_client_warned_once() {
        let tokens = Tokens::default();
        let user =
            |uid, pid| Peer::Unix { uid: Some(uid), gid: None, pid: Some(pid), accepted_at: Duration::ZERO };
        for (peer, expected) in [
            (tcp("10.0.0.1:4711"), Warning::First),
            (tcp("10.0.0.1:4712"), Warning::None),
            (tcp("[::ffff:10.0.0.1]:4713"), Warning::None),
            (tcp("10.0.0.2:4711"), Warning::First),
            (user(1000, 7), Warning::First),
            (user(1000, 8), Warning::None),
            (user(1001, 7), Warning::First),
        ] {
            assert_eq!(tokens.warning(peer), expected, "{peer:?}");
            assert!(tokens.judge(peer).is_ok(), "its request is served");
        }
    }

    #[test]
    fn so_many_clients_are_remembered() {
        let tokens = Tokens::default();
        let client = |number: usize| {
            let [.., high, low] = number.to_be_bytes();
            Peer::Tcp(([10, 0, high, low], 1).into())
        };
        let warnings: Vec<_> = (0..2 * MAX_CLIENTS).map(|number| tokens.warning(client(number))).collect();
        assert!(warnings[..MAX_CLIENTS - 1].iter().all(|warning| *warning == Warning::First));
        assert_eq!(warnings[MAX_CLIENTS - 1], Warning::Last);
        assert!(warnings[MAX_CLIENTS..].iter().all(|warning| *warning == Warning::None));
        assert_eq!(tokens.warned.lock().expect("no panic").len(), MAX_CLIENTS);
    }

    /// Contract: 135.
    #[test]
    fn first_nonempty_source_counts() {
        let found = |query: &str, lines: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().expect("a value"));
            }
            sent(&headers, &query::parse(query).expect("a query")).map(str::to_owned)
        };
        let (own, standard) = ("x-consul-token", "authorization");
        for (query, lines, expected) in [
            ("token=q", &[(own, "h"), (standard, "Bearer b")][..], Some("q")),
            ("token=", &[(own, "h"), (standard, "Bearer b")], Some("h")),
            ("", &[(own, ""), (standard, "bearer b")], Some("b")),
            ("", &[(standard, "Basic dDp0"), (standard, "BEARER  b ")], Some("b")),
            ("", &[(own, ""), (standard, "Bearer ")], None),
            ("", &[(standard, "Basic dDp0")], None),
            ("", &[], None),
        ] {
            assert_eq!(found(query, lines).as_deref(), expected, "{query} {lines:?}");
        }
    }
}
