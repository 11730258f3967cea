//! The client: one handle for all requests, and the behavior that they share.
//!
//! A call is one HTTP request. Calls are never retried here: the agent retries under one request
//! id. The session keepers and guards built on top survive transient errors.

use crate::address::Address;
use crate::clock::Clock;
use crate::connection::{Call, Download, Outgoing, Pool, Reply, Verb, Wrapper};
use crate::duration::format_duration;
use crate::error::Error;
use crate::outcome;
use crate::read::{Consistency, Read};
use crate::settings::Settings;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The timeout of a call that is not a blocking query. An agent without a quorum retries for 7 s.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The extra time that a blocking query may take, in addition to its wait plus a sixteenth of it.
const BLOCKING_EXTRA_TIME: Duration = Duration::from_secs(15);

/// The wait of a blocking query that specifies none.
const DEFAULT_WAIT_TIME: Duration = Duration::from_secs(300);

/// A handle to the local agent. It is cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Arc<Pool>,
    clock: Clock,
    /// The number of background cleanups in progress.
    tidying: Arc<watch::Sender<usize>>,
    /// The current sessions of this client's guards, keepers and pending acquisitions.
    own_sessions: Arc<Mutex<BTreeSet<String>>>,
}

impl Client {
    /// Creates a client of the agent at `address`. It connects on first use.
    pub fn new(address: Address) -> Self {
        Self::over(Pool::new(address), Clock::default())
    }

    /// Creates a client that sends a token. Agents without access control ignore it.
    ///
    /// # Errors
    /// [`Error::Settings`] if the token cannot be sent in a header.
    pub fn with_token(address: Address, token: &str) -> Result<Self, Error> {
        Ok(Self::over(Pool::new(address).with_token(token)?, Clock::default()))
    }

    /// Creates a client whose TCP connections are wrapped, for instance in TLS.
    ///
    /// # Errors
    /// [`Error::Settings`] if the token cannot be sent in a header.
    pub fn wrapped(address: Address, token: Option<&str>, wrapper: Arc<dyn Wrapper>) -> Result<Self, Error> {
        let mut pool = Pool::new(address).wrapped(wrapper);
        if let Some(token) = token {
            pool = pool.with_token(token)?;
        }
        Ok(Self::over(pool, Clock::default()))
    }

    /// Creates a client of the agent named by the environment. See [`Settings::from_lookup`].
    ///
    /// # Errors
    /// [`Error::Settings`] names the variable and the correction.
    pub fn from_env() -> Result<Self, Error> {
        let settings = Settings::from_env()?;
        match settings.token {
            Some(token) => Self::with_token(settings.address, &token),
            None => Ok(Self::new(settings.address)),
        }
    }

    /// Returns the agent's address.
    pub fn address(&self) -> &Address {
        self.pool.address()
    }

    /// Waits until dropped guards, keepers and pending acquisitions are cleaned up. Call it before
    /// the program exits, with a timeout.
    pub async fn settled(&self) {
        // This client owns the sender, so the channel cannot close.
        let _ = self.tidying.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Returns `true` if this is the current session of a guard, a keeper or a pending acquisition
    /// of this client or of a clone.
    pub fn has_session(&self, session: &str) -> bool {
        self.own_sessions().contains(session)
    }

    /// Replaces the session of a driver.
    pub(crate) fn note_session(&self, former: Option<&str>, current: Option<&str>) {
        let mut own = self.own_sessions();
        former.map(|former| own.remove(former));
        own.extend(current.map(str::to_owned));
    }

    fn own_sessions(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a background cleanup as in progress until the returned value is dropped.
    pub(crate) fn begin_tidying(&self) -> Tidying {
        Tidying::begin(&self.tidying)
    }

    fn over(pool: Pool, clock: Clock) -> Self {
        let tidying = Arc::new(watch::Sender::new(0));
        Self { pool: Arc::new(pool), clock, tidying, own_sessions: Arc::default() }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Creates a client whose deadlines follow tokio's clock, counted from `start`.
    #[cfg(test)]
    pub(crate) fn virtual_time(address: Address, start: tokio::time::Instant) -> Self {
        Self::over(Pool::new(address), Clock::Virtual(start))
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }

    /// Sends a request; the reply may have any status.
    pub(crate) async fn send(&self, verb: Verb, target: Target, body: Bytes) -> Result<Reply, Error> {
        let timeout = target.timeout;
        self.pool.call(Call { verb, target: target.text, body: Outgoing::Whole(body), timeout }).await
    }

    /// Sends a request whose body or reply is streamed.
    pub(crate) async fn open(&self, verb: Verb, target: Target, body: Outgoing) -> Result<Download, Error> {
        let timeout = target.timeout;
        self.pool.open(Call { verb, target: target.text, body, timeout }).await
    }

    /// Sends a write. Any status except 200 is an error.
    pub(crate) async fn write(&self, verb: Verb, target: Target, body: Bytes) -> Result<Reply, Error> {
        accept(self.send(verb, target, body).await?)
    }

    /// Sends a write whose reply is `true` or `false`.
    pub(crate) async fn verdict(&self, verb: Verb, target: Target, body: Bytes) -> Result<bool, Error> {
        let reply = self.write(verb, target, body).await?;
        self.parse(&reply)
    }

    /// Sends a read whose reply is 200 with JSON. Any other reply is an error.
    pub(crate) async fn read<T: DeserializeOwned>(&self, target: Target) -> Result<Answer<T>, Error> {
        let reply = accept(self.send(Verb::Get, target, Bytes::new()).await?)?;
        Ok(Answer::new(self.parse(&reply)?, &reply))
    }

    /// Sends a read, for which a 404 without a body means `None`.
    pub(crate) async fn read_some<T: DeserializeOwned>(
        &self,
        target: Target,
    ) -> Result<Answer<Option<T>>, Error> {
        let reply = self.send(Verb::Get, target, Bytes::new()).await?;
        if reply.status == 404 && reply.body.is_empty() {
            return Ok(Answer::new(None, &reply));
        }
        let reply = accept(reply)?;
        Ok(Answer::new(Some(self.parse(&reply)?), &reply))
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self, reply: &Reply) -> Result<T, Error> {
        serde_json::from_slice(&reply.body).map_err(|error| self.garbled(error.to_string()))
    }

    pub(crate) fn garbled(&self, reason: String) -> Error {
        Error::Garbled { address: self.address().clone(), reason }
    }
}

/// A background cleanup, counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct Tidying(Arc<watch::Sender<usize>>);

impl Tidying {
    fn begin(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Returns a successful reply, and turns any other into an error.
pub(crate) fn accept(reply: Reply) -> Result<Reply, Error> {
    match reply.status {
        200 => Ok(reply),
        // The agent redirects to the normalized path. That is a different key, so the client does
        // not follow it.
        301 => Err(Error::Refused {
            status: 301,
            text: "a key with an empty, `.` or `..` part cannot be reached over HTTP: choose another name"
                .into(),
        }),
        status => Err(Error::from_answer(status, reply.header(outcome::HEADER), reply.text())),
    }
}

/// Returns the timeout of a call with these read options.
fn timeout_of(read: &Read) -> Duration {
    // Without an index, an agent answers at once and ignores the wait.
    if read.index == 0 {
        return CALL_TIMEOUT;
    }
    let wait = read.wait.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT_TIME);
    // Agents extend a wait by up to a sixteenth, so that callers do not return together.
    wait.saturating_add(wait / 16).saturating_add(BLOCKING_EXTRA_TIME)
}

/// A reply with its consistency information and the index for the next blocking query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The requested value.
    pub value: T,
    /// The index for the next blocking query: see [`Read::newer_than`]. 0 if the agent returned
    /// none.
    pub index: u64,
    /// `true` if the server that replied knows a leader.
    pub known_leader: bool,
    /// The time since that server last had contact with the leader.
    pub last_contact: Duration,
}

impl<T> Answer<T> {
    pub(crate) fn new(value: T, reply: &Reply) -> Self {
        let number = |name| reply.header(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        Self {
            value,
            index: number("x-consul-index"),
            known_leader: reply.header("x-consul-knownleader") == Some("true"),
            last_contact: Duration::from_millis(number("x-consul-lastcontact")),
        }
    }

    /// Converts the value and keeps the rest.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer {
            value: change(self.value),
            index: self.index,
            known_leader: self.known_leader,
            last_contact: self.last_contact,
        }
    }
}

/// A builder for a request's path and query.
pub(crate) struct Target {
    text: String,
    has_query: bool,
    timeout: Duration,
}

impl Target {
    /// Creates a target with a path that needs no encoding.
    pub(crate) fn new(path: &str) -> Self {
        Self { text: path.to_owned(), has_query: false, timeout: CALL_TIMEOUT }
    }

    /// Appends a name to the path; its slashes are not encoded.
    pub(crate) fn name(mut self, name: &str) -> Self {
        encode(&mut self.text, name, true);
        self
    }

    /// Adds a parameter without a value.
    pub(crate) fn flag(mut self, name: &str) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.text.push_str(name);
        self
    }

    /// Adds a parameter.
    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        let mut target = self.flag(name);
        target.text.push('=');
        encode(&mut target.text, value, false);
        target
    }

    /// Adds a filter; an empty one selects everything.
    pub(crate) fn filter(self, filter: &str) -> Self {
        if filter.is_empty() { self } else { self.with("filter", filter) }
    }

    /// Adds the node to sort by; an empty one keeps the order.
    pub(crate) fn near(self, near: &str) -> Self {
        if near.is_empty() { self } else { self.with("near", near) }
    }

    /// Adds a numeric parameter.
    pub(crate) fn number(self, name: &str, value: u64) -> Self {
        self.with(name, &value.to_string())
    }

    /// Adds the parameters of the read options.
    pub(crate) fn read(self, read: &Read) -> Self {
        let mut target = match read.consistency {
            Consistency::Default => self,
            Consistency::Consistent => self.flag("consistent"),
            Consistency::Stale => self.flag("stale"),
        };
        if read.index > 0 {
            target = target.number("index", read.index);
            if let Some(wait) = read.wait {
                target = target.with("wait", &format_duration(wait));
            }
        }
        target.timeout = timeout_of(read);
        target
    }

    /// Adds a `wait` parameter and extends the timeout accordingly.
    pub(crate) fn waiting(self, wait: Duration) -> Self {
        let target = self.with("wait", &format_duration(wait));
        target.within(wait.saturating_add(BLOCKING_EXTRA_TIME))
    }

    /// Sets the timeout of the call.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

fn encode(target: &mut String, text: &str, keep_slashes: bool) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || (keep_slashes && byte == b'/') {
            target.push(char::from(byte));
        } else {
            write!(target, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_parameters_are_encoded() {
        let target = Target::new("/v1/kv/").name("a b/ç+%").flag("recurse").with("separator", "/&");
        assert_eq!(target.text, "/v1/kv/a%20b/%C3%A7%2B%25?recurse&separator=%2F%26");
    }

    #[test]
    fn blocking_read_timeout_includes_wait() {
        let read = Read::consistent().newer_than(7, Duration::from_secs(16));
        let target = Target::new("/v1/kv/k").read(&read);
        assert_eq!(target.text, "/v1/kv/k?consistent&index=7&wait=16s");
        assert_eq!(target.timeout, Duration::from_secs(17) + BLOCKING_EXTRA_TIME);
        assert_eq!(Target::new("/x").read(&Read::stale()).text, "/x?stale");
    }
}
