//! A fake agent for tests, with keys, sessions and blocking queries in memory and injectable
//! faults.
//!
//! It runs inside the test's own runtime, so that tokio's paused clock controls both ends. It
//! implements only what the client's holds need, and is no reference for a real agent.

use crate::address::Address;
use crate::client::Client;
use crate::outcome::Outcome;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// A fault of the fake agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Replies with this status and text.
    Status(u16, &'static str),
    /// Replies with this status, outcome and text.
    Outcome(u16, Outcome, &'static str),
    /// Receives the request and never replies.
    Silence,
    /// Carries out the request, and never replies.
    DoneSilently,
    /// Carries out the request, then closes the connection without a reply.
    DoneUnheard,
}

/// A fake agent; stops when dropped.
pub(crate) struct Fake {
    folder: TempDir,
    /// The instant that its clients' clocks count from.
    started: Instant,
    world: Arc<World>,
    server: JoinHandle<()>,
}

struct World {
    state: Mutex<FakeState>,
    index: watch::Sender<u64>,
    started: Instant,
}

#[derive(Default)]
struct FakeState {
    index: u64,
    entries: BTreeMap<String, FakeEntry>,
    sessions: Vec<String>,
    made: u64,
    fence: u64,
    /// Set if the agent ignores `wait`, like Consul's agent.
    has_no_queues: bool,
    /// The instant until which the node's lease keeps sessions alive, that of its jeopardy, and an
    /// index that grows. `None` for an agent without node leases.
    node_lease: Option<(Instant, Instant, u64)>,
    delays: BTreeMap<String, Instant>,
    /// Faults with the part of the target that they match, and their remaining number of uses.
    faults: Vec<(&'static str, Fault, usize)>,
    log: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct FakeEntry {
    value: Vec<u8>,
    flags: u64,
    session: String,
    fence: u64,
    modify_index: u64,
}

struct FakeRequest {
    verb: String,
    path: String,
    query: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct FakeResponse {
    status: u16,
    headers: String,
    body: String,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listener =
            UnixListener::bind(folder.path().join("agent.sock")).expect("a socket in a fresh folder");
        let state = Mutex::new(FakeState { index: 1, ..FakeState::default() });
        let started = Instant::now();
        let world = Arc::new(World { state, index: watch::Sender::new(1), started });
        let server = tokio::spawn(serve(listener, Arc::clone(&world)));
        Self { folder, started, world, server }
    }

    /// Disables queues, as in Consul's agent.
    pub(crate) fn forget_queues(&self) {
        self.state().has_no_queues = true;
    }

    pub(crate) fn client(&self) -> Client {
        Client::virtual_time(Address::Unix(self.folder.path().join("agent.sock")), self.started)
    }

    /// Simulates an acknowledged renewal of the node lease that is valid for `promise`.
    pub(crate) fn renew_node_lease(&self, promise: Duration) {
        self.world.change(|state| {
            let now = Instant::now();
            let (.., number) = state.node_lease.unwrap_or((now, now, 0));
            state.node_lease = Some((now + promise, now + promise / 2, number + 1));
            true
        });
    }

    /// Makes the next `times` requests fail whose target contains `part`.
    pub(crate) fn fail(&self, part: &'static str, fault: Fault, times: usize) {
        self.state().faults.push((part, fault, times));
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        self.state().faults.clear();
    }

    /// Ends a session as an operator would; its keys get a lock-delay of `delay`.
    pub(crate) fn end_session(&self, session: &str, delay: Duration) {
        self.world.change(|state| state.end_session(session, delay));
    }

    pub(crate) fn delete(&self, key: &str) {
        self.world.change(|state| state.entries.remove(key).is_some());
    }

    /// Writes an entry as if a session held it; an empty session for no holder.
    pub(crate) fn write(&self, key: &str, value: &str, flags: u64, session: &str) {
        let entry = FakeEntry { value: value.into(), flags, session: session.into(), ..FakeEntry::default() };
        self.world.change(|state| state.put(key, entry));
    }

    pub(crate) fn holder(&self, key: &str) -> Option<String> {
        let session = self.state().entries.get(key)?.session.clone();
        (!session.is_empty()).then_some(session)
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.state().entries.get(key).map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
    }

    /// Returns the number of keys under a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> usize {
        self.state().entries.keys().filter(|key| key.starts_with(prefix)).count()
    }

    pub(crate) fn sessions(&self) -> usize {
        self.state().sessions.len()
    }

    /// Returns the number of requests whose verb and target contain `part`.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.state().log.iter().filter(|line| line.contains(part)).count()
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.world.state.lock().expect("no test panics while it holds this")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: UnixListener, world: Arc<World>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a listening socket accepts");
        tokio::spawn(converse(stream, Arc::clone(&world)));
    }
}

async fn converse(mut stream: UnixStream, world: Arc<World>) {
    let mut buffer = Vec::new();
    while let Some((line, request)) = receive(&mut stream, &mut buffer).await {
        let response = match world.strike(&line) {
            Some(Fault::Silence) => return std::future::pending().await,
            Some(Fault::DoneSilently) => {
                world.answer(&request).await;
                return std::future::pending().await;
            }
            Some(Fault::DoneUnheard) => {
                world.answer(&request).await;
                return;
            }
            Some(Fault::Status(status, text)) => {
                FakeResponse { status, headers: String::new(), body: text.to_owned() }
            }
            Some(Fault::Outcome(status, outcome, text)) => {
                let headers = format!("X-Lockmesh-Outcome: {}\r\n", outcome.word());
                FakeResponse { status, headers, body: text.to_owned() }
            }
            None => world.answer(&request).await,
        };
        let head = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\n", response.status, response.body.len());
        let text = format!("{head}{}\r\n{}", response.headers, response.body);
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn receive(stream: &mut UnixStream, buffer: &mut Vec<u8>) -> Option<(String, FakeRequest)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).ok()?;
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let length: usize = length.unwrap_or(0);
    while buffer.len() < end + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer[end..end + length].to_vec();
    buffer.drain(..end + length);
    let mut words = head.split(' ');
    let (verb, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let line = format!("{verb} {target}");
    Some((line, FakeRequest { verb, path: path.to_owned(), query, body }))
}

impl World {
    fn strike(&self, line: &str) -> Option<Fault> {
        let mut state = self.state.lock().expect("no test panics while it holds this");
        state.log.push(line.to_owned());
        let (_, fault, times) =
            state.faults.iter_mut().find(|(part, _, times)| *times > 0 && line.contains(part))?;
        *times -= 1;
        Some(*fault)
    }

    /// Changes the state; wakes all waiting requests if `change` returns `true`.
    fn change(&self, change: impl FnOnce(&mut FakeState) -> bool) -> bool {
        let mut state = self.state.lock().expect("no test panics while it holds this");
        state.index += 1;
        let changed = change(&mut state);
        self.index.send_replace(state.index);
        changed
    }

    async fn answer(&self, request: &FakeRequest) -> FakeResponse {
        let verdict =
            |done: bool| FakeResponse { status: 200, headers: String::new(), body: done.to_string() };
        let words = |status, body: &str| FakeResponse { status, headers: String::new(), body: body.into() };
        if let Some(key) = request.path.strip_prefix("/v1/kv/") {
            return match request.verb.as_str() {
                "GET" => self.read(key, request).await,
                "DELETE" => verdict(self.delete(key, request)),
                _ => self.put(key, request).await,
            };
        }
        let (path, id) = request.path.rsplit_once('/').expect("every path has a slash");
        match path {
            "/v1/session" => {
                let mut made = String::new();
                self.change(|state| {
                    state.made += 1;
                    made = format!("session-{}", state.made);
                    state.sessions.push(made.clone());
                    true
                });
                words(200, &format!("{{\"ID\":\"{made}\"}}"))
            }
            "/v1/session/destroy" => {
                self.change(|state| state.end_session(id, Duration::ZERO));
                verdict(true)
            }
            "/v1/session/renew" | "/v1/session/info" => {
                let known =
                    self.state.lock().expect("no test panics").sessions.iter().any(|known| known == id);
                match known {
                    true => words(200, &format!("[{{\"ID\":\"{id}\",\"Node\":\"n1\"}}]")),
                    false if path.ends_with("info") => words(200, "[]"),
                    false => words(404, "Session id not found"),
                }
            }
            "/v1/session/events" => self.session_events(id, request).await,
            _ => words(404, "Invalid URL path"),
        }
    }

    /// Returns the state of a session; with an index, once the state is newer.
    async fn session_events(&self, id: &str, request: &FakeRequest) -> FakeResponse {
        let asked: u64 = request.query.get("index").map_or(0, |text| text.parse().expect("an index"));
        let mut news = self.index.subscribe();
        loop {
            let event = self.state.lock().expect("no test panics").session_event(id, self.started);
            match event {
                None => {
                    let body = "Invalid URL path".into();
                    return FakeResponse { status: 404, headers: String::new(), body };
                }
                Some((index, body)) if index != asked => {
                    return FakeResponse { status: 200, headers: String::new(), body };
                }
                Some(_) => {
                    let _ = news.changed().await;
                }
            }
        }
    }

    async fn read(&self, key: &str, request: &FakeRequest) -> FakeResponse {
        let recurse = request.query.contains_key("recurse");
        let asked: u64 = request.query.get("index").map_or(0, |text| text.parse().expect("an index"));
        let wait =
            request.query.get("wait").map(|text| crate::duration::parse_duration(text).expect("a wait"));
        let until = Instant::now() + wait.unwrap_or(Duration::from_secs(300));
        let mut news = self.index.subscribe();
        loop {
            let (index, body) = self.state.lock().expect("no test panics").look(key, recurse);
            if asked == 0 || index > asked || Instant::now() >= until {
                let headers = format!("X-Consul-Index: {index}\r\nX-Consul-Knownleader: true\r\n");
                return FakeResponse { status: if body.is_empty() { 404 } else { 200 }, headers, body };
            }
            tokio::select! {
                _ = news.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    fn delete(&self, key: &str, request: &FakeRequest) -> bool {
        let cas: Option<u64> = request.query.get("cas").map(|text| text.parse().expect("an index"));
        self.change(|state| match (state.entries.get(key), cas) {
            (Some(entry), Some(cas)) if entry.modify_index != cas => false,
            _ => {
                state.entries.remove(key);
                true
            }
        })
    }

    /// Writes a key. An acquire with `wait` blocks until a grant is possible, in no order, unless
    /// this agent has no queues.
    async fn put(&self, key: &str, request: &FakeRequest) -> FakeResponse {
        if let (Some(session), Some(wait)) = (request.query.get("acquire"), request.query.get("wait")) {
            let until = Instant::now() + crate::duration::parse_duration(wait).expect("a wait");
            let mut news = self.index.subscribe();
            loop {
                let next = self.state.lock().expect("no test panics").worth_a_try(key, session, until);
                let Some(next) = next else { break };
                tokio::select! {
                    _ = news.changed() => {}
                    () = sleep_until(next) => {}
                }
            }
        }
        let mut response = FakeResponse { status: 200, headers: String::new(), body: String::new() };
        let done = self.change(|state| state.write(key, request, &mut response));
        if response.body.is_empty() {
            response.body = done.to_string();
        }
        response
    }
}

impl FakeState {
    fn put(&mut self, key: &str, entry: FakeEntry) -> bool {
        self.entries.insert(key.into(), FakeEntry { modify_index: self.index, ..entry });
        true
    }

    fn write(&mut self, key: &str, request: &FakeRequest, response: &mut FakeResponse) -> bool {
        let old = self.entries.get(key).cloned().unwrap_or_default();
        let flags = request.query.get("flags").map_or(0, |text| text.parse().expect("flags"));
        let new = FakeEntry { value: request.body.clone(), flags, ..old.clone() };
        if let Some(session) = request.query.get("acquire") {
            if !self.sessions.contains(session) {
                (response.status, response.body) = (500, format!("invalid session \"{session}\""));
                return false;
            }
            if let Some(until) = self.delays.get(key).filter(|until| **until > Instant::now()) {
                let left = crate::duration::format_duration(*until - Instant::now());
                write!(response.headers, "X-Lockmesh-Lock-Delay: {left}\r\n").expect("a string takes all");
                return false;
            }
            if !old.session.is_empty() && old.session != *session {
                return false;
            }
            self.fence += u64::from(old.session.is_empty());
            let fence = if old.session.is_empty() { self.fence } else { old.fence };
            write!(response.headers, "X-Lockmesh-Fence: {fence}\r\n").expect("a string takes all");
            return self.put(key, FakeEntry { session: session.clone(), fence, ..new });
        }
        if let Some(session) = request.query.get("release") {
            return old.session == *session && self.put(key, FakeEntry { session: String::new(), ..new });
        }
        match request.query.get("cas") {
            Some(cas) if old.modify_index.to_string() != *cas => false,
            _ => self.put(key, new),
        }
    }

    /// Returns the time to check again whether an acquire can be decided; `None` if it can be now.
    fn worth_a_try(&self, key: &str, session: &str, until: Instant) -> Option<Instant> {
        let now = Instant::now();
        let delay = self.delays.get(key).copied().filter(|delay| *delay > now);
        let holder = self.entries.get(key).map_or("", |entry| entry.session.as_str());
        let waits = delay.is_some() || !(holder.is_empty() || holder == session);
        let is_alive = self.sessions.iter().any(|known| known == session);
        (waits && is_alive && until > now && !self.has_no_queues)
            .then(|| delay.map_or(until, |delay| delay.min(until)))
    }

    /// Returns the session's state with its index; `None` without a node lease.
    fn session_event(&self, session: &str, started: Instant) -> Option<(u64, String)> {
        let (deadline, jeopardy_at, number) = self.node_lease?;
        let is_there = self.sessions.iter().any(|known| known == session);
        let nanoseconds = |at: Instant| at.duration_since(started).as_nanos() as u64;
        let remaining = deadline.saturating_duration_since(Instant::now());
        let state = match (is_there, remaining.is_zero()) {
            (false, _) => "lost",
            (true, true) => "suspended",
            (true, false) => "safe",
        };
        // The end of a session is newer than any earlier state.
        let index = if is_there { number } else { u64::MAX };
        let event = serde_json::json!({
            "Session": session, "State": state, "Deadline": nanoseconds(deadline),
            "JeopardyAt": nanoseconds(jeopardy_at), "RemainingMS": remaining.as_millis() as u64,
            "Reason": if is_there { "" } else { "destroyed" }, "Index": index,
        });
        Some((index, event.to_string()))
    }

    fn end_session(&mut self, session: &str, delay: Duration) -> bool {
        self.sessions.retain(|known| known != session);
        let index = self.index;
        for (key, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.session == session) {
            (entry.session, entry.modify_index) = (String::new(), index);
            self.delays.insert(key.clone(), Instant::now() + delay);
        }
        true
    }

    /// Returns the index and the JSON of a key or a prefix; empty JSON if there is none.
    fn look(&self, key: &str, recurse: bool) -> (u64, String) {
        let found: Vec<_> = self
            .entries
            .iter()
            .filter(|(name, _)| if recurse { name.starts_with(key) } else { name.as_str() == key })
            .map(|(name, entry)| {
                serde_json::json!({
                    "Key": name, "Flags": entry.flags, "Session": entry.session,
                    "Value": crate::shape::blob::encode_base64(&entry.value), "ModifyIndex": entry.modify_index,
                    "LockIndex": 1, "CreateIndex": 1, "Fence": entry.fence,
                })
            })
            .collect();
        match (found.is_empty(), recurse) {
            (true, _) => (self.index, String::new()),
            // A deletion under the prefix must be visible, and only this index certainly shows it.
            (false, true) => (self.index, serde_json::to_string(&found).expect("plain JSON")),
            (false, false) => {
                (self.entries[key].modify_index, serde_json::to_string(&found).expect("plain JSON"))
            }
        }
    }
}
