//! Coalesced reads (single-flight): all local callers of the same blocking query share one upstream
//! request.
//!
//! Each caller keeps its own timeout, and then reads the current state. The shared read lives as
//! long as it has a caller. **Invariant:** a caller never receives a state older than the start of
//! its read, even if it joined when the reply was already on its way.

use super::input::CallToken;
use super::outbox::{Answered, unexpected};
use super::owner::{Effort, Owner, RequestNumber, SHARED_READ_WAIT, SharedReadNumber};
use super::{Caller, QuorumClient, Timer};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The query to share.
#[derive(Clone, Debug)]
pub(super) struct SharedQuery {
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    pub(super) index: LogIndex,
}

impl SharedQuery {
    fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        wire::encode_into(&(&self.query, self.consistency, self.index), &mut key);
        key
    }

    /// Returns the request for a server. A caller whose wait is over still sends its index, so that
    /// its index does not go back.
    pub(super) fn request(&self, wait: Duration) -> Request {
        let blocking = Some(Blocking { index: self.index, wait });
        Request::Read { query: self.query.clone(), consistency: self.consistency, blocking }
    }
}

#[derive(Debug)]
struct SharedRead {
    wanted: SharedQuery,
    /// The key under which it can be joined, while it can.
    key: Vec<u8>,
    request: RequestNumber,
    /// The start of its request.
    begun: Time,
    /// The caller that started it.
    first: CallToken,
    /// In order of joining.
    waiters: BTreeSet<CallToken>,
    /// `true` once the reply is requested again for the callers that joined later.
    is_late: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct SharedReads {
    last: u64,
    reads: BTreeMap<SharedReadNumber, SharedRead>,
    /// The shared reads that can be joined.
    open: BTreeMap<Vec<u8>, SharedReadNumber>,
}

impl SharedReads {
    /// Returns the number of upstream requests and of callers.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.reads.len(), self.reads.values().map(|read| read.waiters.len()).sum())
    }
}

impl QuorumClient {
    /// Waits up to `wait` for an answer newer than the wanted index; then returns any answer.
    pub(super) fn join_shared_read(&mut self, token: CallToken, wanted: SharedQuery, wait: Duration) {
        let key = wanted.key();
        let number = match self.shared_reads.open.get(&key) {
            Some(number) => *number,
            None => self.begin_shared_read(token, wanted, key),
        };
        let read = self.shared_reads.reads.get_mut(&number).expect("what can be joined is there");
        read.waiters.insert(token);
        let until = self.now + wait;
        self.timers.insert((until, Timer::Caller(token)));
        self.callers.insert(token, Caller::SharedRead { number, until });
    }

    fn begin_shared_read(&mut self, first: CallToken, wanted: SharedQuery, key: Vec<u8>) -> SharedReadNumber {
        self.shared_reads.last += 1;
        let number = SharedReadNumber(self.shared_reads.last);
        let request = wanted.request(SHARED_READ_WAIT);
        // Without a deadline: each caller has its own, and the last one to leave ends it.
        let request = self.begin(Owner::SharedRead(number), request, Effort::Endless);
        self.shared_reads.open.insert(key.clone(), number);
        let waiters = BTreeSet::new();
        let read = SharedRead { wanted, key, request, begun: self.now, first, waiters, is_late: false };
        self.shared_reads.reads.insert(number, read);
        number
    }

    /// Ends a caller's wait: it reads the current state.
    pub(super) fn stop_sharing(&mut self, token: CallToken) {
        let Some(wanted) = self.leave_shared_read(token) else { return };
        self.read_once(token, wanted.request(Duration::ZERO));
    }

    /// Reads the current state.
    pub(super) fn read_once(&mut self, token: CallToken, request: Request) {
        let number = self.begin(Owner::Caller(token), request, Effort::Held);
        self.callers.insert(token, Caller::Request(number));
    }

    /// Removes a caller and returns its query; the last caller to leave ends the shared read.
    pub(super) fn leave_shared_read(&mut self, token: CallToken) -> Option<SharedQuery> {
        let Some(&Caller::SharedRead { number, until }) = self.callers.get(&token) else { return None };
        self.callers.remove(&token);
        self.timers.remove(&(until, Timer::Caller(token)));
        let read = self.shared_reads.reads.get_mut(&number)?;
        read.waiters.remove(&token);
        let wanted = read.wanted.clone();
        // No caller is left, so the server need not park it either.
        if read.waiters.is_empty() {
            let request = read.request;
            self.close_shared_read(number);
            self.cancel(request);
        }
        Some(wanted)
    }

    fn close_shared_read(&mut self, number: SharedReadNumber) -> Option<SharedRead> {
        let read = self.shared_reads.reads.remove(&number)?;
        // A late read has no key any more, and its former key may belong to another one.
        self.shared_reads.open.remove(&read.key);
        Some(read)
    }

    /// Handles the reply to a shared read.
    pub(super) fn shared_read_answered(
        &mut self,
        number: SharedReadNumber,
        result: Result<Response, Unavailable>,
    ) {
        let news = match result {
            Ok(Response::Answer(answer)) => Ok(Arc::new(answer)),
            Ok(other) => Err(unexpected(&other)),
            Err(reason) => Err(reason),
        };
        let Some(read) = self.shared_reads.reads.get_mut(&number) else { return };
        let is_over = self.now.since(read.begun) >= SHARED_READ_WAIT;
        let is_news = news.as_ref().map_or(true, |answer| answer.index > read.wanted.index);
        // The server's wait is over and the callers' waits are not, so no caller gets a reply.
        if !read.is_late && is_over && !is_news {
            let request = read.wanted.request(SHARED_READ_WAIT);
            return self.renew_shared_read(number, request, Effort::Endless);
        }
        // The first caller started the read. Other callers may have joined after the reply left the
        // server, so the reply is requested once more, for all of them together.
        let first = (!read.is_late).then_some(read.first);
        if let Some(first) = first
            && read.waiters.remove(&first)
        {
            self.tell_waiter(first, news.clone());
        }
        self.tell_late_waiters(number, news);
    }

    fn tell_late_waiters(&mut self, number: SharedReadNumber, news: Result<Arc<Answer>, Unavailable>) {
        let Some(read) = self.shared_reads.reads.get_mut(&number) else { return };
        // A failure is passed on unchanged, and stale reads have no age guarantee.
        let is_fresh = match read.wanted.consistency {
            Consistency::Default | Consistency::Consistent => read.is_late || news.is_err(),
            Consistency::Stale => true,
        };
        if !is_fresh && !read.waiters.is_empty() {
            // No caller may join from here on: a new caller needs an even newer answer.
            read.is_late = true;
            let request = read.wanted.request(Duration::ZERO);
            let key = std::mem::take(&mut read.key);
            self.shared_reads.open.remove(&key);
            return self.renew_shared_read(number, request, Effort::Held);
        }
        let Some(read) = self.close_shared_read(number) else { return };
        for waiter in read.waiters {
            self.tell_waiter(waiter, news.clone());
        }
    }

    fn renew_shared_read(&mut self, number: SharedReadNumber, request: Request, effort: Effort) {
        let request = self.begin(Owner::SharedRead(number), request, effort);
        if let Some(read) = self.shared_reads.reads.get_mut(&number) {
            (read.request, read.begun) = (request, self.now);
        }
    }

    fn tell_waiter(&mut self, token: CallToken, news: Result<Arc<Answer>, Unavailable>) {
        if let Some(Caller::SharedRead { until, .. }) = self.callers.remove(&token) {
            self.timers.remove(&(until, Timer::Caller(token)));
        }
        self.outbox.answers.push((token, news.map(Answered::Shared)));
    }

    /// Lets every caller read the current state.
    pub(super) fn stop_all_sharing(&mut self) {
        let waiters: Vec<CallToken> =
            self.shared_reads.reads.values().flat_map(|read| read.waiters.iter().copied()).collect();
        for waiter in waiters {
            self.stop_sharing(waiter);
        }
    }
}
