//! This agent's own health checks: the clock, the log and the connection to the servers around the
//! list in `agent/core/src/checks`, which decides.
//!
//! **Invariant:** after the node has left, nothing is written to the catalog: that would bring it
//! back.

use crate::metrics;
use crate::node::Identity;
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use lockmesh_agent_core::checks::{self, CheckError, CheckLimits, Input, NewCheck, Notice, Order, Outbox};
use lockmesh_net::random::seed;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::duration::format as format_duration;
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, Node};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The time that a write to the catalog may still take when the agent stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The checks of this agent.
#[derive(Debug)]
pub struct Checks {
    upstream: Upstream,
    identity: Identity,
    list: Mutex<checks::Checks>,
    /// The origin of the list's time.
    began: Instant,
    /// Signals that the catalog is out of date, or that a deadline moved.
    changed: Notify,
    /// The version up to which the catalog has all urgent changes.
    written: watch::Sender<u64>,
    /// `true` once nothing more is written to the catalog; held during a write.
    is_silent: tokio::sync::Mutex<bool>,
}

impl Checks {
    /// Creates an empty list. Nothing is written to the catalog until [`Self::run`] runs.
    pub fn new(upstream: Upstream, identity: Identity, limits: CheckLimits) -> Arc<Self> {
        let list = Mutex::new(checks::Checks::new(identity.node.clone(), limits, seed(), Time(0)));
        Arc::new(Self {
            upstream,
            identity,
            list,
            began: Instant::now(),
            changed: Notify::new(),
            written: watch::Sender::new(0),
            is_silent: tokio::sync::Mutex::new(false),
        })
    }

    /// Returns every check, in order of their ids.
    pub fn list(&self) -> Vec<Check> {
        self.locked().list()
    }

    /// Adds a check, or changes the one with that id, which keeps its status. Returns the version
    /// to wait for.
    ///
    /// # Errors
    /// See [`checks::Checks::register`].
    pub fn register(&self, new: NewCheck) -> Result<u64, CheckError> {
        self.change(|list, now, _| list.register(now, new))
    }

    /// Records an application's report. The TTL restarts.
    ///
    /// # Errors
    /// See [`checks::Checks::report`].
    pub fn report(&self, id: &CheckId, status: CheckStatus, output: &str) -> Result<u64, CheckError> {
        self.change(|list, now, _| list.report(now, id, status, output))
    }

    /// Removes a check, here and from the catalog.
    ///
    /// # Errors
    /// See [`checks::Checks::deregister`].
    pub fn deregister(&self, id: &CheckId) -> Result<u64, CheckError> {
        self.change(|list, _, _| list.deregister(id))
    }

    /// Puts the node into maintenance with this reason, or ends it without one.
    pub fn maintain(&self, reason: Option<&str>) -> u64 {
        self.change(|list, now, outbox| list.maintain(now, reason, outbox))
    }

    /// Waits for the current write to the catalog to end, and prevents further writes while the
    /// returned guard is held. If the guard is set to `true`, writes stay disabled afterwards.
    pub async fn silence(&self) -> tokio::sync::MutexGuard<'_, bool> {
        self.is_silent.lock().await
    }

    /// Waits for a limited time until the catalog has all urgent changes up to a version; they are
    /// written in any case.
    pub async fn wait_written(&self, version: u64, timeout: Duration) {
        let mut written = self.written.subscribe();
        let _ = tokio::time::timeout(timeout, written.wait_for(|known| *known >= version)).await;
    }

    /// Keeps the catalog equal to this list, until `shutdown` holds `true`.
    pub async fn run(self: Arc<Self>, mut shutdown: watch::Receiver<bool>) {
        loop {
            // Held until the round is over: [`Checks::silence`] waits for that.
            let is_silent = self.is_silent.lock().await;
            // The node has left: nothing more is written.
            if *is_silent {
                return;
            }
            let mut round = pin!(self.round());
            let wakes_at = tokio::select! {
                wakes_at = &mut round => wakes_at,
                () = closed(&mut shutdown) => {
                    // A write under way gets time to finish. Without a registration it cannot, so
                    // it gets none.
                    let grace = if self.upstream.is_registered() { LAST_WRITE_TIMEOUT } else { Duration::ZERO };
                    let _ = tokio::time::timeout(grace, round).await;
                    return;
                }
            };
            drop(is_silent);
            tokio::select! {
                () = self.sleep_until(wakes_at) => {}
                () = self.changed.notified() => {}
                // No write is under way, so there is nothing to wait for.
                () = closed(&mut shutdown) => return,
            }
        }
    }

    /// Makes the calls that are due, one after the other, and returns the time of the next ones.
    async fn round(&self) -> Option<Time> {
        let mut order = self.handle(Input::Tick);
        while let Some(next) = order {
            order = self.handle(self.execute(next).await);
        }
        self.locked().wakes_at()
    }

    async fn execute(&self, order: Order) -> Input {
        let node = self.identity.node.clone();
        match order {
            Order::Register(checks) => {
                let (node, skip_node_update) = (self.own_node(), true);
                let registration = Registration { node, skip_node_update, service: None, checks };
                Input::Written(self.write(Command::Register(registration)).await)
            }
            Order::Deregister(id) => {
                let deregistration = Deregistration { node, service: None, check: Some(id) };
                Input::Written(self.write(Command::Deregister(deregistration)).await)
            }
            Order::Read => {
                let query = Query::NodeChecks(node);
                let read = Read { query, consistency: Consistency::Default, blocking: None };
                Input::Read(self.upstream.call(read).await.and_then(|answer| match &answer.rows {
                    Rows::Checks(checks) => Ok(checks.clone()),
                    _ => Err(Unavailable::Unknown("the server answered with no checks".into())),
                }))
            }
        }
    }

    async fn write(&self, command: Command) -> Result<Reply, Unavailable> {
        Ok(self.upstream.call(command).await?.reply)
    }

    /// Returns the order that results from an input.
    fn handle(&self, input: Input) -> Option<Order> {
        let mut outbox = Outbox::default();
        let mut list = self.locked();
        list.handle(self.now(), input, &mut outbox);
        let written = list.written();
        drop(list);
        outbox.notices.into_iter().for_each(report_notice);
        self.written.send_if_modified(|known| std::mem::replace(known, written) != written);
        outbox.order
    }

    /// Changes the list on behalf of an application.
    fn change<T>(&self, act: impl FnOnce(&mut checks::Checks, Time, &mut Outbox) -> T) -> T {
        let mut outbox = Outbox::default();
        let outcome = act(&mut self.locked(), self.now(), &mut outbox);
        outbox.notices.into_iter().for_each(report_notice);
        self.changed.notify_one();
        outcome
    }

    /// Returns this agent's node, for a catalog that lacks it.
    fn own_node(&self) -> Node {
        let Identity { node, node_id, datacenter, advertise, .. } = &self.identity;
        let address = advertise.ip().to_string();
        Node { datacenter: datacenter.clone(), ..Node::of(node.clone(), node_id.clone(), &address) }
    }

    fn now(&self) -> Time {
        Time(0) + self.began.elapsed()
    }

    async fn sleep_until(&self, time: Option<Time>) {
        match time {
            Some(time) => tokio::time::sleep_until(self.began + time.since(Time(0))).await,
            None => std::future::pending().await,
        }
    }

    fn locked(&self) -> MutexGuard<'_, checks::Checks> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs and counts an event.
fn report_notice(notice: Notice) {
    match notice {
        Notice::Expired(check) => {
            metrics::CHECK_EXPIRIES.inc();
            tracing::warn!(%check, "no report within the TTL: the check is critical");
        }
        Notice::Adopted(check, ttl) => {
            let ttl = ttl.map(format_duration).unwrap_or_default();
            tracing::info!(%check, %ttl, "adopting a check of this agent's earlier process");
        }
        Notice::MaintenanceBegan(reason) => tracing::warn!(reason, "this node is in maintenance"),
        Notice::MaintenanceEnded => tracing::info!("this node is no longer in maintenance"),
        Notice::Written => metrics::CHECK_SYNCS.with_label_values(&["ok"]).inc(),
        Notice::SyncFailed { reason, is_new } => {
            metrics::CHECK_SYNCS.with_label_values(&["failed"]).inc();
            if is_new {
                tracing::warn!(error = %reason, "cannot write this agent's checks to the catalog; retrying");
            }
        }
        Notice::SyncRecovered => tracing::info!("this agent's checks are in the catalog again"),
    }
}

/// Waits until `shutdown` holds `true` or its sender is dropped.
async fn closed(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|closing| *closing).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_address::OwnAddress;
    use crate::upstream::{BoxFuture, Quorum};
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_protocol::rpc::Response;
    use tokio::sync::Semaphore;

    /// A quorum that does not reply, and counts its calls.
    #[derive(Debug)]
    struct Silent(Semaphore);

    impl Quorum for Silent {
        fn call(self: Arc<Self>, _call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            self.0.add_permits(1);
            Box::pin(std::future::pending())
        }

        fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stops_does_not_wait_for_servers_that_say_nothing() {
        let silent = Arc::new(Silent(Semaphore::new(0)));
        let identity = Identity {
            node: "node-one".into(),
            node_id: String::new(),
            datacenter: "dc1".into(),
            version: String::new(),
            advertise: OwnAddress::fixed([127, 0, 0, 1].into()),
            server_rpc: None,
        };
        let checks = Checks::new(Upstream::new(silent.clone()), identity, CheckLimits::default());
        let (stop, stopping) = watch::channel(false);
        let running = tokio::spawn(checks.run(stopping));
        silent.0.acquire().await.expect("the catalog is compared first").forget();
        let begun = Instant::now();
        stop.send_replace(true);
        running.await.expect("no panic");
        assert!(begun.elapsed() <= LAST_WRITE_TIMEOUT, "{:?}", begun.elapsed());
    }
}
