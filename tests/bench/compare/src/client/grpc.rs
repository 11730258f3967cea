//! gRPC over HTTP/2 without TLS: one connection, any number of concurrent calls and streams.
//!
//! Two tasks serve a connection. Messages that callers send in one turn share one write, and the
//! responses of one read wake all their callers. Dropping a call cancels it. A connection that
//! breaks fails all its calls.

use crate::wire::etcd::Method;
use crate::wire::http2::{self, Frame, Requests};
use crate::wire::malformed;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};

/// The received bytes after which the peer's window is extended by as much.
const LEAVE: u32 = 1 << 30;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Grpc {
    shared: Rc<Shared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct Shared {
    state: RefCell<State>,
    /// Notified when there is something to send.
    written: Notify,
    /// Notified when more may be sent.
    granted: Notify,
}

#[derive(Debug)]
struct State {
    requests: Requests,
    out: Vec<u8>,
    next_stream: u32,
    streams: HashMap<u32, Slot>,
    /// The bytes that may be sent, in total, and on a new stream.
    window: i64,
    first_window: i64,
    received: u32,
    broken: Option<String>,
}

/// The state of a stream.
#[derive(Debug)]
struct Slot {
    received: Vec<u8>,
    ended: bool,
    window: i64,
    waker: Option<Waker>,
}

impl Grpc {
    /// Connects.
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut out = Vec::new();
        http2::open(&mut out);
        let state = State {
            requests: Requests::new(address.to_string()),
            out,
            next_stream: 1,
            streams: HashMap::new(),
            window: http2::FIRST_WINDOW,
            first_window: http2::FIRST_WINDOW,
            received: 0,
            broken: None,
        };
        let shared =
            Rc::new(Shared { state: RefCell::new(state), written: Notify::new(), granted: Notify::new() });
        shared.written.notify_one();
        let (reading, writing) = stream.into_split();
        let reader = spawn_local(read(Rc::clone(&shared), reading)).abort_handle();
        let writer = spawn_local(write(Rc::clone(&shared), writing)).abort_handle();
        Ok(Self { shared, tasks: [reader, writer] })
    }

    /// Makes a call with one message and returns the one message of the response.
    pub(crate) async fn call(&self, method: Method, message: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.begin(method);
        stream.write(message, true).await?;
        let answer = stream.next().await?;
        answer.ok_or_else(|| io::Error::other(format!("etcd refused {}: see its log", method.path())))
    }

    /// Opens a stream of messages in both directions.
    pub(crate) fn begin(&self, method: Method) -> Stream {
        let mut state = self.shared.state.borrow_mut();
        let State { requests, out, next_stream, streams, first_window, .. } = &mut *state;
        let number = *next_stream;
        *next_stream += 2;
        requests.begin(out, number, method);
        streams
            .insert(number, Slot { received: Vec::new(), ended: false, window: *first_window, waker: None });
        Stream { shared: Rc::clone(&self.shared), number }
    }

    /// Returns `true` if it has broken.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.state.borrow().broken.is_some()
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.shared.state.borrow_mut().fail("the connection was closed".into());
    }
}

/// A stream of messages; dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Stream {
    shared: Rc<Shared>,
    number: u32,
}

impl Stream {
    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.write(message, false).await
    }

    /// Waits until flow control admits a message, and adds it to the next write.
    async fn write(&self, message: &[u8], ends: bool) -> io::Result<()> {
        let length = i64::try_from(http2::GRPC_HEAD + message.len()).unwrap_or(i64::MAX);
        loop {
            {
                let mut state = self.shared.state.borrow_mut();
                let State { out, streams, window, broken, .. } = &mut *state;
                if let Some(reason) = broken {
                    return Err(io::Error::new(io::ErrorKind::ConnectionReset, reason.clone()));
                }
                let slot = streams.get_mut(&self.number).expect("a stream has its slot until it is dropped");
                if *window >= length && slot.window >= length {
                    *window -= length;
                    slot.window -= length;
                    http2::message(out, self.number, message, ends);
                    self.shared.written.notify_one();
                    return Ok(());
                }
            }
            self.shared.granted.notified().await;
        }
    }

    /// Waits for the next message; `None` when the stream ended before one.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        poll_fn(|context| {
            let mut state = self.shared.state.borrow_mut();
            let State { streams, broken, .. } = &mut *state;
            let slot = streams.get_mut(&self.number).expect("a stream has its slot until it is dropped");
            match http2::first_message(&slot.received) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Some(message)) => {
                    let message = message.to_vec();
                    slot.received.drain(..http2::GRPC_HEAD + message.len());
                    return Poll::Ready(Ok(Some(message)));
                }
                Ok(None) if slot.ended => return Poll::Ready(Ok(None)),
                Ok(None) => {}
            }
            if let Some(reason) = broken {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, reason.clone())));
            }
            slot.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        let slot = state.streams.remove(&self.number);
        if slot.is_some_and(|slot| !slot.ended) && state.broken.is_none() {
            http2::cancel(&mut state.out, self.number);
            self.shared.written.notify_one();
        }
    }
}

impl State {
    fn fail(&mut self, reason: String) {
        self.broken.get_or_insert(reason);
        self.streams.values_mut().for_each(Slot::wake);
    }

    /// Processes a frame of the peer; returns `true` if more may be sent now.
    fn take(&mut self, frame: Frame<'_>) -> io::Result<bool> {
        match frame {
            Frame::Data { stream, bytes, ends } => {
                self.received += u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if self.received >= LEAVE {
                    http2::window_update(&mut self.out, std::mem::take(&mut self.received));
                }
                if let Some(slot) = self.streams.get_mut(&stream) {
                    slot.received.extend_from_slice(bytes);
                    slot.ended |= ends;
                    slot.wake();
                }
            }
            Frame::Headers { stream, ends } => {
                if let Some(slot) = self.streams.get_mut(&stream).filter(|_| ends) {
                    slot.ended = true;
                    slot.wake();
                }
            }
            Frame::Reset { stream } => {
                if let Some(slot) = self.streams.get_mut(&stream) {
                    slot.ended = true;
                    slot.wake();
                }
            }
            Frame::Settings { window } => {
                http2::acknowledge_settings(&mut self.out);
                let window = window.map_or(self.first_window, i64::from);
                let more = window - std::mem::replace(&mut self.first_window, window);
                self.streams.values_mut().for_each(|slot| slot.window += more);
                return Ok(more > 0);
            }
            Frame::Ping(bytes) => http2::answer_ping(&mut self.out, bytes),
            Frame::GoAway => return Err(malformed("etcd closes the connection")),
            Frame::Window { stream: 0, more } => {
                self.window += i64::from(more);
                return Ok(true);
            }
            Frame::Window { stream, more } => {
                if let Some(slot) = self.streams.get_mut(&stream) {
                    slot.window += i64::from(more);
                    return Ok(true);
                }
            }
            Frame::Other => {}
        }
        Ok(false)
    }
}

impl Slot {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Reads until the connection breaks.
async fn read(shared: Rc<Shared>, mut half: OwnedReadHalf) {
    let mut buffer = Vec::with_capacity(64 << 10);
    let error = loop {
        match half.read_buf(&mut buffer).await {
            Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => {}
            Err(error) => break error,
        }
        if let Err(error) = take_all(&shared, &mut buffer) {
            break error;
        }
    };
    shared.state.borrow_mut().fail(error.to_string());
    shared.granted.notify_waiters();
}

/// Removes all whole frames from the buffer.
fn take_all(shared: &Shared, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut state = shared.state.borrow_mut();
    let (mut at, mut more) = (0, false);
    while let Some((frame, length)) = http2::parse(&buffer[at..])? {
        more |= state.take(frame)?;
        at += length;
    }
    buffer.drain(..at);
    if !state.out.is_empty() {
        shared.written.notify_one();
    }
    if more {
        shared.granted.notify_waiters();
    }
    Ok(())
}

/// Writes all pending bytes, until the connection breaks.
async fn write(shared: Rc<Shared>, mut half: OwnedWriteHalf) {
    let mut sending = Vec::new();
    loop {
        shared.written.notified().await;
        std::mem::swap(&mut shared.state.borrow_mut().out, &mut sending);
        if let Err(error) = half.write_all(&sending).await {
            shared.state.borrow_mut().fail(error.to_string());
            shared.granted.notify_waiters();
            return;
        }
        sending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    /// A server that answers the first stream with a message in two pieces, rejects the second, and
    /// hangs up.
    async fn serve(listener: TcpListener) {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut asked = vec![0; 4096];
        assert!(stream.read(&mut asked).await.expect("a request") > 0);
        let settings_and_ping: &[u8] =
            b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\x01\0\0\0\0\x08\x06\0\0\0\0\0pingpong";
        let head: &[u8] = b"\0\0\x01\x01\x04\0\0\0\x01\x88\0\0\x07\x00\0\0\0\0\x01\0\0\0\0\x04an";
        for piece in [settings_and_ping, head, b"\0\0\x02\x00\0\0\0\0\x01sw\0\0\x01\x01\x05\0\0\0\x01\xbe"] {
            stream.write_all(piece).await.expect("written");
            tokio::task::yield_now().await;
        }
        let mut seen = Vec::new();
        while !seen.windows(8).any(|window| window == b"pingpong") || !seen.ends_with(b"\x03two") {
            assert!(stream.read_buf(&mut seen).await.expect("the second request") > 0);
        }
        stream.write_all(b"\0\0\x01\x01\x05\0\0\0\x03\xbe").await.expect("written");
        assert!(stream.read_buf(&mut seen).await.expect("the third request") > 0);
    }

    #[tokio::test]
    async fn calls_are_answered_refused_and_broken_off() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let story = async {
            let server = spawn_local(serve(listener));
            let connection = Grpc::connect(address).await.expect("connected");
            assert_eq!(connection.call(Method::Put, b"one").await.expect("an answer"), b"answ");
            let refused = connection.call(Method::Put, b"two").await.expect_err("no message").to_string();
            assert_eq!(refused, "etcd refused /etcdserverpb.KV/Put: see its log");
            assert!(connection.shared.state.borrow().streams.is_empty(), "slots go with their streams");
            let mut stream = connection.begin(Method::Watch);
            stream.send(b"three").await.expect("sent");
            stream.next().await.expect_err("the server has hung up");
            assert!(connection.is_broken());
            server.await.expect("the server saw what it expected");
        };
        LocalSet::new().run_until(story).await;
    }
}
