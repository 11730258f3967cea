//! The server itself: takes one input after the other, and says what shall happen next.

use crate::input::{Input, Proposal, Ticket};
use crate::outbox::Outbox;
use crate::raft::TICK;
use crate::raft::engine::{Effects, Engine};
use crate::raft::log::{EntryKind, HardState, ImageMark, LogEntry, Membership, Recovered};
use crate::readers::{Reader, Readers};
use crate::state::State;
use crate::timers::{Subject, TimerConfig, Timers};
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{Key, LogIndex, ServerId, SessionId, Term, WallTime};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use std::collections::VecDeque;
use std::time::Duration;

/// A turn that comes later than this was not running: its deadlines move.
const LATE: Duration = Duration::from_millis(200);
/// The longest command that is taken: what is in the log must fit into a frame for the other servers.
const MAX_PROPOSAL_BYTES: usize = MAX_FRAME_BYTES / 2;
/// How long a transfer of leadership may take before it is called off.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the leader waits before it proposes an end again that came to nothing.
const RETRY_PROPOSAL: Duration = Duration::from_secs(1);

/// What a server must be told about itself.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Who it is.
    pub id: ServerId,
    /// Where its random draws begin.
    pub seed: u64,
    /// The id that the cluster gets if it has none.
    pub fresh_cluster_id: String,
    /// Windows and delays.
    pub timers: TimerConfig,
    /// How many proposals may wait for their commit.
    pub max_pending_proposals: usize,
    /// How many bytes of log are kept behind a durable image for followers that lag.
    pub log_keep_bytes: u64,
}

/// A server as one pure value.
#[derive(Debug)]
pub struct Core {
    config: CoreConfig,
    engine: Engine,
    state: State,
    timers: Timers,
    readers: Readers,
    /// Proposals of this turn, not yet in the log.
    gathered: Vec<(Proposal, Asker)>,
    /// Proposals in the log, in order, until they are applied.
    pending: VecDeque<Pending>,
    applied: (LogIndex, Term),
    membership_index: LogIndex,
    /// Whether the engine led at the end of the last turn.
    led: bool,
    /// The term in which this server leads and serves.
    serving: Option<Term>,
    transfer: Option<(Ticket, Time)>,
    wall: WallTime,
    last_tick: Option<Time>,
}

/// Who wants to know what became of a proposal.
#[derive(Debug)]
enum Asker {
    Client(Ticket),
    Timer(Subject),
    Nobody,
}

#[derive(Debug)]
struct Pending {
    index: LogIndex,
    term: Term,
    /// Kept so that the leader need not decode what it encoded; none for a membership change.
    proposal: Option<Proposal>,
    asker: Asker,
}

impl Core {
    /// Opens a server on what its disk held.
    pub fn new(config: CoreConfig, recovered: Recovered) -> Self {
        let Recovered { hard_state, image, entries, base, state } = recovered;
        let mut engine = Engine::new(config.id, hard_state, &image, base, entries, config.seed);
        if engine.is_alone() {
            engine.campaign();
        }
        Self {
            timers: Timers::new(config.timers),
            config,
            engine,
            state,
            readers: Readers::default(),
            gathered: Vec::new(),
            pending: VecDeque::new(),
            applied: (image.index, image.term),
            membership_index: image.index,
            led: false,
            serving: None,
            transfer: None,
            wall: WallTime::default(),
            last_tick: None,
        }
    }

    /// What the disk of a cluster stands for that consists of this server alone, before its first start.
    pub fn bootstrap_image(id: ServerId) -> ImageMark {
        let membership = Membership { voters: vec![id], ..Membership::default() };
        ImageMark { index: LogIndex(1), term: Term(1), membership }
    }

    /// Takes one input. What was gathered goes into the log when the turn ends: see [`Core::settle`].
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        match input {
            Input::Tick(wall) => self.tick(now, wall, outbox),
            Input::Peer(sender, message) => match message.fault(sender, self.config.id) {
                None => self.engine.step(message),
                Some(fault) => tracing::warn!(%sender, "a server's message was dropped: {fault}"),
            },
            Input::Propose(ticket, proposal) => self.propose(ticket, proposal, outbox),
            Input::Read(ticket, Consistency::Stale) => outbox.readable.push(ticket),
            Input::Read(ticket, _) => self.read(Reader::Query(ticket), outbox),
            Input::Renew(ticket, session) => self.renew(now, ticket, session, outbox),
            Input::Persisted(write) => {
                let mut effects = Effects::default();
                self.engine.persisted(write, &mut effects);
                outbox.messages.append(&mut effects.messages);
            }
            Input::ImageDurable(index) => {
                let cut = self.cut_index(index);
                self.engine.cut(cut);
                outbox.cut = Some(cut);
            }
            Input::TransferLeader(ticket, to) => self.transfer_leader(now, ticket, to, outbox),
            Input::RemoveServer(ticket, server) => self.remove_server(ticket, server, outbox),
        }
    }

    /// Ends a turn: what was gathered becomes one batch, and all that can happen now happens.
    pub fn settle(&mut self, now: Time, outbox: &mut Outbox) {
        self.propose_gathered(now, outbox);
        loop {
            self.begin_reads(now);
            let mut effects = Effects::default();
            self.engine.turn(&mut effects);
            outbox.writes.append(&mut effects.writes);
            outbox.messages.append(&mut effects.messages);
            for (round, index) in effects.reads.drain(..) {
                self.readers.confirm(round, index);
            }
            let progress = !effects.committed.is_empty();
            for entry in effects.committed {
                self.apply(now, &entry, outbox);
            }
            self.notice_role(now, outbox);
            self.serve_readers(outbox);
            if !progress && self.gathered.is_empty() {
                return;
            }
            self.propose_gathered(now, outbox);
        }
    }

    /// The replicated state as this server has applied it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether this server leads and serves.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Whom this server takes for the leader; itself only once it serves.
    pub fn leader(&self) -> Option<ServerId> {
        let leader = self.engine.leader()?;
        (leader != self.config.id || self.is_serving()).then_some(leader)
    }

    /// What an image of the present state stands for.
    pub fn image_mark(&self) -> ImageMark {
        let (index, term) = self.applied;
        ImageMark { index, term, membership: self.engine.membership().clone() }
    }

    /// The hard state that must be durable before an image of the present state is.
    pub fn hard_state(&self) -> HardState {
        self.engine.hard_state()
    }

    /// Who votes and who learns.
    pub fn membership(&self) -> &Membership {
        self.engine.membership()
    }

    /// Where this server's log stands, for people.
    pub fn log_status(&self) -> LogStatus {
        LogStatus {
            term: self.engine.term(),
            first_index: self.engine.first_index(),
            last_index: self.engine.last_index(),
            commit_index: self.engine.commit_index(),
            applied_index: self.applied.0,
            membership_index: self.membership_index,
            log_bytes: self.engine.log_bytes(),
            pending_proposals: self.pending.len(),
        }
    }

    /// How far a server's log is known to reach.
    pub fn matched(&self, server: ServerId) -> LogIndex {
        if server == self.config.id { self.engine.last_index() } else { self.engine.matched(server) }
    }

    fn tick(&mut self, now: Time, wall: WallTime, outbox: &mut Outbox) {
        self.wall = wall;
        let gap = self.last_tick.map_or(Duration::ZERO, |last| now.since(last));
        self.last_tick = Some(now);
        if gap > TICK + LATE {
            tracing::warn!(?gap, "this server was not running for a while: its deadlines move");
            self.timers.postpone(gap - TICK);
        }
        self.engine.tick();
        self.readers.retry(now);
        while let Some(subject) = self.timers.next_due(now) {
            match self.end_of(&subject) {
                Some(command) => self.gathered.push((self.own(command), Asker::Timer(subject))),
                None => self.timers.decided(&subject),
            }
        }
        if let Some((ticket, _)) = self.transfer.take_if(|(_, began)| now.since(*began) > TRANSFER_TIMEOUT) {
            deny(outbox, ticket, "the other server did not take over: see whether it is up to date");
        }
    }

    /// The command that says that a deadline has passed.
    fn end_of(&self, subject: &Subject) -> Option<Command> {
        match subject {
            Subject::Session(session) => {
                Some(Command::ExpireSession { session: session.clone(), term: self.serving? })
            }
            Subject::LockDelay(key) => {
                let mark = self.state.lock_delay(key)?.mark;
                Some(Command::EndLockDelay { key: key.clone(), mark })
            }
            Subject::Tombstones(up_to) => Some(Command::ReapTombstones { up_to: *up_to }),
        }
    }

    fn own(&self, command: Command) -> Proposal {
        Proposal { request: None, at: self.wall, command }
    }

    fn propose(&mut self, ticket: Ticket, proposal: Proposal, outbox: &mut Outbox) {
        if !self.engine.is_leader() {
            return fail(outbox, ticket, not_leader());
        }
        if self.pending.len() + self.gathered.len() >= self.config.max_pending_proposals {
            let what = format!("{} writes wait for their commit", self.config.max_pending_proposals);
            return fail(outbox, ticket, Unavailable::Overloaded(what));
        }
        self.gathered.push((proposal, Asker::Client(ticket)));
    }

    fn propose_gathered(&mut self, now: Time, outbox: &mut Outbox) {
        let (batch, gathered) = self.encode_gathered(now, outbox);
        if batch.is_empty() {
            return;
        }
        match self.engine.propose(batch) {
            Ok(first) => {
                let (term, indexes) = (self.engine.term(), first.0..);
                self.pending.extend(indexes.zip(gathered).map(|(index, (proposal, asker))| Pending {
                    index: LogIndex(index),
                    term,
                    proposal: Some(proposal),
                    asker,
                }));
            }
            Err(_) => {
                let why = if self.engine.is_leader() && self.transfer.is_none() {
                    Unavailable::Overloaded("too many bytes wait for their commit".into())
                } else {
                    not_leader()
                };
                for (_, asker) in gathered {
                    self.disappoint(now, asker, why.clone(), outbox);
                }
            }
        }
    }

    /// What was gathered, and its bytes, but for what is too long for the log.
    fn encode_gathered(&mut self, now: Time, outbox: &mut Outbox) -> (Vec<Bytes>, Vec<(Proposal, Asker)>) {
        let mut batch = Vec::with_capacity(self.gathered.len());
        let mut gathered = Vec::with_capacity(self.gathered.len());
        for (proposal, asker) in std::mem::take(&mut self.gathered) {
            let data = wire::encode(&proposal);
            if data.len() > MAX_PROPOSAL_BYTES {
                let what =
                    format!("a command of {} bytes, but at most {MAX_PROPOSAL_BYTES} are taken", data.len());
                self.disappoint(now, asker, Unavailable::Denied(what), outbox);
                continue;
            }
            batch.push(Bytes::from(data));
            gathered.push((proposal, asker));
        }
        (batch, gathered)
    }

    fn disappoint(&mut self, now: Time, asker: Asker, why: Unavailable, outbox: &mut Outbox) {
        match asker {
            Asker::Client(ticket) => fail(outbox, ticket, why),
            Asker::Timer(subject) => self.timers.failed(subject, now + RETRY_PROPOSAL),
            Asker::Nobody => {}
        }
    }

    fn read(&mut self, reader: Reader, outbox: &mut Outbox) {
        if self.engine.is_leader() {
            self.readers.arrive(reader);
        } else {
            refuse_reader(outbox, &reader);
        }
    }

    /// A renewal counts from its arrival, and is acknowledged by a round that begins after it.
    fn renew(&mut self, now: Time, ticket: Ticket, id: SessionId, outbox: &mut Outbox) {
        if self.timers.is_deciding(&id) {
            let why = "the session was not renewed in time: whether it lives is being decided";
            return fail(outbox, ticket, Unavailable::Unknown(why.into()));
        }
        if let (true, Some(session)) = (self.is_serving(), self.state.session(&id)) {
            let ttl = session.ttl;
            self.timers.renew(now, &id, ttl);
        }
        self.read(Reader::Renewal(ticket, id), outbox);
    }

    fn begin_reads(&mut self, now: Time) {
        if self.engine.leads_its_term()
            && let Some(round) = self.readers.begin(now)
        {
            self.engine.begin_read(round);
        }
    }

    fn serve_readers(&mut self, outbox: &mut Outbox) {
        for reader in self.readers.ready(self.applied.0) {
            match reader {
                Reader::Query(ticket) => outbox.readable.push(ticket),
                Reader::Renewal(ticket, id) => {
                    let session = self.state.session(&id).cloned();
                    outbox.replies.push((ticket, Response::Renewed(session)));
                }
            }
        }
    }

    fn apply(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) {
        let pending = self.take_pending(now, entry, outbox);
        if entry.kind == EntryKind::Normal {
            if !entry.data.is_empty() {
                self.apply_proposal(now, entry, pending, outbox);
            }
        } else {
            self.membership_index = entry.index;
            if let Some(Pending { asker: Asker::Client(ticket), .. }) = pending {
                outbox.replies.push((ticket, Response::Done));
            }
        }
        self.applied = (entry.index, entry.term);
        self.engine.applied(entry);
    }

    fn apply_proposal(&mut self, now: Time, entry: &LogEntry, pending: Option<Pending>, outbox: &mut Outbox) {
        let (proposal, asker) = match pending {
            Some(Pending { proposal: Some(proposal), asker, .. }) => (proposal, asker),
            _ => (decode(entry), Asker::Nobody),
        };
        let news = outbox.changes.len();
        let applied = self.state.apply(entry.index, entry.term, &proposal, &mut outbox.changes);
        if self.is_serving() {
            self.note(now, &outbox.changes[news..]);
        }
        match asker {
            Asker::Client(ticket) => {
                let applied = self.with_remaining_delay(now, &proposal.command, &applied);
                outbox.replies.push((ticket, Response::Applied(applied)));
            }
            Asker::Timer(subject) => self.timers.decided(&subject),
            Asker::Nobody => {}
        }
    }

    /// Timers learn what became true; after a restore they start afresh.
    fn note(&mut self, now: Time, changes: &[Change]) {
        for change in changes {
            self.timers.note(now, change);
        }
    }

    /// The state knows how long a delay is; only the leader knows how much of it is left.
    fn with_remaining_delay(&self, now: Time, command: &Command, applied: &Applied) -> Applied {
        let mut applied = applied.clone();
        if let (Reply::Delayed { remaining }, Some(key)) = (&mut applied.reply, acquired_key(command)) {
            *remaining = self.timers.remaining(now, key).unwrap_or(*remaining);
        }
        applied
    }

    /// The pending proposal that this entry is, after those were disappointed that it overtook.
    fn take_pending(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) -> Option<Pending> {
        while self.pending.front().is_some_and(|pending| pending.index <= entry.index) {
            let pending = self.pending.pop_front().expect("the front was just seen");
            if (pending.index, pending.term) == (entry.index, entry.term) {
                return Some(pending);
            }
            self.disappoint(now, pending.asker, lost_leadership(), outbox);
        }
        None
    }

    /// Begins to serve, or stops.
    fn notice_role(&mut self, now: Time, outbox: &mut Outbox) {
        let leads = self.engine.leads_its_term().then(|| self.engine.term());
        let led = std::mem::replace(&mut self.led, self.engine.is_leader());
        if (led && !self.led) || (self.serving.is_some() && leads != self.serving) {
            tracing::info!("this server no longer leads");
            self.serving = None;
            self.step_down(now, outbox);
        }
        if leads == self.serving {
            return;
        }
        self.serving = leads;
        if let Some(term) = leads {
            tracing::info!(%term, "this server leads");
            self.timers.restart(now, &self.state);
            if self.state.cluster_id().is_empty() {
                let command = Command::Bootstrap { cluster_id: self.config.fresh_cluster_id.clone() };
                self.gathered.push((self.own(command), Asker::Nobody));
            }
        }
    }

    fn step_down(&mut self, now: Time, outbox: &mut Outbox) {
        self.timers.clear();
        for reader in self.readers.drain() {
            refuse_reader(outbox, &reader);
        }
        for pending in std::mem::take(&mut self.pending) {
            self.disappoint(now, pending.asker, lost_leadership(), outbox);
        }
        if let Some((ticket, _)) = self.transfer.take() {
            outbox.replies.push((ticket, Response::Done));
        }
    }

    /// How far the log may be cut behind a durable image: not past what a follower still needs, as long as that is
    /// not too much to keep.
    fn cut_index(&self, image: LogIndex) -> LogIndex {
        if self.engine.log_bytes() as u64 > self.config.log_keep_bytes {
            return image;
        }
        let members = self.engine.membership();
        let others = members.voters.iter().chain(&members.learners).filter(|id| **id != self.config.id);
        others.map(|id| self.engine.matched(*id)).fold(image, LogIndex::min)
    }

    fn transfer_leader(&mut self, now: Time, ticket: Ticket, to: Option<ServerId>, outbox: &mut Outbox) {
        let others: Vec<_> =
            self.engine.membership().voters.iter().copied().filter(|id| *id != self.config.id).collect();
        let most_advanced = others.iter().copied().max_by_key(|id| self.engine.matched(*id));
        match to.or(most_advanced) {
            _ if !self.is_serving() => fail(outbox, ticket, not_leader()),
            Some(to) if to == self.config.id => outbox.replies.push((ticket, Response::Done)),
            Some(_) if self.transfer.is_some() => deny(outbox, ticket, "another transfer is under way"),
            Some(to) if others.contains(&to) => {
                self.engine.transfer_leader(to);
                self.transfer = Some((ticket, now));
            }
            Some(_) => deny(outbox, ticket, "that server has no vote"),
            None => deny(outbox, ticket, "there is no other server that could lead"),
        }
    }

    fn remove_server(&mut self, ticket: Ticket, server: ServerId, outbox: &mut Outbox) {
        let members = self.engine.membership();
        if !self.is_serving() {
            fail(outbox, ticket, not_leader());
        } else if !members.voters.contains(&server) && !members.learners.contains(&server) {
            deny(outbox, ticket, "that server was not found in the Raft configuration");
        } else if members.voters == [server] {
            deny(outbox, ticket, "the only server that votes cannot be removed: add another one first");
        } else if server == self.config.id {
            deny(outbox, ticket, "this server leads: transfer the leadership first");
        } else if self.engine.has_pending_membership() {
            deny(outbox, ticket, "another change of the membership is under way: try again");
        } else if let Ok(index) = self.engine.propose_removal(server) {
            let (term, asker) = (self.engine.term(), Asker::Client(ticket));
            self.pending.push_back(Pending { index, term, proposal: None, asker });
        } else {
            fail(outbox, ticket, not_leader());
        }
    }
}

/// Where a server's log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStatus {
    /// The term.
    pub term: Term,
    /// The first index in memory.
    pub first_index: LogIndex,
    /// The last index, on disk or not.
    pub last_index: LogIndex,
    /// The last committed index.
    pub commit_index: LogIndex,
    /// The last applied index.
    pub applied_index: LogIndex,
    /// The index of the last change of membership.
    pub membership_index: LogIndex,
    /// Bytes of entries in memory.
    pub log_bytes: usize,
    /// Proposals that wait for their commit.
    pub pending_proposals: usize,
}

fn decode(entry: &LogEntry) -> Proposal {
    wire::decode::<Proposal, MAX_FRAME_BYTES>(&entry.data).unwrap_or_else(|error| {
        panic!("log entry {} cannot be read ({error}): was it written by a newer version?", entry.index)
    })
}

fn acquired_key(command: &Command) -> Option<&Key> {
    match command {
        Command::Kv(KvCommand::Acquire(entry, _)) => Some(&entry.key),
        _ => None,
    }
}

fn not_leader() -> Unavailable {
    Unavailable::NotLeader { leader: None }
}

fn lost_leadership() -> Unavailable {
    Unavailable::Unknown("leadership lost while committing log".into())
}

fn fail(outbox: &mut Outbox, ticket: Ticket, why: Unavailable) {
    outbox.replies.push((ticket, Response::Unavailable(why)));
}

fn deny(outbox: &mut Outbox, ticket: Ticket, why: &str) {
    fail(outbox, ticket, Unavailable::Denied(why.into()));
}

fn refuse_reader(outbox: &mut Outbox, reader: &Reader) {
    match reader {
        Reader::Query(ticket) => outbox.unreadable.push((*ticket, not_leader())),
        Reader::Renewal(..) => fail(outbox, reader.ticket(), not_leader()),
    }
}
