//! A small HTTP server with keys, for tests: Consul, or Lockmesh.
//!
//! It has lists, transactions and conditional writes, and injectable faults. A hook runs after each
//! list of keys, to change data while a migration runs.

use lockmesh_client::shape::kv::Entry;
use lockmesh_client::shape::txn::{Operation, TxnAnswer, TxnError, TxnResult};
use lockmesh_client::{Address, Client};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

type Hook = Box<dyn FnMut(&mut Keys) + Send>;

/// The keys of a server.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) entries: BTreeMap<String, Entry>,
    index: u64,
}

impl Keys {
    pub(super) fn put(&mut self, key: &str, value: &[u8], flags: u64) {
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

    pub(super) fn delete(&mut self, key: &str) {
        self.index += 1;
        self.entries.remove(key);
    }

    /// The values and flags.
    pub(super) fn values(&self) -> BTreeMap<String, (Vec<u8>, u64)> {
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
pub(super) struct World {
    pub(super) keys: Keys,
    is_lockmesh: bool,
    /// The reply to each list.
    pub(super) refusal: Option<(u16, &'static str)>,
    /// The number of lists that break off after half of their bytes.
    pub(super) broken_lists: usize,
    /// The number of transactions that are carried out without an answer.
    pub(super) lost_answers: usize,
    /// Runs after each list.
    pub(super) hook: Option<Hook>,
    pub(super) transactions: usize,
}

/// A server; stops when dropped.
pub(super) struct Fake {
    world: Arc<Mutex<World>>,
    pub(super) port: u16,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub(super) async fn start(is_lockmesh: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let world = Arc::new(Mutex::new(World { is_lockmesh, ..World::default() }));
        let shared = Arc::clone(&world);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self { world, port, task }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panicked")
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Address::Tcp { host: "127.0.0.1".into(), port: self.port })
    }
}

/// A reply: status, body, and if the connection breaks in the middle of it.
type Answer = (u16, Vec<u8>, bool);

async fn serve(mut stream: TcpStream, world: Arc<Mutex<World>>) {
    let mut buffer = Vec::new();
    while let Some((verb, target, body)) = request(&mut stream, &mut buffer).await {
        let answer = world.lock().expect("no test panicked").answer(&verb, &target, &body);
        let Some((status, body, breaks)) = answer else { return };
        let head =
            format!("HTTP/1.1 {status} X\r\nX-Consul-Index: 7\r\nContent-Length: {}\r\n\r\n", body.len());
        let sent = if breaks { &body[..body.len() / 2] } else { &body[..] };
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(sent).await.is_err() || breaks
        {
            return;
        }
    }
}

/// Reads a request: verb, target and body.
async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, String, Vec<u8>)> {
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
                let mut words = head.split(' ');
                return Some((words.next()?.into(), words.next()?.into(), body));
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

impl World {
    /// Returns `None` to close the connection without a reply.
    fn answer(&mut self, verb: &str, target: &str, body: &[u8]) -> Option<Answer> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parameter =
            |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| parameter(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        match path {
            "/v1/lockmesh/locks" if self.is_lockmesh => Some((200, b"[]".to_vec(), false)),
            "/v1/lockmesh/servers" if self.is_lockmesh => {
                Some((200, b"{\"ClusterID\":\"c1\"}".to_vec(), false))
            }
            "/v1/agent/self" => Some((200, b"{}".to_vec(), false)),
            "/v1/txn" => {
                let operations: Vec<Operation> = serde_json::from_slice(body).expect("a transaction");
                self.transactions += 1;
                let (status, answer) = self.transaction(operations);
                if self.lost_answers > 0 {
                    self.lost_answers -= 1;
                    return None;
                }
                Some((status, serde_json::to_vec(&answer).expect("JSON"), false))
            }
            _ => {
                let Some(key) = path.strip_prefix("/v1/kv/") else {
                    return Some((404, b"no route".to_vec(), false));
                };
                if verb == "PUT" {
                    let is_written = self.keys.cas(key, body, number("flags"), number("cas"));
                    return Some((200, is_written.to_string().into_bytes(), false));
                }
                if let Some((status, text)) = self.refusal {
                    return Some((status, text.as_bytes().to_vec(), false));
                }
                let is_list = query.contains("recurse");
                let selected = |entry: &&Entry| entry.key == key || is_list && entry.key.starts_with(key);
                let found: Vec<Entry> = self.keys.entries.values().filter(selected).cloned().collect();
                if let Some(hook) = self.hook.as_mut().filter(|_| is_list) {
                    hook(&mut self.keys);
                }
                let breaks = is_list && self.broken_lists > 0;
                self.broken_lists -= usize::from(breaks);
                match found.is_empty() {
                    true => Some((404, Vec::new(), false)),
                    false => Some((200, serde_json::to_vec(&found).expect("JSON"), breaks)),
                }
            }
        }
    }

    fn transaction(&mut self, operations: Vec<Operation>) -> (u16, TxnAnswer) {
        let operations: Vec<_> = operations.into_iter().filter_map(|operation| operation.kv).collect();
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
