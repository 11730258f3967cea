//! Connections: limits, timeouts, and shutdown.
//!
//! One task accepts for each listener, and one serves each connection. A connection over a limit
//! receives an error and is closed. At shutdown, idle connections close at once and requests under
//! way get a grace period. When a client disconnects, its request's future is dropped, and with it
//! the pending upstream call.

use super::api::{Api, HttpLimits};
use super::body::Body;
use super::guard::{Guarded, Phase, TimeLimits};
use super::listener::{Listeners, set_options};
use super::peer::Peer;
use super::router;
use super::unix_socket::BoundSocket;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lockmesh_net::accept::AcceptFailures;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

const TOO_MANY_FROM_CLIENT: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\n\
     X-Lockmesh-Outcome: not-done\r\nConnection: close\r\n\r\nYour IP is issuing too many concurrent connections, please rate limit your calls\n";
/// 500 and not 503: holders of locks give up at any other status.
const TOO_MANY: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\
     X-Lockmesh-Outcome: not-done\r\nConnection: close\r\n\r\nthe agent has reached its limit of connections: try again\n";

/// Serves until `shutdown` holds `true` and the requests under way are done or out of grace.
pub async fn serve(api: Arc<Api>, listeners: Listeners, shutdown: watch::Receiver<bool>) {
    crate::metrics::show(router::endpoint_names());
    let gate = Arc::new(Gate::new(api, shutdown));
    let mut loops = JoinSet::new();
    for listener in listeners.tcp {
        loops.spawn(accept_tcp(gate.clone(), listener));
    }
    if let Some(socket) = listeners.unix {
        loops.spawn(accept_unix(gate, socket));
    }
    while loops.join_next().await.is_some() {}
}

/// The state shared by all connections.
struct Gate {
    api: Arc<Api>,
    shutdown: watch::Receiver<bool>,
    open: AtomicUsize,
    per_client: Mutex<HashMap<IpAddr, usize>>,
    accept_failures: AcceptFailures,
}

impl Gate {
    fn new(api: Arc<Api>, shutdown: watch::Receiver<bool>) -> Self {
        let (open, per_client) = Default::default();
        Self { api, shutdown, open, per_client, accept_failures: AcceptFailures::default() }
    }

    /// Admits a connection, or returns the exceeded limit.
    fn admit(
        self: &Arc<Self>,
        listener: &'static str,
        client: Option<IpAddr>,
    ) -> Result<ConnectionPermit, Excess> {
        let limits = &self.api.limits;
        // All applications of this host use one address: the limit is for other hosts.
        let counted = client.filter(|address| !address.to_canonical().is_loopback());
        if let Some(address) = counted {
            let mut per_client = self.per_client.lock().unwrap_or_else(PoisonError::into_inner);
            let count = per_client.entry(address).or_default();
            if *count >= limits.connections_per_client {
                return Err(Excess::FromClient);
            }
            *count += 1;
        }
        crate::metrics::CONNECTIONS.with_label_values(&[listener]).inc();
        // Before the last limit, so that the count is released there too.
        let admission = ConnectionPermit { gate: self.clone(), listener, counted };
        if self.open.fetch_add(1, Ordering::Relaxed) >= limits.connections {
            return Err(Excess::InAll);
        }
        Ok(admission)
    }

    /// Pauses after a failed accept.
    async fn pause(&self, error: &io::Error) {
        crate::metrics::LIMITS.with_label_values(&["accept"]).inc();
        self.accept_failures.pause(error).await;
    }

    async fn closing(&self) {
        // A dropped sender means the same as `true`.
        let _ = self.shutdown.clone().wait_for(|closing| *closing).await;
    }
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    FromClient,
    InAll,
}

/// A connection's permit; released when dropped.
struct ConnectionPermit {
    gate: Arc<Gate>,
    listener: &'static str,
    counted: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.gate.open.fetch_sub(1, Ordering::Relaxed);
        crate::metrics::CONNECTIONS.with_label_values(&[self.listener]).dec();
        let Some(address) = self.counted else { return };
        let mut per_client = self.gate.per_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = per_client.get_mut(&address) {
            *count -= 1;
            // Addresses of disconnected clients must not accumulate.
            if *count == 0 {
                per_client.remove(&address);
            }
        }
    }
}

async fn accept_tcp(gate: Arc<Gate>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let mut closing = pin!(gate.closing());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, client)) => {
                    // A client that is gone already is noticed when it is served.
                    let _ = set_options(&socket, gate.api.limits.tcp_keep_alive);
                    connections.spawn(connection(gate.clone(), socket, Peer::Tcp(client)));
                }
                Err(error) => gate.pause(&error).await,
            },
            Some(_) = connections.join_next() => {}
            () = &mut closing => break,
        }
    }
    // From here on clients are rejected at once, instead of waiting in the backlog.
    drop(listener);
    finish(&gate, connections).await;
}

async fn accept_unix(gate: Arc<Gate>, mut socket: BoundSocket) {
    let health = &gate.api.socket_health;
    health.listening(&socket);
    let mut checks = interval(gate.api.limits.socket_check_interval);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connections = JoinSet::new();
    let mut closing = pin!(gate.closing());
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => match accepted {
                Ok((stream, _)) => vec![stream],
                Err(error) => {
                    gate.pause(&error).await;
                    continue;
                }
            },
            _ = checks.tick() => socket.keep_reachable(health),
            Some(_) = connections.join_next() => continue,
            () = &mut closing => break,
        };
        for stream in accepted {
            let peer = Peer::of(&stream);
            connections.spawn(connection(gate.clone(), stream, peer));
        }
    }
    health.closed();
    drop(socket);
    finish(&gate, connections).await;
}

/// Waits for connections that are closing; those that exceed the grace period are aborted.
async fn finish(gate: &Gate, mut connections: JoinSet<()>) {
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(gate.api.limits.shutdown_grace, all).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "aborting requests that exceeded the shutdown grace period"
        );
    }
}

async fn connection<S>(gate: Arc<Gate>, mut socket: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let admission = match gate.admit(peer.listener(), peer.ip()) {
        Ok(admission) => admission,
        Err(excess) => return turn_away(&mut socket, excess).await,
    };
    let limits = &gate.api.limits;
    let phase = Arc::new(Phase::default());
    let socket = Guarded::new(TokioIo::new(socket), phase.clone(), time_limits(limits, peer));
    let api = &gate.api;
    let service = service_fn(|request: http::Request<Incoming>| {
        let serving = phase.clone().serve();
        async move {
            let request = request.map(Body::arriving);
            let response = router::respond(api, peer, request).await;
            Ok::<_, Infallible>(response.map(|body| body.answering(serving)))
        }
    });
    // The guard enforces the deadlines of heads and of idle connections.
    let connection = http1::Builder::new()
        .title_case_headers(true)
        .header_read_timeout(None)
        .max_header_size(limits.max_header_size)
        .serve_connection(socket, service);
    let mut connection = pin!(connection);
    // A disconnect or invalid data needs no action here; hyper has sent a response if possible.
    tokio::select! {
        _ = &mut connection => {}
        () = gate.closing() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    drop(admission);
}

/// Returns the time limits of a connection. On the Unix socket the kernel reports every client that
/// is gone.
fn time_limits(limits: &HttpLimits, peer: Peer) -> TimeLimits {
    let idle = match peer {
        Peer::Tcp(_) => limits.idle_timeout,
        Peer::Unix { .. } => None,
    };
    TimeLimits { head: limits.header_read_timeout, idle }
}

async fn turn_away<S: AsyncWrite + Unpin>(socket: &mut S, excess: Excess) {
    let (limit, words) = match excess {
        Excess::FromClient => ("connections_per_client", TOO_MANY_FROM_CLIENT),
        Excess::InAll => ("connections", TOO_MANY),
    };
    crate::metrics::LIMITS.with_label_values(&[limit]).inc();
    // A client that does not read the reason is closed in any case.
    let _ = socket.write_all(words.as_bytes()).await;
    let _ = socket.shutdown().await;
}

/// Raises this process's soft limit of open files to the hard one: every connection needs a
/// descriptor.
pub fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files: fewer clients than allowed may connect");
    }
}
