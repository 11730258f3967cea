//! What a history is made of: who asked what, when, and what became of it.
//!
//! Nothing here knows HTTP, the wire or the product's own types: a recorder of real clusters and a
//! simulator fill in the same forms. Flags of entries are left out; whoever records must leave them
//! at 0.

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

/// One request of one client, from when it was sent until the client knew more or gave up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its number, unique in the history.
    pub number: u64,
    /// Who asked. A client has one request under way at a time.
    pub client: u32,
    /// When the request left, at the earliest.
    pub begun: Moment,
    /// When its answer had come, at the latest.
    pub ended: Moment,
    /// What was asked.
    pub request: Request,
    /// What became of it.
    pub outcome: Outcome,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Something that has a position in the log.
    Write(Write),
    /// Something that looks at the state.
    Read(Read),
    /// Keeps a session alive.
    Renew(String),
}

/// Something that has a position in the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// To one key, or all under a prefix.
    Kv(KvWrite),
    /// Several, all or none.
    Txn(Vec<TxnStep>),
    /// Makes a session.
    CreateSession(SessionWish),
    /// Ends a session.
    DestroySession(String),
}

/// A write to one key, or to all under a prefix. Its own values tell it apart best: give each write
/// another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum KvWrite {
    /// Whatever is there.
    Set { key: String, value: String },
    /// If the modify index is this one; 0 for an absent key.
    Cas { key: String, value: String, expected: u64 },
    /// Takes a lock.
    Acquire { key: String, value: String, session: String },
    /// Takes a lock, or waits for it in its queue.
    Enqueue { key: String, value: String, session: String },
    /// Gives up what the `Enqueue` at an index asked for: the place, or the lock that was granted
    /// in it.
    Leave { key: String, session: String, asked: u64 },
    /// Gives up the position that the `Enqueue` at an index asked for, and nothing else.
    StopWaiting { key: String, session: String, asked: u64 },
    /// Gives a lock back.
    Release { key: String, value: String, session: String },
    /// One key.
    Delete { key: String },
    /// One key, if its modify index is this one, or it is absent.
    DeleteCas { key: String, expected: u64 },
    /// All keys that start with this.
    DeleteTree { prefix: String },
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum TxnStep {
    /// Changes something.
    Write(KvWrite),
    /// Reads a key that must be there.
    Get { key: String },
    /// Reads all keys that start with this.
    GetTree { prefix: String },
    /// Fails unless the modify index is this one.
    CheckIndex { key: String, index: u64 },
    /// Fails unless this session holds the key.
    CheckSession { key: String, session: String },
    /// Fails if the key is there.
    CheckNotExists { key: String },
}

/// A session as its creator wants it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionWish {
    /// Its id, where the one who asks drew it; else the answer tells.
    pub id: Option<String>,
    /// Whether its keys are deleted at its end; else they are released.
    pub deletes: bool,
    /// How long its keys stay closed after its end, in milliseconds; 0 for not at all.
    pub lock_delay_ms: u64,
    /// How long it lives at least without being renewed, in milliseconds; 0 for ever.
    pub ttl_ms: u64,
    /// Whether it may end at any time for reasons that the history does not hold, such as a check.
    pub fragile: bool,
}

/// Something that looks at the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    /// At what.
    pub query: Query,
    /// Any server's state of any age, instead of the newest.
    pub stale: bool,
    /// For a watch: answer when the index exceeds this.
    pub after: Option<u64>,
}

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// One key.
    Key(String),
    /// All keys that start with this.
    Prefix(String),
    /// These keys, at one moment.
    Together(Vec<String>),
    /// Whether a session lives.
    Session(String),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was answered.
    Answered {
        /// For a write, its place in the log; only a refusal may lack it. For a read, the query's
        /// index.
        index: Option<u64>,
        /// The answer.
        reply: Reply,
    },
    /// The client was told that it changed nothing and never will, for this reason.
    CertainlyNot(String),
    /// It may have taken effect, or may do so later, or never.
    Unknown(String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the nouns of the variant's sentence")]
pub enum Reply {
    /// Done, and there is nothing to say.
    Done,
    /// Whether a write took effect.
    Succeeded(bool),
    /// The lock is the session's, under this fencing token.
    Granted { fence: u64 },
    /// The lock is free, but closed by a lock-delay.
    Delayed,
    /// There is a place in the lock's queue, and that is all that the client was told.
    Queued,
    /// There was a place in the lock's queue, in which the lock was granted at a later index, under
    /// this fencing token.
    GrantedLater { at: u64, fence: u64 },
    /// The new session.
    Session(String),
    /// The transaction took effect, and saw this. Values are left out where it wrote.
    Txn(Vec<Seen>),
    /// The transaction changed nothing, because of these steps.
    TxnFailed(Vec<u32>),
    /// The state refused, in its own words.
    Refused(String),
    /// The entries that are there, in order of their keys.
    Entries(Vec<Seen>),
    /// Whether the session lives.
    Alive(bool),
}

/// An entry as a client saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its key.
    pub key: String,
    /// Its value; none where the answer leaves it out.
    pub value: Option<String>,
    /// Who holds the lock.
    pub session: Option<String>,
    /// How often the lock was granted.
    pub lock_index: u64,
    /// The index that created it.
    pub create_index: u64,
    /// The index that changed it last.
    pub modify_index: u64,
}

impl Operation {
    /// The place in the log of a write that was answered.
    pub fn write_index(&self) -> Option<u64> {
        match (&self.request, &self.outcome) {
            (Request::Write(_), Outcome::Answered { index, .. }) => *index,
            _ => None,
        }
    }

    /// The last index that the answer to a write names: its own, or that of a grant after a wait.
    pub fn last_index(&self) -> Option<u64> {
        match self.reply() {
            Some(Reply::GrantedLater { at, .. }) => Some(*at),
            _ => self.write_index(),
        }
    }

    /// Whether a lock is asked for here, and the client was not told that it got it: what it may
    /// have got was taken back.
    pub fn waits_in_vain(&self) -> bool {
        let waits = matches!(self.write(), Some(Write::Kv(KvWrite::Enqueue { .. })));
        waits
            && !matches!(
                self.reply(),
                Some(Reply::Granted { .. } | Reply::GrantedLater { .. } | Reply::Queued)
            )
    }

    /// The write, if it is one.
    pub fn write(&self) -> Option<&Write> {
        match &self.request {
            Request::Write(write) => Some(write),
            _ => None,
        }
    }

    /// The answer, if there was one.
    pub fn reply(&self) -> Option<&Reply> {
        match &self.outcome {
            Outcome::Answered { reply, .. } => Some(reply),
            _ => None,
        }
    }

    /// Whether nobody knows what became of it.
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
