//! A cluster made of one state machine, with clients whose requests overlap, get lost and are
//! answered late.

use bytes::Bytes;
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::command::{Command, KvCommand, KvVerb, NewEntry, Registration, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex, NodeName, SessionId, Term, WallTime};
use lockmesh_protocol::query::{Query as CoreQuery, Rows};
use lockmesh_protocol::record::{Behavior, LockDelay, Node, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply as Answer};
use lockmesh_tests::history::operation::{Moment, Operation, Outcome, Query, Read, Reply, Request};
use lockmesh_tests::history::{History, convert};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: u32 = 5;
const KEYS: [&str; 5] = ["a", "a/b", "b", "lock/1", "lock/2"];

/// A deliberate bug, injected once in the middle of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultInjection {
    /// A write is acknowledged and forgotten.
    LoseWrite,
    /// A write is applied again.
    Twice,
    /// A read of the newest state is answered from an older one.
    OldRead,
    /// Half a transaction is applied.
    Tear,
    /// A lock is granted to a second session.
    TwoHolders,
    /// A session ends before its time.
    EndEarly,
    /// A lock-delay ends at once.
    CutDelay,
    /// A command that was refused as definitely not done is done.
    DoDenied,
}

impl FaultInjection {
    pub(crate) const ALL: [Self; 8] = [
        Self::LoseWrite,
        Self::Twice,
        Self::OldRead,
        Self::Tear,
        Self::TwoHolders,
        Self::EndEarly,
        Self::CutDelay,
        Self::DoDenied,
    ];
}

/// A client's pending operation.
enum Under {
    Write(Command),
    Read(Read),
    Renewal(String),
}

struct Call {
    begun: u64,
    request: Request,
    under: Under,
    /// The highest index in any reply when it began.
    floor: u64,
    outcome: Option<Outcome>,
}

/// The cluster with its clients.
pub(crate) struct World {
    random: u64,
    now_ms: u64,
    index: u64,
    told: u64,
    state: State,
    /// The state at every index from 1.
    past: Vec<State>,
    calls: BTreeMap<u32, Call>,
    /// Commands whose clients gave up, and which may still arrive.
    adrift: Vec<Command>,
    /// A command that may be applied again.
    again: Option<Command>,
    /// The last contact with each session that has a TTL.
    heard: BTreeMap<String, u64>,
    delays: BTreeMap<Key, (LockDelay, u64)>,
    operations: Vec<Operation>,
    drawn: u64,
    fault_injection: Option<FaultInjection>,
    turn: usize,
    turns: usize,
}

impl World {
    pub(crate) fn new(seed: u64, fault_injection: Option<FaultInjection>) -> Self {
        let mut world = Self {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            now_ms: 0,
            index: 1,
            told: 0,
            state: State::new(),
            past: vec![State::new()],
            calls: BTreeMap::new(),
            adrift: Vec::new(),
            again: None,
            heard: BTreeMap::new(),
            delays: BTreeMap::new(),
            operations: Vec::new(),
            drawn: 0,
            fault_injection,
            turn: 0,
            turns: 0,
        };
        world.apply(&registration());
        world
    }

    /// Runs a storm, and returns its history, with `true` if the bug was injected.
    pub(crate) fn run(mut self, turns: usize) -> (History, bool) {
        let wanted = self.fault_injection.is_some();
        self.turns = turns;
        for turn in 0..turns {
            self.turn = turn;
            self.now_ms += self.below(4);
            self.elapse();
            let client = self.below(u64::from(CLIENTS)) as u32;
            match self.calls.remove(&client) {
                None => self.begin(client),
                Some(call) => self.go_on(client, call),
            }
        }
        for (client, call) in std::mem::take(&mut self.calls) {
            self.give_up(client, call);
        }
        self.now_ms += 10;
        let read = Read { query: Query::Prefix(String::new()), stale: false, after: None };
        let outcome = self.look(&self.state, &read);
        self.record(0, self.now_ms, Request::Read(read), outcome);
        (History::new(self.operations), wanted && self.fault_injection.is_none())
    }

    fn begin(&mut self, client: u32) {
        let under = self.make_up();
        let request = match &under {
            Under::Write(command) => Request::Write(convert::write(command).expect("clients send it")),
            Under::Read(read) => Request::Read(read.clone()),
            Under::Renewal(session) => Request::Renew(session.clone()),
        };
        let call = Call { begun: self.now_ms, request, under, floor: self.told, outcome: None };
        self.calls.insert(client, call);
    }

    fn go_on(&mut self, client: u32, mut call: Call) {
        let luck = self.below(100);
        match call.outcome.take() {
            Some(_) if luck < 2 => self.give_up(client, call),
            Some(outcome) => {
                if let Outcome::Answered { index: Some(index), .. } = &outcome
                    && !matches!(&call.request, Request::Read(read) if read.stale)
                {
                    self.told = self.told.max(*index);
                }
                self.record(client, call.begun, call.request, outcome);
            }
            None if luck < 2 => {
                if let Under::Write(command) = &call.under
                    && self.below(2) == 0
                {
                    self.adrift.push(command.clone());
                }
                self.give_up(client, call);
            }
            None if luck < 4 => {
                if let Under::Write(command) = &call.under
                    && self.breaks(FaultInjection::DoDenied)
                {
                    self.apply(&command.clone());
                }
                self.record(client, call.begun, call.request, Outcome::CertainlyNot("no leader".into()));
            }
            None => {
                call.outcome = self.answer(&call);
                self.calls.insert(client, call);
            }
        }
    }

    fn give_up(&mut self, client: u32, call: Call) {
        self.record(client, call.begun, call.request, Outcome::Unknown("no answer".into()));
    }

    fn record(&mut self, client: u32, begun: u64, request: Request, outcome: Outcome) {
        let number = self.operations.len() as u64 + 1;
        let (begun, ended) = (Moment(begun * 1_000_000), Moment(self.now_ms * 1_000_000));
        self.operations.push(Operation { number, client, begun, ended, request, outcome });
    }

    /// Returns the reply to a request, or `None` if it continues to wait.
    fn answer(&mut self, call: &Call) -> Option<Outcome> {
        match &call.under {
            Under::Write(command) => {
                let applied = self.apply_or_break(command);
                let reply = convert::reply(&applied.reply).expect("clients receive it");
                Some(Outcome::Answered { index: Some(applied.index.0), reply })
            }
            Under::Read(read) if read.stale => {
                let age = self.below(self.past.len() as u64) as usize;
                Some(self.look(&self.past[age], read))
            }
            Under::Read(read) => {
                let answer = self.look(&self.state, read);
                if let Some(old) = self.older(read, call.floor)
                    && self.breaks(FaultInjection::OldRead)
                {
                    return Some(old);
                }
                let Outcome::Answered { index: Some(index), .. } = answer else { return Some(answer) };
                let waits = read.after.is_some_and(|after| index <= after) && self.below(10) != 0;
                (!waits).then_some(answer)
            }
            Under::Renewal(session) => {
                let alive = self.state.session(id_of(session)).is_some();
                if alive && let Some(heard) = self.heard.get_mut(session) {
                    *heard = self.now_ms;
                }
                Some(Outcome::Answered { index: None, reply: Reply::Alive(alive) })
            }
        }
    }

    /// Returns a reply that is certainly outdated.
    fn older(&self, read: &Read, floor: u64) -> Option<Outcome> {
        let entries = |state: &State| match self.look(state, read) {
            Outcome::Answered { reply, .. } => reply,
            _ => Reply::Done,
        };
        let allowed: Vec<Reply> = (floor..=self.index).map(|at| entries(&self.past[at as usize])).collect();
        let old = &self.past[(floor.saturating_sub(6)) as usize];
        (floor > 6 && read.after.is_none() && !allowed.contains(&entries(old))).then(|| self.look(old, read))
    }

    fn look(&self, state: &State, read: &Read) -> Outcome {
        let query = match &read.query {
            Query::Key(key) => CoreQuery::Entry(key.as_str().into()),
            Query::Prefix(prefix) => CoreQuery::Entries(prefix.as_str().into()),
            other => panic!("unexpected query: {other:?}"),
        };
        let (index, rows) = state.query(&query);
        let Rows::Entries(entries) = rows else { panic!("expected entries") };
        let entries = entries.iter().map(|entry| convert::seen(entry)).collect();
        Outcome::Answered { index: Some(index.0), reply: Reply::Entries(entries) }
    }

    /// Advances the time of sessions, lock-delays and delayed commands.
    fn elapse(&mut self) {
        if !self.adrift.is_empty() && self.below(4) == 0 {
            let at = self.below(self.adrift.len() as u64) as usize;
            let command = self.adrift.swap_remove(at);
            self.apply(&command);
        }
        if let Some(Command::Kv(KvCommand::Set(new))) = self.again.clone()
            && self.value_of(&new.key).is_some_and(|value| value != new.value)
            && self.breaks(FaultInjection::Twice)
        {
            self.apply(&Command::Kv(KvCommand::Set(new)));
        }
        let over: Vec<String> = self
            .heard
            .iter()
            .filter(|(_, heard)| **heard + 200 < self.now_ms)
            .map(|(id, _)| id.clone())
            .collect();
        let early = self.heard.iter().find(|(id, heard)| **heard + 60 > self.now_ms && self.holds(id));
        let early = early.map(|(id, _)| id.clone());
        if let Some(early) = early
            && self.breaks(FaultInjection::EndEarly)
        {
            self.expire(&early);
        }
        over.iter().for_each(|session| self.expire(session));
        for (key, (delay, since)) in self.delays.clone() {
            let over = since + delay.duration.as_millis() as u64 <= self.now_ms;
            if over || self.breaks(FaultInjection::CutDelay) {
                self.delays.remove(&key);
                self.apply(&Command::EndLockDelay { key, started_at_index: delay.started_at_index, base: 0 });
            }
        }
    }

    fn expire(&mut self, session: &str) {
        self.heard.remove(session);
        self.apply(&Command::ExpireSession { session: id_of(session), term: Term(1), base: 0 });
    }

    fn holds(&self, session: &str) -> bool {
        let session = id_of(session);
        KEYS.iter().any(|key| self.holder(key).as_ref() == Some(&session))
    }

    fn value_of(&self, key: &Key) -> Option<Bytes> {
        let (_, rows) = self.state.query(&CoreQuery::Entry(key.clone()));
        let Rows::Entries(entries) = rows else { panic!("expected entries") };
        entries.first().map(|entry| entry.value.clone())
    }

    fn holder(&self, key: &str) -> Option<SessionId> {
        let (_, rows) = self.state.query(&CoreQuery::Entry(key.into()));
        let Rows::Entries(entries) = rows else { panic!("expected entries") };
        entries.first()?.lock.session
    }

    fn apply_or_break(&mut self, command: &Command) -> Arc<Applied> {
        match command {
            Command::Kv(KvCommand::Set(new)) if self.breaks(FaultInjection::LoseWrite) => {
                let before = self.state.clone();
                let applied = self.apply(&Command::Kv(KvCommand::Set(new.clone())));
                self.state = before.clone();
                *self.past.last_mut().expect("it was just pushed") = before;
                return applied;
            }
            Command::Kv(KvCommand::Set(_)) if self.fault_injection == Some(FaultInjection::Twice) => {
                self.again = Some(command.clone());
            }
            Command::Txn(ops) if ops.len() > 1 && self.breaks(FaultInjection::Tear) => {
                let before = self.state.clone();
                let whole = self.apply(command);
                if matches!(whole.reply, Answer::Txn(_)) {
                    (self.state, self.index) = (before, self.index - 1);
                    self.past.pop();
                    self.apply(&Command::Txn(ops[..1].to_vec()));
                }
                return whole;
            }
            Command::Kv(KvCommand::Acquire(new, session)) => {
                let holder = self.holder(new.key.as_str());
                let lives = self.state.session(*session).is_some();
                if lives
                    && let Some(holder) = holder.filter(|holder| holder != session)
                    && self.breaks(FaultInjection::TwoHolders)
                {
                    self.index -= 1;
                    self.past.pop();
                    self.apply(&Command::Kv(KvCommand::Release(new.clone(), holder)));
                }
            }
            _ => {}
        }
        self.apply(command)
    }

    fn apply(&mut self, command: &Command) -> Arc<Applied> {
        self.index += 1;
        let proposal = Proposal::new(None, WallTime(0), command.clone());
        let applied = self.state.apply(LogIndex(self.index), Term(1), &proposal, &mut Vec::new());
        self.past.resize(self.index as usize + 1, self.state.clone());
        if let (Command::CreateSession(new), Answer::Session(id)) = (command, &applied.reply)
            && new.ttl.is_some()
        {
            self.heard.insert(id.to_string(), self.now_ms);
        }
        for (key, delay) in self.state.delays() {
            if self.delays.get(key).is_none_or(|(known, _)| known.started_at_index != delay.started_at_index)
            {
                self.delays.insert(key.clone(), (*delay, self.now_ms));
            }
        }
        applied
    }

    /// Returns `true` if this is the time to inject this bug, which happens once.
    fn breaks(&mut self, fault_injection: FaultInjection) -> bool {
        let now = self.fault_injection == Some(fault_injection)
            && self.turn * 3 > self.turns
            && self.turn * 3 < self.turns * 2;
        if now {
            self.fault_injection = None;
        }
        now
    }

    fn make_up(&mut self) -> Under {
        let key = Key::from(KEYS[self.below(5) as usize]);
        let new = NewEntry { key: key.clone(), value: self.value(), flags: 0 };
        match self.below(26) {
            0..=2 => Under::Write(Command::Kv(KvCommand::Set(new))),
            3 => Under::Write(Command::Kv(KvCommand::Cas(
                new,
                Some(self.expected(&key)).filter(|index| index.0 > 0),
            ))),
            4 if self.below(2) == 0 => Under::Write(Command::Kv(KvCommand::Delete(key))),
            4 => Under::Write(Command::Kv(KvCommand::DeleteCas(key.clone(), self.expected(&key)))),
            5 if self.below(4) == 0 => Under::Write(Command::Kv(KvCommand::DeleteTree("a".into()))),
            6 | 7 => Under::Write(self.new_session()),
            8 if self.below(2) == 0 => Under::Write(Command::DestroySession(self.session())),
            9..=12 => {
                let new = NewEntry { key: self.lock(), ..new };
                Under::Write(Command::Kv(KvCommand::Acquire(new, self.session())))
            }
            13 => {
                let key = self.lock();
                let session = self.holder(key.as_str()).unwrap_or_else(|| self.session());
                Under::Write(Command::Kv(KvCommand::Release(NewEntry { key, ..new }, session)))
            }
            14 => Under::Write(self.txn()),
            15 => Under::Renewal(self.session().to_string()),
            16 => Under::Read(Read {
                query: Query::Prefix(String::new()),
                stale: self.below(2) == 0,
                after: None,
            }),
            17 => {
                let mut read = Read { query: Query::Key(key.as_str().into()), stale: false, after: None };
                let known = self.told.saturating_sub(self.below(8)) as usize;
                let Outcome::Answered { index, .. } = self.look(&self.past[known], &read) else {
                    panic!("a read has a reply");
                };
                read.after = index;
                Under::Read(read)
            }
            _ => Under::Read(Read {
                query: Query::Key(key.as_str().into()),
                stale: self.below(4) == 0,
                after: None,
            }),
        }
    }

    fn txn(&mut self) -> Command {
        let count = 1 + self.below(3);
        let verbs =
            [KvVerb::Set, KvVerb::Set, KvVerb::Set, KvVerb::Cas, KvVerb::Lock, KvVerb::Delete, KvVerb::Get];
        let op = |world: &mut Self| {
            let verb = verbs[world.below(7) as usize].clone();
            let key = match verb {
                KvVerb::Lock => world.lock(),
                _ => Key::from(KEYS[world.below(5) as usize]),
            };
            let value = match verb {
                KvVerb::Get | KvVerb::Delete => Bytes::new(),
                _ => world.value(),
            };
            let (index, session) = (world.expected(&key), world.session());
            TxnOp::Kv(TxnKv { verb, key, value, flags: 0, index, session: Some(session.to_string()) })
        };
        let write = NewEntry { key: "b".into(), value: self.value(), flags: 0 };
        let first = TxnKv {
            verb: KvVerb::Set,
            key: write.key,
            value: write.value,
            flags: 0,
            index: LogIndex(0),
            session: None,
        };
        Command::Txn([TxnOp::Kv(first)].into_iter().chain((0..count).map(|_| op(self))).collect())
    }

    fn new_session(&mut self) -> Command {
        self.drawn += 1;
        let (lock_delay, ttl) = (self.below(3) * 40, self.below(2) * 100);
        Command::CreateSession(SessionSpec {
            id: nth_session(self.drawn),
            name: String::new(),
            node: NodeName::from("node"),
            lock_delay: Duration::from_millis(lock_delay),
            behavior: if self.below(4) == 0 { Behavior::Delete } else { Behavior::Release },
            ttl_text: String::new(),
            ttl: Some(Duration::from_millis(ttl)).filter(|ttl| !ttl.is_zero()),
            checks: Vec::new(),
            node_checks: Vec::new(),
            service_checks: None,
            health_window: Default::default(),
        })
    }

    /// Returns a live session, or one that may have lived.
    fn session(&mut self) -> SessionId {
        let alive: Vec<SessionId> = self.state.sessions().map(|session| session.spec.id).collect();
        match alive.is_empty() || self.below(12) == 0 {
            true => nth_session(self.below(self.drawn + 1)),
            false => alive[self.below(alive.len() as u64) as usize],
        }
    }

    fn lock(&mut self) -> Key {
        Key::from(KEYS[3 + self.below(2) as usize])
    }

    /// Returns the modify index of a key, or now and then another index.
    fn expected(&mut self, key: &Key) -> LogIndex {
        let (_, rows) = self.state.query(&CoreQuery::Entry(key.clone()));
        let Rows::Entries(entries) = rows else { panic!("expected entries") };
        let current = entries.first().map_or(LogIndex(0), |entry| entry.modify_index);
        if self.below(4) == 0 { LogIndex(self.below(self.index)) } else { current }
    }

    /// Returns a unique value.
    fn value(&mut self) -> Bytes {
        self.drawn += 1;
        Bytes::from(format!("v{}", self.drawn))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }
}

/// Returns the ID of the session with this number.
fn nth_session(number: u64) -> SessionId {
    SessionId::from_random(u128::from(number + 1).to_be_bytes())
}

fn id_of(session: &str) -> SessionId {
    SessionId::parse(session).expect("it is an id")
}

fn registration() -> Command {
    let node = Node::of(NodeName::from("node"), String::new(), "127.0.0.1");
    Command::Register(Registration { node, skip_node_update: false, service: None, checks: Vec::new() })
}
