//! A server's process: the core, and around it what the real driver does, in virtual time.
//!
//! One turn takes all the mail, ticks if it is time, lets the core settle, and carries out what it wants.

use super::clock::Clock;
use super::disk::Told;
use super::marks::Mark;
use super::sabotage::Sabotage;
use super::stage::{Ask, Event, Stage};
use lockmesh_core::raft::log::{ImageMark, LogEntry, LogWrite, Recovered};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::raft::{Election, TICK};
use lockmesh_core::{Core, CoreConfig, Formation, Input, Outbox, Proposal, State, Ticket, TimerConfig};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What lies in the mailbox.
#[derive(Clone, Debug)]
pub enum Mail {
    /// A client's request, and when it came.
    Ask(Box<Ask>, Time),
    /// Another server's message.
    Peer(ServerId, Box<PeerMessage>),
    /// The store's news.
    Store(Told),
    /// An image of another server, fetched because of its message.
    Image(ServerId, Box<PeerMessage>, ImageMark, Box<State>),
    /// What was sent to a server was lost.
    Unreachable(ServerId),
}

/// A request that waits for the core.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request.
    pub ask: Box<Ask>,
    /// When it came, in true time.
    pub came: Time,
}

/// A blocking read that waits for a change.
#[derive(Clone, Debug)]
struct Parked {
    asked: Asked,
    query: Query,
    consistency: Consistency,
    known: LogIndex,
    /// On the process's clock.
    deadline: Time,
}

/// An answer, and to what.
#[derive(Debug)]
pub struct Given {
    /// The question.
    pub asked: Asked,
    /// The answer.
    pub response: Response,
}

/// What a turn brought about.
#[derive(Debug, Default)]
pub struct Turn {
    /// For the log.
    pub writes: Vec<LogWrite>,
    /// For other servers.
    pub messages: Vec<(ServerId, PeerMessage)>,
    /// For clients.
    pub given: Vec<Given>,
    /// What became true.
    pub changes: Vec<Change>,
    /// Entries that were applied.
    pub applied: Vec<LogEntry>,
    /// An image to be made.
    pub checkpoint: Option<(ImageMark, Vec<Change>)>,
    /// How far the log may go.
    pub cut: Option<LogIndex>,
    /// An image that took the place of everything.
    pub installed: Option<ImageMark>,
    /// Messages that announce an image, which the shell must fetch.
    pub announced: Vec<(ServerId, Box<PeerMessage>)>,
}

/// The log as the process wrote it, durable or not.
#[derive(Clone, Debug)]
pub struct Shadow {
    base: LogIndex,
    entries: VecDeque<LogEntry>,
}

/// A server that runs.
#[derive(Debug)]
pub struct Process {
    /// Who it is.
    pub id: ServerId,
    /// Which of its lives.
    pub life: u64,
    /// The core.
    pub core: Core,
    /// Its clock.
    pub clock: Clock,
    /// How far its wall clock is off.
    pub wall_offset: u64,
    /// It stands still until then.
    pub stands_until: Option<Time>,
    /// The log as it wrote it.
    pub shadow: Shadow,
    mail: Vec<Mail>,
    asked: BTreeMap<Ticket, Asked>,
    last_ticket: u64,
    parked: Vec<Parked>,
    dirty: Vec<Change>,
    applied: LogIndex,
    failing: bool,
    serving: bool,
    next_tick: Time,
    last_checkpoint: Time,
    wants_image: bool,
    /// When it will take its next turn.
    wakes: Option<Time>,
    outbox: Outbox,
}

impl Shadow {
    fn new(recovered: &Recovered) -> Self {
        Self { base: recovered.base.0, entries: recovered.entries.iter().cloned().collect() }
    }

    /// The entry at an index.
    pub fn entry(&self, index: LogIndex) -> Option<&LogEntry> {
        let place = index.0.checked_sub(self.base.0 + 1)?;
        self.entries.get(place as usize)
    }

    /// Takes over a write; how many entries it took the place of.
    fn write(&mut self, write: &LogWrite) -> usize {
        if let Some(mark) = &write.reset {
            self.base = mark.index;
            self.entries.clear();
        }
        let Some(first) = write.entries.first() else { return 0 };
        let kept = first.index.0.saturating_sub(self.base.0 + 1) as usize;
        let gone = self.entries.len().saturating_sub(kept);
        self.entries.truncate(kept);
        self.entries.extend(write.entries.iter().cloned());
        gone
    }
}

fn core_config(stage: &mut Stage, id: ServerId) -> CoreConfig {
    let seed = stage.draw.bits();
    let halved = u32::from(stage.sabotage == Sabotage::HalfTheWindow);
    let plan = &stage.plan.core;
    CoreConfig {
        id,
        seed,
        formation: formation(stage.plan.voters),
        election: Election { ticks: plan.election_ticks, heartbeat_ticks: plan.heartbeat_ticks },
        timers: TimerConfig {
            ttl_multiplier: plan.ttl_multiplier >> halved,
            tombstone_ttl: plan.tombstone_ttl,
            tombstone_granularity: plan.tombstone_ttl / 8,
        },
        max_pending_proposals: plan.max_pending_proposals,
        log_keep_bytes: plan.log_keep_bytes,
        log_keep_fetching_bytes: plan.log_keep_bytes.saturating_mul(4),
    }
}

/// What the first servers begin with.
fn formation(voters: u64) -> Formation {
    let servers = (1..=voters).map(|id| newcomer(&format!("s{id}"), 1).with_id(ServerId(id)));
    Formation { cluster_id: "simulated".into(), servers: servers.collect() }
}

/// A server on a node that wants to belong to the quorum, with the number of its data folder.
pub fn newcomer(node: &str, folder: u64) -> NewServer {
    NewServer {
        node: node.into(),
        node_id: String::new(),
        address: format!("{node}:8300"),
        birth: format!("{node}-{folder}"),
    }
}

impl Process {
    /// Starts a process on what its disk holds.
    pub fn start(stage: &mut Stage, id: ServerId, life: u64, recovered: Recovered) -> Self {
        let shadow = Shadow::new(&recovered);
        let applied = recovered.image.index;
        let drift = stage.plan.faults.drift;
        let drift = stage.draw.within(0, 2 * drift as u64) as i64 - drift;
        let config = core_config(stage, id);
        let mut core = Core::new(config, recovered);
        if let Some(rule) = stage.sabotage.rule() {
            core.break_rule(rule);
        }
        let mut process = Self {
            id,
            life,
            core,
            clock: Clock::start(stage.now, drift),
            wall_offset: 0,
            stands_until: None,
            shadow,
            mail: Vec::new(),
            asked: BTreeMap::new(),
            last_ticket: 0,
            parked: Vec::new(),
            dirty: Vec::new(),
            applied,
            failing: false,
            serving: false,
            next_tick: Time(0),
            last_checkpoint: Time(0),
            wants_image: false,
            wakes: None,
            outbox: Outbox::default(),
        };
        process.wake(stage, stage.now);
        process
    }

    /// The last index that it has applied.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Puts something into the mailbox.
    pub fn post(&mut self, stage: &mut Stage, mail: Mail) {
        self.mail.push(mail);
        let turn = stage.plan.core.turn;
        let wait = stage.draw.duration(Duration::from_micros(1), turn);
        self.wake(stage, stage.now + wait);
    }

    fn wake(&mut self, stage: &mut Stage, at: Time) {
        if self.stands_until.is_none() && self.wakes.is_none_or(|wakes| at < wakes) {
            self.wakes = Some(at);
            stage.at(at, Event::Turn(self.id, self.life));
        }
    }

    /// It stands still until then: no turn, no tick.
    pub fn stand_still(&mut self, stage: &mut Stage, until: Time) {
        self.stands_until = Some(until);
        self.wakes = None;
        stage.at(until, Event::Resume(self.id, self.life));
    }

    /// It goes on, if its time has come.
    pub fn resume(&mut self, stage: &mut Stage) {
        if self.stands_until.is_some_and(|until| until <= stage.now) {
            self.stands_until = None;
            self.wake(stage, stage.now);
        }
    }

    /// It goes on at once.
    pub fn go_on_now(&mut self, stage: &mut Stage) {
        if self.stands_until.take().is_some() {
            self.wake(stage, stage.now);
        }
    }

    /// Its clock jumps ahead: it will tick as soon as it runs.
    pub fn jump(&mut self, stage: &mut Stage, by: Duration) {
        self.clock.jump(stage.now, by);
        self.wake(stage, stage.now);
    }

    /// Takes a turn, if it is time for one.
    pub fn turn(&mut self, stage: &mut Stage, image_is_idle: bool) -> Option<Turn> {
        if self.wakes != Some(stage.now) || self.stands_until.is_some() {
            return None;
        }
        self.wakes = None;
        let now = self.clock.at(stage.now);
        let mut turn = Turn::default();
        let mail = std::mem::take(&mut self.mail);
        let brings_image = mail.iter().any(|mail| matches!(mail, Mail::Image(..)));
        for mail in mail {
            self.take(stage, now, mail, &mut turn);
        }
        if now >= self.next_tick {
            self.tick(stage, now, image_is_idle, &mut turn);
        }
        self.core.decide(now, &mut self.outbox);
        self.core.settle(now, &mut self.outbox);
        self.carry_out(stage, now, &mut turn);
        if brings_image && turn.installed.is_none() {
            stage.hit(Mark::InstallRefused);
        }
        let due = self.clock.when(self.next_tick, stage.now);
        let lateness = stage.plan.faults.tick_lateness;
        let late = if stage.calm { Duration::ZERO } else { stage.draw.duration(Duration::ZERO, lateness) };
        self.wake(stage, (due + late).max(stage.now + Duration::from_micros(1)));
        Some(turn)
    }

    fn handle(&mut self, now: Time, input: Input) {
        self.core.handle(now, input, &mut self.outbox);
    }

    fn take(&mut self, stage: &mut Stage, now: Time, mail: Mail, turn: &mut Turn) {
        match mail {
            Mail::Ask(ask, came) => self.ask(stage, now, Asked { ask, came }, turn),
            Mail::Peer(from, message) if message.kind == MessageKind::Snapshot => {
                turn.announced.push((from, message));
            }
            Mail::Peer(from, message) => self.handle(now, Input::Peer(from, *message)),
            Mail::Image(from, message, mark, state) => {
                self.handle(now, Input::Install(from, *message, mark, state));
            }
            Mail::Unreachable(server) => self.handle(now, Input::Unreachable(server)),
            Mail::Store(Told::Persisted(number)) => self.handle(now, Input::Persisted(number)),
            Mail::Store(Told::Image(mark)) => self.handle(now, Input::ImageDurable(mark)),
            Mail::Store(Told::Failing(failing)) => self.notice_health(failing, turn),
        }
    }

    fn ask(&mut self, stage: &mut Stage, now: Time, asked: Asked, turn: &mut Turn) {
        let input = match &asked.ask.request {
            Request::Propose(..) if self.failing => {
                stage.hit(Mark::ProposalRefused);
                let why = Response::Unavailable(Unavailable::Disk("it is full".into()));
                return turn.given.push(Given { asked, response: why });
            }
            Request::Propose(request, command) => {
                let at = WallTime(1_000_000 + now.0 / 1_000 + self.wall_offset);
                let proposal = Proposal { request: *request, at, command: command.clone() };
                Input::Propose(self.ticket(asked), proposal)
            }
            Request::Read { query: Query::Place { ticket, .. }, .. } if self.core.knows_place(*ticket) => {
                return self.read(stage, now, asked, turn);
            }
            Request::Read { consistency, .. } => {
                let consistency = *consistency;
                Input::Read(self.ticket(asked), consistency)
            }
            Request::Renew(session) => {
                let session = session.clone();
                Input::Renew(self.ticket(asked), session)
            }
            Request::TransferLeader(to) => {
                let to = *to;
                Input::TransferLeader(self.ticket(asked), to)
            }
            Request::RemoveServer(server) => {
                let server = *server;
                Input::RemoveServer(self.ticket(asked), server)
            }
            Request::AddServer(new) => {
                let server = self.core.state().servers().find(|server| server.birth == new.birth);
                let server = server.map_or(ServerId(u64::MAX), |server| server.id);
                Input::AddServer(self.ticket(asked), server)
            }
            other => panic!("nobody asks for {other:?}"),
        };
        self.handle(now, input);
    }

    fn ticket(&mut self, asked: Asked) -> Ticket {
        self.last_ticket += 1;
        self.asked.insert(Ticket(self.last_ticket), asked);
        Ticket(self.last_ticket)
    }

    /// Where the disk fails, nobody is left to wait for it.
    fn notice_health(&mut self, failing: bool, turn: &mut Turn) {
        self.failing = failing;
        if !failing {
            return;
        }
        let is_read = |asked: &Asked| matches!(asked.ask.request, Request::Read { .. });
        let (reads, writes): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.asked).into_iter().partition(|(_, asked)| is_read(asked));
        self.asked = reads;
        let why = Unavailable::Unknown("the server cannot write to its disk".into());
        let given = writes.into_values();
        turn.given.extend(given.map(|asked| Given { asked, response: Response::Unavailable(why.clone()) }));
    }

    fn tick(&mut self, stage: &mut Stage, now: Time, image_is_idle: bool, turn: &mut Turn) {
        self.next_tick = now + TICK;
        self.handle(now, Input::Tick(WallTime(1_000_000 + now.0 / 1_000 + self.wall_offset)));
        let parked = std::mem::take(&mut self.parked);
        let (due, later): (Vec<_>, Vec<_>) = parked.into_iter().partition(|parked| parked.deadline <= now);
        self.parked = later;
        for parked in due {
            stage.hit(Mark::WatchTimedOut);
            self.answer(&parked.query, parked.asked, turn);
        }
        let plan = &stage.plan.core;
        let is_due = now.since(self.last_checkpoint) >= plan.checkpoint_interval;
        let many = self.dirty.len() >= plan.checkpoint_changes;
        if image_is_idle && (self.wants_image || (!self.dirty.is_empty() && (is_due || many))) {
            self.last_checkpoint = now;
            self.wants_image = false;
            let mark = self.core.image_mark();
            turn.checkpoint = Some((mark, std::mem::take(&mut self.dirty)));
        }
    }

    fn carry_out(&mut self, stage: &mut Stage, now: Time, turn: &mut Turn) {
        let mut outbox = std::mem::take(&mut self.outbox);
        for write in &outbox.writes {
            if self.shadow.write(write) > 0 {
                stage.hit(Mark::Truncated);
            }
        }
        turn.writes.append(&mut outbox.writes);
        turn.messages.append(&mut outbox.messages);
        turn.cut = outbox.cut.take();
        self.wants_image |= std::mem::take(&mut outbox.image_wanted);
        if let Some(mark) = outbox.install.take() {
            self.applied = mark.index;
            self.dirty.clear();
            turn.checkpoint = None;
            turn.installed = Some(mark);
        }
        self.note_applied(turn);
        let mut dirty = outbox.changes.clone();
        stage.sabotage.forget_rows(&mut dirty);
        self.dirty.append(&mut dirty);
        for (ticket, response) in outbox.replies.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                turn.given.push(Given { asked, response: self.with_leader_hint(response) });
            }
        }
        for (ticket, why) in outbox.unreadable.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                let response = self.with_leader_hint(Response::Unavailable(why));
                turn.given.push(Given { asked, response });
            }
        }
        for ticket in outbox.readable.drain(..) {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.read(stage, now, asked, turn);
            }
        }
        if turn.installed.is_some() {
            // Everything may have changed.
            outbox.changes.insert(0, Change::Cleared);
        }
        self.wake_parked(stage, &outbox.changes, turn);
        if turn.installed.is_some() {
            outbox.changes.remove(0);
        }
        turn.changes.append(&mut outbox.changes);
        self.notice_role(stage, turn);
        self.outbox = outbox;
    }

    fn note_applied(&mut self, turn: &mut Turn) {
        let applied = self.core.log_status().applied_index;
        let indexes = self.applied.0 + 1..=applied.0;
        turn.applied.extend(indexes.filter_map(|index| self.shadow.entry(LogIndex(index))).cloned());
        self.applied = applied;
    }

    fn read(&mut self, stage: &mut Stage, now: Time, asked: Asked, turn: &mut Turn) {
        let Request::Read { query, consistency, blocking } = asked.ask.request.clone() else { return };
        match blocking {
            Some(Blocking { index, wait }) if index.0 > 0 => {
                let (known, deadline) = (index, now + wait);
                self.answer_or_park(
                    stage,
                    Parked { asked, query, consistency, known, deadline },
                    false,
                    turn,
                );
            }
            _ => self.answer(&query, asked, turn),
        }
    }

    fn answer_or_park(&mut self, stage: &mut Stage, parked: Parked, woken: bool, turn: &mut Turn) {
        let (index, _) = self.core.state().query(&parked.query);
        let deaf = !woken && stage.sabotage == Sabotage::ParkUnseen;
        if index > parked.known && !deaf {
            if woken {
                stage.hit(Mark::WatchWoke);
            }
            self.answer(&parked.query, parked.asked, turn);
        } else {
            self.parked.push(parked);
        }
    }

    fn answer(&self, query: &Query, asked: Asked, turn: &mut Turn) {
        let (index, rows) = self.core.state().query(query);
        let known_leader = self.core.leader().is_some();
        let answer = Answer { index, rows, known_leader, last_contact: Duration::ZERO };
        turn.given.push(Given { asked, response: Response::Answer(answer) });
    }

    fn wake_parked(&mut self, stage: &mut Stage, changes: &[Change], turn: &mut Turn) {
        if self.parked.is_empty() || changes.is_empty() {
            return;
        }
        for parked in std::mem::take(&mut self.parked) {
            if changes.iter().any(|change| touches(change, &parked.query)) {
                self.answer_or_park(stage, parked, true, turn);
            } else {
                self.parked.push(parked);
            }
        }
    }

    /// Blocking readers of a leader that leads no more must ask somebody else.
    fn notice_role(&mut self, stage: &mut Stage, turn: &mut Turn) {
        let serving = self.core.is_serving();
        if self.serving && !serving {
            let parked = std::mem::take(&mut self.parked);
            let (stay, go): (Vec<_>, Vec<_>) =
                parked.into_iter().partition(|parked| parked.consistency == Consistency::Stale);
            self.parked = stay;
            for Parked { asked, .. } in go {
                stage.hit(Mark::WatchSentAway);
                let why = Response::Unavailable(Unavailable::NotLeader { leader: None });
                turn.given.push(Given { asked, response: self.with_leader_hint(why) });
            }
        }
        self.serving = serving;
    }

    fn with_leader_hint(&self, response: Response) -> Response {
        match response {
            Response::Unavailable(Unavailable::NotLeader { .. }) => {
                let leader = self.core.leader().map(|leader| leader.to_string());
                Response::Unavailable(Unavailable::NotLeader { leader })
            }
            other => other,
        }
    }
}

/// Whether a change may alter the answer to a query: the rule of the real watches, for the queries that are asked here.
fn touches(change: &Change, query: &Query) -> bool {
    match (change, query) {
        (Change::Cleared, _) => true,
        (Change::Entry(key, _), Query::Entry(wanted)) => key == wanted,
        (Change::Entry(key, _), Query::Entries(prefix)) => key.as_str().starts_with(prefix.as_str()),
        (Change::Session(..), Query::Sessions) => true,
        (Change::Waiter(key, ticket, _), Query::Place { key: of, ticket: wanted, .. }) => {
            (key, ticket) == (of, wanted)
        }
        _ => false,
    }
}
