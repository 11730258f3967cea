//! The mixed load: clients of several kinds, each with one recorded request in flight.
//!
//! Key names contain the epoch, which advances every few seconds, and the number of keys grows with
//! the number of clients. The history of each key thus stays short enough for the slow checker.
//! Every value is written only once. A client never gives up: it continues after any reply.

use super::caller::Caller;
use crate::dialect::let_pass;
use crate::history::Recorder;
use crate::history::operation::{
    KvWrite, Outcome, Query, Read, Reply, Request, Seen, SessionWish, TxnStep, Write,
};
use crate::http::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The maximum pause between two requests of a client. At this rate a machine with two cores checks
/// the history in a few seconds.
const PAUSE_MS: u64 = 25;
/// The number of watched keys per epoch, for at most [`MANY`] and [`FEW`] clients.
const WORDS: u64 = 3;
/// The pause between two attempts to wake waiting clients.
const WAKE_BACKOFF: Duration = Duration::from_secs(1);
/// The pause of a client that cannot connect.
const NOBODY: Duration = Duration::from_millis(50);

/// State shared by all clients.
pub(super) struct Stage {
    /// The factor by which the number of keys grows with the number of clients.
    width: u64,
    /// The recorder of all operations.
    pub(super) recorder: Recorder,
    /// The epoch in the names of keys.
    pub(super) epoch: AtomicU64,
    /// Set when the load is over.
    pub(super) ended: AtomicBool,
}

impl Stage {
    /// Creates the stage for `clients` clients.
    pub(super) fn new(clients: usize) -> Self {
        let width = clients.div_ceil(MANY.len() + FEW.len()) as u64;
        let (recorder, epoch, ended) = (Recorder::default(), AtomicU64::new(0), AtomicBool::new(false));
        Self { width, recorder, epoch, ended }
    }

    fn words(&self) -> u64 {
        WORDS * self.width
    }
}

/// The behavior of a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Acquires and releases locks, and occasionally ends its session while it holds one.
    Locker,
    /// Acquires locks with a session that must be renewed, and occasionally lets it expire.
    Leaser,
    /// Waits for locks in their queues.
    Queuer,
    /// Counts by compare-and-set.
    Counter,
    /// Writes and deletes single keys.
    Writer,
    /// Writes pairs of keys in transactions, and reads them together.
    Pairs,
    /// Writes and deletes whole trees.
    Trees,
    /// Waits for changes of a key that other clients write.
    Watcher,
    /// Reads the state of any server, stale or not.
    StaleReader,
    /// Reads the newest state.
    Reader,
}

/// The clients of an agent that knows all servers.
pub(super) const MANY: [Role; 17] = [
    Role::Locker,
    Role::Locker,
    Role::Locker,
    Role::Leaser,
    Role::Leaser,
    Role::Queuer,
    Role::Queuer,
    Role::Queuer,
    Role::Counter,
    Role::Counter,
    Role::Writer,
    Role::Writer,
    Role::Pairs,
    Role::Trees,
    Role::Watcher,
    Role::Watcher,
    Role::Reader,
];

/// The clients of an agent that may be restricted to one server: they check for stale state.
pub(super) const FEW: [Role; 6] =
    [Role::Reader, Role::Reader, Role::StaleReader, Role::Watcher, Role::Writer, Role::Locker];

/// Wakes clients that still wait for a change after the others have ended.
pub(super) struct Waker(Player);

impl Waker {
    pub(super) fn new(stage: &Arc<Stage>, agent: &Client, number: u32) -> Self {
        Self(Player::new(Arc::clone(stage), agent.clone(), number, 0))
    }

    /// Writes to every key that a client may watch, and pauses briefly.
    pub(super) fn wake(&mut self) {
        let epoch = self.0.stage.epoch.load(Ordering::Relaxed);
        for epoch in epoch.saturating_sub(1)..=epoch {
            for at in 0..self.0.stage.words() {
                let (key, value) = (format!("word/{epoch}/{at}"), self.0.value());
                self.0.write(KvWrite::Set { key, value });
            }
        }
        let_pass(WAKE_BACKOFF);
    }
}

/// Reads the complete final state.
pub(super) fn read_all(stage: &Arc<Stage>, agent: &Client, number: u32) {
    let mut player = Player::new(Arc::clone(stage), agent.clone(), number, 0);
    player.read(Query::Prefix(String::new()), false, None);
}

/// Starts clients of one agent; `first` is the number of the first client.
pub(super) fn start(
    stage: &Arc<Stage>,
    agent: &Client,
    first: u32,
    roles: impl Iterator<Item = Role>,
    seed: u64,
) -> Vec<JoinHandle<()>> {
    let start = |(number, role): (u32, Role)| {
        let mut player = Player::new(Arc::clone(stage), agent.clone(), number, seed);
        thread::spawn(move || player.play(role))
    };
    (first..).zip(roles).map(start).collect()
}

struct Player {
    stage: Arc<Stage>,
    caller: Caller,
    number: u32,
    random: u64,
    written: u64,
    session: Option<String>,
    /// The epoch that the client saw last.
    epoch: Option<u64>,
}

impl Player {
    fn new(stage: Arc<Stage>, agent: Client, number: u32, seed: u64) -> Self {
        let random = (seed ^ u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        let mut caller = Caller::new(agent);
        caller.consistent = number % 2 == 1;
        Self { stage, caller, number, random, written: 0, session: None, epoch: None }
    }

    fn play(&mut self, role: Role) {
        while !self.stage.ended.load(Ordering::Relaxed) {
            match role {
                Role::Locker => self.lock_once(),
                Role::Leaser => self.lease_once(),
                Role::Queuer => self.queue_once(),
                Role::Counter => self.count(),
                Role::Writer => self.write_one(),
                Role::Pairs => self.write_pair(),
                Role::Trees => self.grow_tree(),
                Role::Watcher => self.watch(),
                Role::StaleReader => self.look(true),
                Role::Reader => self.look(false),
            }
            let pause = self.below(PAUSE_MS);
            let_pass(Duration::from_millis(pause));
        }
    }

    fn ask(&mut self, request: Request) -> Outcome {
        let caller = &mut self.caller;
        let outcome = self.stage.recorder.run(self.number, request, |request| caller.ask(request));
        if matches!(&outcome, Outcome::CertainlyNot(why) if why.starts_with("no connection")) {
            let_pass(NOBODY);
        }
        outcome
    }

    fn write(&mut self, write: KvWrite) -> Option<Reply> {
        answered(self.ask(Request::Write(Write::Kv(write))))
    }

    fn read(&mut self, query: Query, stale: bool, after: Option<u64>) -> Option<(Option<u64>, Vec<Seen>)> {
        match self.ask(Request::Read(Read { query, stale, after })) {
            Outcome::Answered { index, reply: Reply::Entries(seen) } => Some((index, seen)),
            _ => None,
        }
    }

    fn lock_once(&mut self) {
        let wish = lasting(self.below(3) * 150);
        let Some(session) = self.own_session(&wish) else { return };
        let key = self.key("lock", 2);
        let value = self.value();
        let reply = self.write(KvWrite::Acquire { key: key.clone(), value, session: session.clone() });
        match reply {
            Some(Reply::Granted { .. }) => {}
            Some(Reply::Refused(_)) => return self.session = None,
            Some(_) => return,
            // The client may hold the lock without knowing it. A release follows.
            None => {}
        }
        match self.below(12) {
            0 => return self.end_session(&session),
            1 => {
                let value = self.value();
                self.write(KvWrite::Acquire { key: key.clone(), value, session: session.clone() });
            }
            2 | 3 => drop(self.read(Query::Key(key.clone()), false, None)),
            _ => {}
        }
        let value = self.value();
        self.write(KvWrite::Release { key, value, session });
    }

    /// Waits for a lock in its queue, holds it briefly, and releases it or ends its session.
    fn queue_once(&mut self) {
        let wish = lasting(self.below(3) * 100);
        let Some(session) = self.own_session(&wish) else { return };
        let (key, value) = (self.key("queue", 1), self.value());
        match self.write(KvWrite::Enqueue { key: key.clone(), value, session: session.clone() }) {
            Some(Reply::Granted { .. } | Reply::GrantedLater { .. }) => {}
            Some(Reply::Refused(_)) => return self.session = None,
            Some(_) => return,
            // The client may hold the lock, or be granted it later, without knowing it. Ending the
            // session prevents both.
            None => return self.end_session(&session),
        }
        let pause = self.below(60);
        let_pass(Duration::from_millis(pause));
        if self.below(10) == 0 {
            return self.end_session(&session);
        }
        let value = self.value();
        self.write(KvWrite::Release { key, value, session });
    }

    fn lease_once(&mut self) {
        let wish = SessionWish { ttl_ms: 1_000, deletes: self.below(2) == 0, ..lasting(self.below(2) * 400) };
        let Some(session) = self.own_session(&wish) else { return };
        let key = self.key("lease", 2);
        let value = self.value();
        let reply = self.write(KvWrite::Acquire { key: key.clone(), value, session: session.clone() });
        if matches!(reply, Some(Reply::Refused(_))) {
            return self.session = None;
        }
        if self.below(10) == 0 {
            // The session is no longer renewed: it expires while it holds the lock.
            return self.session = None;
        }
        for _ in 0..self.below(4) {
            let renewed = answered(self.ask(Request::Renew(session.clone())));
            if renewed == Some(Reply::Alive(false)) {
                return self.session = None;
            }
            let_pass(Duration::from_millis(100));
        }
        let value = self.value();
        self.write(KvWrite::Release { key, value, session });
    }

    fn count(&mut self) {
        let key = self.key("count", 2);
        let Some((_, seen)) = self.read(Query::Key(key.clone()), false, None) else { return };
        let expected = seen.first().map_or(0, |seen| seen.modify_index);
        let value = self.value();
        self.write(KvWrite::Cas { key, value, expected });
    }

    fn write_one(&mut self) {
        self.say_farewell();
        let key = self.key("word", WORDS);
        let value = self.value();
        match self.below(10) {
            0 => drop(self.write(KvWrite::Delete { key })),
            1 => {
                let Some((_, seen)) = self.read(Query::Key(key.clone()), false, None) else { return };
                let expected = seen.first().map_or(0, |seen| seen.modify_index);
                self.write(KvWrite::DeleteCas { key, expected });
            }
            _ => drop(self.write(KvWrite::Set { key, value })),
        }
    }

    /// Writes once more to the keys of the previous epoch, so that no client waits there any
    /// longer.
    fn say_farewell(&mut self) {
        let epoch = self.stage.epoch.load(Ordering::Relaxed);
        if let Some(over) = self.epoch.replace(epoch).filter(|over| *over != epoch) {
            for number in 0..self.stage.words() {
                let value = self.value();
                self.write(KvWrite::Set { key: format!("word/{over}/{number}"), value });
            }
        }
    }

    fn write_pair(&mut self) {
        let [one, other] = ["one", "other"].map(|side| format!("{}/{side}", self.key("pair", 1)));
        if self.below(2) == 0 {
            return drop(self.read(Query::Together(vec![one, other]), false, None));
        }
        let Some((_, seen)) = self.read(Query::Key(one.clone()), false, None) else { return };
        let (value, twin) = (self.value(), self.value());
        let check = match seen.first() {
            Some(seen) => TxnStep::CheckIndex { key: one.clone(), index: seen.modify_index },
            None => TxnStep::CheckNotExists { key: one.clone() },
        };
        let set = |key, value| TxnStep::Write(KvWrite::Set { key, value });
        self.ask(Request::Write(Write::Txn(vec![check, set(one, value), set(other, twin)])));
    }

    fn grow_tree(&mut self) {
        let prefix = format!("{}/", self.key("tree", 1));
        match self.below(8) {
            0 => drop(self.write(KvWrite::DeleteTree { prefix })),
            1 | 2 => drop(self.read(Query::Prefix(prefix), false, None)),
            _ => {
                let (key, value) = (format!("{prefix}{}", self.below(3)), self.value());
                self.write(KvWrite::Set { key, value });
            }
        }
    }

    /// Waits for changes until the epoch is over. The first read does not block.
    fn watch(&mut self) {
        let epoch = self.stage.epoch.load(Ordering::Relaxed);
        let key = self.key("word", WORDS);
        let mut known = None;
        while self.stage.epoch.load(Ordering::Relaxed) == epoch && !self.stage.ended.load(Ordering::Relaxed) {
            match self.read(Query::Key(key.clone()), false, known) {
                Some((index, _)) => known = index,
                None => return,
            }
        }
    }

    fn look(&mut self, stale: bool) {
        let what = ["word", "lock", "count", "lease"][self.below(4) as usize];
        let key = self.key(what, 2);
        match (self.below(12), self.session.clone()) {
            (0, _) => {
                let prefix = format!("{}/", self.key("tree", 1));
                self.read(Query::Prefix(prefix), stale, None);
            }
            (1, Some(session)) => {
                let read = Read { query: Query::Session(session.clone()), stale, after: None };
                let outcome = self.ask(Request::Read(read));
                if answered(outcome) == Some(Reply::Alive(false)) {
                    self.session = None;
                } else if self.below(4) == 0 {
                    self.end_session(&session);
                }
            }
            (1, None) => drop(self.own_session(&lasting(0))),
            _ => drop(self.read(Query::Key(key), stale, None)),
        }
    }

    /// Returns the client's session; creates one if there is none.
    fn own_session(&mut self, wish: &SessionWish) -> Option<String> {
        if self.session.is_none() {
            let created = answered(self.ask(Request::Write(Write::CreateSession(wish.clone()))));
            if let Some(Reply::Session(id)) = created {
                self.session = Some(id);
            }
        }
        self.session.clone()
    }

    fn end_session(&mut self, session: &str) {
        self.session = None;
        self.ask(Request::Write(Write::DestroySession(session.to_owned())));
    }

    /// Returns one of `of` keys, or of more keys with more clients.
    fn key(&mut self, what: &str, of: u64) -> String {
        let number = self.below(of * self.stage.width);
        format!("{what}/{}/{number}", self.stage.epoch.load(Ordering::Relaxed))
    }

    /// Returns a value that no other client writes.
    fn value(&mut self) -> String {
        self.written += 1;
        format!("{}.{}", self.number, self.written)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }
}

fn answered(outcome: Outcome) -> Option<Reply> {
    match outcome {
        Outcome::Answered { reply, .. } => Some(reply),
        _ => None,
    }
}

fn lasting(lock_delay_ms: u64) -> SessionWish {
    SessionWish { lock_delay_ms, ..SessionWish::default() }
}
