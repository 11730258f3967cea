//! Acquires that wait, as clients see them: order, time, and disconnecting clients.

use super::{Quorum, Reply, Stand};
use lockmesh_protocol::id::Key;
use lockmesh_protocol::query::{Query, Rows};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A lock without a delay that the first of three sessions holds.
async fn held() -> (Arc<Stand>, [String; 3]) {
    let stand = Arc::new(Stand::new());
    let mut sessions = [const { String::new() }; 3];
    for session in &mut sessions {
        *session = stand.session(r#"{"LockDelay":"0s"}"#).await;
    }
    acquire(&stand, &sessions[0], "").await.is(200, "true");
    (stand, sessions)
}

async fn acquire(stand: &Stand, session: &str, wait: &str) -> Reply {
    stand.put(&format!("/v1/kv/job?acquire={session}{wait}"), session).await
}

async fn release(stand: &Stand, session: &str) {
    stand.put(&format!("/v1/kv/job?release={session}"), "").await.is(200, "true");
}

fn wait(stand: &Arc<Stand>, session: &str, wait: &str) -> JoinHandle<Reply> {
    let (stand, session, wait) = (stand.clone(), session.to_owned(), format!("&wait={wait}"));
    tokio::spawn(async move { acquire(&stand, &session, &wait).await })
}

fn fence(reply: &Reply) -> u64 {
    reply.header("x-lockmesh-fence").unwrap_or_else(|| panic!("no fence: {reply:?}")).parse().unwrap()
}

impl Quorum {
    /// Waits until the lock has this holder, or none, and this many waiters.
    async fn comes_to(&self, holder: Option<&str>, waiters: usize) {
        let is_there = |_: &u64| {
            let Rows::Entries(entries) = self.query(&Query::Entry(Key::from("job"))).rows else {
                return false;
            };
            let session = entries.first().and_then(|entry| entry.lock.session);
            session.map(|session| session.to_string()).as_deref() == holder
                && self.state.lock().unwrap().0.waiters().count() == waiters
        };
        self.news.subscribe().wait_for(is_there).await.unwrap();
    }
}

#[tokio::test]
async fn release_grants_first_waiter() {
    let (stand, [first, second, third]) = held().await;
    let next = wait(&stand, &second, "30s");
    stand.quorum.parked(1).await;
    let last = wait(&stand, &third, "30s");
    stand.quorum.parked(2).await;
    acquire(&stand, &third, "").await.is(200, "false");
    let locks = stand.get("/v1/lockmesh/locks").await.json();
    assert_eq!(locks[0]["Waiters"], 2);
    release(&stand, &first).await;
    let granted = next.await.unwrap();
    granted.is(200, "true");
    let entry = stand.get("/v1/kv/job").await.json();
    assert_eq!(entry[0]["Session"].as_str(), Some(second.as_str()), "the value too is the waiter's: {entry}");
    assert_eq!(granted.header("x-lockmesh-index"), Some(entry[0]["ModifyIndex"].to_string().as_str()));
    let index = |name| granted.header(name).unwrap().parse::<u64>().unwrap();
    assert!(index("x-lockmesh-queued") < index("x-lockmesh-index"), "it asked before it was granted");
    stand.quorum.comes_to(Some(&second), 1).await;
    release(&stand, &second).await;
    let later = last.await.unwrap();
    assert!(fence(&later) > fence(&granted));
    stand.quorum.parked(0).await;
}

#[tokio::test]
async fn free_lock_granted_immediately() {
    let (stand, [first, second, _]) = held().await;
    acquire(&stand, &first, "&wait=30s").await.is(200, "true");
    release(&stand, &first).await;
    let granted = acquire(&stand, &second, "&wait=30s").await;
    granted.is(200, "true");
    assert!(fence(&granted) > 1);
}

#[tokio::test(start_paused = true)]
async fn timed_out_waiter_leaves() {
    let (stand, [first, second, third]) = held().await;
    for (asked, least) in [("2s", 2), ("2h", 600)] {
        let begun = Instant::now();
        acquire(&stand, &second, &format!("&wait={asked}")).await.is(200, "false");
        let waited = begun.elapsed();
        // The servers' clock ends a wait; it is absent here, so the agent's own does, a moment
        // later.
        assert!(
            waited >= Duration::from_secs(least) && waited < Duration::from_secs(least + 2),
            "{waited:?}"
        );
        stand.quorum.comes_to(Some(&first), 0).await;
    }
    for none in ["&wait=0s", "&wait=-1s", "&wait="] {
        let begun = Instant::now();
        acquire(&stand, &third, none).await.is(200, "false");
        assert_eq!(begun.elapsed(), Duration::ZERO, "{none}");
    }
    acquire(&stand, &second, "&wait=soon").await.is(400, "Invalid wait time");
}

#[tokio::test]
async fn disconnected_waiter_leaves() {
    let (stand, [first, second, third]) = held().await;
    let gone = wait(&stand, &second, "60s");
    stand.quorum.parked(1).await;
    let stays = wait(&stand, &third, "60s");
    stand.quorum.parked(2).await;
    gone.abort();
    stand.quorum.comes_to(Some(&first), 1).await;
    release(&stand, &first).await;
    stays.await.unwrap().is(200, "true");
}

#[tokio::test]
async fn retry_keeps_position_and_grant() {
    let (stand, [first, second, third]) = held().await;
    let lost = wait(&stand, &second, "60s");
    stand.quorum.parked(1).await;
    let other = wait(&stand, &third, "60s");
    stand.quorum.parked(2).await;
    let again = wait(&stand, &second, "60s");
    stand.quorum.parked(3).await;
    lost.abort();
    stand.quorum.parked(2).await;
    release(&stand, &first).await;
    again.await.unwrap().is(200, "true");
    stand.quorum.comes_to(Some(&second), 1).await;
    other.abort();
    stand.quorum.comes_to(Some(&second), 0).await;
}

#[tokio::test]
async fn session_end_rejects_waiter() {
    let (stand, [_, second, _]) = held().await;
    let waiting = wait(&stand, &second, "60s");
    stand.quorum.parked(1).await;
    stand.put(&format!("/v1/session/destroy/{second}"), "").await.is(200, "true");
    waiting.await.unwrap().is(500, &format!("invalid session \"{second}\""));
}

fn claims(claims: &[(&str, u64)]) -> String {
    let claims = claims.iter().map(|(key, fence)| format!(r#"{{"Key":"{key}","Fence":{fence}}}"#));
    format!("[{}]", claims.collect::<Vec<_>>().join(","))
}

#[tokio::test(start_paused = true)]
async fn fences_verified_in_request_order() {
    let (stand, [first, second, _]) = held().await;
    let former = fence(&acquire(&stand, &first, "").await);
    release(&stand, &first).await;
    let current = fence(&acquire(&stand, &second, "").await);
    let body = claims(&[("absent", 0), ("job", former), ("job", current)]);
    let verdict = |key, fence, is_current, newest| {
        format!(r#"{{"Key":"{key}","Fence":{fence},"IsCurrent":{is_current},"NewestFence":{newest}}}"#)
    };
    let verdicts =
        [("absent", 0, false, 0), ("job", former, false, current), ("job", current, true, current)];
    let verdicts: Vec<String> =
        verdicts.into_iter().map(|(key, fence, is, newest)| verdict(key, fence, is, newest)).collect();
    let verify = |query: &str| format!("/v1/lockmesh/fence/verify{query}");
    // One of them is not current: there is nothing to wait for.
    let began = Instant::now();
    for query in ["", "?wait=1h"] {
        stand.put(&verify(query), &body).await.is(200, &format!("[{}]", verdicts.join(",")));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    release(&stand, &second).await;
    let reply = stand.put(&verify(""), &claims(&[("job", current)])).await;
    reply.is(200, &format!("[{}]", verdict("job", current, false, current)));
}

#[tokio::test(start_paused = true)]
async fn fence_wait_ends_with_grant() {
    let (stand, [first, ..]) = held().await;
    let body = claims(&[("job", fence(&acquire(&stand, &first, "").await))]);
    let verify = |wait: &str| {
        let (stand, body) = (stand.clone(), body.clone());
        let path = format!("/v1/lockmesh/fence/verify?wait={wait}");
        tokio::spawn(async move { stand.put(&path, &body).await.json()[0]["IsCurrent"] == true })
    };
    assert!(verify("10s").await.unwrap(), "nothing changed for the whole wait");
    let waiting = verify("60s");
    stand.quorum.parked(1).await;
    stand.put("/v1/kv/job", "a plain write keeps the grant").await.is(200, "true");
    stand.quorum.parked(1).await;
    release(&stand, &first).await;
    assert!(!waiting.await.unwrap());
}

#[tokio::test]
async fn invalid_fence_claims_rejected() {
    let stand = Stand::new();
    let path = "/v1/lockmesh/fence/verify";
    let many = claims(&[("job", 1); 65]);
    for (query, body, text) in [
        ("", "[]", "Send 1 to 64 fencing tokens instead of 0"),
        ("", &many, "Send 1 to 64 fencing tokens instead of 65"),
        (
            "?stale",
            &claims(&[("job", 1)]),
            "Fencing tokens are verified by the leader: remove ?stale and ?max_stale",
        ),
    ] {
        stand.put(&format!("{path}{query}"), body).await.is(400, text);
    }
    for body in ["", r#"[{"Key":"job","Fence":-1}]"#, r#"[{"Key":"job","Token":1}]"#, r#"{"Key":"job"}"#] {
        assert_eq!(stand.put(path, body).await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn shared_mode_admits_several_holders() {
    let (stand, [first, second, third]) = held().await;
    release(&stand, &first).await;
    let shared = |session: &str, wait: &str| format!("/v1/kv/job?acquire={session}&mode=shared{wait}");
    let one = stand.put(&shared(&first, ""), "ignored").await;
    one.is(200, "true");
    let other = stand.put(&shared(&second, "&wait=5s"), "").await;
    assert_eq!(fence(&one), fence(&other), "they share a period");
    acquire(&stand, &third, "").await.is(200, "false");
    // The entry names the oldest holder; each holder can be asked for.
    for (holder, named) in [("", &first), (second.as_str(), &second), (third.as_str(), &first)] {
        let entry = &stand.get(&format!("/v1/kv/job?holder={holder}")).await.json()[0];
        assert_eq!(entry["Session"], named.as_str(), "{holder}");
    }
    let waits = wait(&stand, &third, "30s");
    stand.quorum.parked(1).await;
    stand.put(&shared(&first, "&mode=other"), "").await.is(200, "true");
    release(&stand, &first).await;
    release(&stand, &second).await;
    assert!(fence(&waits.await.unwrap()) > fence(&one));
    let text = "Unknown mode \"any\": use exclusive or shared";
    stand.put(&format!("/v1/kv/job?acquire={first}&mode=any"), "").await.is(400, text);
}

#[tokio::test]
async fn second_upgrade_refused_with_reason() {
    let (stand, [first, second, _]) = held().await;
    stand.put(&format!("/v1/kv/job?acquire={first}&mode=shared"), "").await.is(200, "true");
    stand.put(&format!("/v1/kv/job?acquire={second}&mode=shared"), "").await.is(200, "true");
    let upgrade = wait(&stand, &first, "30s");
    stand.quorum.parked(1).await;
    let text = "another shared holder of \"job\" waits for the exclusive lock: release the shared one first";
    acquire(&stand, &second, "&wait=30s").await.is(409, text);
    release(&stand, &second).await;
    upgrade.await.unwrap().is(200, "true");
}

#[tokio::test]
async fn several_locks_acquired_at_once() {
    let (stand, [first, second, _]) = held().await;
    let body = |session: &str, keys: &[&str]| {
        let locks: Vec<_> =
            keys.iter().map(|key| serde_json::json!({ "Key": key, "Value": "djE=" })).collect();
        serde_json::json!({ "Session": session, "Locks": locks }).to_string()
    };
    let path = "/v1/lockmesh/acquire";
    let none = serde_json::json!({ "Acquired": false, "Fences": [] });
    assert_eq!(stand.put(path, &body(&second, &["job", "a"])).await.json(), none);
    let waits = {
        let (stand, body) = (stand.clone(), body(&second, &["job", "a"]));
        tokio::spawn(async move { stand.put("/v1/lockmesh/acquire?wait=30s", &body).await })
    };
    stand.quorum.parked(1).await;
    release(&stand, &first).await;
    // In the order of the request; the tokens were granted in that of the keys.
    let outcome = waits.await.unwrap().json();
    let fences = serde_json::json!([{ "Key": "job", "Fence": 3 }, { "Key": "a", "Fence": 2 }]);
    assert_eq!(outcome, serde_json::json!({ "Acquired": true, "Fences": fences }));
    assert_eq!(stand.get("/v1/kv/a?raw").await.text(), "v1");
    for (body, text) in [
        (body(&first, &["a", "a"]), "The key \"a\" is in the request twice"),
        (body(&first, &[]), "Send 1 to 64 locks instead of 0"),
        (body(&first, &[""]), "Missing key name"),
    ] {
        stand.put(path, &body).await.is(400, text);
    }
    let unknown = stand.put(path, &body("no-session", &["b"])).await;
    unknown.is(500, "invalid session \"no-session\"");
}

#[tokio::test(start_paused = true)]
async fn deadlock_is_listed_then_refused() {
    let (stand, [first, second, _third]) = held().await;
    stand.put(&format!("/v1/kv/other?acquire={second}"), "").await.is(200, "true");
    let waits = wait(&stand, &second, "30s");
    stand.quorum.parked(1).await;
    let closes = format!("/v1/kv/other?acquire={first}&wait=30s");
    let closing = {
        let (stand, closes) = (stand.clone(), closes.clone());
        tokio::spawn(async move { stand.put(&closes, "").await })
    };
    stand.quorum.parked(2).await;
    let listed = stand.get("/v1/lockmesh/waits").await.json();
    let expected = serde_json::json!([(&second, "job", &first), (&first, "other", &second)]);
    let shown = listed.as_array().unwrap().iter().map(|wait| {
        assert_eq!((&wait["Deadlocked"], &wait["Wait"]), (&true.into(), &"30s".into()));
        (&wait["Session"], &wait["Locks"][0]["Key"], &wait["Locks"][0]["BlockedBy"][0])
    });
    assert_eq!(serde_json::json!(shown.collect::<Vec<_>>()), expected);
    assert_eq!(stand.get("/v1/lockmesh/waits?prefix=o").await.json().as_array().unwrap().len(), 1);
    let found = stand.get("/v1/lockmesh/deadlocks").await.json();
    assert_eq!((&found["Policy"], &found["Deadlocks"][0]["Exists"]), (&"report".into(), &true.into()));
    assert_eq!(found["Deadlocks"][0]["Waits"][0]["WaitsFor"], "other");
    // A deadlock ends with one of its waits.
    stand.put(&format!("/v1/kv/other?release={first}"), "").await.is(200, "false");
    closing.await.unwrap().is(200, "false");
    assert_eq!(stand.get("/v1/lockmesh/deadlocks").await.json()["Deadlocks"][0]["Exists"], false);
    stand.put("/v1/lockmesh/deadlocks", r#"{"Policy":"refuse"}"#).await.is(200, "true");
    stand.put("/v1/lockmesh/deadlocks", r#"{"Policy":"never"}"#).await.is(
        400,
        "Request decode failed: unknown variant `never`, expected `report` or `refuse` at line 1 column 17; send \
         {\"Policy\": \"report\"} or {\"Policy\": \"refuse\"}",
    );
    let text = format!(
        "a deadlock of 2 sessions would begin: {first} waits for \"other\", {second} waits for \"job\": release a \
         lock that others wait for, and ask again"
    );
    stand.put(&closes, "").await.is(409, &text);
    release(&stand, &first).await;
    waits.await.unwrap().is(200, "true");
}
