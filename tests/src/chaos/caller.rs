//! Sends the requests of a history to an agent over HTTP, and converts the replies.
//!
//! The conversion is never optimistic: a request without a reply counts as certainly not done only
//! if that is proved. Otherwise its outcome is unknown.

use crate::history::operation::{
    KvWrite, Outcome, Query, Read, Reply, Request, Seen, SessionWish, TxnStep, Write,
};
use crate::http::{Answer, Client, Connection};
use crate::ledger::base64;
use serde_json::{Value, json};
use std::io;
use std::time::Duration;

/// The wait of a blocking read.
const WATCH: &str = "30s";
/// The wait for a lock: short enough that it occasionally times out.
const WAIT: &str = "400ms";
/// Longer than an agent holds a request without a leader, and longer than a blocking read.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One connection to one agent, opened again after it breaks.
pub(super) struct Caller {
    client: Client,
    connection: Option<Connection>,
    /// `true` if reads of the newest state use `consistent`.
    pub(super) consistent: bool,
}

impl Caller {
    /// Creates a caller without a connection.
    pub(super) fn new(client: Client) -> Self {
        Self { client, connection: None, consistent: false }
    }

    /// Sends a request and waits for its reply.
    pub(super) fn ask(&mut self, request: &Request) -> Outcome {
        let (method, path, body) = self.words(request);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match self.connect() {
                Ok(connection) => connection,
                Err(error) => return Outcome::CertainlyNot(format!("no connection: {error}")),
            },
        };
        match connection.ask(method, &path, &[], body.as_bytes()) {
            Ok(answer) => {
                self.connection = Some(connection);
                outcome(request, &answer)
            }
            Err(error) => Outcome::Unknown(format!("no answer: {error}")),
        }
    }

    fn connect(&self) -> io::Result<Connection> {
        let connection = self.client.connect()?;
        connection.be_patient_for(TIMEOUT)?;
        Ok(connection)
    }

    fn words(&self, request: &Request) -> (&'static str, String, String) {
        match request {
            Request::Write(Write::Kv(write)) => kv_words(write),
            Request::Write(Write::Txn(steps)) => ("PUT", "/v1/txn".into(), txn_body(steps)),
            Request::Write(Write::CreateSession(wish)) => {
                ("PUT", "/v1/session/create".into(), session_body(wish))
            }
            Request::Write(Write::DestroySession(id)) => {
                ("PUT", format!("/v1/session/destroy/{id}"), String::new())
            }
            Request::Renew(id) => ("PUT", format!("/v1/session/renew/{id}"), String::new()),
            Request::Read(read) => self.read_words(read),
        }
    }

    fn read_words(&self, read: &Read) -> (&'static str, String, String) {
        let how = match (read.stale, self.consistent) {
            (true, _) => "&stale",
            (false, true) => "&consistent",
            (false, false) => "",
        };
        let until = read.after.map_or(String::new(), |after| format!("&index={after}&wait={WATCH}"));
        let get = |path: String| ("GET", format!("{path}{how}{until}"), String::new());
        match &read.query {
            Query::Key(key) => get(format!("/v1/kv/{key}?")),
            Query::Prefix(prefix) => get(format!("/v1/kv/{prefix}?recurse")),
            Query::Session(id) => get(format!("/v1/session/info/{id}?")),
            Query::Together(keys) => {
                let ops = keys.iter().map(|key| json!({"KV": {"Verb": "get-or-empty", "Key": key}}));
                ("PUT", format!("/v1/txn?{how}"), Value::Array(ops.collect()).to_string())
            }
        }
    }
}

fn kv_words(write: &KvWrite) -> (&'static str, String, String) {
    let put = |path: String, value: &String| ("PUT", path, value.clone());
    let delete = |path: String| ("DELETE", path, String::new());
    match write {
        KvWrite::Set { key, value } => put(format!("/v1/kv/{key}"), value),
        KvWrite::Cas { key, value, expected } => put(format!("/v1/kv/{key}?cas={expected}"), value),
        KvWrite::Acquire { key, value, session } => put(format!("/v1/kv/{key}?acquire={session}"), value),
        KvWrite::Enqueue { key, value, session } => {
            put(format!("/v1/kv/{key}?acquire={session}&wait={WAIT}"), value)
        }
        KvWrite::Leave { .. } | KvWrite::StopWaiting { .. } => {
            unreachable!("over HTTP a client leaves by hanging up")
        }
        KvWrite::Release { key, value, session } => put(format!("/v1/kv/{key}?release={session}"), value),
        KvWrite::Delete { key } => delete(format!("/v1/kv/{key}")),
        KvWrite::DeleteCas { key, expected } => delete(format!("/v1/kv/{key}?cas={expected}")),
        KvWrite::DeleteTree { prefix } => delete(format!("/v1/kv/{prefix}?recurse")),
    }
}

fn txn_body(steps: &[TxnStep]) -> String {
    let with_value =
        |verb: &str, key: &str, value: &str| json!({"Verb": verb, "Key": key, "Value": base64(value)});
    let op = |step: &TxnStep| match step {
        TxnStep::Write(KvWrite::Set { key, value }) => with_value("set", key, value),
        TxnStep::Write(KvWrite::Cas { key, value, expected }) => {
            json!({"Verb": "cas", "Key": key, "Value": base64(value), "Index": expected})
        }
        TxnStep::Write(KvWrite::Acquire { key, value, session }) => {
            json!({"Verb": "lock", "Key": key, "Value": base64(value), "Session": session})
        }
        TxnStep::Write(KvWrite::Release { key, value, session }) => {
            json!({"Verb": "unlock", "Key": key, "Value": base64(value), "Session": session})
        }
        TxnStep::Write(KvWrite::Delete { key }) => json!({"Verb": "delete", "Key": key}),
        TxnStep::Write(KvWrite::DeleteCas { key, expected }) => {
            json!({"Verb": "delete-cas", "Key": key, "Index": expected})
        }
        TxnStep::Write(KvWrite::DeleteTree { prefix }) => json!({"Verb": "delete-tree", "Key": prefix}),
        TxnStep::Write(KvWrite::Enqueue { .. } | KvWrite::Leave { .. } | KvWrite::StopWaiting { .. }) => {
            unreachable!("no transaction waits")
        }
        TxnStep::Get { key } => json!({"Verb": "get", "Key": key}),
        TxnStep::GetTree { prefix } => json!({"Verb": "get-tree", "Key": prefix}),
        TxnStep::CheckIndex { key, index } => json!({"Verb": "check-index", "Key": key, "Index": index}),
        TxnStep::CheckSession { key, session } => {
            json!({"Verb": "check-session", "Key": key, "Session": session})
        }
        TxnStep::CheckNotExists { key } => json!({"Verb": "check-not-exists", "Key": key}),
    };
    Value::Array(steps.iter().map(|step| json!({"KV": op(step)})).collect()).to_string()
}

fn session_body(wish: &SessionWish) -> String {
    let ttl = if wish.ttl_ms > 0 { format!("{}ms", wish.ttl_ms) } else { String::new() };
    json!({
        "NodeChecks": [],
        "Behavior": if wish.deletes { "delete" } else { "release" },
        "LockDelay": format!("{}ms", wish.lock_delay_ms),
        "TTL": ttl,
    })
    .to_string()
}

/// Converts a reply to an outcome.
fn outcome(request: &Request, answer: &Answer) -> Outcome {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    if answer.status >= 500 {
        return failure(request, text);
    }
    let header = |name: &str| answer.header(name).and_then(|value| value.parse().ok());
    let reply = match request {
        Request::Write(write) => write_reply(write, answer),
        Request::Renew(_) => match answer.status {
            200 => Some(Reply::Alive(true)),
            404 => Some(Reply::Alive(false)),
            _ => None,
        },
        Request::Read(read) => read_reply(read, answer),
    };
    let index = match request {
        Request::Write(_) => header("X-Lockmesh-Queued").or_else(|| header("X-Lockmesh-Index")),
        _ => header("X-Consul-Index"),
    };
    match reply {
        Some(reply) => Outcome::Answered { index, reply },
        None => Outcome::Unknown(format!("not understood: {} {text}", answer.status)),
    }
}

/// Converts a status of 500: a rejection by the state, or a missing reply. Only some texts prove
/// that nothing was done.
fn failure(request: &Request, text: String) -> Outcome {
    let is_write = matches!(request, Request::Write(_));
    if is_write && (text.starts_with("invalid session") || text.starts_with("missing session")) {
        return Outcome::Answered { index: None, reply: Reply::Refused(text) };
    }
    let certain = text == "No cluster leader"
        || text.starts_with("the server is overloaded")
        || text.starts_with("the server cannot write to its disk");
    match certain {
        true => Outcome::CertainlyNot(text),
        false => Outcome::Unknown(text),
    }
}

fn write_reply(write: &Write, answer: &Answer) -> Option<Reply> {
    match write {
        Write::CreateSession(_) => {
            let body: Value = serde_json::from_slice(&answer.body).ok()?;
            Some(Reply::Session(body["ID"].as_str()?.to_owned()))
        }
        Write::DestroySession(_) => (answer.text().trim_end() == "true").then_some(Reply::Done),
        Write::Txn(_) => {
            let body: Value = serde_json::from_slice(&answer.body).ok()?;
            match answer.status {
                200 => Some(Reply::Txn(txn_results(&body, false)?)),
                409 => {
                    let number = |error: &Value| u32::try_from(error["OpIndex"].as_u64()?).ok();
                    Some(Reply::TxnFailed(
                        body["Errors"].as_array()?.iter().map(number).collect::<Option<_>>()?,
                    ))
                }
                _ => None,
            }
        }
        Write::Kv(write) => match (answer.text().trim_end(), write) {
            ("true", KvWrite::Acquire { .. } | KvWrite::Enqueue { .. }) => {
                let fence = answer.header("X-Lockmesh-Fence")?.parse().ok()?;
                match answer.header("X-Lockmesh-Queued") {
                    None => Some(Reply::Granted { fence }),
                    Some(_) => {
                        let at = answer.header("X-Lockmesh-Index")?.parse().ok()?;
                        Some(Reply::GrantedLater { at, fence })
                    }
                }
            }
            ("false", KvWrite::Acquire { .. } | KvWrite::Enqueue { .. })
                if answer.header("X-Lockmesh-Lock-Delay").is_some() =>
            {
                Some(Reply::Delayed)
            }
            ("true", _) => Some(Reply::Succeeded(true)),
            ("false", _) => Some(Reply::Succeeded(false)),
            _ => None,
        },
    }
}

fn read_reply(read: &Read, answer: &Answer) -> Option<Reply> {
    if answer.status == 404 {
        return Some(Reply::Entries(Vec::new()));
    }
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    match &read.query {
        Query::Session(_) => Some(Reply::Alive(!body.as_array()?.is_empty())),
        Query::Together(_) => Some(Reply::Entries(txn_results(&body, true)?)),
        Query::Key(_) | Query::Prefix(_) => Some(Reply::Entries(
            body.as_array()?.iter().map(|entry| seen(entry, true)).collect::<Option<_>>()?,
        )),
    }
}

/// Returns the entries among a transaction's results. The result for an absent key has no index.
fn txn_results(body: &Value, read: bool) -> Option<Vec<Seen>> {
    let entries = body["Results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entries = entries.iter().map(|result| &result["KV"]).filter(|entry| entry["CreateIndex"] != json!(0));
    entries.map(|entry| seen(entry, read)).collect()
}

/// Returns an entry; the result of a write contains no value.
fn seen(entry: &Value, with_value: bool) -> Option<Seen> {
    let value = match entry["Value"].as_str() {
        Some(text) => Some(decode(text)?),
        None => with_value.then(String::new),
    };
    Some(Seen {
        key: entry["Key"].as_str()?.to_owned(),
        value,
        session: entry["Session"].as_str().map(str::to_owned),
        lock_index: entry["LockIndex"].as_u64()?,
        create_index: entry["CreateIndex"].as_u64()?,
        modify_index: entry["ModifyIndex"].as_u64()?,
    })
}

/// Decodes standard padded base64 of a text.
fn decode(text: &str) -> Option<String> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let digits: Vec<u32> =
            chunk.iter().map(|letter| digit(*letter).map(u32::from)).collect::<Option<_>>()?;
        let number = digits.iter().fold(0, |number, digit| number << 6 | digit) << (6 * (4 - digits.len()));
        let all = [(number >> 16) as u8, (number >> 8) as u8, number as u8];
        bytes.extend(&all[..digits.len() - 1]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_round_trip() {
        for text in ["", "a", "ab", "abc", "w17-3", "a value with spaces and ü"] {
            assert_eq!(decode(&base64(text)).as_deref(), Some(text));
        }
    }

    #[test]
    fn uncertain_failures_stay_unknown() {
        let set = Request::Write(Write::Kv(KvWrite::Set { key: "a".into(), value: "1".into() }));
        let said = |text: &str| failure(&set, text.into());
        assert!(matches!(said("No cluster leader"), Outcome::CertainlyNot(_)));
        assert!(matches!(said("No cluster leader: it is unknown whether"), Outcome::Unknown(_)));
        assert!(matches!(said("the agent is shutting down"), Outcome::Unknown(_)));
        assert!(matches!(said("invalid session \"s\""), Outcome::Answered { index: None, .. }));
    }
}
