//! The clients of a cluster with a hanging disk: renewed sessions, and a writer.

use crate::dialect::let_pass;
use crate::http::{Answer, Client};
use serde_json::json;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The TTL of the sessions: the shortest that the default configuration allows.
const TTL: &str = "10s";
/// The interval between two renewals of a session.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3);
/// The number of sessions that share one thread; their renewals wait for each other.
const SHARED: usize = 5;
/// The pause between two writes.
const WRITE_PAUSE: Duration = Duration::from_millis(20);
/// The timeout of a request: longer than an agent holds a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A failed request.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The times of its sending and its failure.
    pub span: (Instant, Instant),
    /// The reason.
    pub reason: String,
}

impl Failed {
    /// Returns `true` if the request was in flight during one of these spans.
    pub fn is_during(&self, spans: &[(Instant, Instant)]) -> bool {
        spans.iter().any(|(begun, ended)| self.span.0 <= *ended && *begun <= self.span.1)
    }
}

/// The replies that clients received.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The times of acknowledged writes.
    pub written: Vec<Instant>,
    /// The number written by the last acknowledged write.
    pub last_written: u64,
    /// Writes that failed.
    pub failed: Vec<Failed>,
    /// The number of acknowledged renewals.
    pub renewed: usize,
    /// Failed renewals of sessions that may be alive.
    pub unrenewed: Vec<Failed>,
    /// The number of renewals that failed because the session does not exist.
    pub lost: usize,
}

/// Running clients.
pub struct Clients {
    sessions: Vec<String>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Answers>>,
}

impl Clients {
    /// Creates `count` sessions, and starts to renew them and to write this key.
    pub fn start(client: &Client, count: usize, key: &str) -> Self {
        let body = json!({"TTL": TTL, "LockDelay": "0s", "NodeChecks": [], "Name": "renewed"});
        let sessions: Vec<String> = (0..count).map(|_| client.session_of(body.clone())).collect();
        let is_over = Arc::<AtomicBool>::default();
        let renewing = sessions.chunks(SHARED).map(|sessions| {
            let (client, is_over, sessions) = (client.clone(), Arc::clone(&is_over), sessions.to_vec());
            thread::spawn(move || renew(&client, &is_over, sessions))
        });
        let mut threads: Vec<JoinHandle<Answers>> = renewing.collect();
        let (client, ending, key) = (client.clone(), Arc::clone(&is_over), key.to_owned());
        threads.push(thread::spawn(move || write(&client, &ending, &key)));
        Self { sessions, is_over, threads }
    }

    /// Returns the sessions.
    pub fn sessions(&self) -> &[String] {
        &self.sessions
    }

    /// Stops the clients and returns all of their replies.
    pub fn end(self) -> Answers {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("clients do not panic"));
        ended.reduce(Answers::and).expect("there is a writer")
    }
}

impl Answers {
    fn and(mut self, other: Self) -> Self {
        self.written.extend(other.written);
        self.last_written = self.last_written.max(other.last_written);
        self.failed.extend(other.failed);
        self.renewed += other.renewed;
        self.unrenewed.extend(other.unrenewed);
        self.lost += other.lost;
        self
    }

    /// Returns the longest time without an acknowledged write.
    pub fn longest_gap(&self) -> Duration {
        let gaps = self.written.windows(2).map(|pair| pair[1].duration_since(pair[0]));
        gaps.max().unwrap_or(Duration::MAX)
    }
}

fn renew(client: &Client, is_over: &AtomicBool, mut sessions: Vec<String>) -> Answers {
    let mut answers = Answers::default();
    let pause = RENEWAL_INTERVAL / u32::try_from(sessions.len()).expect("sessions are few");
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) && !sessions.is_empty() {
        turn = (turn + 1) % sessions.len();
        match ask(client, &format!("/v1/session/renew/{}", sessions[turn]), b"") {
            Ok(()) => answers.renewed += 1,
            Err(Failure::NotFound) => {
                answers.lost += 1;
                sessions.remove(turn);
            }
            Err(Failure::Other(failed)) => answers.unrenewed.push(failed),
        }
        let_pass(pause);
    }
    answers
}

fn write(client: &Client, is_over: &AtomicBool, key: &str) -> Answers {
    let mut answers = Answers::default();
    let (path, mut number) = (format!("/v1/kv/{key}"), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        match ask(client, &path, number.to_string().as_bytes()) {
            Ok(()) => {
                answers.written.push(Instant::now());
                answers.last_written = number;
            }
            Err(Failure::NotFound) => unreachable!("a key that is written needs not be there"),
            Err(Failure::Other(failed)) => answers.failed.push(failed),
        }
        let_pass(WRITE_PAUSE);
    }
    answers
}

enum Failure {
    NotFound,
    Other(Failed),
}

/// Sends one PUT on a connection of its own.
fn ask(client: &Client, path: &str, body: &[u8]) -> Result<(), Failure> {
    let begun = Instant::now();
    let other = |reason| Failure::Other(Failed { span: (begun, Instant::now()), reason });
    match answer(client, path, body) {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) if answer.status == 404 => Err(Failure::NotFound),
        Ok(answer) => Err(other(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)))),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(other(format!("no answer within {ANSWER_TIMEOUT:?}")))
        }
        Err(error) => Err(other(error.to_string())),
    }
}

fn answer(client: &Client, path: &str, body: &[u8]) -> io::Result<Answer> {
    let mut connection = client.connect()?;
    connection.be_patient_for(ANSWER_TIMEOUT)?;
    connection.ask("PUT", path, &[], body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_gap_between_acknowledgements() {
        let begun = Instant::now();
        let written = [0, 20, 1_520, 1_540].map(|ms| begun + Duration::from_millis(ms));
        let answers = Answers { written: written.into(), ..Answers::default() };
        assert_eq!(answers.longest_gap(), Duration::from_millis(1_500));
        let late = begun + Duration::from_millis(1_600);
        let failed = Failed { span: (written[2], late), reason: "500".into() };
        assert!(failed.is_during(&[(begun, written[3])]) && !failed.is_during(&[(begun, written[1])]));
        assert_eq!(Answers::default().longest_gap(), Duration::MAX, "without a write the gap is unlimited");
    }
}
