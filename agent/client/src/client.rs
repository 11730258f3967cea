//! The client: one handle for everything, and what all its calls have in common.
//!
//! A call is one HTTP request. Nothing here retries: the agent does that, under one request id;
//! what outlives errors are the keepers and guards built on top.

use crate::address::Address;
use crate::clock::Clock;
use crate::connection::{Call, Download, Outgoing, Pool, Reply, Verb};
use crate::duration::format_duration;
use crate::error::Error;
use crate::outcome;
use crate::read::{Consistency, Read};
use crate::settings::Settings;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a call may take that does not block on purpose. An agent without a quorum itself tries
/// for 7 s.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How much later than its wait a blocking query may be answered, besides a sixteenth of the wait.
const BLOCKING_SLACK: Duration = Duration::from_secs(15);

/// How long a blocking query waits when nothing is said.
const DEFAULT_WAIT: Duration = Duration::from_secs(300);

/// A handle to the local agent; cheap to clone, clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Arc<Pool>,
    clock: Clock,
    /// How many tidy up behind what was dropped.
    tidying: Arc<watch::Sender<usize>>,
}

impl Client {
    /// A client of the agent at `address`. Connects when first used.
    pub fn new(address: Address) -> Self {
        Self::over(Pool::new(address), Clock::default())
    }

    /// The same, with a token to send; agents without access control ignore it.
    ///
    /// # Errors
    /// [`Error::Settings`] when the token cannot be sent in a header.
    pub fn with_token(address: Address, token: &str) -> Result<Self, Error> {
        Ok(Self::over(Pool::new(address).with_token(token)?, Clock::default()))
    }

    /// A client of the agent that the environment names: see [`Settings::from_lookup`].
    ///
    /// # Errors
    /// [`Error::Settings`] with the variable's name and what to do.
    pub fn from_env() -> Result<Self, Error> {
        let settings = Settings::from_env()?;
        match settings.token {
            Some(token) => Self::with_token(settings.address, &token),
            None => Ok(Self::new(settings.address)),
        }
    }

    /// Where the agent is.
    pub fn address(&self) -> &Address {
        self.pool.address()
    }

    /// Waits until everything is tidied up that was dropped: guards, keepers, acquisitions under
    /// way. Call it before the program ends, within a time that it can spare.
    pub async fn settled(&self) {
        // The sender is ours, so the channel cannot close.
        let _ = self.tidying.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Counts somebody who tidies up, until that is dropped.
    pub(crate) fn begin_tidying(&self) -> Tidying {
        Tidying::begin(&self.tidying)
    }

    fn over(pool: Pool, clock: Clock) -> Self {
        Self { pool: Arc::new(pool), clock, tidying: Arc::new(watch::Sender::new(0)) }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// A client whose deadlines follow tokio's clock, counted from this instant.
    #[cfg(test)]
    pub(crate) fn virtual_time(address: Address, start: tokio::time::Instant) -> Self {
        Self::over(Pool::new(address), Clock::Virtual(start))
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.pool.idle_connections()
    }

    /// Sends a request; the answer may have any status.
    pub(crate) async fn send(&self, verb: Verb, target: Target, body: Bytes) -> Result<Reply, Error> {
        let timeout = target.timeout;
        self.pool.call(Call { verb, target: target.text, body: Outgoing::Whole(body), timeout }).await
    }

    /// Sends a request whose answer or body is streamed.
    pub(crate) async fn open(&self, verb: Verb, target: Target, body: Outgoing) -> Result<Download, Error> {
        let timeout = target.timeout;
        self.pool.open(Call { verb, target: target.text, body, timeout }).await
    }

    /// Sends a write that answers 200 or fails.
    pub(crate) async fn write(&self, verb: Verb, target: Target, body: Bytes) -> Result<Reply, Error> {
        accept(self.send(verb, target, body).await?)
    }

    /// Sends a write that answers `true` or `false`.
    pub(crate) async fn verdict(&self, verb: Verb, target: Target, body: Bytes) -> Result<bool, Error> {
        let reply = self.write(verb, target, body).await?;
        self.parse(&reply)
    }

    /// Sends a read that answers 200 with JSON or fails.
    pub(crate) async fn read<T: DeserializeOwned>(&self, target: Target) -> Result<Answer<T>, Error> {
        let reply = accept(self.send(Verb::Get, target, Bytes::new()).await?)?;
        Ok(Answer::new(self.parse(&reply)?, &reply))
    }

    /// The same, where 404 without words means that there is nothing.
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

/// Somebody who tidies up, counted while this lives.
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

/// Lets a success through and sorts everything else.
pub(crate) fn accept(reply: Reply) -> Result<Reply, Error> {
    match reply.status {
        200 => Ok(reply),
        // The agent redirects to a tidied path. That would be another key, so it is not followed.
        301 => Err(Error::Refused {
            status: 301,
            text: "a key with an empty, `.` or `..` part cannot be reached over HTTP: choose another name"
                .into(),
        }),
        status => Err(Error::from_answer(status, reply.header(outcome::HEADER), reply.text())),
    }
}

/// How long a call that reads so may take.
fn timeout_of(read: &Read) -> Duration {
    if read.index == 0 {
        return CALL_TIMEOUT;
    }
    let wait = read.wait.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
    wait.saturating_add(wait / 16).saturating_add(BLOCKING_SLACK)
}

/// An answer, and what is needed to judge it or to wait for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was asked for.
    pub value: T,
    /// The index to wait behind: see [`Read::newer_than`]. 0 where the agent gives none.
    pub index: u64,
    /// Whether the server that answered knows a leader.
    pub known_leader: bool,
    /// How long ago it heard from that leader.
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

    /// The same answer about something made of the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer {
            value: change(self.value),
            index: self.index,
            known_leader: self.known_leader,
            last_contact: self.last_contact,
        }
    }
}

/// A path and a query under construction.
pub(crate) struct Target {
    text: String,
    has_query: bool,
    timeout: Duration,
}

impl Target {
    /// A path that needs no encoding.
    pub(crate) fn new(path: &str) -> Self {
        Self { text: path.to_owned(), has_query: false, timeout: CALL_TIMEOUT }
    }

    /// Adds a name to the path; its slashes stay slashes.
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

    /// Adds a parameter that is a number.
    pub(crate) fn number(self, name: &str, value: u64) -> Self {
        self.with(name, &value.to_string())
    }

    /// Adds how to read.
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

    /// Adds how long the answer may be waited for.
    pub(crate) fn waiting(self, wait: Duration) -> Self {
        let target = self.with("wait", &format_duration(wait));
        target.within(wait.saturating_add(BLOCKING_SLACK))
    }

    /// Bounds how long the answer may take.
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
    fn a_blocking_read_may_take_its_wait_and_a_little() {
        let read = Read::consistent().newer_than(7, Duration::from_secs(16));
        let target = Target::new("/v1/kv/k").read(&read);
        assert_eq!(target.text, "/v1/kv/k?consistent&index=7&wait=16s");
        assert_eq!(target.timeout, Duration::from_secs(17) + BLOCKING_SLACK);
        assert_eq!(Target::new("/x").read(&Read::stale()).text, "/x?stale");
    }
}
