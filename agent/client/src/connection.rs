//! HTTP/1.1 connections to the agent, kept alive and reused; the only file that names hyper.
//!
//! A connection carries one request at a time. If a request is dropped or times out, its connection
//! is closed and never reused, so that the agent frees what waits for it. No request that may have
//! reached the agent is retried here.

use crate::address::Address;
use crate::error::Error;
use crate::outcome;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The maximum number of concurrent requests of one client; each blocking query is one.
pub(crate) const MAX_CONNECTIONS: usize = 4096;

/// The maximum number of idle connections that are kept open.
const MAX_IDLE: usize = 32;

/// The maximum size in bytes of a reply that is read into memory. Only backups are larger, and they
/// are streamed.
const MAX_ANSWER: usize = 256 << 20;

/// The delay before another connection attempt while the agent's accept queue is full.
const FULL_QUEUE_BACKOFF: Duration = Duration::from_millis(2);

/// The maximum time without progress before a transfer is aborted.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The header that carries the token.
const TOKEN: HeaderName = HeaderName::from_static("x-consul-token");

/// The HTTP method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

/// The body of a request.
pub(crate) enum Outgoing {
    /// The complete body.
    Whole(Bytes),
    /// A streamed body; an error aborts the request.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

/// One request.
pub(crate) struct Call {
    pub(crate) verb: Verb,
    /// Path and query, percent-encoded.
    pub(crate) target: String,
    pub(crate) body: Outgoing,
    /// The timeout for the reply.
    pub(crate) timeout: Duration,
}

/// A reply with its complete body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// Returns the text of a header; `None` if it is absent or not text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body as human-readable text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }
}

/// A connection, wrapped or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is being wrapped.
pub type Wrapped<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'a>>;

/// Wraps the TCP connections of a client. See [`Client::wrapped`](crate::Client::wrapped).
pub trait Wrapper: Debug + Send + Sync {
    /// Wraps a new connection. An error is the source of [`Error::Unreachable`].
    fn wrap(&self, stream: TcpStream) -> Wrapped<'_>;
}

/// The connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    address: Address,
    host: HeaderValue,
    token: Option<HeaderValue>,
    wrapper: Option<Arc<dyn Wrapper>>,
    idle: Mutex<Vec<Connection>>,
    slots: Arc<Semaphore>,
}

impl Pool {
    pub(crate) fn new(address: Address) -> Self {
        // A host that is not a valid header cannot be resolved either, so connecting reports the
        // error.
        let host = match &address {
            Address::Unix(_) => HeaderValue::from_static("localhost"),
            tcp @ Address::Tcp { .. } => HeaderValue::from_str(&tcp.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("localhost")),
        };
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { address, host, token: None, wrapper: None, idle: Mutex::default(), slots }
    }

    /// Makes the pool wrap its TCP connections.
    pub(crate) fn wrapped(self, wrapper: Arc<dyn Wrapper>) -> Self {
        Self { wrapper: Some(wrapper), ..self }
    }

    /// Makes the pool send a token in every request.
    pub(crate) fn with_token(mut self, token: &str) -> Result<Self, Error> {
        let mut value = HeaderValue::from_str(token).map_err(|_| {
            Error::Settings("the token contains characters that are invalid in a header: correct it".into())
        })?;
        // Keeps the token out of debug output.
        value.set_sensitive(true);
        self.token = Some(value);
        Ok(self)
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a request and reads the complete reply.
    pub(crate) async fn call(&self, call: Call) -> Result<Reply, Error> {
        let limit = call.timeout;
        let exchange = async {
            let mut download = self.open(call).await?;
            let body = download.whole(&self.address).await?;
            let (status, headers) = (download.status, std::mem::take(&mut download.headers));
            // Only now: on a connection with an unread rest, the next reply would begin with that
            // rest.
            self.keep(download.connection);
            Ok(Reply { status, headers, body })
        };
        match timeout(limit, exchange).await {
            Ok(result) => result,
            // The exchange is dropped together with its connection, so the agent frees what waits
            // there.
            Err(_) => Err(self.unanswered(format!("no reply within {} s", limit.as_secs_f32()))),
        }
    }

    /// Sends a request and reads only the head of the reply. The caller streams the body and bounds
    /// the time.
    pub(crate) async fn open(&self, call: Call) -> Result<Download, Error> {
        let mut request = self.request(call)?;
        loop {
            let (mut connection, fresh) = match self.idle().await {
                Some(connection) => (connection, false),
                None => (self.connect().await?, true),
            };
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok(Download::new(response, connection)),
                // An idle connection that the agent closed in the meantime returns the request
                // unsent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    _ => return Err(self.unanswered(error.into_error().to_string())),
                },
            }
        }
    }

    fn request(&self, call: Call) -> Result<Request<Outgoing>, Error> {
        let method = match call.verb {
            Verb::Get => Method::GET,
            Verb::Put => Method::PUT,
            Verb::Post => Method::POST,
            Verb::Delete => Method::DELETE,
        };
        let mut builder = Request::builder().method(method).uri(&call.target).header(HOST, self.host.clone());
        if let Some(token) = &self.token {
            builder = builder.header(TOKEN, token.clone());
        }
        if matches!(call.verb, Verb::Put | Verb::Post) {
            builder = builder.header(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        }
        builder.body(call.body).map_err(|error| {
            Error::Settings(format!("the request {:?} cannot be sent: {error}", call.target))
        })
    }

    async fn idle(&self) -> Option<Connection> {
        loop {
            // The most recently used connection comes first: it is the least likely to have been
            // closed for idleness.
            let mut connection = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }

    async fn connect(&self) -> Result<Connection, Error> {
        // Does not wait for a free slot: slots may be held by blocking queries, whose duration is
        // unbounded.
        let slot = Arc::clone(&self.slots)
            .try_acquire_owned()
            .map_err(|_| Error::Saturated { limit: MAX_CONNECTIONS })?;
        let unreachable = |source| Error::Unreachable { address: self.address.clone(), source };
        let attempt = async {
            match &self.address {
                Address::Unix(path) => Connection::over(dial(path).await?, slot).await,
                Address::Tcp { host, port } => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    // Requests are small and must not wait for others to fill a packet.
                    stream.set_nodelay(true)?;
                    match &self.wrapper {
                        Some(wrapper) => Connection::over(wrapper.wrap(stream).await?, slot).await,
                        None => Connection::over(stream, slot).await,
                    }
                }
            }
        };
        match timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(result) => result.map_err(unreachable),
            Err(_) => Err(unreachable(not_accepted())),
        }
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn unanswered(&self, reason: String) -> Error {
        Error::Unanswered { address: self.address.clone(), reason }
    }
}

/// One connection; dropping it closes it.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Outgoing>,
    driver: JoinHandle<()>,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        slot: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(async move {
            // The sender reports the error to the waiting request.
            let _ = connection.await;
        });
        Ok(Self { sender, driver, _slot: slot })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closes the connection, which informs the agent that no caller waits any more.
        self.driver.abort();
    }
}

/// A reply whose body has not been read yet.
#[derive(Debug)]
pub(crate) struct Download {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    connection: Connection,
}

impl Download {
    fn new(response: Response<Incoming>, connection: Connection) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status.as_u16(), headers: head.headers, body, connection }
    }

    /// Returns the next chunk of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    // Trailers are not part of the body.
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(io::Error::other(error))),
            }
        }
    }

    /// Returns the error of a failed transfer, from the text that was received instead.
    pub(crate) fn failure(&self, text: &[u8]) -> Error {
        let outcome = self.headers.get(outcome::HEADER).and_then(|value| value.to_str().ok());
        Error::from_answer(self.status, outcome, String::from_utf8_lossy(text).trim_end().to_owned())
    }

    /// Returns the complete body, unless it exceeds the size limit.
    pub(crate) async fn whole(&mut self, address: &Address) -> Result<Bytes, Error> {
        match Limited::new(&mut self.body, MAX_ANSWER).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Error::Garbled {
                address: address.clone(),
                reason: format!("the reply is larger than {MAX_ANSWER} bytes"),
            }),
            Err(error) => Err(Error::Unanswered { address: address.clone(), reason: error.to_string() }),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // An exact size is sent as `Content-Length`: Consul ignores the chunked body of a
            // session.
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Awaits a step of a transfer, which must make progress.
pub(crate) async fn unstalled<T>(address: &Address, step: impl Future<Output = T>) -> Result<T, Error> {
    let reason = || format!("no progress for {} s", STALL_TIMEOUT.as_secs());
    let stalled = |_| Error::Unanswered { address: address.clone(), reason: reason() };
    timeout(STALL_TIMEOUT, step).await.map_err(stalled)
}

/// Connects to a Unix socket. If the accept queue is full, the kernel rejects the connection
/// immediately, unlike with TCP. This function retries until the queue has room, for at most 5 s.
///
/// # Errors
/// No connection was made and nothing was sent. [`io::ErrorKind::TimedOut`] if the queue stayed
/// full, otherwise the error of the socket.
pub async fn dial(path: &Path) -> io::Result<UnixStream> {
    let attempts = async {
        loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_QUEUE_BACKOFF).await;
                }
                done => return done,
            }
        }
    };
    timeout(CONNECT_TIMEOUT, attempts).await.unwrap_or_else(|_| Err(not_accepted()))
}

fn not_accepted() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the agent does not accept connections")
}

#[cfg(test)]
mod tests {
    use crate::entry::Acquired;
    use crate::error::Error;
    use crate::fake::{Fake, Fault};
    use crate::read::Read;
    use tokio::time::{Duration, sleep};

    #[tokio::test(start_paused = true)]
    async fn requests_and_answers_of_keys() {
        let fake = Fake::start();
        let client = fake.client();
        let kv = client.kv();
        assert_eq!(kv.get("a", &Read::default()).await.expect("an answer").value, None);
        assert!(kv.put("a", "1", 7).await.expect("written"));
        let answer = kv.get("a", &Read::default()).await.expect("an answer");
        let entry = answer.value.expect("an entry");
        assert_eq!((&entry.value[..], entry.flags, entry.session), (&b"1"[..], 7, None));
        assert!(answer.index == entry.modify_index && answer.known_leader);
        assert!(!kv.cas("a", "2", 0, 1).await.expect("an answer"));
        assert!(kv.cas("a", "2", 0, entry.modify_index).await.expect("an answer"));
        let error = kv.acquire("a", "nobody", "", 0).await.expect_err("no such session");
        assert!(matches!(&error, Error::Refused { .. }) && error.certainly_not_done(), "{error}");
        let session = client.sessions().create(&Default::default()).await.expect("a session");
        assert_eq!(
            kv.acquire("a", &session, "", 0).await.expect("free"),
            Acquired::Granted { fence: Some(1) }
        );
        assert_eq!(kv.list("", &Read::default()).await.expect("an answer").value.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn healthy_connection_reused_broken_discarded() {
        let fake = Fake::start();
        let client = fake.client();
        for _ in 0..3 {
            client.kv().put("a", "", 0).await.expect("written");
        }
        assert_eq!(client.idle_connections(), 1);
        fake.fail("kv/a", Fault::DoneUnheard, 1);
        let error = client.kv().put("a", "", 0).await.expect_err("no answer");
        assert!(matches!(error, Error::Unanswered { .. }) && !error.certainly_not_done(), "{error}");
        assert_eq!(client.idle_connections(), 0);
        client.kv().put("a", "", 0).await.expect("on a new connection");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_times_out_change_ends_wait() {
        let fake = Fake::start();
        let client = fake.client();
        fake.fail("kv/a", Fault::Silence, 1);
        let error = client.kv().get("a", &Read::default()).await.expect_err("no answer");
        assert!(matches!(error, Error::Unanswered { .. }) && error.is_transient(), "{error}");
        client.kv().put("a", "1", 0).await.expect("written");
        let index = client.kv().get("a", &Read::default()).await.expect("an answer").index;
        let waiting = client.clone();
        let waiting = tokio::spawn(async move {
            let read = Read::consistent().newer_than(index, Duration::from_secs(600));
            waiting.kv().get("a", &read).await
        });
        sleep(Duration::from_secs(500)).await;
        assert!(!waiting.is_finished());
        client.kv().put("a", "2", 0).await.expect("written");
        let answer = waiting.await.expect("no panic").expect("an answer");
        assert_eq!(answer.value.expect("an entry").value, "2");
    }
}
