//! Acquires that wait, an extension of Consul: `?acquire=…&wait=…`, against running servers and an
//! agent.
//!
//! Time is only bounded from below: delays on a loaded machine prove nothing.

use lockmesh_tests::dialect::{let_pass, number};
use lockmesh_tests::fleet::{Fleet, freeze, shell, wait_until};
use lockmesh_tests::http::{Answer, Client, Connection};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
fn a_wait_outlives_its_leader() {
    for blow in ["KILL", "STOP"] {
        let fleet = Fleet::new("3", &[]);
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
fn wait_without_quorum_reports_no_leader() {
    let fleet = Fleet::new("3", &[]);
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
fn lock_handover_survives_leader_kills() {
    let fleet = Fleet::new("3", &[]);
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
            fleet.kill_process(&leader);
            contest.until_grants(50);
            again.push(fleet.restart(&leader));
            let is_well = |server: &Value| server["Voter"] == true && server["Healthy"] == true;
            wait_until(|| fleet.servers().iter().filter(|server| is_well(server)).count() == 3);
        }
    });
    assert_eq!(client.holder("job"), None);
    until_waiters(&client, "job", 0);
    fleet.stop();
}
