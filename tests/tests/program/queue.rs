//! Acquires that wait, an extension of Consul: `?acquire=…&wait=…`, against running servers and an
//! agent.
//!
//! Time is only bounded from below: delays on a loaded machine prove nothing.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::{let_pass, number};
use lockmesh_tests::fleet::{Fleet, freeze, is_alive, shell, wait_until};
use lockmesh_tests::http::{Answer, Client, Connection};
use lockmesh_tests::process::Process;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Starts to wait for a lock, and returns when that wait is known to be the `place`th in its queue.
fn wait(client: &Client, key: &str, session: &str, wait: &str, place: u64) -> Connection {
    let mut connection = client.connect().expect("a connection");
    let path = format!("/v1/kv/{key}?acquire={session}&wait={wait}");
    connection.begin("PUT", &path, &[], session.as_bytes()).expect("sent");
    until_waiters(client, key, place);
    connection
}

/// Returns when this many sessions wait for a lock.
fn until_waiters(client: &Client, key: &str, count: u64) {
    let path = format!("/v1/lockmesh/locks?prefix={key}");
    loop {
        let locks = client.get(&path).expect(200).json();
        let waiters = locks.as_array().and_then(|locks| locks.first().map(|lock| number(lock, "Waiters")));
        if waiters.unwrap_or(0) == count {
            return;
        }
        let_pass(Duration::from_millis(10));
    }
}

fn answer(mut waiting: Connection) -> Answer {
    waiting.answer(false).expect("an answer")
}

fn fence(answer: &Answer) -> u64 {
    answer
        .header("X-Lockmesh-Fence")
        .unwrap_or_else(|| panic!("no fence: {answer:?}"))
        .parse()
        .expect("a number")
}

#[test]
fn three_who_wait_are_granted_in_the_order_of_their_coming() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let holder = client.session();
    let sessions = [(); 3].map(|()| client.session());
    assert!(client.acquire("q1/key", &holder));
    let waiting: Vec<_> =
        (1..).zip(&sessions).map(|(place, session)| wait(&client, "q1/key", session, "60s", place)).collect();
    assert!(!client.acquire("q1/key", &sessions[2]), "an acquire without wait cannot overtake the queue");

    let mut last = (holder, 0);
    for (waiting, session) in waiting.into_iter().zip(&sessions) {
        let before = number(&client.entry("q1/key"), "ModifyIndex");
        assert!(client.release("q1/key", &last.0));
        let granted = answer(waiting).expect(200);
        let fence = fence(&granted);
        assert!(fence > last.1, "fence {fence} after {}", last.1);
        let entry = client.entry("q1/key");
        assert_eq!(entry["Session"], json!(session));
        assert!(granted.is_true());
        assert!(number(&entry, "ModifyIndex") > before);
        last = (session.clone(), fence);
    }
    assert!(client.release("q1/key", &last.0));
    assert_eq!(client.holder("q1/key"), None);
}

#[test]
fn a_wait_that_is_over_ends_with_false() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let (holder, other) = (client.session(), client.session());
    assert!(client.acquire("q2/key", &holder));
    let begun = Instant::now();
    assert!(!client.put(&format!("/v1/kv/q2/key?acquire={other}&wait=300ms"), "x").is_true());
    assert!(begun.elapsed() >= Duration::from_millis(300));
    until_waiters(&client, "q2/key", 0);
    assert_eq!(client.holder("q2/key"), Some(holder));
    client.put(&format!("/v1/kv/q2/key?acquire={other}&wait=x"), "x").expect_text(400, "Invalid wait time");
}

#[test]
fn who_hangs_up_leaves_the_queue_and_the_next_is_granted() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let [holder, gone, next] = [(); 3].map(|()| client.session());
    assert!(client.acquire("q3/key", &holder));
    let hangs_up = wait(&client, "q3/key", &gone, "60s", 1);
    let stays = wait(&client, "q3/key", &next, "60s", 2);
    drop(hangs_up);
    until_waiters(&client, "q3/key", 1);
    assert!(client.release("q3/key", &holder));
    assert!(answer(stays).is_true());
    assert_eq!(client.holder("q3/key"), Some(next));
}

#[test]
fn the_end_of_a_holder_grants_the_next_with_a_fence() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let behaviors = ["release", "delete"];
    for behavior in behaviors {
        let key = format!("q4/{behavior}");
        let holder = client.session_of(json!({"LockDelay": "0s", "NodeChecks": [], "Behavior": behavior}));
        let (next, doomed) = (client.session(), client.session());
        let held = client.put(&format!("/v1/kv/{key}?acquire={holder}"), "x").expect(200);
        let dies = wait(&client, &key, &doomed, "60s", 1);
        let waiting = wait(&client, &key, &next, "60s", 2);
        client.destroy(&doomed);
        answer(dies).expect_text(500, &format!("invalid session \"{doomed}\""));
        client.destroy(&holder);
        let granted = answer(waiting).expect(200);
        assert!(fence(&granted) > fence(&held));
        assert_eq!(client.holder(&key), Some(next.clone()));
        let index = client.get(&format!("/v1/kv/{key}")).index();
        assert_eq!(granted.header("X-Lockmesh-Index"), Some(index.to_string().as_str()));
    }
}

#[test]
fn a_delete_hands_the_lock_on_and_the_key_comes_back() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let (holder, next) = (client.session(), client.session());
    assert!(client.acquire("q5/key", &holder));
    let waiting = wait(&client, "q5/key", &next, "60s", 1);
    assert!(client.delete("/v1/kv/q5/key").is_true());
    assert!(answer(waiting).is_true());
    let entry = client.entry("q5/key");
    assert_eq!((entry["Session"].clone(), number(&entry, "LockIndex")), (json!(next), 1));
}

#[test]
fn a_lock_delay_is_waited_out_in_the_queue() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    let holder = client.session_of(json!({"LockDelay": "500ms", "NodeChecks": []}));
    let next = client.session();
    assert!(client.acquire("q6/key", &holder));
    let waiting = wait(&client, "q6/key", &next, "60s", 1);
    let begun = Instant::now();
    client.destroy(&holder);
    let closed = client.put(&format!("/v1/kv/q6/key?acquire={next}"), "x").expect(200);
    assert!(closed.header("X-Lockmesh-Lock-Delay").is_some() || begun.elapsed() > Duration::from_millis(500));
    assert!(answer(waiting).is_true());
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert_eq!(client.holder("q6/key"), Some(next));
}

#[test]
fn a_wait_outlives_its_leader() {
    for blow in ["KILL", "STOP"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fleet = Fleet::start(folder.path(), "3");
        let client = fleet.client();
        let [holder, first, second] = [(); 3].map(|()| client.session());
        let held = client.put(&format!("/v1/kv/job?acquire={holder}"), "x").expect(200);
        let next = wait(&client, "job", &first, "600s", 1);
        let last = wait(&client, "job", &second, "600s", 2);
        let deposed = fleet.leader();
        match blow {
            "STOP" => freeze(&fleet.pid(&deposed)),
            _ => assert!(shell(&format!("kill -{blow} {}", fleet.pid(&deposed)))),
        }
        wait_until(|| client.put(&format!("/v1/kv/job?release={holder}"), "").status == 200);
        let granted = answer(next).expect(200);
        assert!(fence(&granted) > fence(&held));
        assert_ne!(fleet.leader(), deposed);
        assert_eq!(client.holder("job").as_ref(), Some(&first));
        until_waiters(&client, "job", 1);
        client.destroy(&first);
        assert!(answer(last).is_true(), "{blow}");
        if blow == "STOP" {
            assert!(shell(&format!("kill -CONT {}", fleet.pid(&deposed))));
        }
        fleet.stop();
    }
}

#[test]
fn who_waits_where_nobody_decides_is_told_that_the_outcome_is_unknown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = Fleet::start(folder.path(), "3");
    let client = fleet.client();
    let (holder, other) = (client.session(), client.session());
    assert!(client.acquire("job", &holder));
    let begun = Instant::now();
    let waiting = wait(&client, "job", &other, "10s", 1);
    for server in ["s1", "s2"] {
        assert!(shell(&format!("kill -KILL {}", fleet.pid(server))));
    }
    answer(waiting).expect_text(500, "No cluster leader");
    assert!(begun.elapsed() >= Duration::from_secs(10));
    fleet.stop();
}

/// Shared knowledge of the contenders for a lock, which no service may contradict.
#[derive(Default)]
struct Contest {
    inside: AtomicBool,
    last_fence: AtomicU64,
    grants: AtomicU64,
    over: AtomicBool,
}

/// Ends a contest when it goes out of scope, even by a panic.
struct Referee<'a>(&'a Contest);

impl Drop for Referee<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

impl Contest {
    /// Acquires and releases the lock repeatedly. If a reply is lost, the session may or may not
    /// hold the lock; the request is simply repeated.
    fn contend(&self, client: &Client, session: &str) {
        while !self.over.load(Ordering::SeqCst) {
            let answer = client.put(&format!("/v1/kv/job?acquire={session}&wait=2s"), session);
            if answer.status == 200 && answer.text() == "true" {
                self.hold(fence(&answer));
            }
            wait_until(|| client.put(&format!("/v1/kv/job?release={session}"), "").status == 200);
        }
    }

    fn hold(&self, fence: u64) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two sessions hold one lock");
        let before = self.last_fence.swap(fence, Ordering::SeqCst);
        assert!(fence > before, "fence {fence} after {before}");
        self.grants.fetch_add(1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }

    fn until_grants(&self, more: u64) {
        let wanted = self.grants.load(Ordering::SeqCst) + more;
        wait_until(|| self.grants.load(Ordering::SeqCst) >= wanted);
    }
}

#[test]
fn contenders_hand_the_lock_on_while_leaders_die() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fleet = Fleet::start(folder.path(), "3");
    let client = fleet.client();
    let contest = Contest::default();
    let sessions = [(); 6].map(|()| client.session());
    let mut again = Vec::new();
    std::thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(|| contest.contend(&client, session));
        }
        let _referee = Referee(&contest);
        for _ in 0..3 {
            contest.until_grants(50);
            let leader = fleet.leader();
            let pid = fleet.pid(&leader);
            assert!(shell(&format!("kill -KILL {pid}")));
            wait_until(|| !is_alive(&pid));
            contest.until_grants(50);
            let config = fleet.folder.join(&leader).join("server.toml");
            again.push(Process::lockmesh(&["server", "--config", config.to_str().expect("text")]));
            let is_well = |server: &Value| server["Voter"] == true && server["Healthy"] == true;
            wait_until(|| fleet.servers().iter().filter(|server| is_well(server)).count() == 3);
        }
    });
    assert_eq!(client.holder("job"), None);
    until_waiters(&client, "job", 0);
    fleet.stop();
}
