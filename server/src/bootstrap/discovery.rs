//! Discovery: the tasks that find other servers. One task per name repeats its DNS lookup, and one
//! task per address repeats the call. Both run until aborted, and log each problem once, and its
//! end.

use super::BootstrapEvent;
use crate::event_queue::{DriverEvent, EventSender};
use lockmesh_net::client::resolve;
use lockmesh_net::{CallClient, Endpoint, random};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::bootstrap::Introduction;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The interval between introductions to a server that answers.
const INTERVAL: Duration = Duration::from_millis(100);
/// The backoff for a server that does not answer: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// The timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between lookups of a name that resolves.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of names, and of addresses, that are tried.
const MAX_ADDRESSES: usize = 64;

/// All discovery tasks; they end when this value is dropped.
#[derive(Debug)]
pub(super) struct Discovery {
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    runtime: Handle,
    introduction: watch::Sender<Introduction>,
    names: BTreeMap<String, KnownName>,
    calls: BTreeMap<SocketAddr, AbortHandle>,
}

#[derive(Debug)]
struct KnownName {
    addresses: Vec<SocketAddr>,
    task: AbortHandle,
}

impl Discovery {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        sender: EventSender,
        runtime: Handle,
        introduction: Introduction,
    ) -> Self {
        let introduction = watch::Sender::new(introduction);
        Self { endpoint, sender, runtime, introduction, names: BTreeMap::new(), calls: BTreeMap::new() }
    }

    /// Starts to look for servers at this name.
    pub(super) fn look_at(&mut self, name: &str) {
        let is_me = name == self.introduction.borrow().server.address;
        // A limit, since others name the addresses: a false introduction must not make this server
        // call arbitrary hosts.
        if !is_me && !self.names.contains_key(name) && self.names.len() < MAX_ADDRESSES {
            let task = look_up(name.to_owned(), self.sender.clone());
            let task = self.runtime.spawn(task).abort_handle();
            self.names.insert(name.to_owned(), KnownName { addresses: Vec::new(), task });
        }
    }

    /// A name resolved to these addresses. Calls new ones, and stops calling those that no name
    /// resolves to.
    pub(super) fn resolved(&mut self, name: &str, addresses: Vec<SocketAddr>) {
        if let Some(known) = self.names.get_mut(name) {
            known.addresses = addresses;
        }
        let wanted: BTreeSet<_> = self.names.values().flat_map(|name| &name.addresses).copied().collect();
        self.calls.retain(|address, task| {
            let is_wanted = wanted.contains(address);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        for address in wanted.into_iter().take(MAX_ADDRESSES) {
            self.calls.entry(address).or_insert_with(|| {
                let call = KnownAddress {
                    address,
                    endpoint: Arc::clone(&self.endpoint),
                    sender: self.sender.clone(),
                    introduction: self.introduction.subscribe(),
                };
                self.runtime.spawn(call.go_on()).abort_handle()
            });
        }
    }

    /// Replaces this server's own introduction.
    pub(super) fn set_introduction(&self, introduction: Introduction) {
        // Wakes the tasks only for a change: each of them introduces this server again at once.
        self.introduction.send_if_modified(|known| {
            let is_new = *known != introduction;
            if is_new {
                *known = introduction;
            }
            is_new
        });
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        let tasks = self.names.values().map(|name| &name.task).chain(self.calls.values());
        tasks.for_each(AbortHandle::abort);
    }
}

async fn look_up(name: String, sender: EventSender) {
    let mut backoff = Backoff::new((BACKOFF.0, LOOK_UP_INTERVAL), random::seed());
    let mut log = LogOnChange::default();
    let mut known = Vec::new();
    loop {
        match resolve(&name).await {
            Ok(mut addresses) => {
                // Resolvers return them in varying order, which is no change.
                addresses.sort_unstable();
                if log.reset() {
                    tracing::info!(%name, "the name of a server resolves again");
                }
                if addresses != known {
                    known.clone_from(&addresses);
                    post(&sender, BootstrapEvent::Resolved(name.clone(), addresses));
                }
                tokio::time::sleep(LOOK_UP_INTERVAL).await;
            }
            Err(error) => {
                let reason = error.to_string();
                if log.is_new(&reason) {
                    tracing::warn!(%name, %reason, "cannot resolve the name of a server; retrying");
                }
                tokio::time::sleep(backoff.next_pause()).await;
            }
        }
    }
}

struct KnownAddress {
    address: SocketAddr,
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    introduction: watch::Receiver<Introduction>,
}

impl KnownAddress {
    async fn go_on(mut self) {
        let mut backoff = Backoff::new(BACKOFF, random::seed());
        let mut log = LogOnChange::default();
        loop {
            let reason = match CallClient::connect(&self.endpoint, self.address).await {
                Ok(client) => self.introduce(client, &mut backoff, &mut log).await,
                Err(error) => error.to_string(),
            };
            if log.is_new(&reason) {
                tracing::info!(address = %self.address, %reason, "no answer from this server; retrying");
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    /// Introduces this server repeatedly; returns the reason for the end.
    async fn introduce(
        &mut self,
        mut client: CallClient,
        backoff: &mut Backoff,
        log: &mut LogOnChange,
    ) -> String {
        loop {
            let request = Request::Introduce(self.introduction.borrow_and_update().clone());
            let other = match client.call(request, TIMEOUT).await {
                Ok(Response::Introduced(other)) => other,
                Ok(Response::Unavailable(reason)) => return reason.to_string(),
                Ok(other) => return format!("unexpected answer: {other:?}"),
                Err(error) => return error.to_string(),
            };
            // An introduction must match the server's certificate.
            if other.server.node.folded() != client.peer().node.folded() {
                return format!(
                    "the server introduced itself as {}, but its certificate names {}",
                    other.server.node,
                    client.peer()
                );
            }
            backoff.reset();
            if log.reset() {
                tracing::info!(address = %self.address, server = %other.server.node, "this server answers");
            }
            post(&self.sender, BootstrapEvent::Introduced(other));
            // At once if this server's introduction changes, such as a promise: others wait for it.
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = self.introduction.changed() => {}
            }
        }
    }
}

/// Posts an event, which is never rejected for lack of room. A driver that has stopped needs none.
fn post(sender: &EventSender, news: BootstrapEvent) {
    let _ = sender.post(DriverEvent::Bootstrap(news));
}
