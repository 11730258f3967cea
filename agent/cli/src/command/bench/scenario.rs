//! Closed loops: each client has one connection and one pending request.
//!
//! Requests are built once and sent again, so that the generator takes little of the machine that
//! it shares with the agent.

use super::figures::{Figure, Latencies};
use super::wire::{Head, Wire, request};
use lockmesh_client::Address;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The warm-up time, which is not counted.
const WARM_UP: f64 = 0.1;

/// The loop of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scenario {
    /// Write one key per client
    Puts,
    /// Read one key per client
    Gets,
    /// Acquire and release one lock per client; one operation is both
    Lock,
    /// Pass a lock between two contenders; one operation is from release to grant
    Handoff,
    /// Create and destroy a session; one operation is both
    Sessions,
    /// Wake many blocked watchers
    Watchers,
}

impl Scenario {
    /// Everything that is measured by closed loops.
    pub(super) const LOOPS: [Self; 5] = [Self::Puts, Self::Gets, Self::Lock, Self::Handoff, Self::Sessions];

    /// Its name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Puts => "puts",
            Self::Gets => "gets",
            Self::Lock => "lock",
            Self::Handoff => "handoff",
            Self::Sessions => "sessions",
            Self::Watchers => "watchers",
        }
    }
}

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The address of the agent.
    pub(super) address: Address,
    /// Under which prefix the keys are; deleted in the end.
    pub(super) prefix: String,
    /// The duration of each measurement.
    pub(super) duration: Duration,
    /// The size of a value in bytes.
    pub(super) value_size: usize,
    /// `true` once the measurement is to end early.
    pub(super) stop: watch::Receiver<bool>,
}

impl Plan {
    /// The target of one of the plan's keys.
    pub(super) fn key(&self, name: impl std::fmt::Display, query: &str) -> String {
        format!("/v1/kv/{}/{name}{query}", self.prefix)
    }

    /// Deletes what the measurements have left.
    pub(super) async fn clean_up(&self) -> io::Result<()> {
        let target = format!("/v1/kv/{}/?recurse", self.prefix);
        Wire::connect(&self.address).await?.exchange(&request("DELETE", &target, b"")).await.map(|_| ())
    }

    /// Two values, so that a write always changes something.
    fn values(&self) -> [Vec<u8>; 2] {
        [vec![b'a'; self.value_size], vec![b'b'; self.value_size]]
    }

    /// A session that ends soon after the measurement if it is not destroyed.
    async fn session(&self, wire: &mut Wire) -> io::Result<String> {
        let head = wire.exchange(&self.new_session()).await?;
        session_id(wire.body(head))
    }

    fn new_session(&self) -> Vec<u8> {
        // No client renews it, so it must outlast the warm-up and the measurement.
        let ttl = 60 + 2 * self.duration.as_secs();
        let body = format!(r#"{{"Name":"lockmesh bench","TTL":"{ttl}s","LockDelay":"0s","NodeChecks":[]}}"#);
        request("PUT", "/v1/session/create", body.as_bytes())
    }
}

/// Lets `clients` of them run at once and sums up what they did; `None` if it was stopped before
/// anything counted.
pub(super) async fn measure(scenario: Scenario, clients: usize, plan: &Plan) -> io::Result<Option<Figure>> {
    let mut tasks = JoinSet::new();
    let begin = Instant::now() + plan.duration.mul_f64(WARM_UP);
    let window = Window { begin, end: begin + plan.duration };
    for client in 0..clients {
        let plan = plan.clone();
        tasks.spawn(async move {
            match scenario {
                Scenario::Puts => puts(client, &plan, window).await,
                Scenario::Gets => gets(client, &plan, window).await,
                Scenario::Lock => lock(client, &plan, window).await,
                Scenario::Handoff => handoff(client, &plan, window).await,
                Scenario::Sessions => sessions(&plan, window).await,
                Scenario::Watchers => unreachable!("watchers are not measured in a loop"),
            }
        });
    }
    let mut all = Latencies::new();
    while let Some(done) = tasks.join_next().await {
        all.add(&done.map_err(io::Error::other)??);
    }
    // A measurement that was stopped early lasted for a part of its window only.
    let took = begin.elapsed().min(plan.duration);
    Ok((!took.is_zero()).then(|| Figure::of(scenario.name(), clients, took, &all)))
}

/// The time in which operations count: from their beginning to their end.
#[derive(Clone, Copy, Debug)]
struct Window {
    begin: Instant,
    end: Instant,
}

/// Latencies of the operations within a window.
struct Meter {
    stop: watch::Receiver<bool>,
    window: Window,
    latencies: Latencies,
}

impl Meter {
    fn new(plan: &Plan, window: Window) -> Self {
        Self { stop: plan.stop.clone(), window, latencies: Latencies::new() }
    }

    /// Notes an operation; `false` when the time is over. One that began too early or ended too
    /// late does not count.
    fn note(&mut self, begun: Instant) -> bool {
        let now = Instant::now();
        if begun >= self.window.begin && now <= self.window.end {
            self.latencies.record(now - begun);
        }
        now < self.window.end && !*self.stop.borrow()
    }
}

async fn puts(client: usize, plan: &Plan, window: Window) -> io::Result<Latencies> {
    let mut wire = Wire::connect(&plan.address).await?;
    let requests = plan.values().map(|value| request("PUT", &plan.key(client, ""), &value));
    let mut meter = Meter::new(plan, window);
    for request in requests.iter().cycle() {
        let begun = Instant::now();
        let head = wire.exchange(request).await?;
        expect_true(&wire, head)?;
        if !meter.note(begun) {
            break;
        }
    }
    Ok(meter.latencies)
}

async fn gets(client: usize, plan: &Plan, window: Window) -> io::Result<Latencies> {
    let mut wire = Wire::connect(&plan.address).await?;
    wire.exchange(&request("PUT", &plan.key(client, ""), &plan.values()[0])).await?;
    let request = request("GET", &plan.key(client, ""), b"");
    let mut meter = Meter::new(plan, window);
    loop {
        let begun = Instant::now();
        let head = wire.exchange(&request).await?;
        if head.status != 200 {
            return Err(io::Error::other("a key that was just written is not there"));
        }
        if !meter.note(begun) {
            return Ok(meter.latencies);
        }
    }
}

async fn lock(client: usize, plan: &Plan, window: Window) -> io::Result<Latencies> {
    let mut wire = Wire::connect(&plan.address).await?;
    let session = plan.session(&mut wire).await?;
    let [acquire, release] = lock_requests(plan, &format!("lock-{client}"), &session);
    let mut meter = Meter::new(plan, window);
    loop {
        let begun = Instant::now();
        for request in [&acquire, &release] {
            let head = wire.exchange(request).await?;
            expect_true(&wire, head)?;
        }
        if !meter.note(begun) {
            break;
        }
    }
    destroy(&mut wire, &session).await?;
    Ok(meter.latencies)
}

/// One of two contenders for a lock.
struct Contender {
    wire: Wire,
    session: String,
    /// Takes the lock, or waits in its queue.
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl Contender {
    async fn new(plan: &Plan, key: &str) -> io::Result<Self> {
        let mut wire = Wire::connect(&plan.address).await?;
        let session = plan.session(&mut wire).await?;
        let [_, release] = lock_requests(plan, key, &session);
        let path = plan.key(key, &format!("?acquire={session}&wait=60s"));
        let acquire = request("PUT", &path, &plan.values()[0]);
        Ok(Self { wire, session, acquire, release })
    }
}

/// One gives the lock back while the other waits in its queue. The wait is on its way before the
/// release is; were it overtaken, it would find the lock free.
async fn handoff(client: usize, plan: &Plan, window: Window) -> io::Result<Latencies> {
    let key = format!("handoff-{client}");
    let (mut holder, mut waiter) = (Contender::new(plan, &key).await?, Contender::new(plan, &key).await?);
    let head = holder.wire.exchange(&holder.acquire).await?;
    expect_true(&holder.wire, head)?;
    let mut meter = Meter::new(plan, window);
    loop {
        waiter.wire.send(&waiter.acquire).await?;
        let begun = Instant::now();
        holder.wire.send(&holder.release).await?;
        let head = waiter.wire.receive().await?;
        expect_true(&waiter.wire, head)?;
        // The grant is the end: what the release itself is answered belongs to no hand-off.
        let goes_on = meter.note(begun);
        let head = holder.wire.receive().await?;
        expect_true(&holder.wire, head)?;
        std::mem::swap(&mut holder, &mut waiter);
        if !goes_on {
            break;
        }
    }
    destroy(&mut holder.wire, &holder.session).await?;
    destroy(&mut waiter.wire, &waiter.session).await?;
    Ok(meter.latencies)
}

async fn sessions(plan: &Plan, window: Window) -> io::Result<Latencies> {
    let mut wire = Wire::connect(&plan.address).await?;
    let mut meter = Meter::new(plan, window);
    loop {
        let begun = Instant::now();
        let session = plan.session(&mut wire).await?;
        destroy(&mut wire, &session).await?;
        if !meter.note(begun) {
            return Ok(meter.latencies);
        }
    }
}

fn lock_requests(plan: &Plan, key: &str, session: &str) -> [Vec<u8>; 2] {
    ["acquire", "release"]
        .map(|verb| request("PUT", &plan.key(key, &format!("?{verb}={session}")), &plan.values()[0]))
}

async fn destroy(wire: &mut Wire, session: &str) -> io::Result<()> {
    wire.exchange(&request("PUT", &format!("/v1/session/destroy/{session}"), b"")).await.map(|_| ())
}

fn expect_true(wire: &Wire, head: Head) -> io::Result<()> {
    match wire.body(head).trim_ascii() {
        b"true" => Ok(()),
        other => {
            Err(io::Error::other(format!("the agent said {}, not true", String::from_utf8_lossy(other))))
        }
    }
}

fn session_id(body: &[u8]) -> io::Result<String> {
    let created: lockmesh_client::shape::session::Created = serde_json::from_slice(body)?;
    Ok(created.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> (watch::Sender<bool>, Plan) {
        let (sender, stop) = watch::channel(false);
        let (address, duration) = (Address::Unix("/nowhere".into()), Duration::from_secs(1));
        (sender, Plan { address, prefix: "bench/1".into(), duration, value_size: 2, stop })
    }

    #[test]
    fn counts_only_operations_inside_window() {
        let now = Instant::now();
        let hour = Duration::from_secs(3600);
        let (stop, plan) = plan();
        let mut meter = Meter::new(&plan, Window { begin: now, end: now + hour });
        assert!(meter.note(now - Duration::from_millis(1)), "began too early, but the time is not over");
        assert_eq!(meter.latencies.count(), 0);
        assert!(meter.note(now));
        assert_eq!(meter.latencies.count(), 1);
        stop.send(true).expect("the plan listens");
        assert!(!meter.note(now), "interrupted");
        let mut meter = Meter::new(&plan, Window { begin: now - hour, end: now });
        assert!(!meter.note(now - hour), "ended too late");
        assert_eq!(meter.latencies.count(), 0);
    }

    #[test]
    fn requests_name_their_keys() {
        let (_stop, plan) = plan();
        let [acquire, release] = lock_requests(&plan, "k", "s");
        assert!(
            acquire.starts_with(b"PUT /v1/kv/bench/1/k?acquire=s HTTP/1.1\r\n")
                && acquire.ends_with(b"\r\n\r\naa")
        );
        assert!(release.starts_with(b"PUT /v1/kv/bench/1/k?release=s HTTP/1.1\r\n"));
        assert_ne!(plan.values()[0], plan.values()[1]);
        assert!(plan.new_session().ends_with(br#""TTL":"62s","LockDelay":"0s","NodeChecks":[]}"#));
    }
}
