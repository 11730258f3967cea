//! Contract 19–26: acquiring and releasing locks. The numbers are those of `tests/contract.md`.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::number;
use serde_json::{Value, json};
use std::sync::{Barrier, OnceLock};

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Contract: 19.
#[test]
fn only_holder_reacquires() {
    let server = shared();
    let client = server.client();
    let (holder, other) = (client.session(), client.session());
    assert!(client.put(&format!("/v1/kv/a19/key?acquire={holder}&flags=7"), "mine").is_true());
    let held = client.entry("a19/key");
    assert_eq!(number(&held, "LockIndex"), 1);
    assert_eq!(held["Session"], json!(holder));
    assert_eq!(number(&held, "Flags"), 7);

    let again = format!("/v1/kv/a19/key?acquire={holder}&flags=7");
    assert!(client.put(&again, "mine").is_true());
    assert_eq!(client.entry("a19/key"), held, "acquiring it again with the same value changes nothing");
    assert!(client.put(&again, "new").is_true());
    let updated = client.entry("a19/key");
    assert_eq!(number(&updated, "LockIndex"), 1);
    assert_eq!(updated["Value"], "bmV3");
    assert!(number(&updated, "ModifyIndex") > number(&held, "ModifyIndex"));

    assert!(!client.acquire("a19/key", &other));
    assert_eq!(client.entry("a19/key"), updated, "a refused acquire leaves the entry untouched");
}

/// Contract: 20.
#[test]
fn only_holder_releases() {
    let client = shared().client();
    let (holder, other) = (client.session(), client.session());
    assert!(!client.release("a20/absent", &holder));
    client.get("/v1/kv/a20/absent").expect(404);
    client.set("a20/unlocked", "x");
    assert!(!client.release("a20/unlocked", &holder));

    assert!(client.acquire("a20/key", &holder));
    let held = client.entry("a20/key");
    assert!(!client.release("a20/key", &other));
    assert_eq!(client.entry("a20/key"), held);

    assert!(client.put(&format!("/v1/kv/a20/key?release={holder}&flags=9"), "bye").is_true());
    let released = client.entry("a20/key");
    assert_eq!(released.get("Session"), None, "{released}");
    assert_eq!(number(&released, "LockIndex"), 1);
    assert_eq!(released["Value"], "Ynll");
    assert_eq!(number(&released, "Flags"), 9);
    assert!(!client.release("a20/key", &holder), "it is free already");
}

/// Contract: 20.
#[test]
fn empty_release_clears_value_and_flags() {
    let client = shared().client();
    let holder = client.session();
    assert!(client.put(&format!("/v1/kv/a20b/key?acquire={holder}&flags=9"), "mine").is_true());
    assert!(client.put(&format!("/v1/kv/a20b/key?release={holder}"), "").is_true());
    let released = client.entry("a20b/key");
    assert_eq!(released["Value"], Value::Null);
    assert_eq!(number(&released, "Flags"), 0);
}

/// Contract: 21.
#[test]
fn each_acquisition_raises_lock_index() {
    let client = shared().client();
    let (one, two) = (client.session(), client.session());
    for (turn, session) in [&one, &two, &one, &one].into_iter().enumerate() {
        assert!(client.acquire("a21/key", session));
        assert_eq!(number(&client.entry("a21/key"), "LockIndex"), turn as u64 + 1);
        assert!(client.release("a21/key", session));
        assert_eq!(number(&client.entry("a21/key"), "LockIndex"), turn as u64 + 1);
    }
}

/// Contract: 22.
#[test]
fn unknown_session_cannot_lock() {
    let server = shared();
    let client = server.client();
    let unknown = "adf4238a-882b-9ddc-4a9d-5b6758e4159e";
    let answer = client.put(&format!("/v1/kv/a22/key?acquire={unknown}"), "x");
    let answer = answer.expect_text(500, &format!("invalid session \"{unknown}\""));
    assert!(
        answer.text().starts_with("invalid session"),
        "clients match the start of the message: {answer:?}"
    );
    for verb in ["acquire", "release"] {
        client.put(&format!("/v1/kv/a22/key?{verb}="), "x").expect_text(500, "missing session");
    }
    client.get("/v1/kv/a22/key").expect(404);

    let holder = client.session();
    assert!(client.acquire("a22/held", &holder));
    assert!(!client.release("a22/held", unknown));
    if !server.is_foreign() {
        assert!(!client.release("a22/held", "no-uuid"), "a malformed id is merely unknown");
        client.put("/v1/kv/a22/key?acquire=no-uuid", "x").expect_text(500, "invalid session");
    }
    assert_eq!(client.holder("a22/held"), Some(holder));
}

/// Contract: 23.
#[test]
fn plain_write_keeps_lock() {
    let server = shared();
    let client = server.client();
    let holder = client.session();
    assert!(client.acquire("a23/key", &holder));
    client.set("a23/key", "by another client");
    let entry = client.entry("a23/key");
    assert_eq!(entry["Session"], json!(holder));
    // Lockmesh keeps the count where Consul resets it, so that it can serve as a sequencer.
    let kept = if server.is_foreign() { 0 } else { 1 };
    assert_eq!(number(&entry, "LockIndex"), kept);

    let index = number(&entry, "ModifyIndex");
    assert!(client.put(&format!("/v1/kv/a23/key?cas={index}"), "by another").is_true());
    let entry = client.entry("a23/key");
    assert_eq!(entry["Session"], json!(holder));
    assert_eq!(number(&entry, "LockIndex"), kept);

    assert!(client.release("a23/key", &holder));
    assert!(client.acquire("a23/key", &holder));
    assert_eq!(number(&client.entry("a23/key"), "LockIndex"), kept + 1);
}

/// Contract: 23.
#[test]
fn identical_write_keeps_locked_entry() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let holder = client.session();
    assert!(client.acquire("a23b/key", &holder));
    let before = client.entry("a23b/key");
    client.set("a23b/key", "held");
    assert_eq!(client.entry("a23b/key"), before);
}

/// Contract: 24.
#[test]
fn delete_frees_lock_without_delay() {
    let client = shared().client();
    let holder = client.session_of(json!({"LockDelay": "60s", "NodeChecks": []}));
    let other = client.session();
    assert!(client.acquire("a24/key", &holder));
    let index = client.get("/v1/kv/a24/key").index();
    let monitor = client.watch(&format!("/v1/kv/a24/key?consistent&index={index}&wait=60s"));
    assert!(client.delete("/v1/kv/a24/key").is_true());
    let lost = monitor.answer().expect(404).expect_meta();
    assert!(lost.index() > index);
    assert!(client.acquire("a24/key", &other), "a deleted lock leaves no delay behind");
    assert_eq!(number(&client.entry("a24/key"), "LockIndex"), 1);
}

/// Contract: 25.
#[test]
fn session_end_releases_all_locks_atomically() {
    let client = shared().client();
    let keeper = client.session();
    let deleter = client.session_of(json!({"LockDelay": "0s", "NodeChecks": [], "Behavior": "delete"}));
    for key in ["a", "b", "c"] {
        assert!(client.acquire(&format!("a25/keep/{key}"), &keeper));
        assert!(client.acquire(&format!("a25/delete/{key}"), &deleter));
    }
    client.destroy(&keeper);
    let entries = client.get("/v1/kv/a25/keep/?recurse").expect(200).json();
    let entries = entries.as_array().expect("entries");
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert_eq!(entry.get("Session"), None, "{entry}");
        assert_eq!(number(entry, "LockIndex"), 1);
        assert_eq!(entry["Value"], "aGVsZA==", "the value is kept");
        assert_eq!(entry["ModifyIndex"], entries[0]["ModifyIndex"], "all in one log entry");
    }
    client.destroy(&deleter);
    client.get("/v1/kv/a25/delete/?recurse").expect(404);
}

/// Contract: 26.
#[test]
fn hundred_contenders_one_winner() {
    let client = shared().client();
    let sessions: Vec<String> = (0..100).map(|_| client.session()).collect();
    for round in 0..3 {
        let key = format!("a26/{round}");
        let start = Barrier::new(sessions.len());
        let race = |session: &String| {
            start.wait();
            client.acquire(&key, session)
        };
        let won: Vec<bool> = std::thread::scope(|scope| {
            let racers: Vec<_> = sessions.iter().map(|session| scope.spawn(|| race(session))).collect();
            racers.into_iter().map(|racer| racer.join().expect("a racer does not panic")).collect()
        });
        let winners: Vec<&String> =
            sessions.iter().zip(&won).filter(|(_, won)| **won).map(|(s, _)| s).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(client.holder(&key).as_ref(), Some(winners[0]));
        assert_eq!(number(&client.entry(&key), "LockIndex"), 1);
    }
}
