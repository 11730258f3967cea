//! What the tests say over and over in Consul's dialect: make a session, take a lock, read an
//! entry, watch.
//!
//! Every function panics where the server does not do the obvious; a test of the unobvious asks the
//! client itself.

use crate::http::{Answer, Client};
use serde_json::{Value, json};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

impl Client {
    /// A session without checks, TTL or lock-delay: one that ends only when it is destroyed.
    pub fn session(&self) -> String {
        self.session_of(json!({"LockDelay": "0s", "NodeChecks": []}))
    }

    /// A session of this body.
    #[track_caller]
    pub fn session_of(&self, body: Value) -> String {
        let answer = self.put("/v1/session/create", body.to_string()).expect(200).json();
        answer["ID"].as_str().expect("a created session has an id").to_owned()
    }

    /// Ends a session.
    #[track_caller]
    pub fn destroy(&self, session: &str) {
        self.put(&format!("/v1/session/destroy/{session}"), "").expect(200);
    }

    /// The session, if it lives.
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

    /// Tries to take a lock.
    #[track_caller]
    pub fn acquire(&self, key: &str, session: &str) -> bool {
        self.put(&format!("/v1/kv/{key}?acquire={session}"), "held").is_true()
    }

    /// Tries to give a lock back.
    #[track_caller]
    pub fn release(&self, key: &str, session: &str) -> bool {
        self.put(&format!("/v1/kv/{key}?release={session}"), "free").is_true()
    }

    /// The entry of a key that must be there.
    #[track_caller]
    pub fn entry(&self, key: &str) -> Value {
        self.get(&format!("/v1/kv/{key}")).entry()
    }

    /// The session that holds a key that must be there.
    #[track_caller]
    pub fn holder(&self, key: &str) -> Option<String> {
        self.entry(key)["Session"].as_str().map(str::to_owned)
    }

    /// Applies a transaction.
    pub fn txn(&self, operations: Value) -> Answer {
        self.put("/v1/txn", operations.to_string())
    }

    /// Asks in a thread of its own.
    pub fn watch(&self, path: &str) -> Watch {
        let (client, path) = (self.clone(), path.to_owned());
        let begun = Instant::now();
        Watch(thread::spawn(move || {
            let answer = client.get(&path);
            (answer, begun.elapsed())
        }))
    }
}

/// A blocking query on its way.
pub struct Watch(JoinHandle<(Answer, Duration)>);

impl Watch {
    /// Waits for the answer.
    #[track_caller]
    pub fn answer(self) -> Answer {
        self.timed_answer().0
    }

    /// Waits for the answer; with the time from before the query was sent.
    #[track_caller]
    pub fn timed_answer(self) -> (Answer, Duration) {
        self.0.join().expect("the query has an answer")
    }
}

impl Answer {
    /// Whether a 200 says `true`; it must say one or the other.
    #[track_caller]
    pub fn is_true(self) -> bool {
        match self.expect(200).json() {
            Value::Bool(truth) => truth,
            other => panic!("neither true nor false: {other}"),
        }
    }

    /// The single entry of a 200.
    #[track_caller]
    pub fn entry(self) -> Value {
        let mut entries = self.expect(200).json();
        let entries = entries.as_array_mut().expect("entries come as an array");
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    /// The answer's list of keys, of whatever holds a `Key` or is a string.
    #[track_caller]
    pub fn keys(self) -> Vec<String> {
        let list = self.expect(200).json();
        let keys = list.as_array().expect("a list").iter();
        let name = |item: &Value| item.as_str().or_else(|| item["Key"].as_str()).map(str::to_owned);
        keys.map(|item| name(item).expect("a key")).collect()
    }

    /// Fails unless all headers that a query's answer must carry are there, spelled as clients know
    /// them.
    #[track_caller]
    pub fn expect_meta(self) -> Self {
        assert!(self.index() >= 1, "{self:?}");
        assert_eq!(self.header("X-Consul-Knownleader"), Some("true"), "{self:?}");
        let contact = self.header("X-Consul-Lastcontact").expect("X-Consul-Lastcontact is there");
        contact.parse::<u64>().expect("X-Consul-Lastcontact is a number");
        self
    }
}

/// A field that must be a whole number.
#[track_caller]
pub fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} is no whole number in {value}"))
}

/// Lets time pass: between two attempts, where the passing of time is itself the subject, or to
/// make it likely that a query is waiting already. A test must hold however long this takes, and
/// whatever has happened after it.
pub fn let_pass(time: Duration) {
    thread::sleep(time);
}
