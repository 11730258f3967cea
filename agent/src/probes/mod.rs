//! Health checks that this agent runs: HTTP, TCP, UDP, gRPC, HTTP/2 ping and scripts.
//!
//! Output texts are Consul's, and error texts are like Go's, because operators and tools match
//! them.
//!
//! **Invariants:** a run ends within its timeout, plus [`KILL_GRACE`] for a script that has to be
//! killed. It keeps at most the last `max_output_bytes` of what the target sends. Dropping a run
//! closes its sockets and kills its processes; no task remains.
//!
//! | file | contents |
//! |---|---|
//! | `http.rs` | HTTP requests: headers, redirects, gzip |
//! | `url.rs` | URLs as Go parses them, and relative redirects |
//! | `tcp.rs` | name resolution, TCP connections, UDP datagrams |
//! | `tls.rs` | TLS handshakes: system roots, or any certificate |
//! | `http2.rs` | gRPC's health protocol, HTTP/2 pings |
//! | `script.rs` | processes and their groups |
//! | `output.rs` | the tail of the output, and error texts |
//! | `error.rs` | the reasons why a probe fails |

mod error;
mod http;
mod http2;
pub(crate) mod output;
mod script;
mod tcp;
mod tls;
mod url;

pub use tls::system_roots;

use lockmesh_agent_core::definitions::{Probe, Target};
use lockmesh_agent_core::registry::{Outcome, Run, floor_char_boundary};
use lockmesh_protocol::record::CheckStatus;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// The maximum time after the timeout for killed processes to exit.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// The maximum timeout of a run. A longer one is lowered to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The maximum size in bytes of an output's text besides the captured output.
const MAX_FIXED_TEXT: usize = 8 << 10;

/// The maximum number of threads that name resolution and the start of scripts block at a time. A
/// call that hangs keeps its thread after the timeout of its run.
const MAX_BLOCKED_THREADS: usize = 64;

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
struct Limits {
    timeout: Duration,
    deadline: Instant,
    max_output_bytes: usize,
}

/// Runs a check once.
///
/// Never fails: a target that cannot be probed is critical, and the output is the error.
pub async fn run(run: &Run) -> Outcome {
    execute(&run.probe, run.max_output_bytes).await
}

async fn execute(probe: &Probe, max_output_bytes: usize) -> Outcome {
    let limits = Limits::of(probe, max_output_bytes);
    let mut outcome = match &probe.target {
        Target::Http(target) => Box::pin(http::request(target, &limits)).await,
        Target::Tcp { address, tls } => Box::pin(tcp::connect(address, tls.as_ref(), &limits)).await,
        Target::Udp { address } => tcp::send_datagram(address, &limits).await,
        Target::Grpc { target, tls } => Box::pin(http2::health(target, tls.as_ref(), &limits)).await,
        Target::H2Ping { address, tls } => Box::pin(http2::ping(address, tls.as_ref(), &limits)).await,
        Target::Script { args } => script::execute(args, &limits).await,
    };
    // A byte that is not UTF-8 becomes a character of three bytes.
    let most = max_output_bytes.saturating_mul(3).saturating_add(MAX_FIXED_TEXT);
    outcome.output.truncate(floor_char_boundary(&outcome.output, most));
    outcome
}

impl Limits {
    fn of(probe: &Probe, max_output_bytes: usize) -> Self {
        let own = probe.timeout.filter(|timeout| !timeout.is_zero());
        let timeout = own.unwrap_or_else(|| probe.target.default_timeout()).min(MAX_TIMEOUT);
        Self { timeout, deadline: Instant::now() + timeout, max_output_bytes }
    }
}

fn passing(output: String) -> Outcome {
    Outcome { status: CheckStatus::Passing, output }
}

fn critical(output: String) -> Outcome {
    Outcome { status: CheckStatus::Critical, output }
}

/// Drives a connection until the exchange on it has ended.
async fn drive<T>(connection: impl Future, exchange: impl Future<Output = T>) -> T {
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        result = &mut exchange => result,
        // The exchange may have data left to read; otherwise it fails.
        _ = connection => exchange.await,
    }
}

/// Calls a function that may block. Returns `None` if it panics.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static THREADS: Semaphore = Semaphore::const_new(MAX_BLOCKED_THREADS);
    let permit = THREADS.acquire().await.ok()?;
    let call = move || {
        let _permit = permit;
        call()
    };
    spawn_blocking(call).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::definitions::HttpTarget;
    use tokio::net::TcpSocket;

    /// Returns limits with a timeout that begins now.
    pub(super) fn limits(timeout: Duration) -> Limits {
        Limits { timeout, deadline: Instant::now() + timeout, max_output_bytes: 4096 }
    }

    /// Reserves a port on which nothing listens.
    pub(super) fn closed_port() -> (TcpSocket, String) {
        let socket = TcpSocket::new_v4().expect("sockets can be opened");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
        let address = socket.local_addr().expect("it is bound").to_string();
        (socket, address)
    }

    fn probe(target: Target, timeout: Option<Duration>) -> Probe {
        Probe { target, interval: Duration::from_secs(1), timeout }
    }

    #[tokio::test]
    async fn panicking_call_returns_none() {
        assert_eq!(blocking(|| 1).await, Some(1));
        assert_eq!(blocking(|| -> u8 { panic!("as the test wants") }).await, None);
    }

    #[tokio::test]
    async fn unset_or_excessive_timeout_replaced() {
        let script = || Target::Script { args: vec!["true".into()] };
        let udp = || Target::Udp { address: "localhost:9".into() };
        for (probe, timeout) in [
            (probe(script(), None), Duration::from_secs(30)),
            (probe(udp(), Some(Duration::ZERO)), Duration::from_secs(10)),
            (probe(udp(), Some(Duration::from_millis(1))), Duration::from_millis(1)),
            (probe(udp(), Some(Duration::MAX)), MAX_TIMEOUT),
        ] {
            assert_eq!(Limits::of(&probe, 1).timeout, timeout, "{probe:?}");
        }
    }

    /// Contract: 94, 102.
    #[tokio::test]
    async fn every_kind_reports_closed_port() {
        let (_socket, address) = closed_port();
        let http = HttpTarget { url: format!("http://{address}"), ..HttpTarget::default() };
        let refused = format!("dial tcp {address}: connect: connection refused");
        for (target, error) in [
            (Target::Http(http), format!(r#"Get "http://{address}": {refused}"#)),
            (Target::Tcp { address: address.clone(), tls: None }, refused.clone()),
            (
                Target::Grpc { target: address.clone(), tls: None },
                format!(
                    "rpc error: code = Unavailable desc = connection error: desc = \
                     \"transport: Error while dialing: {refused}\""
                ),
            ),
            (
                Target::H2Ping { address: address.clone(), tls: None },
                format!("Failed to dial to {address}: {refused}"),
            ),
        ] {
            assert_eq!(execute(&probe(target, None), 4096).await, critical(error));
        }
    }

    #[tokio::test]
    async fn output_limited_despite_long_definition() {
        let url = format!("http://{}", "a".repeat(100_000));
        let target = Target::Http(HttpTarget { url, ..HttpTarget::default() });
        let outcome = execute(&probe(target, None), 10).await;
        assert_eq!((outcome.status, outcome.output.len()), (CheckStatus::Critical, 30 + MAX_FIXED_TEXT));
    }
}
