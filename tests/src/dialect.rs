//! Shared steps in Consul's dialect: create a session, acquire a lock, read an entry, watch.
//!
//! Every function panics on an unexpected response. A test of such responses uses the client
//! directly.

use crate::http::{Answer, Client};
use serde_json::{Value, json};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

impl Client {
    /// Creates a session without checks, TTL or lock-delay; it ends only when destroyed.
    pub fn session(&self) -> String {
        self.session_of(json!({"LockDelay": "0s", "NodeChecks": []}))
    }

    /// Creates a session from this request body.
    #[track_caller]
    pub fn session_of(&self, body: Value) -> String {
        let answer = self.put("/v1/session/create", body.to_string()).expect(200).json();
        answer["ID"].as_str().expect("a created session has an id").to_owned()
    }

    /// Destroys a session.
    #[track_caller]
    pub fn destroy(&self, session: &str) {
        self.put(&format!("/v1/session/destroy/{session}"), "").expect(200);
    }

    /// Returns the session, if it exists.
    #[track_caller]
    pub fn session_info(&self, session: &str) -> Option<Value> {
        let answer = self.get(&format!("/v1/session/info/{session}")).expect(200).json();
        answer.as_array().expect("session info is an array").first().cloned()
    }

    /// Writes a key.
    #[track_caller]
    pub fn set(&self, key: &str, value: &str) {
        assert!(self.put(&format!("/v1/kv/{key}"), value).is_true());
    }

    /// Tries to acquire a lock.
    #[track_caller]
    pub fn acquire(&self, key: &str, session: &str) -> bool {
        self.put(&format!("/v1/kv/{key}?acquire={session}"), "held").is_true()
    }

    /// Tries to release a lock.
    #[track_caller]
    pub fn release(&self, key: &str, session: &str) -> bool {
        self.put(&format!("/v1/kv/{key}?release={session}"), "free").is_true()
    }

    /// Returns the entry of a key that must exist.
    #[track_caller]
    pub fn entry(&self, key: &str) -> Value {
        self.get(&format!("/v1/kv/{key}")).entry()
    }

    /// Returns the session that holds a key, which must exist.
    #[track_caller]
    pub fn holder(&self, key: &str) -> Option<String> {
        self.entry(key)["Session"].as_str().map(str::to_owned)
    }

    /// Applies a transaction.
    pub fn txn(&self, operations: Value) -> Answer {
        self.put("/v1/txn", operations.to_string())
    }

    /// Sends a query from a separate thread.
    pub fn watch(&self, path: &str) -> Watch {
        let (client, path) = (self.clone(), path.to_owned());
        let begun = Instant::now();
        Watch(thread::spawn(move || {
            let answer = client.get(&path);
            (answer, begun.elapsed())
        }))
    }
}

/// A blocking query in progress.
pub struct Watch(JoinHandle<(Answer, Duration)>);

impl Watch {
    /// Waits for the response.
    #[track_caller]
    pub fn answer(self) -> Answer {
        self.timed_answer().0
    }

    /// Waits for the response. Returns it with the time since before the query was sent.
    #[track_caller]
    pub fn timed_answer(self) -> (Answer, Duration) {
        self.0.join().expect("the query has an answer")
    }
}

impl Answer {
    /// Returns the boolean of a 200 response; any other body panics.
    #[track_caller]
    pub fn is_true(self) -> bool {
        match self.expect(200).json() {
            Value::Bool(truth) => truth,
            other => panic!("neither true nor false: {other}"),
        }
    }

    /// Returns the single entry of a 200 response.
    #[track_caller]
    pub fn entry(self) -> Value {
        let mut entries = self.expect(200).json();
        let entries = entries.as_array_mut().expect("entries come as an array");
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    /// Returns the keys of the response; elements are strings or objects with a `Key`.
    #[track_caller]
    pub fn keys(self) -> Vec<String> {
        let list = self.expect(200).json();
        let keys = list.as_array().expect("a list").iter();
        let name = |item: &Value| item.as_str().or_else(|| item["Key"].as_str()).map(str::to_owned);
        keys.map(|item| name(item).expect("a key")).collect()
    }

    /// Fails unless all headers required on a query's response are present, with the spelling that
    /// clients know.
    #[track_caller]
    pub fn expect_meta(self) -> Self {
        assert!(self.index() >= 1, "{self:?}");
        assert_eq!(self.header("X-Consul-Knownleader"), Some("true"), "{self:?}");
        let contact = self.header("X-Consul-Lastcontact").expect("X-Consul-Lastcontact is there");
        contact.parse::<u64>().expect("X-Consul-Lastcontact is a number");
        self
    }
}

/// Returns a field that must be an unsigned integer.
#[track_caller]
pub fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} is not an unsigned integer in {value}"))
}

/// Sleeps: between two attempts, when the passing of time is the subject, or to make it likely that
/// a query is already waiting. A test must pass however long the sleep takes.
pub fn let_pass(time: Duration) {
    thread::sleep(time);
}
