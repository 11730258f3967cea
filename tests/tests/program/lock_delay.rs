//! Assertions 39–41: a lock whose session ended is granted to no session for a while.
//!
//! Time is only bounded from below and compared in order: delays on a loaded machine prove nothing.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::{let_pass, number};
use lockmesh_tests::http::Client;
use serde_json::json;
use std::sync::OnceLock;

use std::time::{Duration, Instant};

/// Interval between two attempts to acquire a lock.
const BACKOFF: Duration = Duration::from_millis(20);

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Destroys a session that held `key`; returns the moment before that.
fn destroyed_holder(client: &Client, key: &str, lock_delay: &str, behavior: &str) -> Instant {
    let body = json!({"LockDelay": lock_delay, "Behavior": behavior, "NodeChecks": []});
    let holder = client.session_of(body);
    assert!(client.acquire(key, &holder));
    let before = Instant::now();
    client.destroy(&holder);
    before
}

/// Retries until the lock is acquired; each refusal must come from the delay and not from a holder.
fn acquire_at_last(client: &Client, key: &str, session: &str) -> u32 {
    let mut refusals = 0;
    while !client.acquire(key, session) {
        refusals += 1;
        let answer = client.get(&format!("/v1/kv/{key}"));
        assert!(answer.status == 404 || answer.entry().get("Session").is_none());
        let_pass(BACKOFF);
    }
    refusals
}

/// Contract: 39.
#[test]
fn destroyed_session_delays_next_holder() {
    let client = shared().client();
    for behavior in ["release", "delete"] {
        let (key, next) = (format!("a39/{behavior}"), client.session());
        let destroyed = destroyed_holder(&client, &key, "1s", behavior);
        let refusals = acquire_at_last(&client, &key, &next);
        let took = destroyed.elapsed();
        assert!(refusals > 0);
        assert!(took >= Duration::from_secs(1), "{behavior}: acquired after {took:?}");
        assert_eq!(client.holder(&key), Some(next));
    }
}

/// Contract: 39.
#[test]
fn delay_binds_owner_and_recreated_key() {
    let client = shared().client();
    destroyed_holder(&client, "a39b/key", "60s", "release");
    let next = client.session();
    assert!(!client.acquire("a39b/key", &next));
    assert!(client.delete("/v1/kv/a39b/key").is_true());
    assert!(!client.acquire("a39b/key", &next), "a key that was deleted meanwhile is not free either");
    client.get("/v1/kv/a39b/key").expect(404);
    client.set("a39b/key", "made again");
    assert!(!client.acquire("a39b/key", &next));
    assert!(client.acquire("a39b/other", &next), "another key is free");
}

/// Contract: 39.
#[test]
fn zero_delay_frees_immediately() {
    let client = shared().client();
    for behavior in ["release", "delete"] {
        let (key, next) = (format!("a39c/{behavior}"), client.session());
        destroyed_holder(&client, &key, "0s", behavior);
        assert!(client.acquire(&key, &next), "at once");
    }
}

/// Contract: 39.
#[test]
fn voluntary_release_leaves_no_delay() {
    let client = shared().client();
    let holder = client.session_of(json!({"LockDelay": "60s", "NodeChecks": []}));
    assert!(client.acquire("a39d/key", &holder));
    assert!(client.release("a39d/key", &holder));
    client.destroy(&holder);
    let next = client.session();
    assert!(client.acquire("a39d/key", &next));
}

/// Contract: 40.
#[test]
fn delay_capped_at_60_s() {
    let client = shared().client();
    let (long, short) = (client.session(), client.session());
    let destroyed = destroyed_holder(&client, "a40/long", "90s", "release");
    let created = number(&client.entry("a40/long"), "CreateIndex");
    destroyed_holder(&client, "a40/short", "60s", "release");
    assert!(!client.acquire("a40/long", &long));
    client.set("a40/long", "writing is allowed meanwhile");

    acquire_at_last(&client, "a40/short", &short);
    let took = destroyed.elapsed();
    assert!(took >= Duration::from_secs(60), "acquired after {took:?}");
    assert!(client.acquire("a40/long", &long), "a delay of at most 60 s that began earlier has ended");
    assert_eq!(number(&client.entry("a40/long"), "CreateIndex"), created);
}

/// Contract: 40.
#[test]
fn delayed_key_allows_write_and_delete() {
    let client = shared().client();
    destroyed_holder(&client, "a40b/key", "60s", "release");
    client.set("a40b/key", "written");
    assert_eq!(client.entry("a40b/key")["Value"], "d3JpdHRlbg==");
    assert!(client.delete("/v1/kv/a40b/key").is_true());
    client.get("/v1/kv/a40b/key").expect(404);
}

/// Contract: 41.
#[test]
fn transaction_reports_delay() {
    let client = shared().client();
    destroyed_holder(&client, "a41/key", "60s", "release");
    let next = client.session();
    let answer = client.txn(json!([
        {"KV": {"Verb": "set", "Key": "a41/beside", "Value": "eA=="}},
        {"KV": {"Verb": "lock", "Key": "a41/key", "Value": "eA==", "Session": next}},
    ]));
    let what = "failed to lock key \"a41/key\" due to lock delay";
    assert_eq!(answer.expect(409).json(), json!({"Results": null, "Errors": [{"OpIndex": 1, "What": what}]}));
    client.get("/v1/kv/a41/beside").expect(404);
}
