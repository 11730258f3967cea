//! Sessions that depend on checks of an agent during an upgrade: a TTL check, to which an
//! application reports, and an HTTP check of a registered service. An older build may know no
//! services: its successor gets the service then.

use crate::dialect::let_pass;
use crate::http::Client;
use crate::target::HttpTarget;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The number of sessions on each check.
pub const SESSIONS: usize = 5;
/// The TTL of the check that an application reports: longer than an agent is away.
const TTL: &str = "20s";
/// The interval between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The id of the TTL check.
const APPLICATION: &str = "application";
/// The id of the service's check.
const SERVICE_CHECK: &str = "web-up";
/// The maximum time until the service's check has passed in the catalog.
const PASS_LIMIT: Duration = Duration::from_secs(30);
/// The interval between two looks at the catalog.
const GLANCE: Duration = Duration::from_millis(50);

/// The sessions of one agent, with what they depend on.
pub struct Checked {
    client: Client,
    node: String,
    sessions: Vec<(&'static str, String)>,
    target: HttpTarget,
    is_over: Arc<AtomicBool>,
    reporter: JoinHandle<()>,
}

impl Checked {
    /// Registers the TTL check, reports to it, and creates its sessions.
    pub fn start(client: &Client, node: &str) -> Self {
        let check = json!({"Name": APPLICATION, "TTL": TTL, "Status": "passing"}).to_string();
        client.put("/v1/agent/check/register", check).expect(200);
        let is_over = Arc::<AtomicBool>::default();
        let (ending, reporting) = (Arc::clone(&is_over), client.clone());
        let reporter = thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                // Fails while the agent is away.
                let _ = reporting.try_ask("PUT", &format!("/v1/agent/check/pass/{APPLICATION}"), &[], b"");
                let_pass(REPORT_INTERVAL);
            }
        });
        let (target, node) = (HttpTarget::start(), node.to_owned());
        let mut this = Self { client: client.clone(), node, sessions: Vec::new(), target, is_over, reporter };
        this.wait_until_passing(APPLICATION);
        this.create_sessions(APPLICATION);
        this
    }

    /// Registers the service, and creates the sessions of its check. Returns `false` if the agent
    /// knows no services.
    pub fn register_service(&mut self) -> bool {
        let check = json!({"CheckID": SERVICE_CHECK, "HTTP": self.target.url(), "Interval": "1s"});
        let service = json!({"Name": "web", "Port": 80, "Check": check}).to_string();
        let is_registered = self.client.put("/v1/agent/service/register", service).status == 200;
        if is_registered {
            self.wait_until_passing(SERVICE_CHECK);
            self.create_sessions(SERVICE_CHECK);
        }
        is_registered
    }

    /// Returns `true` if it has sessions on the check of its service.
    pub fn has_service(&self) -> bool {
        self.sessions.iter().any(|(check, _)| *check == SERVICE_CHECK)
    }

    /// Ends the reports. Returns the number of sessions, and descriptions of those that were lost.
    pub fn end(self) -> (usize, Vec<String>) {
        let losses = self.client.get("/v1/lockmesh/losses").expect(200).json();
        let is_lost = |(_, session): &&(&str, String)| self.client.session_info(session).is_none();
        let lost = self.sessions.iter().filter(is_lost).map(|(check, session)| {
            let loss =
                losses.as_array().and_then(|losses| losses.iter().find(|loss| loss["Session"] == **session));
            format!("{}: a session on check {check} was lost: {}", self.node, loss.unwrap_or(&Value::Null))
        });
        let lost = lost.collect();
        self.is_over.store(true, Ordering::Relaxed);
        self.reporter.join().expect("reports do not panic");
        (self.sessions.len(), lost)
    }

    /// Creates sessions, each with a lock, so that its loss is recorded.
    fn create_sessions(&mut self, check: &'static str) {
        for number in 0..SESSIONS {
            let body = json!({"Name": "checked", "LockDelay": "0s", "NodeChecks": ["serfHealth", check]});
            let session = self.client.session_of(body);
            let key = format!("upgrade/{}/{check}/{number}", self.node);
            assert!(self.client.acquire(&key, &session), "a new key is free");
            self.sessions.push((check, session));
        }
    }

    fn wait_until_passing(&self, check: &str) {
        let begun = Instant::now();
        loop {
            let checks = self.client.get(&format!("/v1/health/node/{}", self.node)).expect(200).json();
            let is_it = |known: &Value| known["CheckID"] == check && known["Status"] == "passing";
            if checks.as_array().is_some_and(|checks| checks.iter().any(is_it)) {
                return;
            }
            assert!(begun.elapsed() < PASS_LIMIT, "check {check} of {} does not pass: {checks}", self.node);
            let_pass(GLANCE);
        }
    }
}
