//! The HTTP port for metrics and health.
//!
//! | path | answers |
//! |---|---|
//! | `/metrics` | all metrics of the process, in Prometheus' format |
//! | `/health/live` | 200 while the server's driver runs or is about to run |
//! | `/health/ready` | 200 while this server can serve, else 503 with one reason per line |
//!
//! It has its own thread, so that it answers while the driver is busy or waits for its disk.
//! **Invariants:** it calls neither driver nor disk and only reads the last report; it is
//! read-only; connections, the length of a head and its duration are limited.

use crate::config::HttpConfig;
use crate::health::Health;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lockmesh_net::accept::AcceptFailures;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PATHS: &str = "/metrics, /health/live and /health/ready";

/// The longest life of a connection.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(300);

const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
     too many connections: the limit is `http.max_connections`\n";

/// The open port. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct HttpPort {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl HttpPort {
    /// Listens if configured, and starts to answer.
    pub(crate) fn open(config: &HttpConfig, health: &Health) -> io::Result<Option<Self>> {
        let Some(address) = config.listen else { return Ok(None) };
        let listener = StdTcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let port = Port { config: config.clone(), health: health.clone() };
        let thread = thread::Builder::new().name("http".into());
        let thread = thread.spawn(move || port.serve(&runtime, listener, stopped))?;
        tracing::info!(%address, "serving metrics and health at {PATHS}");
        Ok(Some(Self { address, stop, thread }))
    }

    /// Returns the address listened on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port, and waits for that. Requests in progress get no answer.
    pub(crate) fn close(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread of the HTTP port panicked");
        }
    }
}

/// The state of the thread.
struct Port {
    config: HttpConfig,
    health: Health,
}

impl Port {
    fn serve(self, runtime: &Runtime, listener: StdTcpListener, stopped: oneshot::Receiver<()>) {
        runtime.block_on(async {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!("cannot serve the HTTP port: {error}"),
            };
            tokio::select! {
                () = Arc::new(self).accept(listener) => {}
                // No value is ever sent: the channel closes to close the port.
                _ = stopped => {}
            }
        });
    }

    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(self.config.max_connections));
        let failures = AcceptFailures::default();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match (accepted, Arc::clone(&room).try_acquire_owned()) {
                    (Ok((socket, _)), Ok(permit)) => {
                        connections.spawn(Arc::clone(&self).connection(socket, permit));
                    }
                    (Ok((socket, _)), Err(_)) => turn_away(socket).await,
                    (Err(error), _) => failures.pause(&error).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(self: Arc<Self>, socket: TcpStream, _permit: OwnedSemaphorePermit) {
        let answer = service_fn(|request| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.config.read_timeout)
                .max_header_size(self.config.max_header_bytes)
                .serve_connection(TokioIo::new(socket), answer)
        );
        // Errors of a client are ignored; hyper has answered what it could.
        if timeout(CONNECTION_LIFETIME, connection.as_mut()).await.is_err() {
            // A client that reads no answer must not block others forever; a scraper reconnects.
            connection.as_mut().graceful_shutdown();
            let _ = timeout(self.config.read_timeout, connection).await;
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if !matches!(path, "/metrics" | "/health/live" | "/health/ready") {
            return text(StatusCode::NOT_FOUND, format!("not found: use {PATHS}\n"));
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let words = format!("method {} is not allowed: {PATHS} accept GET and HEAD\n", request.method());
            let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, words);
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match path {
            "/metrics" => {
                typed(StatusCode::OK, lockmesh_net::metrics::text(), lockmesh_net::metrics::CONTENT_TYPE)
            }
            "/health/live" if self.health.is_live() => text(StatusCode::OK, "live\n".into()),
            "/health/live" => text(StatusCode::SERVICE_UNAVAILABLE, "this server has ended\n".into()),
            _ => self.ready(),
        }
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        let reasons = self.health.not_ready(Instant::now());
        match reasons.is_empty() {
            true => text(StatusCode::OK, "ready\n".into()),
            false => text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
        }
    }
}

/// A client that disconnects first gets no answer.
async fn turn_away(mut socket: TcpStream) {
    // It fits the socket's buffer, so this does not wait for the client.
    let _ = socket.write_all(TOO_MANY.as_bytes()).await;
    let _ = socket.shutdown().await;
}

fn text(status: StatusCode, words: String) -> Response<Full<Bytes>> {
    typed(status, words.into_bytes(), "text/plain; charset=utf-8")
}

fn typed(status: StatusCode, body: Vec<u8>, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Report;
    use lockmesh_core::frontend::NotReady;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn open(config: &HttpConfig) -> (HttpPort, Health) {
        let health = Health::default();
        let port = HttpPort::open(config, &health).expect("a free port").expect("it is not switched off");
        (port, health)
    }

    fn ask(port: &HttpPort, request: &str) -> String {
        let mut socket = TcpStream::connect(port.address()).expect("it listens");
        socket.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        // A response that is cut off is judged by its beginning.
        let _ = socket.read_to_string(&mut answer);
        answer
    }

    fn request(port: &HttpPort, method: &str, path: &str) -> String {
        ask(port, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    #[test]
    fn health_responses_include_reasons() {
        let (port, health) = open(&HttpConfig::default());
        assert!(request(&port, "GET", "/health/live").starts_with("HTTP/1.1 200"));
        assert!(request(&port, "GET", "/health/ready").starts_with("HTTP/1.1 503"), "there is no driver yet");
        let report =
            |not_ready| health.report(Report { at: Instant::now(), not_ready, unpersisted_since: None });
        report(vec![NotReady::DiskFailing("no space".into()), NotReady::NoLeader]);
        let refused = request(&port, "GET", "/health/ready");
        assert!(
            refused.ends_with("\r\n\r\nthe disk refuses writes: no space\nno leader is known\n"),
            "{refused}"
        );
        report(Vec::new());
        assert!(request(&port, "GET", "/health/ready").starts_with("HTTP/1.1 200"));
        let head = request(&port, "HEAD", "/health/ready");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        health.end();
        assert!(request(&port, "GET", "/health/live").starts_with("HTTP/1.1 503"));
        port.close();
    }

    #[test]
    fn unknown_and_malformed_requests_rejected() {
        let (port, _) = open(&HttpConfig::default());
        let wrong = request(&port, "GET", "/metric");
        assert!(wrong.starts_with("HTTP/1.1 404") && wrong.contains(PATHS), "{wrong}");
        let wrong = request(&port, "POST", "/metrics");
        assert!(wrong.starts_with("HTTP/1.1 405") && wrong.contains("GET and HEAD"), "{wrong}");
        assert!(ask(&port, "\u{1}\u{2} nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
        assert!(!ask(&port, &long).starts_with("HTTP/1.1 200"));
        assert!(request(&port, "GET", "/metrics").contains("# TYPE "));
        port.close();
    }

    #[test]
    fn excess_and_slow_connections_closed() {
        let config = HttpConfig {
            max_connections: 1,
            read_timeout: Duration::from_millis(1),
            ..HttpConfig::default()
        };
        let (port, _) = open(&HttpConfig { read_timeout: Duration::from_secs(3600), ..config });
        let mut first = TcpStream::connect(port.address()).expect("it listens");
        first.write_all(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let mut byte = [0];
        first.read_exact(&mut byte).expect("it is answered, and the connection stays");
        assert!(ask(&port, "").contains("http.max_connections"));
        port.close();

        let (port, _) = open(&config);
        assert!(
            !ask(&port, "GET /health/live HT").contains(" 200 "),
            "it is cut off, or this would wait for ever"
        );
        port.close();
    }

    #[test]
    fn occupied_port_fails_unset_port_disables() {
        let (port, health) = open(&HttpConfig::default());
        let taken = HttpConfig { listen: Some(port.address()), ..HttpConfig::default() };
        let error = HttpPort::open(&taken, &health).expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let none = HttpConfig { listen: None, ..HttpConfig::default() };
        assert!(HttpPort::open(&none, &health).expect("nothing to do").is_none());
        let address = port.address();
        port.close();
        let again = HttpConfig { listen: Some(address), ..HttpConfig::default() };
        HttpPort::open(&again, &health).expect("it is free again").expect("it is wanted").close();
    }
}
