//! Coalesced reads (single-flight): all local callers of the same blocking query with the same
//! token share one upstream request.
//!
//! Each caller keeps its own timeout, and then reads the current state. The shared read lives as
//! long as it has a caller. **Invariant:** a caller never receives a state older than the start of
//! its read, even if it joined when the reply was already on its way.

use super::context::Timer;
use super::input::CallToken;
use super::outbox::{Answered, unexpected};
use super::owner::{Effort, Owner, RequestNumber, RequestResult, SHARED_READ_WAIT, SharedReadNumber};
use super::requests::Upstream;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The query to share.
#[derive(Clone, Debug)]
pub(super) struct SharedQuery {
    /// Callers with different rights never share an answer.
    pub(super) caller: Caller,
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    pub(super) index: LogIndex,
}

impl SharedQuery {
    fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        wire::encode_into(&(&self.caller, &self.query, self.consistency, self.index), &mut key);
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

/// The upstream reads under way, each with the callers that wait for it.
#[derive(Debug, Default)]
pub(super) struct SharedReads {
    last: u64,
    reads: BTreeMap<SharedReadNumber, SharedRead>,
    /// The shared reads that can be joined.
    open: BTreeMap<Vec<u8>, SharedReadNumber>,
    /// The callers that wait, each until its deadline.
    callers: BTreeMap<CallToken, (SharedReadNumber, Time)>,
}

impl SharedReads {
    /// Returns the number of upstream requests and of callers.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.reads.len(), self.reads.values().map(|read| read.waiters.len()).sum())
    }

    /// Waits up to `wait` for an answer newer than the wanted index; then returns any answer.
    pub(super) fn join(&mut self, token: CallToken, wanted: SharedQuery, wait: Duration, up: &mut Upstream) {
        let key = wanted.key();
        let number = match self.open.get(&key) {
            Some(number) => *number,
            None => self.begin(token, wanted, key, up),
        };
        let read = self.reads.get_mut(&number).expect("what can be joined is there");
        read.waiters.insert(token);
        let until = up.cx.now + wait;
        up.cx.start_timer(until, Timer::Caller(token));
        self.callers.insert(token, (number, until));
    }

    fn begin(
        &mut self,
        first: CallToken,
        wanted: SharedQuery,
        key: Vec<u8>,
        up: &mut Upstream,
    ) -> SharedReadNumber {
        self.last += 1;
        let number = SharedReadNumber(self.last);
        let request = wanted.request(SHARED_READ_WAIT);
        // Without a deadline: each caller has its own, and the last one to leave ends it.
        let request = up.requests.begin_as(
            wanted.caller.clone(),
            Owner::SharedRead(number),
            request,
            Effort::Endless,
            up.cx,
        );
        self.open.insert(key.clone(), number);
        let waiters = BTreeSet::new();
        let read = SharedRead { wanted, key, request, begun: up.cx.now, first, waiters, is_late: false };
        self.reads.insert(number, read);
        number
    }

    /// Ends a caller's wait: it reads the current state.
    pub(super) fn stop(&mut self, token: CallToken, up: &mut Upstream) {
        let Some(wanted) = self.leave(token, up) else { return };
        let request = wanted.request(Duration::ZERO);
        up.requests.begin_as(wanted.caller, Owner::Caller(token), request, Effort::Held, up.cx);
    }

    /// Removes a caller and returns its query; the last caller to leave ends the shared read.
    pub(super) fn leave(&mut self, token: CallToken, up: &mut Upstream) -> Option<SharedQuery> {
        let (number, until) = self.callers.remove(&token)?;
        up.cx.stop_timer(until, Timer::Caller(token));
        let read = self.reads.get_mut(&number)?;
        read.waiters.remove(&token);
        let wanted = read.wanted.clone();
        // No caller is left, so the server need not park it either.
        if read.waiters.is_empty() {
            let request = read.request;
            self.close(number);
            up.requests.cancel(request, up.cx);
        }
        Some(wanted)
    }

    fn close(&mut self, number: SharedReadNumber) -> Option<SharedRead> {
        let read = self.reads.remove(&number)?;
        // A late read has no key any more, and its former key may belong to another one.
        self.open.remove(&read.key);
        Some(read)
    }

    /// Handles the reply to a shared read.
    pub(super) fn answered(&mut self, number: SharedReadNumber, result: RequestResult, up: &mut Upstream) {
        let news = match result {
            Ok(Response::Answer(answer)) => Ok(Arc::new(answer)),
            Ok(other) => Err(unexpected(&other)),
            Err(reason) => Err(reason),
        };
        let Some(read) = self.reads.get_mut(&number) else { return };
        let is_over = up.cx.now.since(read.begun) >= SHARED_READ_WAIT;
        let is_news = news.as_ref().map_or(true, |answer| answer.index > read.wanted.index);
        // The server's wait is over and the callers' waits are not, so no caller gets a reply.
        if !read.is_late && is_over && !is_news {
            return read.renew(number, SHARED_READ_WAIT, Effort::Endless, up);
        }
        // The first caller started the read. Other callers may have joined after the reply left the
        // server, so the reply is requested once more, for all of them together.
        let first = (!read.is_late).then_some(read.first).filter(|first| read.waiters.remove(first));
        // A failure is passed on unchanged, and stale reads have no age guarantee.
        let is_fresh = match read.wanted.consistency {
            Consistency::Default | Consistency::Consistent => read.is_late || news.is_err(),
            Consistency::Stale => true,
        };
        let is_requested_again = !is_fresh && !read.waiters.is_empty();
        if is_requested_again {
            // No caller may join from here on: a new caller needs an even newer answer.
            read.is_late = true;
            self.open.remove(&std::mem::take(&mut read.key));
            read.renew(number, Duration::ZERO, Effort::Held, up);
        }
        let read = if is_requested_again { None } else { self.close(number) };
        for waiter in first.into_iter().chain(read.into_iter().flat_map(|read| read.waiters)) {
            if let Some((_, until)) = self.callers.remove(&waiter) {
                up.cx.stop_timer(until, Timer::Caller(waiter));
            }
            up.cx.reply(waiter, news.clone().map(Answered::Shared));
        }
    }

    /// Lets every caller read the current state.
    pub(super) fn stop_all(&mut self, up: &mut Upstream) {
        let waiters: Vec<CallToken> =
            self.reads.values().flat_map(|read| read.waiters.iter().copied()).collect();
        for waiter in waiters {
            self.stop(waiter, up);
        }
    }
}

impl SharedRead {
    /// Sends the read again.
    fn renew(&mut self, number: SharedReadNumber, wait: Duration, effort: Effort, up: &mut Upstream) {
        let request = self.wanted.request(wait);
        let (caller, owner) = (self.wanted.caller.clone(), Owner::SharedRead(number));
        self.request = up.requests.begin_as(caller, owner, request, effort, up.cx);
        self.begun = up.cx.now;
    }
}
