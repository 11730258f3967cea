//! The parts of a history: clients, requests, times, and outcomes.
//!
//! Nothing here depends on HTTP, the wire or the product's own types: a recorder of real clusters
//! and a simulator both produce them. Flags of entries are left out; a recorded client must leave
//! them at 0.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A point in time: nanoseconds since the history began, on one clock for all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.0 as f64 / 1e9)
    }
}

/// One request of one client, from its sending until the answer or the client's timeout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number, unique in the history.
    pub number: u64,
    /// The client. It has one request in flight at a time.
    pub client: u32,
    /// The earliest time at which the request was sent.
    pub begun: Moment,
    /// The latest time at which the answer was received.
    pub ended: Moment,
    /// The request.
    pub request: Request,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// A request that has a position in the log.
    Write(Write),
    /// A request that reads the state.
    Read(Read),
    /// Renews a session.
    Renew(String),
}

/// A request that has a position in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// To one key, or all under a prefix.
    Kv(KvWrite),
    /// Several, all or none.
    Txn(Vec<TxnStep>),
    /// Creates a session.
    CreateSession(SessionWish),
    /// Ends a session.
    DestroySession(String),
}

/// A write to one key, or to all under a prefix. Distinct values identify writes best: give each
/// write its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum KvWrite {
    /// Unconditionally.
    Set { key: String, value: String },
    /// If the modify index is this one; 0 for an absent key.
    Cas { key: String, value: String, expected: u64 },
    /// Acquires a lock.
    Acquire { key: String, value: String, session: String },
    /// Acquires a lock, or waits for it in its queue.
    Enqueue { key: String, value: String, session: String },
    /// Gives up the result of the `Enqueue` at an index: the queue position, or the lock that was
    /// granted to it.
    Leave { key: String, session: String, asked: u64 },
    /// Gives up the queue position of the `Enqueue` at an index, and nothing else.
    StopWaiting { key: String, session: String, asked: u64 },
    /// Releases a lock.
    Release { key: String, value: String, session: String },
    /// Deletes one key.
    Delete { key: String },
    /// Deletes one key, if its modify index is this one, or it is absent.
    DeleteCas { key: String, expected: u64 },
    /// Deletes all keys with this prefix.
    DeleteTree { prefix: String },
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum TxnStep {
    /// Changes something.
    Write(KvWrite),
    /// Reads a key that must exist.
    Get { key: String },
    /// Reads all keys with this prefix.
    GetTree { prefix: String },
    /// Fails unless the modify index is this one.
    CheckIndex { key: String, index: u64 },
    /// Fails unless this session holds the key.
    CheckSession { key: String, session: String },
    /// Fails if the key exists.
    CheckNotExists { key: String },
}

/// The requested properties of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionWish {
    /// Its id, if the client drew it; otherwise the answer contains it.
    pub id: Option<String>,
    /// `true` if its keys are deleted at its end; otherwise they are released.
    pub deletes: bool,
    /// The lock-delay of its keys after its end, in milliseconds; 0 for none.
    pub lock_delay_ms: u64,
    /// Its minimum lifetime without a renewal, in milliseconds; 0 for unlimited.
    pub ttl_ms: u64,
    /// `true` if it may end at any time for reasons outside the history, such as a check.
    pub fragile: bool,
}

/// A request that reads the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    /// The query.
    pub query: Query,
    /// Any server's state of any age, instead of the newest.
    pub stale: bool,
    /// For a watch: answer when the index exceeds this.
    pub after: Option<u64>,
}

/// The subject of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// One key.
    Key(String),
    /// All keys with this prefix.
    Prefix(String),
    /// These keys, at one moment.
    Together(Vec<String>),
    /// The existence of a session.
    Session(String),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was answered.
    Answered {
        /// For a write, its position in the log; only a rejection may lack it. For a read, the
        /// query's index.
        index: Option<u64>,
        /// The answer.
        reply: Reply,
    },
    /// Certainly without effect, now and later, for this reason.
    CertainlyNot(String),
    /// It may have taken effect, or may do so later, or never.
    Unknown(String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum Reply {
    /// Done, without further data.
    Done,
    /// `true` if a write took effect.
    Succeeded(bool),
    /// The session holds the lock, under this fencing token.
    Granted { fence: u64 },
    /// The lock is free, but closed by a lock-delay.
    Delayed,
    /// The session has a position in the lock's queue; the client received no grant.
    Queued,
    /// The session had a position in the lock's queue, and was granted the lock at a later index,
    /// under this fencing token.
    GrantedLater { at: u64, fence: u64 },
    /// The new session.
    Session(String),
    /// The transaction took effect, and read this. Values are left out for writes.
    Txn(Vec<Seen>),
    /// The transaction changed nothing, because of these steps.
    TxnFailed(Vec<u32>),
    /// The state rejected the request, with this text.
    Refused(String),
    /// The existing entries, in the order of their keys.
    Entries(Vec<Seen>),
    /// `true` if the session is alive.
    Alive(bool),
}

/// An entry as a client saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its key.
    pub key: String,
    /// Its value; `None` if the answer leaves it out.
    pub value: Option<String>,
    /// The holder of the lock.
    pub session: Option<String>,
    /// The number of grants of the lock.
    pub lock_index: u64,
    /// The index that created it.
    pub create_index: u64,
    /// The index that changed it last.
    pub modify_index: u64,
}

impl Operation {
    /// Returns the position in the log of an answered write.
    pub fn write_index(&self) -> Option<u64> {
        match (&self.request, &self.outcome) {
            (Request::Write(_), Outcome::Answered { index, .. }) => *index,
            _ => None,
        }
    }

    /// Returns the last index in the answer to a write: its own, or that of a grant after a wait.
    pub fn last_index(&self) -> Option<u64> {
        match self.reply() {
            Some(Reply::GrantedLater { at, .. }) => Some(*at),
            _ => self.write_index(),
        }
    }

    /// Returns `true` for a request for a lock without a reported grant: a possible grant was
    /// released.
    pub fn waits_in_vain(&self) -> bool {
        let waits = matches!(self.write(), Some(Write::Kv(KvWrite::Enqueue { .. })));
        waits
            && !matches!(
                self.reply(),
                Some(Reply::Granted { .. } | Reply::GrantedLater { .. } | Reply::Queued)
            )
    }

    /// Returns the write, if it is one.
    pub fn write(&self) -> Option<&Write> {
        match &self.request {
            Request::Write(write) => Some(write),
            _ => None,
        }
    }

    /// Returns the answer, if there is one.
    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            Outcome::Answered { reply, .. } => Some(reply),
            _ => None,
        }
    }

    /// Returns `true` if its outcome is unknown.
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown(_))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} (client {}, {} to {}) ", self.number, self.client, self.begun, self.ended)?;
        match &self.request {
            Request::Write(write) => write!(f, "{write}")?,
            Request::Read(read) => write!(f, "{read}")?,
            Request::Renew(session) => write!(f, "renew {session}")?,
        }
        match &self.outcome {
            Outcome::Answered { index: Some(index), reply } => write!(f, " -> {reply} at {index}"),
            Outcome::Answered { index: None, reply } => write!(f, " -> {reply}"),
            Outcome::CertainlyNot(why) => write!(f, " -> certainly not: {why}"),
            Outcome::Unknown(why) => write!(f, " -> unknown: {why}"),
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kv(write) => write!(f, "{write}"),
            Self::Txn(steps) => {
                let steps: Vec<String> = steps.iter().map(TxnStep::to_string).collect();
                write!(f, "txn [{}]", steps.join(", "))
            }
            Self::CreateSession(wish) => {
                write!(f, "create session (ttl {} ms, lock-delay {} ms)", wish.ttl_ms, wish.lock_delay_ms)
            }
            Self::DestroySession(session) => write!(f, "destroy session {session}"),
        }
    }
}

impl fmt::Display for KvWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { key, value } => write!(f, "set {key}={value}"),
            Self::Cas { key, value, expected } => write!(f, "cas {key}={value} if {expected}"),
            Self::Acquire { key, value, session } => write!(f, "acquire {key}={value} by {session}"),
            Self::Enqueue { key, value, session } => write!(f, "wait for {key}={value} by {session}"),
            Self::Leave { key, session, asked } => {
                write!(f, "leave {key} by {session}, asked for at {asked}")
            }
            Self::StopWaiting { key, session, asked } => {
                write!(f, "stop waiting for {key} by {session}, asked for at {asked}")
            }
            Self::Release { key, value, session } => write!(f, "release {key}={value} by {session}"),
            Self::Delete { key } => write!(f, "delete {key}"),
            Self::DeleteCas { key, expected } => write!(f, "delete {key} if {expected}"),
            Self::DeleteTree { prefix } => write!(f, "delete {prefix}*"),
        }
    }
}

impl fmt::Display for TxnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(write) => write!(f, "{write}"),
            Self::Get { key } => write!(f, "get {key}"),
            Self::GetTree { prefix } => write!(f, "get {prefix}*"),
            Self::CheckIndex { key, index } => write!(f, "check {key} at {index}"),
            Self::CheckSession { key, session } => write!(f, "check {key} by {session}"),
            Self::CheckNotExists { key } => write!(f, "check no {key}"),
        }
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.stale { "stale " } else { "" };
        let what = match &self.query {
            Query::Key(key) => format!("read {key}"),
            Query::Prefix(prefix) => format!("read {prefix}*"),
            Query::Together(keys) => format!("read {} together", keys.join(", ")),
            Query::Session(session) => format!("read session {session}"),
        };
        match self.after {
            Some(after) => write!(f, "{how}{what} after {after}"),
            None => write!(f, "{how}{what}"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |seen: &[Seen]| seen.iter().map(Seen::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Done => write!(f, "done"),
            Self::Succeeded(flag) => write!(f, "{flag}"),
            Self::Granted { fence } => write!(f, "granted with fence {fence}"),
            Self::Delayed => write!(f, "refused for a lock-delay"),
            Self::Queued => write!(f, "queued"),
            Self::GrantedLater { at, fence } => write!(f, "granted at {at} with fence {fence}, after a wait"),
            Self::Session(session) => write!(f, "session {session}"),
            Self::Txn(seen) => write!(f, "took effect [{}]", list(seen)),
            Self::TxnFailed(steps) => write!(f, "failed at steps {steps:?}"),
            Self::Refused(words) => write!(f, "refused ({words})"),
            Self::Entries(seen) if seen.is_empty() => write!(f, "absent"),
            Self::Entries(seen) => write!(f, "[{}]", list(seen)),
            Self::Alive(alive) => write!(f, "{}", if *alive { "alive" } else { "no such session" }),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, session, lock_index, create_index, modify_index } = self;
        let value = value.as_deref().unwrap_or("…");
        write!(f, "{key}={value} of {create_index}/{modify_index}, lock {lock_index}")?;
        match session {
            Some(session) => write!(f, " held by {session}"),
            None => Ok(()),
        }
    }
}
