//! Raw HTTP/1.1 for the load generator: one connection, one request at a time, as few cycles as
//! possible.
//!
//! Understands only what an agent sends: a status line, headers with a `Content-Length`, a body.
//! Chunked answers are refused by name instead of being misread.

use lockmesh_client::Address;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The largest answer that is understood.
const MAX_ANSWER: usize = 1 << 20;

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// An answer's status, and where its parts are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The HTTP status.
    pub(super) status: u16,
    /// `X-Consul-Index`, or 0.
    pub(super) index: u64,
    /// The start of the body.
    body: usize,
    /// The end of the body.
    end: usize,
}

/// One request as bytes, ready to be sent again and again.
pub(super) fn request(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len())
            .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

impl Wire {
    /// Connects to the agent.
    pub(super) async fn connect(address: &Address) -> io::Result<Self> {
        let stream = match address {
            Address::Unix(path) => Stream::Unix(lockmesh_client::dial(path).await?),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // A lone small request must not wait for more to be sent with it.
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a request and waits for the answer; anything but 200 and 404 is an error.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> io::Result<Head> {
        self.send(request).await?;
        self.receive().await
    }

    /// Sends a request.
    pub(super) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Waits for the answer to the request that was sent last.
    pub(super) async fn receive(&mut self) -> io::Result<Head> {
        self.buffer.clear();
        loop {
            if let Some(head) = parse(&self.buffer)?
                && self.buffer.len() >= head.end
            {
                let body = &self.buffer[head.body..head.end];
                return if matches!(head.status, 200 | 404) {
                    Ok(head)
                } else {
                    Err(refused(head.status, body))
                };
            }
            if self.buffer.capacity() == self.buffer.len() {
                self.buffer.reserve(1024);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent closed the connection"));
            }
        }
    }

    /// The body of the answer that came last.
    pub(super) fn body(&self, head: Head) -> &[u8] {
        &self.buffer[head.body..head.end]
    }
}

fn refused(status: u16, body: &[u8]) -> io::Error {
    io::Error::other(format!("the agent answered {status}: {}", String::from_utf8_lossy(body).trim_end()))
}

/// Reads the head of an answer; `None` when it is not all there yet.
fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
    let wrong =
        |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, format!("the agent's answer {what}")));
    if bytes.len() > MAX_ANSWER {
        return wrong("is too large");
    }
    let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let mut lines = bytes[..at].split(|byte| *byte == b'\n');
    // The three digits behind `HTTP/1.1 `.
    let status = lines.next().and_then(|line| number(line.get(9..12)?));
    let Some(status) = status.and_then(|status| u16::try_from(status).ok()) else {
        return wrong("has no status");
    };
    let (mut length, mut index) = (None, 0);
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = number(value).and_then(|length| usize::try_from(length).ok());
        } else if name.eq_ignore_ascii_case(b"x-consul-index") {
            index = number(value).unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return wrong("is chunked, which this measuring client does not read");
        }
    }
    match length {
        Some(length) if length <= MAX_ANSWER => {
            Ok(Some(Head { status, index, body: at + 4, end: at + 4 + length }))
        }
        _ => wrong("has no usable Content-Length"),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets hold nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nX-Consul-Index: 42\r\nDate: Sat, 21 Nov 2026\r\n\r\ntrue";

    #[test]
    fn an_answer_is_read() {
        let head = parse(ANSWER).expect("good").expect("whole");
        assert_eq!((head.status, head.index), (200, 42));
        assert_eq!(&ANSWER[head.body..head.end], b"true");
        let head =
            parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").expect("good").expect("whole");
        assert_eq!((head.status, head.index, head.end - head.body), (404, 0, 0));
    }

    #[test]
    fn incomplete_head_not_parsed() {
        let body = ANSWER.len() - 4;
        for cut in 0..body {
            assert_eq!(parse(&ANSWER[..cut]).expect("nothing wrong yet"), None, "{cut}");
        }
    }

    #[test]
    fn unsupported_framing_rejected() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"hello\r\n\r\n",
        ] {
            assert!(parse(answer).is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn a_request_is_bytes() {
        let bytes = request("PUT", "/v1/kv/a", b"xy");
        assert_eq!(bytes, b"PUT /v1/kv/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nxy");
    }

    #[tokio::test]
    async fn fragmented_responses_reassembled() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).expect("a socket in a fresh folder");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut asked = [0; 16];
            for answer in [ANSWER, b"HTTP/1.1 500 x\r\nContent-Length: 3\r\n\r\nno\n"] {
                assert!(stream.read(&mut asked).await.expect("a request") > 0);
                for piece in answer.chunks(7) {
                    stream.write_all(piece).await.expect("written");
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut wire = Wire::connect(&Address::Unix(path)).await.expect("connected");
        let head = wire.exchange(b"GET").await.expect("an answer");
        assert_eq!(wire.body(head), b"true");
        let error = wire.exchange(b"GET").await.expect_err("a refusal").to_string();
        assert_eq!(error, "the agent answered 500: no");
    }
}
