//! The search for servers that moved: while this server has no working leader, it also calls the
//! addresses of `quorum.join`.
//!
//! The roster has the addresses at which the servers were. If all of them move at once, such as
//! containers that get new addresses, none of them can record its new address, because that needs a
//! leader. `quorum.join` is then the only place that has the right ones.
//!
//! **Invariant:** an address is never an identity. A server that answers is a member only if its
//! cluster, its id and the node of its certificate are those of the roster.

use super::{Me, Peers};
use lockmesh_net::client::resolve;
use lockmesh_net::{CallClient, Endpoint, LinkError};
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::rpc::{Request, Response, Status, Unavailable};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The time without a working leader after which the search begins; many election timeouts.
const SEARCH_AFTER: Duration = Duration::from_secs(2);
/// The pause between two rounds of calls.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of addresses called in a round.
const MAX_ADDRESSES: usize = 64;

/// Returns `true` if a server that has had no working leader for this long calls the addresses of
/// `quorum.join`. `None` while it has one.
fn searches_members(leaderless_for: Option<Duration>, join: &[String]) -> bool {
    !join.is_empty() && leaderless_for.is_some_and(|time| time >= SEARCH_AFTER)
}

/// The reason why no member was found at an address.
#[derive(Debug, thiserror::Error)]
enum NoMember {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Unavailable(Unavailable),
    #[error("unexpected answer: {0:?}")]
    Unexpected(Box<Response>),
    #[error("the server has not learned its cluster yet")]
    NoCluster,
    #[error("the server belongs to the cluster {found}, not to {own}: correct `quorum.join`")]
    OtherCluster { found: String, own: String },
}

/// Returns the server that answered at an address.
///
/// # Errors
/// It belongs to no cluster, or to another one.
fn identify(me: &Me, status: &Status) -> Result<ServerId, NoMember> {
    match &status.cluster_id {
        cluster if *cluster == me.cluster_id => Ok(status.server),
        cluster if cluster.is_empty() => Err(NoMember::NoCluster),
        found => Err(NoMember::OtherCluster { found: found.clone(), own: me.cluster_id.clone() }),
    }
}

/// The task's inputs and memory.
pub(super) struct Search {
    peers: Weak<Peers>,
    endpoint: Arc<Endpoint>,
    join: Vec<String>,
    /// The logged problems of each address.
    logs: BTreeMap<String, LogOnChange>,
}

/// One call: the address, and the server there with the node of its certificate.
type Called = (SocketAddr, Result<(Status, NodeName), NoMember>);

impl Search {
    pub(super) fn new(peers: Weak<Peers>, endpoint: Arc<Endpoint>, join: Vec<String>) -> Self {
        Self { peers, endpoint, join, logs: BTreeMap::new() }
    }

    /// Searches whenever it is due, until aborted or the roster is gone.
    pub(super) async fn run(mut self, mut led: watch::Receiver<bool>) {
        let mut leaderless_since = Some(Instant::now());
        let mut is_searching = false;
        loop {
            // The driver reports each change; a roster that is gone has no driver.
            let is_led = *led.borrow_and_update();
            leaderless_since = if is_led { None } else { leaderless_since.or_else(|| Some(Instant::now())) };
            let searches = searches_members(leaderless_since.map(|since| since.elapsed()), &self.join);
            if searches != is_searching {
                is_searching = searches;
                self.log_change(searches);
            }
            let pause = if searches {
                self.round().await;
                Some(SEARCH_INTERVAL)
            } else {
                leaderless_since
                    .filter(|_| !self.join.is_empty())
                    .map(|since| SEARCH_AFTER.saturating_sub(since.elapsed()))
            };
            let wake = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wake => {}
                changed = led.changed() => if changed.is_err() { return },
            }
        }
    }

    fn log_change(&mut self, begins: bool) {
        let join = self.join.join(" ");
        if begins {
            tracing::warn!(
                silent_s = SEARCH_AFTER.as_secs(),
                join,
                "no working leader; also calling the servers of `quorum.join` for members that moved"
            );
        } else {
            tracing::info!("there is a working leader; no longer calling the servers of `quorum.join`");
        }
        self.logs.clear();
    }

    /// Calls all addresses once, at the same time.
    async fn round(&mut self) {
        let mut calls = JoinSet::new();
        for address in self.resolve_all().await.into_iter().take(MAX_ADDRESSES) {
            let endpoint = Arc::clone(&self.endpoint);
            calls.spawn(async move { (address, request_status(&endpoint, address).await) });
        }
        while let Some(called) = calls.join_next().await {
            // A call that panicked is no answer.
            if let Ok(called) = called {
                self.consider(called);
            }
        }
    }

    /// Resolves all names again: a moved server keeps its name.
    async fn resolve_all(&mut self) -> BTreeSet<SocketAddr> {
        let mut lookups = JoinSet::new();
        for name in self.join.clone() {
            lookups.spawn(async move {
                let found = resolve(&name).await;
                (name, found)
            });
        }
        let mut addresses = BTreeSet::new();
        while let Some(looked_up) = lookups.join_next().await {
            match looked_up {
                Ok((_, Ok(found))) => addresses.extend(found),
                Ok((name, Err(error))) => self.complain(&name, &error.to_string()),
                Err(_) => {}
            }
        }
        addresses
    }

    fn consider(&mut self, (address, answer): Called) {
        let Some(peers) = self.peers.upgrade() else { return };
        let Some(me) = peers.me() else { return };
        let address = address.to_string();
        let found = answer.and_then(|(status, node)| Ok((identify(me, &status)?, node)));
        match found {
            // An address of its own is usually listed too.
            Ok((server, _)) if server == me.id => {}
            Ok((server, node)) => {
                if let Some(previous) = peers.found(server, &node, &address) {
                    tracing::info!(
                        server = server.0, node = %node, address, previous, "found a member at a new address"
                    );
                }
            }
            Err(reason) => self.complain(&address, &reason.to_string()),
        }
    }

    fn complain(&mut self, address: &str, reason: &str) {
        // Names resolve to other addresses in time.
        if self.logs.len() >= MAX_ADDRESSES && !self.logs.contains_key(address) {
            return;
        }
        if self.logs.entry(address.to_owned()).or_default().is_new(reason) {
            tracing::info!(address, reason, "no member found at this address; retrying");
        }
    }
}

/// Asks the server at an address for its identity.
async fn request_status(endpoint: &Endpoint, address: SocketAddr) -> Result<(Status, NodeName), NoMember> {
    let mut client = CallClient::connect(endpoint, address).await?;
    let node = client.peer().node.clone();
    match client.call(Request::Status, TIMEOUT).await? {
        Response::Status(status) => Ok((status, node)),
        Response::Unavailable(reason) => Err(NoMember::Unavailable(reason)),
        other => Err(NoMember::Unexpected(Box::new(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Me, NoMember, SEARCH_AFTER, identify, searches_members};
    use lockmesh_protocol::id::ServerId;
    use lockmesh_protocol::rpc::Status;
    use std::time::Duration;

    #[test]
    fn search_requires_long_leader_loss() {
        let join = ["s2:8300".to_owned()];
        let short = SEARCH_AFTER - Duration::from_millis(1);
        assert!(searches_members(Some(SEARCH_AFTER), &join));
        assert!(!searches_members(Some(short), &join), "an election is shorter");
        assert!(!searches_members(None, &join), "it has a leader");
        assert!(!searches_members(Some(SEARCH_AFTER * 10), &[]), "there is nobody to call");
    }

    #[test]
    fn servers_of_other_clusters_rejected() {
        let me = Me { id: ServerId(1), cluster_id: "c".into(), address: String::new() };
        let status = |cluster_id: &str| Status {
            cluster_id: cluster_id.into(),
            server: ServerId(2),
            ..Status::default()
        };
        assert_eq!(identify(&me, &status("c")).expect("the same cluster"), ServerId(2));
        let other = identify(&me, &status("d")).expect_err("another cluster").to_string();
        assert!(other.contains("belongs to the cluster d, not to c: correct `quorum.join`"), "{other}");
        assert!(matches!(identify(&me, &status("")), Err(NoMember::NoCluster)));
    }
}
