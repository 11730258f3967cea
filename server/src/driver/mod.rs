//! The loop that owns a server's frontend and core: receives posted events, and carries out the
//! frontend's actions.
//!
//! ```text
//! event queue → [handle, handle, …, advance, decide] → log writes → the store's writer thread
//!                                       [settle] → answers    → each connection's sink, one wake-up a turn
//!                                                → changes    → dirty rows; checkpoints, compaction → the store
//!                                  end of a turn → messages   → a queue per other server, one wake-up
//! ```
//!
//! While a commit is on its way to disk the loop continues to receive events, so that the next
//! commit is a group (group commit). **Invariants:** nothing is decided here: see [`Frontend`].
//! Nothing waits for a disk or a peer; the only wait is for events, until the frontend's next
//! deadline.

mod acl_reset;
mod connections;
mod figures;

use crate::background::yield_to_others;
use crate::backup::{Backups, Question};
use crate::bootstrap::{Record, announce};
use crate::challenger::Challenger;
use crate::config::StorageConfig;
use crate::event_queue::{DriverEvent, EventReceiver, EventSender, Outgoing};
use crate::health::Health;
use crate::metrics;
use crate::peers::{Peers, VERSION};
use crate::snapshot::{CheckpointSource, DownloadError, Fetch, Fetched};
use crate::store::{DirtyRows, StoreHandle};
use acl_reset::AclReset;
use connections::Connections;
use figures::Publisher;
use lockmesh_core::durability::unwritten::{StoreOrder, Unwritten};
use lockmesh_core::frontend::{
    Actions, Announcement, AnswerKind, CallAnswer, Event, Frontend, FrontendConfig, NotReady, OpenReader,
    PartWanted, RosterChange, SnapshotFetch, Storage,
};
use lockmesh_core::{Core, Input};
use lockmesh_net::admission::Admission;
use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The maximum number of events per turn.
const EVENTS_PER_TURN: usize = 4_096;

/// The interval at which the admission of handshakes learns the addresses of agents and servers.
const ROSTER_INTERVAL: Duration = Duration::from_secs(5);

/// The parts of a new driver.
pub(crate) struct DriverParts {
    pub(crate) core: Core,
    pub(crate) receiver: EventReceiver,
    pub(crate) store: StoreHandle,
    pub(crate) own_record: Server,
    pub(crate) cluster_id: String,
    /// The maximum number of parked reads.
    pub(crate) watches: usize,
    pub(crate) storage: StorageConfig,
    pub(crate) peers: Arc<Peers>,
    pub(crate) admission: Admission,
    pub(crate) record: Record,
    pub(crate) data_dir: PathBuf,
    pub(crate) health: Health,
}

/// The driver and everything that it owns.
pub(crate) struct Driver {
    frontend: Frontend,
    actions: Actions,
    receiver: EventReceiver,
    sender: EventSender,
    store: StoreHandle,
    connections: Connections,
    unwritten: Unwritten<DirtyRows>,
    backups: Backups,
    challenger: Challenger,
    started: Instant,
    peers: Arc<Peers>,
    /// The admission of handshakes, and the next time at which it learns the roster's addresses.
    admission: (Admission, Time),
    /// The data folder's record of the quorum.
    record: Record,
    data_dir: PathBuf,
    /// Events for the beginning of the next turn.
    next: Vec<Event>,
    /// The task that announces this server's address to the quorum.
    announcing: Option<JoinHandle<()>>,
    /// Notified when this server may stop.
    leaving: Option<oneshot::Sender<()>>,
    /// The file that permits another bootstrap of the access control lists, and the next time at
    /// which it is read.
    acl_reset: (AclReset, Time),
    /// The failures to fetch a snapshot that were logged.
    fetch_log: LogOnChange,
    publisher: Publisher,
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        let DriverParts { core, own_record, cluster_id, storage, peers, record, .. } = parts;
        let own_version = Event::Version(own_record.id, VERSION.into());
        let config = FrontendConfig {
            own_record,
            cluster_id,
            max_watches: parts.watches,
            checkpoint_interval: storage.checkpoint_interval,
            checkpoint_changes: storage.checkpoint_changes,
            corrupt: record.corrupt,
        };
        Self {
            frontend: Frontend::new(config, core, Time(0), wall_time()),
            actions: Actions::default(),
            receiver: parts.receiver,
            sender: peers.sender().clone(),
            store: parts.store,
            connections: Connections::default(),
            unwritten: Unwritten::default(),
            backups: Backups::default(),
            challenger: Challenger::new(Arc::clone(&peers)),
            started: Instant::now(),
            peers,
            admission: (parts.admission, Time(0)),
            record,
            acl_reset: (AclReset::in_folder(&parts.data_dir), Time(0)),
            data_dir: parts.data_dir,
            next: vec![own_version],
            announcing: None,
            leaving: None,
            fetch_log: LogOnChange::default(),
            publisher: Publisher::new(parts.health),
        }
    }

    /// Runs until it is stopped; everything decided is on disk then.
    pub(crate) async fn run(mut self) {
        let mut events = Vec::new();
        let mut running = true;
        let mut wakes_at = self.frontend.wakes_at();
        let mut alarm = pin!(tokio::time::sleep_until(self.instant(wakes_at).into()));
        self.frontend.start(&mut self.actions);
        while running {
            // Work left by the last turn must not wait for another event.
            if self.next.is_empty() {
                self.receiver.arrive(&mut events, EVENTS_PER_TURN, alarm.as_mut()).await;
            } else {
                self.receiver.take_now(&mut events, EVENTS_PER_TURN);
            }
            std::mem::take(&mut self.next).into_iter().for_each(|event| self.handle(event));
            metrics::TURN_EVENTS.observe(events.len() as f64);
            metrics::EVENTS.inc_by(events.len() as u64);
            for event in events.drain(..) {
                // The remaining events are handled too: each may release something.
                running &= self.receive(event);
            }
            self.advance();
            self.frontend.decide(self.now(), &mut self.actions);
            // The disk starts here, and works during the rest of the turn.
            running &= self.carry_out();
            self.settle();
            running &= self.carry_out();
            figures::count(&self.frontend.take_observed());
            self.unwritten.end_turn();
            self.connections.deliver();
            self.send_to_peers();
            if wakes_at != self.frontend.wakes_at() {
                wakes_at = self.frontend.wakes_at();
                alarm.as_mut().reset(self.instant(wakes_at).into());
            }
        }
        // Waits for the disk.
        let store = self.store;
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }

    /// Handles one event; returns `false` if the driver must end.
    fn receive(&mut self, event: DriverEvent) -> bool {
        let event = match event {
            DriverEvent::Call { call, client, request, replies } => {
                let (from, peer) = self.connections.begin(call, &replies);
                Event::Call { from, peer, client, request }
            }
            DriverEvent::SnapshotFetched(fetched) => self.fetched(fetched),
            // A late event of the bootstrap loop.
            DriverEvent::Bootstrap(_) => return true,
            DriverEvent::Leave(left) => {
                self.leaving = Some(left);
                Event::Leave
            }
            DriverEvent::Frontend(event) => {
                self.end_calls(&event);
                event
            }
            DriverEvent::Stop => return false,
        };
        self.handle(event);
        true
    }

    /// Ends the driver's own part of calls that are canceled or whose connection closed. A backup's
    /// reader is a thread of the shell, unknown to the frontend.
    fn end_calls(&mut self, event: &Event) {
        match event {
            Event::Cancel(call) => self.backups.cancel(*call),
            Event::Disconnected(from) => {
                // First, so that no answer is put into a queue without a reader.
                self.connections.forget(*from);
                self.backups.cancel_all(*from);
            }
            _ => {}
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now();
        self.frontend.handle(now, event, &mut self.actions);
    }

    fn advance(&mut self) {
        let now = self.now();
        if now < self.frontend.wakes_at() {
            return;
        }
        if self.frontend.advance(now, wall_time(), self.unwritten.row_count(), &mut self.actions) {
            let (figures, not_ready) = (self.frontend.figures(now), self.frontend.not_ready(now));
            self.peers.note_led(!not_ready.iter().any(NotReady::is_leaderless));
            self.publisher.show(&figures, not_ready, self.started);
            let (admission, next) = &mut self.admission;
            let (reset, next_read) = &mut self.acl_reset;
            if *next_read <= now {
                *next_read = now + acl_reset::INTERVAL;
                let index = self.frontend.core().replica().state().acl().settings().bootstrap_index;
                // Without a bootstrap there is nothing to reset.
                let permitted = (index.0 > 0).then(|| reset.read(index)).flatten();
                self.frontend.permit_acl_reset(permitted);
            }
            if *next <= now {
                *next = now + ROSTER_INTERVAL;
                admission.know_only(self.frontend.core().replica().state().addresses());
            }
        }
    }

    fn settle(&mut self) {
        let (begun, before) = (self.now(), self.frontend.core().replica().log_status().applied_index);
        self.frontend.settle(begun, &mut self.actions);
        if self.frontend.core().replica().log_status().applied_index != before {
            metrics::APPLIES.observe(self.now().since(begun).as_secs_f64());
        }
    }

    /// Carries out the frontend's actions; returns `false` when the store has ended.
    fn carry_out(&mut self) -> bool {
        let mut actions = std::mem::take(&mut self.actions);
        // Before anything is sent: no peer may remember more of this server than its next hello
        // contains.
        self.peers.note(
            self.frontend.core().replica().log_position(),
            self.frontend.core().replica().peer_memory(),
        );
        // The disk first: it works while the answers are queued.
        let alive = self.store_all(&mut actions.storage) && self.can_read();
        self.answer(&mut actions);
        let removed = actions.shell.removed.take();
        if !removed.is_empty() {
            // Freeing a large number of rows would block this loop for too long. If no thread can
            // start, they are freed here.
            let _ = thread::Builder::new().name("row remover".into()).spawn(move || {
                yield_to_others();
                drop(removed);
            });
        }
        self.read_checkpoint(&mut actions);
        if std::mem::take(&mut actions.removed) {
            self.record.removed = true;
            self.keep_record("was removed from the quorum");
        }
        if std::mem::take(&mut actions.corrupt) {
            self.record.corrupt = true;
            self.keep_record("holds a corrupt state");
        }
        if std::mem::take(&mut actions.may_leave)
            && let Some(left) = self.leaving.take()
        {
            // The caller may have gone.
            let _ = left.send(());
        }
        self.actions = actions;
        alive
    }

    /// Puts answers into their connections' queues.
    fn answer(&mut self, actions: &mut Actions) {
        let now = Instant::now();
        for CallAnswer { to, response, kind } in actions.answers.drain(..) {
            match kind {
                AnswerKind::Read | AnswerKind::BlockingRead => metrics::READS.inc(),
                AnswerKind::Write => metrics::count_write(&response),
                AnswerKind::Other => {}
            }
            if let Some(arrived) = self.connections.answer(to, response) {
                figures::count_request(kind, now.saturating_duration_since(arrived));
            }
        }
        for (to, read) in actions.long_reads.drain(..) {
            metrics::READS.inc();
            self.connections.answer(to, Outgoing::LongRead(Box::new(read)));
        }
    }

    /// Opens readers of the durable checkpoint, and requests parts from open ones.
    fn read_checkpoint(&mut self, actions: &mut Actions) {
        for reader in actions.open_readers.drain(..) {
            let call = reader.first.call;
            match self.connections.of(reader.first) {
                Some(replies) => self.open_reader(reader, Question { number: 0, call, replies }),
                // The frontend counts it as open.
                None => self.next.push(Event::ReaderClosed(reader.number)),
            }
        }
        actions.close_readers.drain(..).for_each(|reader| self.backups.close(reader));
        for PartWanted { reader, number, to } in actions.parts.drain(..) {
            if let Some(replies) = self.connections.of(to) {
                self.backups.request_part(reader, Question { number, call: to.call, replies });
            }
        }
    }

    /// Returns `true` if this build can read the cluster's state. Otherwise this server must stop,
    /// so as not to disturb the others.
    fn can_read(&self) -> bool {
        if let Some(why) = self.frontend.core().unreadable() {
            tracing::error!("cannot read the state of the cluster, shutting down: {why}");
            return false;
        }
        true
    }

    /// Sends this turn's messages to other servers and updates their roster. Clients are served
    /// first: on one thread nothing is sent before the turn ends, and the first task that is woken
    /// sends first.
    fn send_to_peers(&mut self) {
        if !self.actions.shell.messages.is_empty() {
            let mut lost = Vec::new();
            self.peers.send(&mut self.actions.shell.messages, &mut lost);
            // The frontend is notified between two turns, never while its actions are carried out.
            self.next.extend(lost.into_iter().map(|server| Input::Unreachable(server).into()));
        }
        if let Some(roster) = self.actions.roster.take() {
            self.notice_roster(roster);
        }
        // The streams to removed servers close as soon as the roster is updated.
        self.actions.removed_senders.clear();
        if let Some(fetch) = self.actions.fetch.take() {
            self.fetch(fetch);
        }
        self.challenger.challenge_all(self.actions.shell.challenges.drain(..));
        self.challenger.question_all(self.actions.shell.questions.drain(..));
        self.challenger.notify_all(self.actions.shell.mesh_items.drain(..));
    }

    /// Passes orders to the store in sequence; returns `false` when it has ended.
    fn store_all(&mut self, storage: &mut Vec<Storage>) -> bool {
        let mut writes = Vec::new();
        let own = self.frontend.core().replica().own_memory();
        for order in storage.drain(..).filter_map(|action| self.unwritten.handle(action, own)) {
            match order {
                StoreOrder::Write(write) => writes.push(write),
                StoreOrder::Checkpoint(checkpoint) => self.store.hand_over(checkpoint),
                StoreOrder::Compact(index) => self.store.compact(index),
            }
        }
        // Together, so that the log's thread is woken once and takes them in one commit.
        writes.is_empty() || self.store.write(writes).is_ok()
    }

    fn open_reader(&mut self, reader: OpenReader, first: Question) {
        match self.store.backup() {
            Ok(checkpoint) => {
                let source = CheckpointSource::new(reader.kind, checkpoint);
                self.backups.begin(reader.number, source, first, self.sender.clone());
            }
            Err(error) => {
                let why = Response::Unavailable(Unavailable::Disk(error.to_string()));
                first.replies.answer(first.call, why);
                self.next.push(Event::ReaderClosed(reader.number));
            }
        }
    }

    fn notice_roster(&mut self, change: RosterChange) {
        let state = self.frontend.core().replica().state();
        let cluster_id = state.cluster_id().to_owned();
        self.peers.update(state.servers().map(Arc::as_ref), state.last_server());
        // The roster may contain its news by now, or its address may be outdated; if still needed,
        // it starts again.
        if let Some(announcing) = self.announcing.take() {
            announcing.abort();
            if change.is_current {
                tracing::info!("the quorum has recorded the address of this server");
            }
        }
        self.announcing = change.announce.map(|Announcement { me, addresses: listed }| {
            let peers = Arc::clone(&self.peers);
            let own = me.address.clone();
            // Its own address first: a leader that moved records itself. Then those at which the
            // others were found, if they moved too.
            let addresses = move || {
                let mut addresses = vec![own.clone()];
                for address in peers.addresses().iter().chain(&listed) {
                    if !addresses.contains(address) {
                        addresses.push(address.clone());
                    }
                }
                addresses
            };
            self.peers.spawn(|endpoint| announce(endpoint, cluster_id, me, addresses))
        });
    }

    fn fetch(&mut self, fetch: SnapshotFetch) {
        let SnapshotFetch { from, least } = fetch;
        let Some(address) = self.peers.address(from) else {
            // The leader offers its snapshot again, and the address may be known by then.
            let failed = self.fetched(Err(DownloadError::NoAddress(from)));
            return self.next.push(failed);
        };
        // A retry is no news.
        if !self.fetch_log.has_problem() {
            tracing::info!(from = from.0, address, "too far behind the log; fetching a snapshot");
        }
        let sender = self.sender.clone();
        // From the record: the state of a joining server is still empty.
        let cluster_id = self.record.membership().map(|membership| membership.cluster_id).unwrap_or_default();
        self.peers.spawn(|endpoint| Fetch { endpoint, from, address, least, cluster_id }.run(sender));
    }

    fn fetched(&mut self, fetched: Result<Box<Fetched>, DownloadError>) -> Event {
        Event::SnapshotFetched(match fetched {
            Ok(fetched) => {
                self.fetch_log.reset();
                let Fetched { mark, state, rows, .. } = *fetched;
                self.unwritten.arrive(rows);
                Some((mark, state))
            }
            Err(reason) => {
                if self.fetch_log.is_new(&reason.to_string()) {
                    tracing::warn!(%reason, "cannot fetch a snapshot; retrying");
                }
                None
            }
        })
    }

    /// Records durably why this server no longer serves, outside the loop. If that fails, it still
    /// serves no requests, and learns it again after a restart.
    fn keep_record(&self, why: &'static str) {
        let (record, folder) = (self.record.clone(), self.data_dir.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = record.write(&folder) {
                tracing::error!(%error, "cannot record on disk that this server {why}");
            }
        });
    }

    /// Microseconds since the start of this driver.
    fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    fn instant(&self, time: Time) -> Instant {
        self.started + time.since(Time(0))
    }
}

fn wall_time() -> WallTime {
    // A clock before 1970 must not stop the server: this time is only shown to users.
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime(since_1970.as_millis() as u64)
}
