//! This agent's own services and health checks: the clock, the log, the data folder, the probes and
//! the connection to the servers around the registry in `agent/core/src/registry`, which decides.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the handle that the API uses, and the loop that carries out what the registry decides |
//! | `folder.rs` | the files that keep what is registered |
//! | `aliased.rs` | reads the other nodes whose checks are followed |
//!
//! **Invariant:** after the node has left, nothing is written to the catalog: that would bring it
//! back.

mod aliased;
mod folder;

use crate::boot_clock::BootClock;
use crate::metrics;
use crate::node::Identity;
use crate::probes;
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use aliased::AliasedNodes;
use folder::{Folder, HostDisk, NotStored};
use lockmesh_agent_core::definitions::{Configured, NewCheck, ServiceRegistration};
use lockmesh_agent_core::registry::{
    self, Input, Limits, Notice, Order, Outbox, Outcome, RegistryError, Run, RunId, ServiceHealth, Source,
    Stored, Undo,
};
use lockmesh_net::random::seed;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::duration::format as format_duration;
use lockmesh_protocol::id::{CheckId, ServiceId};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, Service};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The time that a write to the catalog may still take when the agent stops.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a write to the catalog, or the end of the agent, waits for the data folder.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);

/// The services and checks of this agent.
#[derive(Debug)]
pub struct Registry {
    upstream: Upstream,
    identity: Identity,
    list: Mutex<registry::Registry>,
    folder: Arc<Folder>,
    /// The start, and the time since the host's boot then: the registry's times must have a meaning
    /// in the next process.
    began: (Instant, Time),
    /// Signals that a call or a run is due, or that a deadline moved.
    changed: Notify,
    progress: watch::Sender<SyncProgress>,
    /// The version up to which the catalog has all urgent changes.
    written: watch::Sender<u64>,
    /// `true` once nothing more is written to the catalog; held during a write.
    is_silent: tokio::sync::Mutex<bool>,
}

/// The runs in progress; dropped, they end.
#[derive(Debug, Default)]
struct Runs {
    tasks: JoinSet<Outcome>,
    ids: HashMap<tokio::task::Id, RunId>,
}

impl Runs {
    fn begin(&mut self, run: Run) {
        let id = run.id;
        let task = self.tasks.spawn(async move { probes::run(&run).await });
        self.ids.insert(task.id(), id);
    }

    /// Waits for the next result.
    async fn next(&mut self) -> Input {
        let (task, outcome) = match self.tasks.join_next_with_id().await {
            Some(Ok(ran)) => ran,
            // The check would never run again without a result.
            Some(Err(error)) => {
                let outcome =
                    Outcome { status: CheckStatus::Critical, output: format!("the check failed: {error}") };
                (error.id(), outcome)
            }
            None => return std::future::pending().await,
        };
        let run = self.ids.remove(&task).expect("each task has a run");
        Input::Ran(run, outcome)
    }
}

/// The reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The request cannot be carried out.
    #[error(transparent)]
    Refused(#[from] RegistryError),
    /// Neither this process nor the next one has the change.
    #[error(
        "the change was not made, because the agent's data folder cannot store it: make room there, and repeat the \
         request ({0})"
    )]
    NotStored(io::Error),
    /// The disk may have the change, although it could not store it.
    #[error(
        "the change was taken back, but the next start of the agent may find it in the data folder: mend the disk, \
         and repeat the request ({0})"
    )]
    Unknown(io::Error),
}

/// What those see who wait for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncProgress {
    /// The number of changes.
    pub version: u64,
    /// Set once the agent stops: a wait ends.
    pub is_stopping: bool,
}

/// A call to the servers that is under way; its result is `None` once the node has left.
type Call<'a> = Pin<Box<dyn Future<Output = Option<Input>> + Send + 'a>>;

impl Registry {
    /// Creates a registry without a data folder. Nothing is written to the catalog and no check
    /// runs until [`Self::run`] runs.
    pub fn in_memory(upstream: Upstream, identity: Identity, limits: Limits) -> Arc<Self> {
        Self::new(upstream, identity, limits, (Folder::none(), Stored::default()))
    }

    /// Creates a registry with what an earlier process of this agent left in the data folder.
    /// `is_permitted` tells whether a check may run; others are removed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn open(
        upstream: Upstream,
        identity: Identity,
        limits: Limits,
        data_folder: &Path,
        is_permitted: impl Fn(&NewCheck, Source) -> bool,
    ) -> io::Result<Arc<Self>> {
        let (folder, mut stored) = Folder::open(data_folder, HostDisk)?;
        for check in stored.drop_orphans() {
            tracing::warn!(%check, "removing a stored check: its service is not stored");
            folder.note(vec![registry::Store::Check(check.folded(), None)]);
        }
        stored.checks.retain(|stored| {
            let is_permitted = is_permitted(&stored.check, stored.source);
            if !is_permitted {
                tracing::warn!(check = %stored.check.id, "removing a stored script check: scripts are disabled");
                folder.note(vec![registry::Store::Check(stored.check.id.folded(), None)]);
            }
            is_permitted
        });
        Ok(Self::new(upstream, identity, limits, (folder, stored)))
    }

    fn new(
        upstream: Upstream,
        identity: Identity,
        limits: Limits,
        (folder, stored): (Folder, Stored),
    ) -> Arc<Self> {
        let began = (Instant::now(), BootClock::default().now());
        let list = registry::Registry::new(identity.node.clone(), limits, seed(), began.1, stored);
        Arc::new(Self {
            upstream,
            identity,
            list: Mutex::new(list),
            folder: Arc::new(folder),
            began,
            changed: Notify::new(),
            progress: watch::Sender::default(),
            written: watch::Sender::new(0),
            is_silent: tokio::sync::Mutex::new(false),
        })
    }

    /// Returns every check, in order of their ids.
    pub fn checks(&self) -> Vec<Check> {
        self.locked().checks()
    }

    /// Returns every service, in order of their ids.
    pub fn services(&self) -> Vec<Service> {
        self.locked().services()
    }

    /// Returns a service with the checks that decide its health.
    pub fn service_health(&self, id: &ServiceId) -> Option<ServiceHealth> {
        self.locked().service_health(id)
    }

    /// Returns a receiver that sees each change.
    pub fn progress(&self) -> watch::Receiver<SyncProgress> {
        self.progress.subscribe()
    }

    /// Ends the waits for a change.
    pub fn stop(&self) {
        self.progress.send_modify(|progress| progress.is_stopping = true);
    }

    /// Registers a service with its checks. Returns the version to wait for once it is stored, as
    /// all changes do.
    ///
    /// # Errors
    /// See [`registry::Registry::register_service`] and [`ChangeError`].
    pub async fn register_service(self: &Arc<Self>, new: ServiceRegistration) -> Result<u64, ChangeError> {
        self.store(|list, now, outbox| list.register_service(now, new, Source::Api, outbox)).await
    }

    /// Removes a service with its checks, here and from the catalog. Succeeds also if it is not
    /// registered.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn deregister_service(self: &Arc<Self>, id: &ServiceId) -> Result<u64, ChangeError> {
        self.store(|list, _, outbox| {
            list.deregister_service(id, outbox);
            Ok(list.version())
        })
        .await
    }

    /// Puts a service into maintenance with this reason, or ends it without one.
    ///
    /// # Errors
    /// See [`registry::Registry::maintain_service`] and [`ChangeError`].
    pub async fn maintain_service(
        self: &Arc<Self>,
        id: &ServiceId,
        reason: Option<&str>,
    ) -> Result<u64, ChangeError> {
        self.store(|list, now, outbox| list.maintain_service(now, id, reason, outbox)).await
    }

    /// Adds a check, or changes the one with that id, which keeps its status.
    ///
    /// # Errors
    /// See [`registry::Registry::register_check`] and [`ChangeError`].
    pub async fn register_check(self: &Arc<Self>, new: NewCheck) -> Result<u64, ChangeError> {
        self.store(|list, now, outbox| list.register_check(now, new, Source::Api, outbox)).await
    }

    /// Records an application's report. The TTL restarts.
    ///
    /// # Errors
    /// See [`registry::Registry::report`].
    pub fn report(&self, id: &CheckId, status: CheckStatus, output: &str) -> Result<u64, RegistryError> {
        self.change(|list, now, outbox| list.report(now, id, (status, output), outbox))
    }

    /// Removes a check, here and from the catalog. Succeeds also if it is not registered.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn deregister_check(self: &Arc<Self>, id: &CheckId) -> Result<u64, ChangeError> {
        self.store(|list, _, outbox| {
            list.deregister_check(id, outbox);
            Ok(list.version())
        })
        .await
    }

    /// Puts the node into maintenance with this reason, or ends it without one.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn maintain(self: &Arc<Self>, reason: Option<&str>) -> Result<u64, ChangeError> {
        self.store(|list, now, outbox| Ok(list.maintain(now, reason, outbox))).await
    }

    /// Replaces the services and checks of the configuration file.
    ///
    /// # Errors
    /// See [`registry::Registry::configure`].
    pub fn configure(&self, configured: Configured) -> Result<u64, RegistryError> {
        self.change(|list, now, outbox| list.configure(now, configured, outbox))
    }

    /// Makes a change and stores it, or takes it back.
    async fn store(
        self: &Arc<Self>,
        act: impl FnOnce(&mut registry::Registry, Time, &mut Outbox) -> Result<u64, RegistryError>,
    ) -> Result<u64, ChangeError> {
        // Before the change: another one of the same service would be built on what is taken back.
        let turn = self.folder.turn().await;
        let (version, undo) =
            self.change(|list, now, outbox| Undo::of(list, now, |list| act(list, now, outbox)));
        let (version, registry) = (version?, Arc::clone(self));
        let take_back = move |undo: Undo| {
            registry.change(|list, now, outbox| undo.take_back(list, now, outbox));
        };
        match self.folder.store(turn, undo, take_back).await {
            Ok(()) => Ok(version),
            Err(NotStored::NotDone(error)) => Err(ChangeError::NotStored(error)),
            Err(NotStored::Unknown(error)) => Err(ChangeError::Unknown(error)),
        }
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

    /// Runs the checks and keeps the catalog equal to this registry, until `shutdown` holds `true`.
    pub async fn run(self: Arc<Self>, mut shutdown: watch::Receiver<bool>) {
        let mut runs = Runs::default();
        let mut aliased = AliasedNodes::new(self.upstream.clone());
        let (mut leaders, mut losses) = (self.upstream.leaders(), self.upstream.catalog_losses());
        let mut call: Option<Call<'_>> = None;
        let mut input = Some(Input::Tick);
        loop {
            if let Some(input) = input.take() {
                let (order, due) = self.handle(input);
                due.into_iter().for_each(|run| runs.begin(run));
                call = call.or_else(|| order.map(|order| self.call(order)));
            }
            aliased.follow(self.locked().aliased_nodes());
            let wakes_at = self.locked().wakes_at();
            let result = tokio::select! {
                result = async { call.as_mut().expect("it is under way").await }, if call.is_some() => {
                    call = None;
                    result
                }
                ran = runs.next() => Some(ran),
                found = aliased.next() => Some(found),
                Ok(()) = leaders.changed() => Some(Input::LeaderFound),
                Ok(()) = losses.changed() => Some(Input::CatalogLost),
                () = self.sleep_until(wakes_at) => Some(Input::Tick),
                () = self.changed.notified() => Some(Input::Tick),
                () = closed(&mut shutdown) => break,
            };
            // The node has left: nothing more is written.
            let Some(next) = result else { return };
            input = Some(next);
        }
        self.finish(call).await;
    }

    /// Lets a write under way finish, and keeps the registry on disk.
    async fn finish<'a>(&'a self, mut call: Option<Call<'a>>) {
        // Without a registration no write can succeed.
        let grace = if self.upstream.is_registered() { LAST_WRITE_TIMEOUT } else { Duration::ZERO };
        let last = async {
            while let Some(under_way) = call.take() {
                let Some(input) = under_way.await else { return };
                call = self.handle(input).0.map(|order| self.call(order));
            }
        };
        let _ = tokio::time::timeout(grace, last).await;
        let _ = tokio::time::timeout(STORE_TIMEOUT, self.folder.write()).await;
    }

    /// Returns the call that an order is; it waits while writes are disabled.
    fn call(&self, order: Order) -> Call<'_> {
        Box::pin(async move {
            // First: after a restart, no check may have an older status than the catalog. A failure
            // is logged.
            // A disk that hangs must not keep a failure from the catalog.
            let _ = tokio::time::timeout(STORE_TIMEOUT, self.folder.write()).await;
            // Held until the call is over: [`Self::silence`] waits for that.
            let is_silent = self.is_silent.lock().await;
            if *is_silent { None } else { Some(self.execute(order).await) }
        })
    }

    async fn execute(&self, order: Order) -> Input {
        let node = self.identity.node.clone();
        match order {
            Order::Register(service, checks) => {
                let (node, skip_node_update) = (self.identity.record(), true);
                let registration = Registration { node, skip_node_update, service, checks };
                Input::Written(self.write(Command::Register(registration)).await)
            }
            Order::DeregisterService(id) => {
                let deregistration = Deregistration { node, service: Some(id), check: None };
                Input::Written(self.write(Command::Deregister(deregistration)).await)
            }
            Order::DeregisterCheck(id) => {
                let deregistration = Deregistration { node, service: None, check: Some(id) };
                Input::Written(self.write(Command::Deregister(deregistration)).await)
            }
            Order::ReadServices => Input::Services(
                self.read(Query::Node(node), |rows| match rows {
                    Rows::Node(Some((_, services))) => Ok(services),
                    Rows::Node(None) => Ok(&[]),
                    _ => Err(Unavailable::Unknown("the server answered with no services".into())),
                })
                .await,
            ),
            Order::ReadChecks => Input::Checks(self.read(Query::NodeChecks(node), checks_of).await),
        }
    }

    async fn write(&self, command: Command) -> Result<Reply, Unavailable> {
        Ok(self.upstream.call(command).await?.reply)
    }

    /// Reads all rows of an answer, however many.
    async fn read<T: Clone>(
        &self,
        query: Query,
        rows_of: impl Fn(&Rows) -> Result<&[T], Unavailable>,
    ) -> Result<Vec<T>, Unavailable> {
        let read = Read { query, consistency: Consistency::Default, blocking: None };
        let mut rows = Vec::new();
        for answer in self.upstream.read_all(read).await? {
            rows.extend_from_slice(rows_of(&answer.rows)?);
        }
        Ok(rows)
    }

    /// Returns the call and the runs that result from an input.
    fn handle(&self, input: Input) -> (Option<Order>, Vec<Run>) {
        if let Input::Ran(_, outcome) = &input {
            metrics::CHECK_RUNS.with_label_values(&[outcome.status.as_str()]).inc();
        }
        let mut outbox = Outbox::default();
        let mut list = self.locked();
        list.handle(self.now(), input, &mut outbox);
        let (order, runs) = (outbox.order.take(), std::mem::take(&mut outbox.runs));
        self.carry_out(list, outbox);
        (order, runs)
    }

    /// Changes the registry on behalf of an application or the operator.
    fn change<T>(&self, act: impl FnOnce(&mut registry::Registry, Time, &mut Outbox) -> T) -> T {
        let mut outbox = Outbox::default();
        let mut list = self.locked();
        let outcome = act(&mut list, self.now(), &mut outbox);
        self.carry_out(list, outbox);
        self.changed.notify_one();
        outcome
    }

    /// Stores what changed, logs events, and wakes those who wait for a change.
    fn carry_out(&self, list: MutexGuard<'_, registry::Registry>, outbox: Outbox) {
        let stores = !outbox.stores.is_empty();
        // In the order of the changes, so while the registry is locked.
        self.folder.note(outbox.stores);
        let (version, written) = (list.version(), list.written());
        let counts = list.counts().map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        for (gauge, count) in
            [&metrics::SERVICES, &metrics::CHECKS, &metrics::CHECKS_RUNNING].into_iter().zip(counts)
        {
            gauge.set(count);
        }
        drop(list);
        outbox.notices.into_iter().for_each(report_notice);
        self.progress.send_if_modified(|known| std::mem::replace(&mut known.version, version) != version);
        self.written.send_if_modified(|known| std::mem::replace(known, written) != written);
        if stores {
            self.folder.write_later();
        }
    }

    fn now(&self) -> Time {
        self.began.1 + self.began.0.elapsed()
    }

    async fn sleep_until(&self, time: Option<Time>) {
        match time {
            Some(time) => tokio::time::sleep_until(self.began.0 + time.since(self.began.1)).await,
            None => std::future::pending().await,
        }
    }

    fn locked(&self) -> MutexGuard<'_, registry::Registry> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the checks of an answer.
fn checks_of(rows: &Rows) -> Result<&[Arc<Check>], Unavailable> {
    match rows {
        Rows::Checks(checks) => Ok(checks),
        _ => Err(Unavailable::Unknown("the server answered with no checks".into())),
    }
}

/// Logs and counts an event.
fn report_notice(notice: Notice) {
    match notice {
        Notice::Registered(service) => tracing::info!(%service, "service registered"),
        Notice::Deregistered(service) => tracing::info!(%service, "service deregistered"),
        Notice::Reaped(service, check) => {
            tracing::warn!(%service, %check, "the service was deregistered: its check was critical for too long");
        }
        Notice::Expired(check) => {
            metrics::CHECK_EXPIRIES.inc();
            tracing::warn!(%check, "no report within the TTL: the check is critical");
        }
        Notice::Turned(check, CheckStatus::Critical, output) => {
            let output = output.lines().next().unwrap_or_default();
            tracing::warn!(%check, output, "the check is critical");
        }
        Notice::Turned(check, status, _) => {
            tracing::info!(%check, status = status.as_str(), "the check changed");
        }
        Notice::AdoptedService(service) => {
            tracing::info!(%service, "adopting a service of this agent's earlier process");
        }
        Notice::Adopted(check, ttl) => {
            let ttl = ttl.map(format_duration).unwrap_or_default();
            tracing::info!(%check, %ttl, "adopting a check of this agent's earlier process");
        }
        Notice::MaintenanceBegan(reason) => tracing::warn!(reason, "this node is in maintenance"),
        Notice::MaintenanceEnded => tracing::info!("this node is no longer in maintenance"),
        Notice::Foreign(entry) => {
            tracing::warn!(entry, "removing an entry that another client registered on this agent's node");
        }
        Notice::Written => metrics::CHECK_SYNCS.with_label_values(&["ok"]).inc(),
        Notice::SyncFailed { reason, is_new } => {
            metrics::CHECK_SYNCS.with_label_values(&["failed"]).inc();
            if is_new {
                tracing::warn!(error = %reason, "cannot write services and checks to the catalog; retrying");
            }
        }
        Notice::SyncRecovered => tracing::info!("services and checks are in the catalog again"),
    }
}

/// Waits until `shutdown` holds `true` or its sender is dropped.
async fn closed(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|closing| *closing).await;
}

#[cfg(test)]
mod tests {
    use super::folder::Disk;
    use super::*;
    use crate::node::NodeMeta;
    use crate::own_address::OwnAddress;
    use crate::upstream::{BoxFuture, Quorum};
    use lockmesh_agent_core::definitions::CheckKind;
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_agent_core::registry::{Store, StoredCheck, StoredTimes};
    use lockmesh_protocol::acl::Caller;
    use lockmesh_protocol::rpc::Response;
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    /// A quorum that does not reply, and counts its calls.
    #[derive(Debug)]
    struct Silent(Semaphore);

    impl Quorum for Silent {
        fn call(self: Arc<Self>, _: Caller, _call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            self.0.add_permits(1);
            Box::pin(std::future::pending())
        }

        fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
            Box::pin(std::future::pending())
        }
    }

    fn identity() -> Identity {
        Identity {
            node: "node-one".into(),
            node_id: String::new(),
            datacenter: "dc1".into(),
            version: String::new(),
            advertise: OwnAddress::fixed([127, 0, 0, 1].into()),
            meta: NodeMeta::default(),
            server_rpc: None,
        }
    }

    #[tokio::test]
    async fn unrestorable_check_removed_from_disk() {
        let data = tempfile::tempdir().expect("a folder");
        let (folder, _) = Folder::open(data.path(), HostDisk).expect("it can be opened");
        let folder = Arc::new(folder);
        for (id, service) in [("App", None), ("Orphan", Some("gone"))] {
            let kind = CheckKind::Ttl(Duration::from_secs(10));
            let check = NewCheck::of(id.into(), CheckStatus::Passing, kind);
            let check = NewCheck { service: service.map(Into::into), ..check };
            let (source, status) = (Source::Api, CheckStatus::Passing);
            let (times, results) = (StoredTimes::default(), None);
            let stored = StoredCheck { check, source, status, output: String::new(), times, results };
            folder.note(vec![Store::Check(CheckId::from(id).folded(), Some(Box::new(stored)))]);
        }
        folder.write().await.expect("it is written");
        for (is_permitted, left) in [(true, 1), (false, 0)] {
            let upstream = Upstream::new(Arc::new(Silent(Semaphore::new(0))));
            let permits = |_: &NewCheck, _| is_permitted;
            let registry = Registry::open(upstream, identity(), Limits::default(), data.path(), permits);
            let registry = registry.expect("it can be opened");
            registry.maintain(None).await.expect("it is written");
            let (_, stored) = Folder::open(data.path(), HostDisk).expect("it can be opened");
            assert_eq!((registry.checks().len(), stored.checks.len()), (left, left));
        }
    }

    /// Fails after this many changes, like a host that loses its power or a disk that is full.
    #[derive(Debug)]
    struct FailingDisk(AtomicUsize);

    impl FailingDisk {
        fn count(&self) -> io::Result<()> {
            let left = self.0.load(Ordering::SeqCst).checked_sub(1);
            let left = left.ok_or(io::Error::from(io::ErrorKind::StorageFull))?;
            self.0.store(left, Ordering::SeqCst);
            Ok(())
        }
    }

    impl Disk for FailingDisk {
        fn write(&self, path: &Path, text: &str) -> io::Result<()> {
            self.count()?;
            HostDisk.write(path, text)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.count()?;
            HostDisk.remove(path)
        }
    }

    fn web(checks: &[&str]) -> ServiceRegistration {
        let check = |id: &&str| {
            NewCheck::of((*id).into(), CheckStatus::Passing, CheckKind::Ttl(Duration::from_secs(10)))
        };
        let service = Service::of("node-one".into(), "web".into(), "web");
        let checks = checks.iter().map(check).collect();
        ServiceRegistration { service, checks, replaces_checks: true, sidecar: None }
    }

    /// Returns the ids of the services and checks that a process finds in a data folder.
    fn restarted(data: &Path) -> (Vec<String>, Vec<String>) {
        let upstream = Upstream::new(Arc::new(Silent(Semaphore::new(0))));
        let registry = Registry::open(upstream, identity(), Limits::default(), data, |_, _| true);
        registered(&registry.expect("it can be opened"))
    }

    fn registered(registry: &Registry) -> (Vec<String>, Vec<String>) {
        let services = registry.services().iter().map(|service| service.id.to_string()).collect();
        (services, registry.checks().iter().map(|check| check.id.to_string()).collect())
    }

    /// Makes a change on a disk that fails after each number of its changes. A removal without room
    /// for a batch takes several of them, so its outcome may be unknown.
    async fn at_each_crash_point(
        before: Option<&[&str]>,
        expected: (Vec<String>, Vec<String>),
        change: impl AsyncFn(&Arc<Registry>) -> Result<u64, ChangeError>,
    ) -> Vec<bool> {
        let mut outcomes = Vec::new();
        while outcomes.last() != Some(&true) || outcomes.len() < 10 {
            let data = tempfile::tempdir().expect("a folder");
            let open = |changes| {
                let opened = Folder::open(data.path(), FailingDisk(AtomicUsize::new(changes)));
                let upstream = Upstream::new(Arc::new(Silent(Semaphore::new(0))));
                Registry::new(upstream, identity(), Limits::default(), opened.expect("it can be opened"))
            };
            if let Some(checks) = before {
                let registry = open(100);
                registry.register_service(web(checks)).await.expect("it is stored");
            }
            let registry = open(outcomes.len());
            let old = registered(&registry);
            let changed = change(&registry).await;
            let place = outcomes.len();
            let found = registered(&registry);
            let left = if changed.is_ok() { &expected } else { &old };
            assert_eq!(&found, left, "in this process, after {place} changes");
            if matches!(changed, Err(ChangeError::Unknown(_))) {
                assert!(expected.0.is_empty(), "a registration is one change");
            } else {
                assert_eq!(restarted(data.path()), found, "in the next process, after {place} changes");
            }
            outcomes.push(changed.is_ok());
        }
        outcomes
    }

    #[tokio::test]
    async fn registration_is_crash_atomic() {
        let new = async |registry: &Arc<Registry>| registry.register_service(web(&["a", "b"])).await;
        let new = at_each_crash_point(None, ids(&["web"], &["a", "b"]), new).await;
        // The write of the batch decides.
        assert_eq!(new[..2], [false, true]);
        let again = async |registry: &Arc<Registry>| registry.register_service(web(&["b", "c"])).await;
        let changed = at_each_crash_point(Some(&["a", "b"]), ids(&["web"], &["b", "c"]), again).await;
        assert_eq!(changed[..2], [false, true]);
        let alone = async |registry: &Arc<Registry>| registry.register_service(web(&[])).await;
        let alone = at_each_crash_point(None, ids(&["web"], &[]), alone).await;
        assert_eq!(alone[..2], [false, true]);
        let gone = async |registry: &Arc<Registry>| registry.deregister_service(&"web".into()).await;
        let gone = at_each_crash_point(Some(&["a", "b"]), ids(&[], &[]), gone).await;
        assert_eq!(gone[..4], [false, false, false, true]);
    }

    /// What becomes of the changes of a disk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fate {
        Durable,
        Refused,
        /// Visible, but perhaps gone after a crash.
        Unsynced,
    }

    /// A disk with the fates of its writes and of its removals, which a test changes.
    #[derive(Clone, Debug)]
    struct FaultyDisk(Arc<Mutex<[Fate; 2]>>);

    impl FaultyDisk {
        fn change(&self, fate: usize, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
            let fate = self.0.lock().expect("no panic")[fate];
            if fate != Fate::Refused {
                change()?;
            }
            if fate == Fate::Durable { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }
    }

    impl Disk for FaultyDisk {
        fn write(&self, path: &Path, text: &str) -> io::Result<()> {
            self.change(0, || HostDisk.write(path, text))
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.change(1, || HostDisk.remove(path))
        }
    }

    /// A registry with the service `web` and its check `a`, in a data folder on a faulty disk.
    struct Stand {
        data: tempfile::TempDir,
        disk: FaultyDisk,
        registry: Arc<Registry>,
    }

    impl Stand {
        async fn with_web() -> Self {
            let data = tempfile::tempdir().expect("a folder");
            let disk = FaultyDisk(Arc::new(Mutex::new([Fate::Durable; 2])));
            let opened = Folder::open(data.path(), disk.clone()).expect("it can be opened");
            let upstream = Upstream::new(Arc::new(Silent(Semaphore::new(0))));
            let registry = Registry::new(upstream, identity(), Limits::default(), opened);
            registry.register_service(web(&["a"])).await.expect("it is stored");
            Self { data, disk, registry }
        }

        fn fate(&self, writes: Fate, removals: Fate) {
            *self.disk.0.lock().expect("no panic") = [writes, removals];
        }

        fn found(&self) -> [(Vec<String>, Vec<String>); 2] {
            [registered(&self.registry), restarted(self.data.path())]
        }
    }

    fn ids(services: &[&str], checks: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        (owned(services), owned(checks))
    }

    fn named(id: &str) -> ServiceRegistration {
        ServiceRegistration { service: Service::of("node-one".into(), id.into(), id), ..web(&[]) }
    }

    #[tokio::test]
    async fn a_deregistration_needs_no_room() {
        let stand = Stand::with_web().await;
        stand.fate(Fate::Refused, Fate::Durable);
        stand.registry.register_service(web(&["a", "b"])).await.expect_err("the disk is full");
        assert_eq!(stand.found(), [ids(&["web"], &["a"]), ids(&["web"], &["a"])]);
        stand.registry.deregister_service(&"web".into()).await.expect("it is removed");
        assert_eq!(stand.found(), [ids(&[], &[]), ids(&[], &[])]);
    }

    #[tokio::test]
    async fn concurrent_refused_changes_leave_nothing() {
        let stand = Stand::with_web().await;
        stand.fate(Fate::Refused, Fate::Durable);
        let changes = [&["b"], &["c"]].map(|checks| stand.registry.register_service(web(checks)));
        let [first, second] = changes;
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_err() && second.is_err(), "the disk is full");
        assert_eq!(stand.found(), [ids(&["web"], &["a"]), ids(&["web"], &["a"])]);
    }

    #[tokio::test]
    async fn undo_that_fails_is_unknown() {
        for (removals, is_certain) in [(Fate::Durable, true), (Fate::Unsynced, false), (Fate::Refused, false)]
        {
            let stand = Stand::with_web().await;
            stand.fate(Fate::Unsynced, removals);
            let refused = stand.registry.register_service(named("db")).await.expect_err("it is not durable");
            assert_eq!(matches!(refused, ChangeError::NotStored(_)), is_certain, "{refused}");
            let expected = ids(&["web"], &["a"]);
            assert_eq!(registered(&stand.registry), expected, "in this process");
            assert!(!is_certain || restarted(stand.data.path()) == expected);
        }
    }

    #[tokio::test]
    async fn failed_removal_blocks_no_other_change() {
        let stand = Stand::with_web().await;
        stand.registry.register_service(named("db")).await.expect("it is stored");
        stand.fate(Fate::Refused, Fate::Refused);
        let refused = stand.registry.deregister_service(&"web".into()).await.expect_err("it is not removed");
        assert!(matches!(refused, ChangeError::NotStored(_)), "{refused}");
        assert_eq!(stand.found(), [ids(&["db", "web"], &["a"]), ids(&["db", "web"], &["a"])]);
        stand.fate(Fate::Durable, Fate::Durable);
        stand.registry.folder.write().await.expect("there is room");
        // A removal that no request waits for; a folder cannot be removed as a file.
        stand.fate(Fate::Refused, Fate::Durable);
        let checks = stand.data.path().join("registry/checks");
        for file in fs::read_dir(checks).expect("a folder").map(|file| file.expect("a file").path()) {
            fs::remove_file(&file).and_then(|()| fs::create_dir(&file)).expect("a folder");
        }
        stand.registry.change(|list, _, outbox| list.deregister_check(&"a".into(), outbox));
        stand.registry.folder.write().await.expect_err("it is not removed");
        stand.registry.deregister_service(&"db".into()).await.expect("it is removed");
        assert_eq!(stand.found(), [ids(&["web"], &[]), ids(&["web"], &[])]);
        stand.fate(Fate::Durable, Fate::Refused);
        stand.registry.register_service(named("db")).await.expect("it is stored");
        stand.registry.deregister_service(&"web".into()).await.expect("the batch removes it");
        stand.registry.register_service(named("mail")).await.expect("it is stored");
        assert_eq!(stand.found(), [ids(&["db", "mail"], &[]), ids(&["db", "mail"], &[])]);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_bounded_with_silent_servers() {
        let silent = Arc::new(Silent(Semaphore::new(0)));
        let registry = Registry::in_memory(Upstream::new(silent.clone()), identity(), Limits::default());
        let (stop, stopping) = watch::channel(false);
        let running = tokio::spawn(registry.run(stopping));
        silent.0.acquire().await.expect("the catalog is compared first").forget();
        let begun = Instant::now();
        stop.send_replace(true);
        running.await.expect("no panic");
        assert!(begun.elapsed() <= LAST_WRITE_TIMEOUT, "{:?}", begun.elapsed());
    }
}
