//! The tasks that look for other servers: one a name that is looked up again and again, one an
//! address that is called again and again. Both go on for ever and say what is wrong once for each
//! change.

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

/// How often a server that answers is asked again.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait before one that does not answer is called again: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often a name is looked up that was found.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(2);
/// How many names, and how many addresses, are tried.
const MAX_ADDRESSES: usize = 64;

/// All such tasks; they end with this value.
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

    /// Looks for servers there from now on.
    pub(super) fn look_at(&mut self, name: &str) {
        let is_me = name == self.introduction.borrow().server.address;
        // A limit, since others name the addresses: one that lies must not make this server call
        // everybody.
        if !is_me && !self.names.contains_key(name) && self.names.len() < MAX_ADDRESSES {
            let task = look_up(name.to_owned(), self.sender.clone());
            let task = self.runtime.spawn(task).abort_handle();
            self.names.insert(name.to_owned(), KnownName { addresses: Vec::new(), task });
        }
    }

    /// A name stands for these addresses now: they are called, and those that nothing stands for no
    /// longer.
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

    /// What is said of this server from now on.
    pub(super) fn say(&self, introduction: Introduction) {
        // Woken only by news: each of the tasks would introduce this server again at once.
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
                // Resolvers give them in another order each time, which is no news.
                addresses.sort_unstable();
                log.reset();
                if addresses != known {
                    known.clone_from(&addresses);
                    post(&sender, BootstrapEvent::Resolved(name.clone(), addresses));
                }
                tokio::time::sleep(LOOK_UP_INTERVAL).await;
            }
            Err(error) => {
                let reason = error.to_string();
                if log.is_new(&reason) {
                    tracing::warn!(%name, %reason, "cannot find a server by this name; retrying");
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

    /// Introduces this server again and again; says what ended it.
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
                Ok(other) => return format!("it answered something else: {other:?}"),
                Err(error) => return error.to_string(),
            };
            // What a server says of itself counts only as far as its certificate reaches.
            if other.server.node.folded() != client.peer().node.folded() {
                return format!(
                    "it says that it is {}, but its certificate names {}",
                    other.server.node,
                    client.peer()
                );
            }
            backoff.reset();
            log.reset();
            post(&self.sender, BootstrapEvent::Introduced(other));
            // At once where this server has something new to say, as a promise: others wait for it.
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = self.introduction.changed() => {}
            }
        }
    }
}

/// BootstrapEvent always gets in; a driver that is gone needs none.
fn post(sender: &EventSender, news: BootstrapEvent) {
    let _ = sender.post(DriverEvent::Bootstrap(news));
}
