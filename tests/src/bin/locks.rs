//! Locks of real processes under kills and under load, on three servers and two agents:
//!
//! - `locks kills [--rounds N]`: kills processes with bound sessions, `lockmesh lock`, and the
//!   agent of bound sessions, and measures the time to the next grant on the other agent.
//! - `locks readers [--seconds N]`: 64 readers and 2 writers of one lock.
//! - `locks sets [--requests N]`: 32 clients acquire random sets of locks in random modes.
//!
//! `--limit MS` bounds the times: of `kills` from an end to the next grant, of the others from a
//! request to its grant. Exits with a failure if a limit or a rule of locks is broken.

use clap::{Parser, Subcommand};
use lockmesh_client::{Address, Client as RustClient, Lock, SessionOptions};
use lockmesh_protocol::random::Random;
use lockmesh_tests::dialect::{let_pass, number};
use lockmesh_tests::fleet::{Fleet, wait_until};
use lockmesh_tests::guards::command::{BEAT, Kind, beat, ourselves, recorded};
use lockmesh_tests::holds::{Hold, Waits, conflicts};
use lockmesh_tests::hosts::belief::{Belief, BootTime};
use lockmesh_tests::http::{Answer, Client, Connection};
use lockmesh_tests::member::text;
use lockmesh_tests::options::exit_code;
use lockmesh_tests::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The agents: of the processes that die, and of the clients that wait for their locks.
const NODES: [&str; 2] = ["n1", "n2"];
/// The numbers of clients that share one lock, and that acquire it alone.
const READERS: usize = 64;
const WRITERS: usize = 2;
/// The number of clients that acquire sets, of keys, and of the keys in the largest set.
const SET_CLIENTS: usize = 32;
const KEYS: usize = 50;
const LARGEST_SET: usize = 8;
/// The maximum time that a request waits, and the longest time of a hold.
const WAIT: Duration = Duration::from_secs(60);
const LONGEST_HOLD_US: usize = 5_000;
/// The maximum median from the death of a bound process to the next grant, in milliseconds.
const BOUND_LIMIT_MS: f64 = 20.0;
/// The maximum time from the end of the command of a killed `lockmesh lock` to the next grant.
const COMMAND_LIMIT_MS: f64 = 50.0;
/// The same while the agent is killed and restarted: the default health window.
const AGENT_LIMIT_MS: f64 = 5_000.0;
/// The maximum time from a request to its grant under load.
const LOAD_LIMIT_MS: f64 = 5_000.0;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
    /// Maximum time instead of the default ones, in milliseconds.
    #[arg(long, global = true)]
    limit: Option<f64>,
}

#[derive(Subcommand)]
enum Command {
    Kills {
        #[arg(long, default_value_t = 100)]
        rounds: usize,
    },
    Readers {
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    Sets {
        #[arg(long, default_value_t = 1_000)]
        requests: usize,
    },
    /// Holds a lock by a session that is bound to this process, until it is killed.
    Hold { socket: PathBuf, key: String },
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().map(String::as_str) == Some(BEAT) {
        beat(Path::new(&words[1]), &words[2]);
        return ExitCode::SUCCESS;
    }
    let Options { command, limit } = Options::parse();
    let fleet = || Fleet::new("3", &["--nodes", "2"]);
    let load_limit = limit.unwrap_or(LOAD_LIMIT_MS);
    exit_code(Ok(match command {
        Command::Kills { rounds } => kills(&fleet(), rounds, limit),
        Command::Readers { seconds } => readers(&fleet(), Duration::from_secs(seconds), load_limit),
        Command::Sets { requests } => sets(&fleet(), requests, load_limit),
        Command::Hold { socket, key } => hold(socket, &key),
    }))
}

#[tokio::main(flavor = "current_thread")]
async fn hold(socket: PathBuf, key: &str) -> bool {
    let client = RustClient::new(Address::Unix(socket));
    let lock = Lock::new(&client, key).session(SessionOptions::named("bound").bind_process(true));
    let guard = lock.acquire().await.expect("the lock is granted");
    println!("holds {key} session={}", guard.session());
    std::future::pending().await
}

/// Prints times, and compares one of them with its limit.
fn is_within(what: &str, times: &Waits, share: usize, limit: f64) -> bool {
    let is_within = times.percentile(share) <= limit;
    let verdict = if is_within { "" } else { ": BROKEN" };
    println!("{what}: {times} (limit of p{share}: {limit} ms{verdict})");
    is_within
}

fn kills(fleet: &Fleet, rounds: usize, limit: Option<f64>) -> bool {
    let (mut bound, mut command, mut absent, mut kept) =
        (Waits::default(), Waits::default(), Waits::default(), Waits::default());
    for round in 0..rounds {
        kill_bound_process(fleet, round, &mut bound);
        kill_lock_command(fleet, round, &mut command);
    }
    fleet.kill_process(NODES[0]);
    let mut agent = fleet.restart(NODES[0]);
    for round in 0..rounds {
        agent.says("ready");
        agent = kill_agent(fleet, round, agent, [&mut absent, &mut kept]);
    }
    let bound_limit = limit.unwrap_or(BOUND_LIMIT_MS);
    [
        is_within("bound process killed, to the next grant", &bound, 50, bound_limit),
        is_within(
            "lockmesh lock killed, from its command's end to the next grant",
            &command,
            100,
            limit.unwrap_or(COMMAND_LIMIT_MS),
        ),
        is_within("bound process killed without its agent, to the next grant", &absent, 100, AGENT_LIMIT_MS),
        is_within(
            "bound process killed after a restart of its agent, to the next grant",
            &kept,
            50,
            bound_limit,
        ),
    ]
    .iter()
    .all(|is_within| *is_within)
}

/// The process is alternately bound by its own client and by its number.
fn kill_bound_process(fleet: &Fleet, round: usize, times: &mut Waits) {
    let key = format!("bound/{round}");
    let process = match round % 2 {
        0 => {
            let words = ["hold", &text(&fleet.socket(NODES[0])), &key];
            let process = Process::start(&ourselves(), &words);
            process.says("holds ");
            process
        }
        _ => bound_sleep(fleet, &key).0,
    };
    let next = Next::wait(fleet, &key);
    times.add(kill(&process), next.granted());
}

fn kill_lock_command(fleet: &Fleet, round: usize, times: &mut Waits) {
    let name = format!("command/{round}");
    let records = tempfile::tempdir().expect("a temporary folder");
    let agent = format!("unix://{}", text(&fleet.socket(NODES[0])));
    let command = Kind::Plain.words(records.path());
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let process = Process::lockmesh(&[&["lock", &name, "--http-addr", &agent, "--"], &command[..]].concat());
    wait_until(|| recorded(records.path()).is_some());
    let next = Next::wait(fleet, &format!("{name}/.lock"));
    kill(&process);
    let granted = next.granted();
    // A process that still runs would be seen: it records every millisecond.
    let_pass(Duration::from_millis(20));
    times.add(recorded(records.path()).expect("it ran").last, granted);
}

/// Two processes hold locks. One dies while the agent is down, and one after its restart.
fn kill_agent(fleet: &Fleet, round: usize, mut agent: Process, [absent, kept]: [&mut Waits; 2]) -> Process {
    let keys = ["absent", "kept"].map(|name| format!("{name}/{round}"));
    let [dies, lives] = [0, 1].map(|place| bound_sleep(fleet, &keys[place]));
    let [next, after] = [0, 1].map(|place| Next::wait(fleet, &keys[place]));
    agent.kill();
    let died = kill(&dies.0);
    let agent = fleet.restart(NODES[0]);
    absent.add(died, next.granted());
    let client = fleet.client_of(NODES[1]);
    assert_eq!(client.holder(&keys[1]), Some(lives.1), "its process lives");
    kept.add(kill(&lives.0), after.granted());
    agent
}

/// Kills a process. Returns the moment before.
fn kill(process: &Process) -> BootTime {
    let pid = i32::try_from(process.number()).ok().and_then(Pid::from_raw).expect("a process number");
    let now = BootTime::now();
    kill_process(pid, Signal::KILL).expect("the process runs");
    now
}

/// Starts a process that holds a lock by a session that is bound to it. Returns the session too.
fn bound_sleep(fleet: &Fleet, key: &str) -> (Process, String) {
    let process = Process::start(Path::new("sleep"), &["1000"]);
    let client = fleet.client_of(NODES[0]);
    let session = client.session_of(json!({"Pid": process.number()}));
    assert!(client.acquire(key, &session));
    (process, session)
}

/// A client of the other agent that waits for a lock, and records the moment of the grant.
struct Next(JoinHandle<BootTime>);

impl Next {
    /// Returns when the client is known to wait.
    fn wait(fleet: &Fleet, key: &str) -> Self {
        let client = fleet.client_of(NODES[1]);
        let mut connection = client.connect().expect("a connection");
        let session = client.session();
        let path = format!("/v1/kv/{key}?acquire={session}&wait=10m");
        connection.begin("PUT", &path, &[], b"").expect("sent");
        let waits = || {
            let locks = client.get(&format!("/v1/lockmesh/locks?prefix={key}")).expect(200).json();
            locks.get(0).is_some_and(|lock| number(lock, "Waiters") == 1)
        };
        wait_until(waits);
        Self(thread::spawn(move || {
            let answer = connection.answer(false).expect("an answer");
            let now = BootTime::now();
            assert!(answer.is_true());
            now
        }))
    }

    #[track_caller]
    fn granted(self) -> BootTime {
        self.0.join().expect("the lock is granted")
    }
}

fn readers(fleet: &Fleet, length: Duration, limit: f64) -> bool {
    let end = Instant::now() + length;
    let load = |place: usize| {
        let mut contender = Contender::new(fleet, place);
        let wanted = [("readers/job".to_owned(), place >= WRITERS)];
        while Instant::now() < end {
            contender.acquire(&wanted);
            contender.hold_and_release();
        }
        contender
    };
    let mut contenders = in_parallel(READERS + WRITERS, load);
    let of_readers = contenders.split_off(WRITERS);
    let mut all = Vec::new();
    let results = [("writers", contenders), ("readers", of_readers)].map(|(kind, contenders)| {
        let times = collect(contenders, &mut all);
        is_within(&format!("requests of {kind}, to the grant"), &times, 100, limit)
    });
    are_legal(fleet, all) && results == [true; 2]
}

fn sets(fleet: &Fleet, requests: usize, limit: f64) -> bool {
    let sent = AtomicUsize::new(0);
    let load = |place: usize| {
        let mut contender = Contender::new(fleet, place);
        while sent.fetch_add(1, Ordering::Relaxed) < requests {
            let count = 1 + contender.below(LARGEST_SET);
            let mut keys = BTreeSet::new();
            while keys.len() < count {
                keys.insert(contender.below(KEYS));
            }
            let wanted: Vec<_> =
                keys.into_iter().map(|key| (format!("sets/{key}"), contender.below(2) == 0)).collect();
            contender.acquire(&wanted);
            contender.hold_and_release();
        }
        contender
    };
    let mut all = Vec::new();
    let times = collect(in_parallel(SET_CLIENTS, load), &mut all);
    let is_within = is_within("requests of sets, to the grant", &times, 100, limit);
    are_legal(fleet, all) && is_within
}

fn in_parallel<T: Send>(count: usize, load: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let load = &load;
        let threads: Vec<_> = (0..count).map(|place| scope.spawn(move || load(place))).collect();
        threads.into_iter().map(|thread| thread.join().expect("every request is granted")).collect()
    })
}

fn collect(contenders: Vec<Contender>, holds: &mut Vec<Hold>) -> Waits {
    let mut times = Waits::default();
    for contender in contenders {
        holds.extend(contender.done);
        times.extend(contender.times);
    }
    times
}

/// Compares all holds. No lock may be left held or waited for.
fn are_legal(fleet: &Fleet, holds: Vec<Hold>) -> bool {
    let (count, shared) = (holds.len(), holds.iter().filter(|hold| hold.is_shared).count());
    let found = conflicts(holds);
    println!("{count} holds, {shared} of them shared: {} conflicts", found.len());
    found.iter().take(10).for_each(|conflict| println!("{conflict}"));
    let left = fleet.client_of(NODES[0]).get("/v1/lockmesh/locks?consistent").expect(200).json();
    let is_left = |lock: &&Value| lock["Session"] != "" || number(lock, "Waiters") != 0;
    let left = left.as_array().expect("locks").iter().filter(is_left).count();
    println!("{left} locks are left");
    found.is_empty() && left == 0
}

/// A client with one session.
struct Contender {
    connection: Connection,
    session: String,
    random: Random,
    held: Vec<Hold>,
    done: Vec<Hold>,
    times: Waits,
}

impl Contender {
    fn new(fleet: &Fleet, place: usize) -> Self {
        let client: Client = fleet.client_of(NODES[place % NODES.len()]);
        let connection = client.connect().expect("a connection");
        let random = Random::new(place as u64);
        let (held, done) = (Vec::new(), Vec::new());
        Self { connection, session: client.session(), random, held, done, times: Waits::default() }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.number() as usize % bound
    }

    fn put(&mut self, path: &str, body: &Value) -> Answer {
        let answer = self.connection.ask("PUT", path, &[], body.to_string().as_bytes());
        answer.expect("an answer").expect(200)
    }

    /// Acquires locks, each shared or not, and waits for them.
    fn acquire(&mut self, wanted: &[(String, bool)]) {
        let mode = |is_shared: bool| if is_shared { "shared" } else { "exclusive" };
        let lock = |(key, is_shared): &(String, bool)| json!({"Key": key, "Mode": mode(*is_shared)});
        let locks: Vec<Value> = wanted.iter().map(lock).collect();
        let body = json!({"Session": self.session, "Locks": locks});
        let asked = BootTime::now();
        let answer = self.put(&format!("/v1/lockmesh/acquire?wait={}s", WAIT.as_secs()), &body);
        let granted = BootTime::now();
        let outcome = answer.json();
        assert_eq!(outcome["Acquired"], true, "after {} s: {body}", granted.since(asked));
        self.times.add(asked, granted);
        let time = Belief { first: granted, last: granted };
        for ((key, is_shared), fence) in wanted.iter().zip(outcome["Fences"].as_array().expect("fences")) {
            assert_eq!(fence["Key"], json!(key));
            let (is_shared, fence) = (*is_shared, number(fence, "Fence"));
            self.held.push(Hold { key: key.clone(), is_shared, fence, time });
        }
    }

    /// Holds for a random time, then releases all locks at once.
    fn hold_and_release(&mut self) {
        let_pass(Duration::from_micros(self.below(LONGEST_HOLD_US) as u64));
        let unlock =
            |hold: &Hold| json!({"KV": {"Verb": "unlock", "Key": hold.key, "Session": self.session}});
        let body = json!(self.held.iter().map(unlock).collect::<Vec<_>>());
        let last = BootTime::now();
        self.put("/v1/txn", &body);
        let ended = |hold: Hold| Hold { time: Belief { last, ..hold.time }, ..hold };
        self.done.extend(self.held.drain(..).map(ended));
    }
}
