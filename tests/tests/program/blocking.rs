//! Contract 51–57: blocking queries. The numbers are those of `tests/contract.md`.
//!
//! "Not woken" is shown by a lower bound: the reply took at least as long as the requested wait.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::http::{Answer, Client};
use serde_json::json;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::{Duration, Instant};

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Repeats a blocking query until the reply satisfies `found`; the index must never decrease.
fn follow(client: &Client, path: &str, mut index: u64, found: impl Fn(&Answer) -> bool) -> Answer {
    loop {
        let joint = if path.contains('?') { '&' } else { '?' };
        let answer = client.get(&format!("{path}{joint}index={index}&wait=60s"));
        assert!(answer.index() >= index, "the index went back from {index}: {answer:?}");
        if found(&answer) {
            return answer;
        }
        index = answer.index();
    }
}

/// Polls while `disturb` runs repeatedly, until one poll has lasted its whole wait. A poll may
/// return early if its index was outdated on arrival, but not every time.
fn sleeps_through(client: &Client, path: &str, expected: u16, disturb: impl Fn(u64) + Sync) -> Answer {
    let wait = Duration::from_millis(1500);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                disturb(turn);
                let_pass(Duration::from_millis(100));
            }
        });
        let mut index = client.get(path).expect(expected).index();
        for _ in 0..50 {
            let begun = Instant::now();
            let joint = if path.contains('?') { '&' } else { '?' };
            let answer = client.get(&format!("{path}{joint}index={index}&wait=1500ms")).expect(expected);
            if begun.elapsed() >= wait {
                done.store(true, Ordering::Relaxed);
                return answer;
            }
            index = answer.index();
        }
        done.store(true, Ordering::Relaxed);
        panic!("{path}: woken 50 times by writes that do not concern it");
    })
}

/// Contract: 51.
#[test]
fn invalid_index_wait_or_consistency_rejected() {
    let client = shared().client();
    client.set("a51/key", "x");
    let index = client.get("/v1/kv/a51/key").index();
    for bad in ["abc", "-1", "1.5", "18446744073709551616"] {
        let answer = client.get(&format!("/v1/kv/a51/key?index={bad}")).expect(400);
        assert_eq!(answer.text(), "Invalid index");
    }
    for bad in ["10", "abc"] {
        let answer = client.get(&format!("/v1/kv/a51/key?index={index}&wait={bad}")).expect(400);
        assert_eq!(answer.text(), "Invalid wait time");
    }
    let both = client.get("/v1/kv/a51/key?stale&consistent");
    both.expect_text(400, "Cannot specify ?stale with ?consistent, conflicting semantics.");
    for fine in ["index=", "index=0", "wait=1s", "stale", "consistent=1", "index=0&wait=0s", "leader"] {
        client.get(&format!("/v1/kv/a51/key?{fine}")).expect(200);
    }
}

/// Contract: 51.
#[test]
fn zero_wait_means_default() {
    let client = shared().client();
    for wait in ["0s", "0", "-5s"] {
        client.set("a51b/key", "before");
        let index = client.get("/v1/kv/a51b/key").index();
        let watch = client.watch(&format!("/v1/kv/a51b/key?index={index}&wait={wait}"));
        let_pass(Duration::from_millis(700));
        client.set("a51b/key", wait);
        let (answer, took) = watch.timed_answer();
        assert!(took >= Duration::from_millis(700), "wait={wait} came back after {took:?}");
        assert!(answer.index() > index);
    }
}

/// Contract: 52.
#[test]
fn unchanged_query_waits_full_time() {
    let client = shared().client();
    client.set("a52/key", "x");
    let path = "/v1/kv/a52/key";
    for (path, wait, least) in [
        (path, "1s", 1000),
        (path, "250ms", 250),
        ("/v1/kv/a52/?recurse", "1s", 1000),
        ("/v1/kv/a52/?keys", "1s", 1000),
    ] {
        let index = client.get(path).expect(200).index();
        let begun = Instant::now();
        let joint = if path.contains('?') { '&' } else { '?' };
        let answer = client.get(&format!("{path}{joint}index={index}&wait={wait}")).expect(200);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(least), "{path} came back after {took:?}");
        assert_eq!(answer.index(), index);
    }
}

/// Contract: 53.
#[test]
fn key_ignores_sibling_writes() {
    let client = shared().client();
    client.set("a53/key", "x");
    let before = client.get("/v1/kv/a53/key").index();
    let answer = sleeps_through(&client, "/v1/kv/a53/key", 200, |turn| {
        client.set("a53/key2", &turn.to_string());
        client.set(&format!("a53/key/{turn}"), "x");
        client.delete("/v1/kv/a53/ke").expect(200);
    });
    assert_eq!(answer.index(), before);
}

/// Contract: 53.
#[test]
fn every_key_change_wakes_watch() {
    let client = shared().client();
    let session = client.session();
    let key = "a53b/key";
    client.set(key, "x");
    let path = format!("/v1/kv/{key}");
    let step = |what: &str, act: &dyn Fn()| -> Answer {
        let index = client.get(&path).index();
        let watch = client.watch(&format!("{path}?index={index}&wait=60s"));
        let_pass(Duration::from_millis(50));
        act();
        let answer = watch.answer();
        assert!(answer.index() > index, "{what}: {answer:?}");
        answer
    };
    step("change", &|| client.set(key, "y")).expect(200);
    let locked = step("lock", &|| assert!(client.acquire(key, &session))).entry();
    assert_eq!(locked["Session"], json!(session));
    let freed = step("release", &|| assert!(client.release(key, &session))).entry();
    assert_eq!(freed.get("Session"), None);
    assert!(client.acquire(key, &session));
    let ended = step("the end of its session", &|| client.destroy(&session)).entry();
    assert_eq!(ended.get("Session"), None);
    let gone = step("delete", &|| assert!(client.delete(&path).is_true())).expect(404).expect_meta();
    assert!(gone.body.is_empty());
    client.set(key, "z");
    step("the delete of an ancestor", &|| assert!(client.delete("/v1/kv/a53b?recurse").is_true()))
        .expect(404);
}

/// Contract: 54.
#[test]
fn absent_key_wakes_on_creation() {
    let server = shared();
    let client = server.client();
    // The original learned this after the version that tests run against.
    if !server.is_foreign() {
        let asleep = sleeps_through(&client, "/v1/kv/a54/absent", 404, |turn| {
            client.set("a54/beside", &turn.to_string());
        });
        assert!(asleep.body.is_empty());
    }

    let index = client.get("/v1/kv/a54/absent").expect(404).index();
    let watcher = client.clone();
    let watch = std::thread::spawn(move || {
        follow(&watcher, "/v1/kv/a54/absent", index, |answer| answer.status == 200)
    });
    for turn in 0..5 {
        client.set("a54/beside", &format!("again {turn}"));
    }
    client.set("a54/absent", "made");
    let made = watch.join().expect("a watcher does not panic");
    assert!(made.index() > index);
    assert_eq!(made.entry()["Value"], "bWFkZQ==");
}

/// Contract: 55.
#[test]
fn every_prefix_change_wakes_watch() {
    let server = shared();
    let client = server.client();
    for form in ["recurse", "keys"] {
        let path = format!("/v1/kv/a55/{form}/?{form}");
        client.set(&format!("a55/{form}/first"), "x");
        let mut index = client.get(&path).expect(200).index();
        let key = format!("a55/{form}/deep/key");
        let steps: [(&str, &dyn Fn()); 4] = [
            ("create", &|| client.set(&key, "x")),
            ("change", &|| client.set(&key, "y")),
            ("delete", &|| assert!(client.delete(&format!("/v1/kv/{key}")).is_true())),
            ("the delete of an ancestor", &|| assert!(client.delete("/v1/kv/a55/?recurse").is_true())),
        ];
        // The original misses the last step if a key under the prefix was deleted before; Lockmesh
        // must not.
        let steps = &steps[..if server.is_foreign() { 3 } else { 4 }];
        for (what, act) in steps {
            let watch = client.watch(&format!("{path}&index={index}&wait=60s"));
            let_pass(Duration::from_millis(50));
            act();
            let answer = watch.answer();
            assert!(answer.index() > index, "{what}: {answer:?}");
            index = answer.index();
        }
        client.delete("/v1/kv/a55/?recurse").expect(200);
        let gone = client.get(&path).expect(404).expect_meta();
        assert!(gone.index() >= index, "the index never decreases across a delete");
    }
}

/// Contract: 55.
#[test]
fn prefix_ignores_outside_writes() {
    let client = shared().client();
    client.set("a55b/in/key", "x");
    let before = client.get("/v1/kv/a55b/in/?recurse").index();
    let answer = sleeps_through(&client, "/v1/kv/a55b/in/?recurse", 200, |turn| {
        client.set("a55b/out", &turn.to_string());
        client.set("a55b/in", &turn.to_string());
    });
    assert_eq!(answer.index(), before);
}

/// Contract: 56.
#[test]
fn future_index_waits() {
    let client = shared().client();
    client.set("a56/key", "x");
    let current = client.get("/v1/kv/a56/key").index();
    let begun = Instant::now();
    let answer = client.get(&format!("/v1/kv/a56/key?index={}&wait=1s", current + 1_000_000)).expect(200);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(answer.index(), current);
}

/// Contract: 57.
#[test]
fn session_list_wakes_on_changes() {
    let client = shared().client();
    let session = client.session();
    let index = client.get(&format!("/v1/session/info/{session}")).index();
    let lists = ["/v1/session/list".to_owned(), {
        let own = client.get("/v1/agent/self").expect(200).json();
        format!("/v1/session/node/{}", own["Config"]["NodeName"].as_str().expect("a name"))
    }];
    for path in &lists {
        let watch = client.watch(&format!("{path}?index={}&wait=60s", client.get(path).index()));
        let_pass(Duration::from_millis(50));
        let begun = client.session();
        let answer = watch.answer();
        assert!(answer.index() > index);
        let seen = follow(&client, path, 0, |answer| answer.text().contains(&begun));
        client.destroy(&begun);
        follow(&client, path, seen.index(), |answer| !answer.text().contains(&begun));
    }
    client.destroy(&session);
    follow(&client, &format!("/v1/session/info/{session}"), index, |answer| answer.json() == json!([]));
}

#[test]
fn remaining_watchers_wake_after_disconnects() {
    let client = shared().client();
    client.set("many/key", "x");
    let index = client.get("/v1/kv/many/key").index();
    let path = format!("/v1/kv/many/key?index={index}&wait=60s");
    let watches: Vec<_> = (0..20).map(|_| client.watch(&path)).collect();
    let leavers: Vec<_> = (0..20)
        .map(|_| {
            let mut connection = client.connect().expect("a connection");
            connection.begin("GET", &path, &[], b"").expect("sent");
            connection
        })
        .collect();
    drop(leavers);
    client.set("many/key", "y");
    for watch in watches {
        assert!(watch.answer().index() > index);
    }
}

/// Contract: 58.
#[test]
fn disconnected_watchers_are_freed() {
    if shared().is_foreign() {
        return;
    }
    let crowd = std::process::Command::new(env!("CARGO_BIN_EXE_crowd")).arg("1000").output();
    let crowd = crowd.expect("the crowd can be started");
    let said = String::from_utf8_lossy(&crowd.stdout);
    assert!(crowd.status.success(), "{said}\n{}", String::from_utf8_lossy(&crowd.stderr));
    println!("{said}");
}
