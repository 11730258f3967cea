//! A small HTTP server with keys, for tests: Consul, or Lockmesh.
//!
//! It has lists, transactions and conditional writes, and injectable faults. A hook runs after each
//! list, to change data while a migration runs.

use lockmesh_agent::go::path::cleaned;
use lockmesh_client::shape::kv::Entry;
use lockmesh_client::shape::txn::{KvOperation, Operation, TxnAnswer, TxnError, TxnResult};
use lockmesh_client::{Address, Client, Stream};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

type Hook = Box<dyn FnMut(&mut Keys) + Send>;

/// The keys of a server.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) entries: BTreeMap<String, Entry>,
    index: u64,
}

impl Keys {
    pub(crate) fn put(&mut self, key: &str, value: &[u8], flags: u64) {
        self.index += 1;
        let create_index = self.entries.get(key).map_or(self.index, |entry| entry.create_index);
        let entry = Entry {
            key: key.into(),
            value: Some(value.to_vec().into()),
            flags,
            create_index,
            modify_index: self.index,
            ..Entry::default()
        };
        self.entries.insert(key.into(), entry);
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.index += 1;
        self.entries.remove(key);
    }

    /// The values and flags.
    pub(crate) fn values(&self) -> BTreeMap<String, (Vec<u8>, u64)> {
        let value = |entry: &Entry| entry.value.as_ref().map(|value| value.0.to_vec()).unwrap_or_default();
        self.entries.iter().map(|(key, entry)| (key.clone(), (value(entry), entry.flags))).collect()
    }

    fn cas(&mut self, key: &str, value: &[u8], flags: u64, index: u64) -> bool {
        let is_same = self.entries.get(key).map_or(0, |entry| entry.modify_index) == index;
        if is_same {
            self.put(key, value, flags);
        }
        is_same
    }
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) keys: Keys,
    is_lockmesh: bool,
    /// The reply to each request, of a proxy for instance.
    pub(crate) proxy: Option<(u16, &'static str)>,
    /// The reply to each list.
    pub(crate) refusal: Option<(u16, &'static str)>,
    /// Set if lists lack entries that the token may not read. Without a token, Consul keeps that
    /// to itself.
    pub(crate) is_filtered: bool,
    pub(crate) datacenter: &'static str,
    /// The reply about the token of a request.
    pub(crate) token: (u16, &'static str),
    /// The number of lists that break off after half of their bytes.
    pub(crate) broken_lists: usize,
    /// The number of lists after which the next ones get no reply.
    pub(crate) lists_before_silence: Option<usize>,
    /// The number of names after which the next lists of names break off.
    pub(crate) broken_names: VecDeque<usize>,
    /// The maximum number of entries that a transaction may read.
    pub(crate) max_results: usize,
    /// The number of transactions that are carried out without an answer.
    pub(crate) lost_answers: usize,
    /// Runs after each list.
    pub(crate) hook: Option<Hook>,
    /// The number of transactions with writes.
    pub(crate) transactions: usize,
}

/// A server; stops when dropped.
pub(crate) struct Fake {
    world: Arc<Mutex<World>>,
    pub(crate) port: u16,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub(crate) async fn start(is_lockmesh: bool) -> Self {
        Self::with_tls(is_lockmesh, None).await
    }

    /// Starts a server with TLS, or without.
    pub(crate) async fn with_tls(is_lockmesh: bool, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let world = Arc::new(Mutex::new(World::new(is_lockmesh)));
        let shared = Arc::clone(&world);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, shared) = (tls.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, shared).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, shared).await;
                            }
                        }
                    }
                });
            }
        });
        Self { world, port, task }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panicked")
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Address::Tcp { host: "127.0.0.1".into(), port: self.port })
    }
}

/// A reply: status, body, and the number of its bytes after which the connection breaks.
type Answer = (u16, Vec<u8>, Option<usize>);

/// The status in place of a reply that never arrives.
const SILENCE: u16 = 0;

async fn serve(mut stream: impl Stream, world: Arc<Mutex<World>>) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = request(&mut stream, &mut buffer).await {
        let mut words = head.split(' ');
        let (verb, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let has_token = head.to_ascii_lowercase().contains("\r\nx-consul-token: ");
        let (answer, is_filtered) = {
            let mut world = world.lock().expect("no test panicked");
            (world.answer(verb, target, &body), world.is_filtered && has_token)
        };
        let Some((status, body, breaks_at)) = answer else { return };
        if status == SILENCE {
            std::future::pending::<()>().await;
        }
        let head = format!(
            "HTTP/1.1 {status} X\r\nX-Consul-Index: 7\r\nX-Consul-Results-Filtered-By-ACLs: {is_filtered}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        // In one piece: the second one of two would wait for the client's delayed acknowledgement.
        let reply = [head.as_bytes(), &body[..breaks_at.unwrap_or(body.len())]].concat();
        if stream.write_all(&reply).await.is_err() || breaks_at.is_some() {
            return;
        }
    }
}

/// Reads a request: head and body.
async fn request(stream: &mut impl Stream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            let whole = end + 4 + length.unwrap_or_default();
            if buffer.len() >= whole {
                let body = buffer[end + 4..whole].to_vec();
                buffer.drain(..whole);
                return Some((head, body));
            }
        }
        // A handshake of TLS.
        if buffer.first() == Some(&0x16) {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok()?;
            return None;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

impl World {
    fn new(is_lockmesh: bool) -> Self {
        let token = (401, "ACL support disabled");
        Self { is_lockmesh, max_results: 64, token, datacenter: "dc1", ..Self::default() }
    }

    /// Returns `None` to close the connection without a reply.
    fn answer(&mut self, verb: &str, target: &str, body: &[u8]) -> Option<Answer> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if let Some((status, text)) = self.proxy {
            return Some((status, text.into(), None));
        }
        match path {
            "/v1/lockmesh/locks" if self.is_lockmesh => Some((200, b"[]".to_vec(), None)),
            "/v1/lockmesh/servers" if self.is_lockmesh => {
                Some((200, b"{\"ClusterID\":\"c1\"}".to_vec(), None))
            }
            "/v1/acl/token/self" => Some((self.token.0, self.token.1.into(), None)),
            "/v1/catalog/datacenters" => Some((200, format!("[{:?}]", self.datacenter).into(), None)),
            "/v1/agent/self" => Some((200, b"{}".to_vec(), None)),
            "/v1/txn" => {
                let operations: Vec<Operation> = serde_json::from_slice(body).expect("a transaction");
                let (status, answer) = self.transaction(operations);
                if self.lost_answers > 0 {
                    self.lost_answers -= 1;
                    return None;
                }
                Some((status, serde_json::to_vec(&answer).expect("JSON"), None))
            }
            _ if cleaned(path).is_some() => Some((301, Vec::new(), None)),
            _ => Some(match path.strip_prefix("/v1/kv/") {
                Some(key) if verb == "PUT" => self.put(key, query, body),
                Some(key) => self.get(key, query),
                None => (404, b"no route".to_vec(), None),
            }),
        }
    }

    fn put(&mut self, key: &str, query: &str, body: &[u8]) -> Answer {
        let parameter =
            |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| parameter(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        let is_written = self.keys.cas(key, body, number("flags"), number("cas"));
        (200, is_written.to_string().into_bytes(), None)
    }

    fn get(&mut self, key: &str, query: &str) -> Answer {
        match self.refusal {
            Some((status, text)) => (status, text.as_bytes().to_vec(), None),
            None => self.list(key, query.contains("recurse"), query.contains("keys")),
        }
    }

    /// An entry, entries or names.
    fn list(&mut self, key: &str, recurse: bool, names: bool) -> Answer {
        let is_list = recurse || names;
        let selected = |entry: &&Entry| entry.key == key || is_list && entry.key.starts_with(key);
        let found: Vec<Entry> = self.keys.entries.values().filter(selected).cloned().collect();
        if let Some(hook) = self.hook.as_mut().filter(|_| is_list) {
            hook(&mut self.keys);
        }
        if let Some(rest) = self.lists_before_silence.as_mut().filter(|_| is_list) {
            if *rest == 0 {
                return (SILENCE, Vec::new(), None);
            }
            *rest -= 1;
        }
        if found.is_empty() {
            return (404, Vec::new(), None);
        }
        if names {
            let names: Vec<&str> = found.iter().map(|entry| entry.key.as_str()).collect();
            let json = |names: &[&str]| serde_json::to_vec(names).expect("JSON");
            // With a comma in place of the bracket.
            let breaks_at = self.broken_names.pop_front().map(|count| json(&names[..count]).len());
            return (200, json(&names), breaks_at);
        }
        let body = serde_json::to_vec(&found).expect("JSON");
        let breaks = recurse && self.broken_lists > 0;
        self.broken_lists -= usize::from(breaks);
        let breaks_at = breaks.then_some(body.len() / 2);
        (200, body, breaks_at)
    }

    fn read(&self, operations: &[KvOperation]) -> (u16, TxnAnswer) {
        if operations.len() > self.max_results {
            return (413, TxnAnswer::default());
        }
        let entry = |op: &KvOperation| {
            assert_eq!(op.verb, "get-or-empty", "a read has no other verb");
            let absent = || Entry { key: op.key.clone(), ..Entry::default() };
            let entry = self.keys.entries.get(&op.key).cloned().unwrap_or_else(absent);
            TxnResult { kv: Some(entry), ..TxnResult::default() }
        };
        (200, TxnAnswer { results: Some(operations.iter().map(entry).collect()), errors: None })
    }

    fn transaction(&mut self, operations: Vec<Operation>) -> (u16, TxnAnswer) {
        let operations: Vec<_> = operations.into_iter().filter_map(|operation| operation.kv).collect();
        if operations.iter().all(|operation| operation.verb.starts_with("get")) {
            return self.read(&operations);
        }
        self.transactions += 1;
        let index = |keys: &Keys, key: &str| keys.entries.get(key).map_or(0, |entry| entry.modify_index);
        let stale = operations.iter().enumerate().filter(|(_, op)| index(&self.keys, &op.key) != op.index);
        let errors: Vec<_> =
            stale.map(|(at, _)| TxnError { op_index: at as u32, what: "index is stale".into() }).collect();
        if !errors.is_empty() {
            return (409, TxnAnswer { results: None, errors: Some(errors) });
        }
        let mut results = Vec::new();
        for op in operations {
            match op.verb.as_str() {
                "cas" => {
                    let value = op.value.unwrap_or_default();
                    self.keys.put(&op.key, &value.0, op.flags);
                    let entry = Entry { value: None, ..self.keys.entries[&op.key].clone() };
                    results.push(TxnResult { kv: Some(entry), ..TxnResult::default() });
                }
                "delete-cas" => self.keys.delete(&op.key),
                other => panic!("a migration has no use for {other}"),
            }
        }
        (200, TxnAnswer { results: Some(results), errors: None })
    }
}
