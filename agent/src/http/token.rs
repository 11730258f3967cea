//! Requests that carry a token. There are no ACLs: a token is rejected (`http.refuse_tokens`), or
//! ignored with one warning per client.
//!
//! A client is an IP address, or a user on the Unix socket. [`MAX_CLIENTS`] are remembered and
//! warned about; `lockmesh_http_limits_total{limit="token"}` counts all rejections.

use super::answer::Failure;
use super::peer::Peer;
use crate::go::query::Params;
use http::StatusCode;
use http::header::{self, HeaderMap};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// The maximum number of clients that are remembered: about 64 KiB.
const MAX_CLIENTS: usize = 1_024;

const REFUSED: &str = "ACLs are not implemented in Lockmesh, and `http.refuse_tokens` is set: send the request without a \
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
                "ignored a token, because ACLs are not implemented"
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

/// `true` if a request carries a token, as Consul reads it.
pub(super) fn is_sent(headers: &HeaderMap, params: &Params<'_>) -> bool {
    let bearer = |value: &header::HeaderValue| {
        let parts = value.to_str().ok().and_then(|value| value.trim().split_once(' '));
        parts.is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty())
    };
    params.non_empty("token").is_some()
        || headers.get_all("x-consul-token").iter().any(|value| !value.is_empty())
        || headers.get_all(header::AUTHORIZATION).iter().any(bearer)
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

    #[test]
    fn token_sources_match_consul() {
        let sent = |query: &str, header: Option<(&'static str, &str)>| {
            let mut headers = HeaderMap::new();
            if let Some((name, value)) = header {
                headers.insert(name, value.parse().expect("a value"));
            }
            is_sent(&headers, &query::parse(query).expect("a query"))
        };
        assert!(sent("token=t", None) && sent("", Some(("x-consul-token", "t"))));
        assert!(
            sent("", Some(("authorization", "Bearer t"))) && sent("", Some(("authorization", "bearer t")))
        );
        assert!(!sent("", None) && !sent("token=", None) && !sent("", Some(("x-consul-token", ""))));
        assert!(
            !sent("", Some(("authorization", "Basic dDp0"))) && !sent("", Some(("authorization", "Bearer ")))
        );
    }
}
