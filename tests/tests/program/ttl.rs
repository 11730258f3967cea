//! Assertion 43: a session that is not renewed ends, but not early.
//!
//! The deadline is twice the TTL, as existing clients expect. Time is only bounded from below; that
//! an end is not late is tested in virtual time on the core.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::http::Client;
use serde_json::json;
use std::sync::OnceLock;

use std::time::{Duration, Instant};

/// A server that accepts short TTLs, so that tests need not wait long.
fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &["--session-ttl-min", "1s"])
}

/// Waits, without polling, until the session has ended.
fn wait_for_end(client: &Client, session: &str) {
    let mut index = 0;
    loop {
        let answer = client.get(&format!("/v1/session/info/{session}?index={index}&wait=60s")).expect(200);
        if answer.json() == json!([]) {
            return;
        }
        index = answer.index();
    }
}

/// Creates a session with this TTL that is never renewed, and waits for its end.
fn lives_for(client: &Client, ttl: &str) -> Duration {
    let begun = Instant::now();
    let session = client.session_of(json!({"TTL": ttl, "NodeChecks": []}));
    wait_for_end(client, &session);
    begun.elapsed()
}

/// Contract: 43.
#[test]
fn ten_second_ttl_expires_after_twenty() {
    let server = Dev::start(&[]);
    let lived = lives_for(&server.client(), "10s");
    assert!(lived >= Duration::from_secs(20), "ended after {lived:?}");
}

/// Contract: 43.
#[test]
fn short_ttl_expires_after_double_time() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    for (ttl, least) in [("1s", 2000), ("1500ms", 3000), ("2.0s", 4000)] {
        let lived = lives_for(&server.client(), ttl);
        assert!(lived >= Duration::from_millis(least), "TTL {ttl} ended after {lived:?}");
    }
}

/// Contract: 43.
#[test]
fn renewal_restarts_full_ttl() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let session = client.session_of(json!({"TTL": "3s", "NodeChecks": []}));
    let begun = Instant::now();
    let mut renewed = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        renewed = Instant::now();
        client.put(&format!("/v1/session/renew/{session}"), "").expect(200);
        let_pass(Duration::from_millis(500));
    }
    wait_for_end(&client, &session);
    let lived = renewed.elapsed();
    assert!(lived >= Duration::from_secs(6), "ended {lived:?} after its last renewal");
    client.put(&format!("/v1/session/renew/{session}"), "").expect(404);
}

/// Contract: 36.
#[test]
fn expired_session_frees_lock_after_delay() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let next = client.session();
    for behavior in ["release", "delete"] {
        let key = format!("a36/ttl/{behavior}");
        let begun = Instant::now();
        let body = json!({"TTL": "1s", "LockDelay": "2s", "Behavior": behavior, "NodeChecks": []});
        let session = client.session_of(body);
        assert!(client.acquire(&key, &session));
        let index = client.get(&format!("/v1/kv/{key}")).index();
        let after = client.get(&format!("/v1/kv/{key}?index={index}&wait=60s"));
        assert!(after.index() > index, "{after:?}");
        match behavior {
            "release" => assert_eq!(after.entry().get("Session"), None),
            _ => assert_eq!(after.status, 404),
        }
        assert!(begun.elapsed() >= Duration::from_secs(2), "freed after {:?}", begun.elapsed());
        while !client.acquire(&key, &next) {
            let_pass(Duration::from_millis(20));
        }
        assert!(begun.elapsed() >= Duration::from_secs(4), "acquired after {:?}", begun.elapsed());
    }
}
