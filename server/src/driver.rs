//! The one loop that owns the core: takes what was posted, lets the core decide, carries out what it wants.
//!
//! ```text
//! mailbox → [handle, handle, …, decide] → log writes → the store's writer thread
//!                                       → messages   → a line to each other server, one wake-up
//!                              [settle] → replies    → each connection's sink, one wake-up a turn
//!                                       → readable   → asked of the state here, or parked
//!                                       → changes    → dirty rows, watches
//! ```
//!
//! While a commit is on its way to disk the loop goes on taking mail, so that the next commit is a group.
//! **Invariant:** nothing in here waits for a disk or a peer; the only wait is for mail, until the next tick.

mod images;
mod quorum;

use crate::backup::{Backups, Question};
use crate::config::StorageConfig;
use crate::mailbox::{Inbox, Mail, Postman, ReplySink};
use crate::metrics;
use crate::peers::Peers;
use crate::store::{DirtyRows, StoreEvent, StoreHandle, StoreHealth};
use crate::watch::{Parked, Watches};
use images::Images;
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::message::MessageKind;
use lockmesh_core::{Core, Input, Outbox, Proposal, Ticket};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, RequestId, ServerId, SessionId, WallTime};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The most operations of a transaction; an agent that keeps its own limit never meets this one.
const MAX_TXN_OPERATIONS: usize = 128;
/// How many mails one turn takes.
const MAILS_A_TURN: usize = 4_096;

/// How long a blocking query is parked at most, whatever its asker says.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// What the driver may take on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriverLimits {
    pub(crate) watches: usize,
}

/// What a driver begins with.
pub(crate) struct DriverParts {
    pub(crate) core: Core,
    pub(crate) inbox: Inbox,
    pub(crate) store: StoreHandle,
    pub(crate) portrait: Server,
    pub(crate) limits: DriverLimits,
    pub(crate) storage: StorageConfig,
    pub(crate) peers: Arc<Peers>,
}

/// The loop with all that it owns.
pub(crate) struct Driver {
    core: Core,
    inbox: Inbox,
    store: StoreHandle,
    portrait: Server,
    limits: DriverLimits,
    storage: StorageConfig,
    outbox: Outbox,
    postman: Postman,
    asked: HashMap<Ticket, Asked>,
    last_ticket: u64,
    watches: Watches,
    dirty: DirtyRows,
    last_checkpoint: Instant,
    health: StoreHealth,
    backups: Backups,
    images: Images,
    started: Instant,
    next_tick: Instant,
    serving: bool,
    peers: Arc<Peers>,
    /// What the next turn begins with.
    next: Vec<Input>,
    /// The task that tells the quorum where this server is now.
    announcing: Option<JoinHandle<()>>,
    /// Who waits until another server leads.
    leaving: Option<(Ticket, oneshot::Sender<()>)>,
}

/// A call that waits for the core.
#[derive(Debug)]
struct Asked {
    call: CallId,
    replies: ReplySink,
    what: What,
}

#[derive(Debug)]
enum What {
    Write,
    Read {
        query: Query,
        consistency: Consistency,
        blocking: Option<Blocking>,
    },
    Backup,
    /// A server that wants to belong to the quorum, and has no id yet.
    Admission,
    /// A server that was given this id and is being taken in.
    Joining(ServerId),
    /// A server that tells where it is now.
    Announcement,
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        let DriverParts { core, inbox, store, portrait, limits, storage, peers } = parts;
        let started = Instant::now();
        Self {
            core,
            inbox,
            store,
            portrait,
            limits,
            storage,
            outbox: Outbox::default(),
            postman: Postman::default(),
            asked: HashMap::new(),
            last_ticket: 0,
            watches: Watches::default(),
            dirty: DirtyRows::default(),
            last_checkpoint: started,
            health: StoreHealth::Good,
            backups: Backups::default(),
            images: Images::default(),
            started,
            next_tick: started,
            serving: false,
            peers,
            next: Vec::new(),
            announcing: None,
            leaving: None,
        }
    }

    /// Runs until it is told to stop; then what was decided is on disk.
    pub(crate) async fn run(mut self) {
        let mut mails = Vec::new();
        let mut running = true;
        let mut tick = pin!(tokio::time::sleep_until(self.next_tick.into()));
        self.notice_roster();
        while running {
            if self.next.is_empty() {
                self.inbox.arrive(&mut mails, MAILS_A_TURN, tick.as_mut()).await;
            } else {
                self.inbox.take_now(&mut mails, MAILS_A_TURN);
            }
            for input in std::mem::take(&mut self.next) {
                self.handle(input);
            }
            metrics::TURN_MAILS.observe(mails.len() as f64);
            for mail in mails.drain(..) {
                running &= self.take(mail);
            }
            if self.tick_if_due() {
                tick.as_mut().reset(self.next_tick.into());
            }
            self.core.decide(self.now(), &mut self.outbox);
            running &= self.hand_on();
            self.core.settle(self.now(), &mut self.outbox);
            running &= self.carry_out();
        }
        // It waits for the disk.
        let store = self.store;
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }

    /// Takes one mail; false when it says that this is the end.
    fn take(&mut self, mail: Mail) -> bool {
        match mail {
            Mail::Call { call, request, replies } => self.call(call, request, replies),
            Mail::Cancel { from, call } => self.watches.cancel(from, call),
            Mail::Gone { from } => self.watches.cancel_all(from),
            Mail::Peer(sender, message) if message.kind == MessageKind::Snapshot => {
                self.fetch_image(sender, message);
            }
            Mail::Peer(sender, message) => self.handle(Input::Peer(sender, message)),
            Mail::Image(fetched) => self.image_fetched(fetched),
            Mail::Unreachable(server) => self.handle(Input::Unreachable(server)),
            // The lobby's own news that came too late.
            Mail::Forming(_) => {}
            Mail::Store(event) => self.store_event(event),
            Mail::Leave(left) => self.leave(left),
            Mail::Stop => return false,
        }
        true
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        self.core.handle(now, input, &mut self.outbox);
    }

    fn call(&mut self, call: CallId, request: Request, replies: ReplySink) {
        match request {
            Request::Propose(id, command) => self.propose(call, replies, id, command),
            Request::Read { query: Query::Txn(operations), .. } if operations.len() > MAX_TXN_OPERATIONS => {
                self.postman.answer(&replies, call, Response::Unavailable(too_many_operations()));
            }
            Request::Read { query: query @ Query::Place { ticket, .. }, blocking, .. }
                if self.core.knows_place(ticket) =>
            {
                let what = What::Read { query, consistency: Consistency::Default, blocking };
                self.read(Asked { call, replies, what });
            }
            Request::Read { query, consistency, blocking } => {
                let what = What::Read { query, consistency, blocking };
                let ticket = self.ticket(call, replies, what);
                self.handle(Input::Read(ticket, consistency));
            }
            Request::Renew(session) => self.renew(call, replies, session),
            Request::Status => {
                let status = Response::Status(self.status(&replies.peer().node));
                self.postman.answer(&replies, call, status);
            }
            Request::BackupPart { backup: Some(id), number, .. } => {
                self.backups.ask(id, Question { number, call, replies });
            }
            Request::BackupPart { backup: None, stale, .. } => {
                let ticket = self.ticket(call, replies, What::Backup);
                let consistency = if stale { Consistency::Stale } else { Consistency::Consistent };
                self.handle(Input::Read(ticket, consistency));
            }
            Request::ImagePart { image: Some(id), number, .. } => {
                self.backups.ask(id, Question { number, call, replies });
            }
            Request::ImagePart { image: None, least, .. } => {
                self.want_image(least, Question { number: 0, call, replies });
            }
            Request::TransferLeader(to) => {
                let ticket = self.ticket(call, replies, What::Write);
                self.handle(Input::TransferLeader(ticket, to));
            }
            Request::AddServer(server) => self.admit(call, replies, server),
            Request::Announce(server) => self.note_announcement(call, replies, server),
            Request::Introduce(_) => {
                let introduction = Response::Introduced(self.introduction());
                self.postman.answer(&replies, call, introduction);
            }
            Request::Invite(_) => {
                let why = Unavailable::Denied("this server belongs to a cluster already".into());
                self.postman.answer(&replies, call, Response::Unavailable(why));
            }
            Request::Autopilot => {
                let (autopilot, index) = self.core.state().autopilot();
                let answer = Response::Autopilot(autopilot.clone(), index);
                self.postman.answer(&replies, call, answer);
            }
            Request::RemoveServer(server) => {
                let ticket = self.ticket(call, replies, What::Write);
                self.handle(Input::RemoveServer(ticket, server));
            }
        }
    }

    fn propose(&mut self, call: CallId, replies: ReplySink, request: Option<RequestId>, command: Command) {
        if let Some(why) = self.objection(request, &command, &replies) {
            return self.postman.answer(&replies, call, Response::Unavailable(why));
        }
        let ticket = self.ticket(call, replies, What::Write);
        self.handle(Input::Propose(ticket, Proposal { request, at: wall_time(), command }));
    }

    /// Why a proposal does not even reach the core: certainly not done.
    fn objection(
        &self,
        request: Option<RequestId>,
        command: &Command,
        replies: &ReplySink,
    ) -> Option<Unavailable> {
        let own = matches!(
            command,
            Command::ExpireSession { .. }
                | Command::EndLockDelay { .. }
                | Command::EndWait { .. }
                | Command::ReapTombstones { .. }
                | Command::Bootstrap { .. }
                | Command::AdmitServer(_)
                | Command::UpdateServer(_)
                | Command::ForgetServer(_)
        );
        if own {
            return Some(Unavailable::Denied("only the leader itself may decide this".into()));
        }
        if request.is_none() && !matches!(command, Command::RegisterAgent(_)) {
            return Some(Unavailable::Denied("a command needs a request id: register first".into()));
        }
        if matches!(command, Command::Txn(operations) if operations.len() > MAX_TXN_OPERATIONS) {
            return Some(too_many_operations());
        }
        if let Some(agent) = request.and_then(|id| self.core.state().agent(id.agent))
            && agent.node.folded() != replies.peer().node.folded()
        {
            let why =
                format!("agent {} speaks for node {}: register as another one", agent.number, agent.node);
            return Some(Unavailable::Denied(why));
        }
        match &self.health {
            StoreHealth::Failing(_) if self.core.is_serving() && self.has_other_voters() => {
                Some(Unavailable::NotLeader { leader: None })
            }
            StoreHealth::Failing(reason) if self.core.is_serving() => Some(Unavailable::Disk(reason.clone())),
            _ => None,
        }
    }

    fn has_other_voters(&self) -> bool {
        self.core.membership().voters.len() > 1
    }

    /// A leader whose disk refuses can have nothing decided that it could answer: another server shall lead.
    fn flee_from_disk(&mut self) {
        let fails = self.health != StoreHealth::Good;
        if fails && self.core.is_serving() && self.has_other_voters() {
            // Nobody waits for the answer.
            self.last_ticket += 1;
            self.handle(Input::TransferLeader(Ticket(self.last_ticket), None));
        }
    }

    fn renew(&mut self, call: CallId, replies: ReplySink, session: SessionId) {
        let ticket = self.ticket(call, replies, What::Write);
        self.handle(Input::Renew(ticket, session));
    }

    fn ticket(&mut self, call: CallId, replies: ReplySink, what: What) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.asked.insert(ticket, Asked { call, replies, what });
        ticket
    }

    fn store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Persisted(number) => self.handle(Input::Persisted(number)),
            StoreEvent::Image(mark) => {
                let index = mark.index;
                self.handle(Input::ImageDurable(mark));
                self.image_is_durable(index);
            }
            StoreEvent::Health(health) => self.notice_health(health),
        }
    }

    /// When the disk fails, nobody is left to wait for it: what becomes of a write on its way is not known.
    fn notice_health(&mut self, health: StoreHealth) {
        if let StoreHealth::Failing(reason) = &health {
            let why = Unavailable::Unknown(format!("the server cannot write to its disk: {reason}"));
            let writes =
                self.asked.extract_if(|_, asked| !matches!(asked.what, What::Read { .. } | What::Backup));
            for (_, asked) in writes {
                self.postman.answer(&asked.replies, asked.call, Response::Unavailable(why.clone()));
            }
        }
        self.health = health;
    }

    /// Whether it was due.
    fn tick_if_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + TICK;
        self.handle(Input::Tick(wall_time()));
        self.flee_from_disk();
        for parked in self.watches.take_due(now) {
            self.answer(&parked.query, parked.call, &parked.replies);
        }
        metrics::WATCHES.set(self.watches.len() as i64);
        metrics::LOG_BYTES.set(self.core.log_status().log_bytes as i64);
        self.checkpoint_if_due(now);
        true
    }

    /// Gives disk and other servers what there is for them, so that they are at work while this one applies what was
    /// committed; false when the store has ended. An image that is to be installed goes first: see [`Driver::carry_out`].
    fn hand_on(&mut self) -> bool {
        if self.outbox.install.is_some() {
            return true;
        }
        let mut messages = std::mem::take(&mut self.outbox.messages);
        self.send(&mut messages);
        self.outbox.messages = messages;
        self.outbox.writes.is_empty() || self.store.write(self.outbox.writes.drain(..)).is_ok()
    }

    /// Carries out what the core wants; false when the store has ended.
    fn carry_out(&mut self) -> bool {
        if let Some(mark) = self.outbox.install.take() {
            self.install(mark);
        }
        let alive = self.hand_on();
        let mut outbox = std::mem::take(&mut self.outbox);
        outbox.changes.iter().for_each(|change| self.watches.touch(change));
        let roster_changed = outbox.changes.iter().any(quorum::is_of_roster);
        self.dirty.record_all(&mut outbox.changes);
        if roster_changed {
            self.notice_roster();
        }
        for (ticket, response) in outbox.replies.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.reply(asked, response);
            } else {
                self.notice_departure(ticket);
            }
        }
        for (ticket, why) in outbox.unreadable.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.postman.answer(&asked.replies, asked.call, Response::Unavailable(why));
            }
        }
        for ticket in outbox.readable.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.read(asked);
            }
        }
        for parked in self.watches.take_touched() {
            self.answer_or_park(parked);
        }
        if let Some(index) = outbox.cut.take() {
            self.store.cut(index);
        }
        if std::mem::take(&mut outbox.image_wanted) {
            self.make_image();
        }
        self.forget_arrived();
        self.notice_role();
        self.postman.deliver();
        self.outbox = outbox;
        alive
    }

    fn reply(&mut self, asked: Asked, response: Response) {
        if let What::Admission | What::Joining(_) | What::Announcement = asked.what {
            return self.reply_to_server(asked, response);
        }
        metrics::count_response(&response);
        let response = self.with_leader_hint(response);
        self.postman.answer(&asked.replies, asked.call, response);
    }

    fn read(&mut self, asked: Asked) {
        let Asked { call, replies, what } = asked;
        match what {
            What::Read { query, consistency, blocking: Some(Blocking { index, wait }) } if index.0 > 0 => {
                let deadline = Instant::now() + wait.min(LONGEST_WAIT);
                let parked = Parked { call, replies, query, consistency, known: index, deadline };
                self.answer_or_park(parked);
            }
            What::Read { query, .. } => self.answer(&query, call, &replies),
            What::Backup => self.want_backup(Question { number: 0, call, replies }),
            What::Write | What::Admission | What::Joining(_) | What::Announcement => {}
        }
    }

    fn answer_or_park(&mut self, parked: Parked) {
        let (index, rows) = self.core.query(self.now(), &parked.query);
        if index > parked.known {
            let answer = Response::Answer(self.signed(index, rows));
            self.postman.answer(&parked.replies, parked.call, answer);
        } else if self.watches.len() >= self.limits.watches {
            let what = format!("{} blocking queries are parked here", self.limits.watches);
            let overloaded = Response::Unavailable(Unavailable::Overloaded(what));
            self.postman.answer(&parked.replies, parked.call, overloaded);
        } else if parked.replies.awaits(parked.call) {
            self.watches.park(parked);
        }
    }

    fn answer(&mut self, query: &Query, call: CallId, replies: &ReplySink) {
        metrics::READS.inc();
        let (index, rows) = self.core.query(self.now(), query);
        let answer = Response::Answer(self.signed(index, rows));
        self.postman.answer(replies, call, answer);
    }

    fn signed(&self, index: LogIndex, rows: lockmesh_protocol::query::Rows) -> Answer {
        let leader = self.core.leader();
        let last_contact = leader.and_then(|leader| self.core.last_contact(self.now(), leader));
        Answer { index, rows, known_leader: leader.is_some(), last_contact: last_contact.unwrap_or_default() }
    }

    /// Blocking readers of a leader that leads no more must ask somebody else.
    fn notice_role(&mut self) {
        let serving = self.core.is_serving();
        if self.serving && !serving {
            for parked in self.watches.take_leaders_readers() {
                let lost =
                    self.with_leader_hint(Response::Unavailable(Unavailable::NotLeader { leader: None }));
                self.postman.answer(&parked.replies, parked.call, lost);
            }
        }
        self.serving = serving;
    }

    fn with_leader_hint(&self, response: Response) -> Response {
        match response {
            Response::Unavailable(Unavailable::NotLeader { .. }) => {
                let leader = self.core.leader().and_then(|id| self.address_of(id));
                Response::Unavailable(Unavailable::NotLeader { leader })
            }
            other => other,
        }
    }

    fn address_of(&self, server: ServerId) -> Option<String> {
        self.core.state().server(server).map(|row| row.address.clone())
    }

    /// Microseconds since this driver began.
    fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }
}

fn too_many_operations() -> Unavailable {
    Unavailable::Denied(format!("a transaction has at most {MAX_TXN_OPERATIONS} operations"))
}

fn wall_time() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime(since_1970.as_millis() as u64)
}
