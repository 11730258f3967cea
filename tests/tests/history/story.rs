//! Short handwritten histories.

use lockmesh_tests::history::operation::{
    KvWrite, Moment, Operation, Outcome, Query, Read, Reply, Request, Seen, SessionWish, Write,
};
use lockmesh_tests::history::{History, Verdict, check};

/// A history that grows line by line. Times are in milliseconds.
#[derive(Default)]
pub(crate) struct Story(Vec<Operation>);

/// A session that ends only when it is destroyed.
pub(crate) fn lasting() -> SessionWish {
    SessionWish::default()
}

/// A session with a TTL in milliseconds.
pub(crate) fn with_ttl(ttl_ms: u64) -> SessionWish {
    SessionWish { ttl_ms, ..SessionWish::default() }
}

impl Story {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn line(mut self, (begun, ended): (u64, u64), request: Request, outcome: Outcome) -> Self {
        let number = self.0.len() as u64 + 1;
        let (begun, ended) = (Moment(begun * 1_000_000), Moment(ended * 1_000_000));
        self.0.push(Operation { number, client: 1, begun, ended, request, outcome });
        self
    }

    /// Adds a write with a reply.
    pub(crate) fn write(self, time: (u64, u64), write: impl Into<Asked>, index: u64, reply: Reply) -> Self {
        self.line(time, Request::Write(write.into().0), Outcome::Answered { index: Some(index), reply })
    }

    /// Adds a write without a reply.
    pub(crate) fn unknown(self, time: (u64, u64), write: impl Into<Asked>) -> Self {
        self.line(time, Request::Write(write.into().0), Outcome::Unknown("no answer".into()))
    }

    /// Adds a write that was definitely not done.
    pub(crate) fn not_done(self, time: (u64, u64), write: impl Into<Asked>) -> Self {
        self.line(time, Request::Write(write.into().0), Outcome::CertainlyNot("no leader".into()))
    }

    /// Adds a session creation.
    pub(crate) fn session(self, time: (u64, u64), name: &str, wish: SessionWish, index: u64) -> Self {
        self.write(time, Write::CreateSession(wish), index, Reply::Session(name.into()))
    }

    /// Adds a read of the newest state.
    pub(crate) fn read(self, time: (u64, u64), query: Query, index: u64, shown: &[Seen]) -> Self {
        let request = Request::Read(Read { query, stale: false, after: None });
        let reply = Reply::Entries(shown.to_vec());
        self.line(time, request, Outcome::Answered { index: Some(index), reply })
    }

    /// Adds a read of any state.
    pub(crate) fn stale(self, time: (u64, u64), query: Query, index: u64, shown: &[Seen]) -> Self {
        let request = Request::Read(Read { query, stale: true, after: None });
        let reply = Reply::Entries(shown.to_vec());
        self.line(time, request, Outcome::Answered { index: Some(index), reply })
    }

    /// Adds a watch of a key.
    pub(crate) fn watch(self, time: (u64, u64), key: &str, after: u64, index: u64, shown: &[Seen]) -> Self {
        let request = Request::Read(Read { query: Query::Key(key.into()), stale: false, after: Some(after) });
        let reply = Reply::Entries(shown.to_vec());
        self.line(time, request, Outcome::Answered { index: Some(index), reply })
    }

    /// Adds a renewal, with its result.
    pub(crate) fn alive(self, time: (u64, u64), session: &str, alive: bool) -> Self {
        let request = Request::Renew(session.into());
        self.line(time, request, Outcome::Answered { index: None, reply: Reply::Alive(alive) })
    }

    pub(crate) fn history(self) -> History {
        History::new(self.0)
    }

    pub(crate) fn verdict(self) -> Verdict {
        check(&self.history())
    }

    /// Fails unless exactly this rule is broken, as shown by these operations.
    #[track_caller]
    pub(crate) fn breaks(self, rule: &str, operations: &[u64]) {
        let found = self.verdict().violations;
        let right =
            |text: &str, numbers: &[u64]| text == rule && operations.iter().all(|n| numbers.contains(n));
        assert!(found.iter().any(|violation| right(violation.rule, &violation.operations)), "{found:#?}");
    }
}

/// A write, from its shortest form.
pub(crate) struct Asked(Write);

impl From<Write> for Asked {
    fn from(write: Write) -> Self {
        Self(write)
    }
}

impl From<KvWrite> for Asked {
    fn from(write: KvWrite) -> Self {
        Self(Write::Kv(write))
    }
}

pub(crate) fn set(key: &str, value: &str) -> KvWrite {
    KvWrite::Set { key: key.into(), value: value.into() }
}

pub(crate) fn cas(key: &str, value: &str, expected: u64) -> KvWrite {
    KvWrite::Cas { key: key.into(), value: value.into(), expected }
}

pub(crate) fn acquire(key: &str, value: &str, session: &str) -> KvWrite {
    KvWrite::Acquire { key: key.into(), value: value.into(), session: session.into() }
}

/// Takes a lock, or waits in its queue.
pub(crate) fn wait(key: &str, value: &str, session: &str) -> KvWrite {
    KvWrite::Enqueue { key: key.into(), value: value.into(), session: session.into() }
}

/// The reply to a waiter that was granted the lock.
pub(crate) fn granted_at(at: u64, fence: u64) -> Reply {
    Reply::GrantedLater { at, fence }
}

pub(crate) fn release(key: &str, value: &str, session: &str) -> KvWrite {
    KvWrite::Release { key: key.into(), value: value.into(), session: session.into() }
}

pub(crate) fn delete(key: &str) -> KvWrite {
    KvWrite::Delete { key: key.into() }
}

pub(crate) fn destroy(session: &str) -> Write {
    Write::DestroySession(session.into())
}

pub(crate) fn granted(fence: u64) -> Reply {
    Reply::Granted { fence }
}

pub(crate) const YES: Reply = Reply::Succeeded(true);
pub(crate) const NO: Reply = Reply::Succeeded(false);

pub(crate) fn key(key: &str) -> Query {
    Query::Key(key.into())
}

/// An entry that was never locked.
pub(crate) fn seen(key: &str, value: &str, created: u64, modified: u64) -> Seen {
    Seen {
        key: key.into(),
        value: Some(value.into()),
        session: None,
        lock_index: 0,
        create_index: created,
        modify_index: modified,
    }
}

/// An entry whose lock is held, or was.
pub(crate) fn locked(seen: Seen, lock_index: u64, session: Option<&str>) -> Seen {
    Seen { lock_index, session: session.map(str::to_owned), ..seen }
}
