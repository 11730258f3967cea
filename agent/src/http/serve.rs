//! Connections: limits, timeouts, and shutdown.
//!
//! One task accepts for each listener, and one serves each connection. A connection over a limit
//! receives an error and is closed. At shutdown, idle connections close at once and requests under
//! way get a grace period. When a client disconnects, its request's future is dropped, and with it
//! the pending upstream call.

use super::admission::{self, Admission, Excess, Place, Seat, is_for_guards};
use super::answer::Failure;
use super::api::{Api, HttpLimits};
use super::body::Body;
use super::guard::{Guarded, Phase, TimeLimits};
use super::listener::{Listeners, set_options};
use super::peer::Peer;
use super::router;
use super::unix_socket::BoundSocket;
use crate::config::HttpConfig;
use http::Response;
use http::header::{self, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lockmesh_net::accept::AcceptFailures;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval};

const TOO_MANY_FROM_CLIENT: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\n\
     X-Lockmesh-Outcome: not-done\r\nConnection: close\r\n\r\nYour IP is issuing too many concurrent connections, please rate limit your calls\n";
const TOO_MANY: &str = "the agent has reached its limit of connections: try again\n";
/// 500 and not 503: holders of locks give up at any other status.
const TOO_MANY_HEAD: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\
     X-Lockmesh-Outcome: not-done\r\nConnection: close\r\n\r\n";

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
    admission: Mutex<Admission>,
    accept_failures: AcceptFailures,
}

impl Gate {
    fn new(api: Arc<Api>, shutdown: watch::Receiver<bool>) -> Self {
        let limits = &api.limits;
        let admission = Mutex::new(Admission::new(limits.connections, limits.connections_per_client));
        Self { api, shutdown, admission, accept_failures: AcceptFailures::default() }
    }

    /// Admits a connection, or returns the exceeded limit.
    fn admit(self: &Arc<Self>, peer: Peer) -> Result<ConnectionPermit, Excess> {
        let seat = self.admission().admit(peer)?;
        crate::metrics::CONNECTIONS.with_label_values(&[peer.listener()]).inc();
        Ok(ConnectionPermit { gate: self.clone(), seat })
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A connection's permit; released when dropped.
struct ConnectionPermit {
    gate: Arc<Gate>,
    seat: Seat,
}

impl ConnectionPermit {
    /// Completes when the place was given to another connection.
    async fn evicted(&self) {
        match &self.seat.eviction {
            Some(eviction) => eviction.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        crate::metrics::CONNECTIONS.with_label_values(&[self.seat.peer.listener()]).dec();
        self.gate.admission().release(&self.seat);
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
                    begin(&gate, &mut connections, socket, Peer::Tcp(client)).await;
                }
                Err(error) => gate.pause(&error).await,
            },
            // The set keeps the result of each connection until it is taken.
            Some(_) = connections.join_next() => {}
            () = &mut closing => break,
        }
    }
    // From here on clients are rejected at once, instead of waiting in the backlog.
    drop(listener);
    finish(&gate, connections).await;
}

async fn accept_unix(gate: Arc<Gate>, mut socket: BoundSocket) {
    let health = &gate.api.own.socket;
    health.listening(&socket);
    let mut checks = interval(gate.api.limits.socket_check_interval);
    // After a pause of this process, one check is enough.
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
            begin(&gate, &mut connections, stream, peer).await;
        }
    }
    // Before the file is removed, which would be reported as a problem.
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

/// Begins to serve a connection, if there is a place for it. Rejected ones are closed before the
/// next is accepted: together they never hold more than one descriptor.
async fn begin<S>(gate: &Arc<Gate>, connections: &mut JoinSet<()>, mut socket: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match gate.admit(peer) {
        Ok(permit) => {
            let is_late = permit.seat.place == Place::Guards;
            connections.spawn(connection(permit, socket));
            // The connection that lost this place closes its socket before the next is accepted.
            if is_late {
                yield_now().await;
            }
        }
        Err(excess) => turn_away(&mut socket, excess).await,
    }
}

/// Serves a connection until it ends; its place is free after that.
async fn connection<S>(permit: ConnectionPermit, socket: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ConnectionPermit { gate, seat } = &permit;
    let (peer, place, api, limits) = (seat.peer, seat.place, &gate.api, &gate.api.limits);
    let phase = Arc::new(Phase::default());
    let socket = Guarded::new(TokioIo::new(socket), phase.clone(), time_limits(limits, peer, place));
    let service = service_fn(|request: http::Request<Incoming>| {
        let serving = phase.clone().serve();
        async move {
            let response = match place {
                Place::General | Place::Unix => answer(api, peer, request).await,
                Place::Guards => {
                    gate.admission().claim(seat);
                    answer_guard(api, peer, request).await
                }
            };
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
        () = permit.evicted() => {}
        () = gate.closing() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Returns the time limits of a connection. On the Unix socket the kernel reports every client that
/// is gone.
fn time_limits(limits: &HttpLimits, peer: Peer, place: Place) -> TimeLimits {
    let head = limits.header_read_timeout;
    let idle = match (place, peer) {
        // A reserved place is for a request that comes at once.
        (Place::Guards, _) => Some(head),
        (_, Peer::Tcp(_)) => limits.idle_timeout,
        (_, Peer::Unix { .. }) => None,
    };
    TimeLimits { head, idle }
}

async fn answer(api: &Api, peer: Peer, request: http::Request<Incoming>) -> Response<Body> {
    router::respond(api, peer, request.map(Body::arriving)).await
}

/// Answers in a place that is reserved for guards: one request, of a guard.
async fn answer_guard(api: &Api, peer: Peer, request: http::Request<Incoming>) -> Response<Body> {
    let mut response = match is_for_guards(request.uri().path()) {
        true => answer(api, peer, request).await,
        false => {
            crate::metrics::LIMITS.with_label_values(&["connections"]).inc();
            Failure::not_done(TOO_MANY).into_response()
        }
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn turn_away<S: AsyncWrite + Unpin>(socket: &mut S, excess: Excess) {
    let (limit, words) = match excess {
        Excess::FromClient => ("connections_per_client", TOO_MANY_FROM_CLIENT.to_owned()),
        Excess::InAll => ("connections", format!("{TOO_MANY_HEAD}{TOO_MANY}")),
    };
    crate::metrics::LIMITS.with_label_values(&[limit]).inc();
    // It fits the socket's buffer, so this does not wait for the client.
    let _ = socket.write_all(words.as_bytes()).await;
    let _ = socket.shutdown().await;
}

/// Raises this process's soft limit of open files to the hard one, because every connection needs a
/// descriptor. Returns the limit.
pub fn raise_open_files_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files: fewer clients than allowed may connect");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of connections that the limit of open files permits, at most the configured
/// one; it is logged if it is less, as a warning unless the default is configured.
pub fn connections_that_fit(open_files: u64, configured: usize) -> usize {
    let connections = admission::that_fit(open_files, configured);
    if connections < configured {
        let text = "the limit of open files permits fewer connections than `http.max_connections`: raise it \
                    (LimitNOFILE, ulimit -Hn), or lower `http.max_connections`";
        // Nobody who has not chosen a number needs so many.
        match configured == HttpConfig::default().max_connections {
            true => tracing::info!(open_files, configured, connections, "{text}"),
            false => tracing::warn!(open_files, configured, connections, "{text}"),
        }
    }
    connections
}
