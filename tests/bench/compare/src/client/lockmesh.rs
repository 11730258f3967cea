//! A client of Lockmesh: HTTP/1.1 over the agent's Unix socket.

use super::{Client, LIFETIME, values};
use crate::wire::http1::{self, Head, request};
use crate::work::Work;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest wait of one request, as in the client library.
const WAIT: &str = "60s";

/// The number of connection attempts while the agent's accept queue is full.
const KNOCKS: usize = 500;

/// The address of the agent.
#[derive(Debug)]
pub(crate) struct Site {
    /// Its Unix socket.
    pub(crate) socket: PathBuf,
}

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: UnixStream,
    buffer: Vec<u8>,
    longest: Duration,
}

impl Wire {
    /// Connects to the agent.
    pub(crate) async fn connect(socket: &Path) -> io::Result<Self> {
        let mut knocks = 0;
        loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => {
                    return Ok(Self { stream, buffer: Vec::with_capacity(1024), longest: Duration::ZERO });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && knocks < KNOCKS => knocks += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends a request and waits for the response; any status except 200 and 404 is an error.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Head> {
        let head = self.ask(request).await?;
        if matches!(head.status, 200 | 404) { Ok(head) } else { Err(self.refused(head)) }
    }

    /// Sends a request and waits for the response of any status.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Head> {
        let begun = Instant::now();
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if let Some(head) = http1::head(&self.buffer)?
                && self.buffer.len() >= head.end
            {
                self.longest = self.longest.max(begun.elapsed());
                return Ok(head);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent closed the connection"));
            }
        }
    }

    /// Returns the body of the last response.
    pub(crate) fn body(&self, head: Head) -> &[u8] {
        &self.buffer[head.body..head.end]
    }

    /// Returns a header of the last response, by its name in lower case.
    pub(crate) fn header(&self, head: Head, name: &str) -> Option<String> {
        let text = std::str::from_utf8(&self.buffer[..head.body]).ok()?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let found = fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    }

    /// Sends a request whose response must be `true`.
    pub(crate) async fn succeed(&mut self, request: &[u8]) -> io::Result<()> {
        match self.grants(request).await? {
            true => Ok(()),
            false => Err(io::Error::other("the agent said false")),
        }
    }

    /// Sends a request; returns `true` if the response is `true`.
    async fn grants(&mut self, request: &[u8]) -> io::Result<bool> {
        let head = self.exchange(request).await?;
        Ok(self.body(head).trim_ascii() == b"true")
    }

    /// Creates a session; the body of the request is its description in JSON.
    pub(crate) async fn new_session(&mut self, request: &[u8]) -> io::Result<String> {
        let head = self.exchange(request).await?;
        let id = http1::session_id(self.body(head)).and_then(|id| std::str::from_utf8(id).ok());
        id.map(str::to_owned).ok_or_else(|| io::Error::other("the agent made a session without an id"))
    }

    fn refused(&self, head: Head) -> io::Error {
        let text = String::from_utf8_lossy(self.body(head)).trim_end().to_owned();
        io::Error::other(format!("the agent answered {}: {text}", head.status))
    }
}

/// Returns the request for a session that outlives any measurement.
fn session_request() -> Vec<u8> {
    session_request_with_ttl(&format!("{}s", LIFETIME.as_secs()), "")
}

/// Returns the request for a session with this TTL; `more` is further JSON that begins with a
/// comma.
pub(crate) fn session_request_with_ttl(ttl: &str, more: &str) -> Vec<u8> {
    let body = format!(r#"{{"Name":"compare","TTL":"{ttl}","LockDelay":"0s","NodeChecks":[]{more}}}"#);
    request("PUT", "/v1/session/create", body.as_bytes())
}

/// Returns the request that ends a session.
fn destroy_request(session: &str) -> Vec<u8> {
    request("PUT", &format!("/v1/session/destroy/{session}"), b"")
}

/// An application with its own connection.
#[derive(Debug)]
pub(crate) struct Lockmesh {
    wire: Wire,
    puts: [Vec<u8>; 2],
    read: Vec<u8>,
    read_stale: Vec<u8>,
    new_session: Vec<u8>,
    /// The session that holds locks, if the work uses locks.
    session: String,
    acquire: Vec<u8>,
    /// The same, waiting in the lock's queue.
    enqueue: Vec<u8>,
    release: Vec<u8>,
}

impl Lockmesh {
    /// Returns the longest request since the last call.
    pub(crate) fn take_longest(&mut self) -> Duration {
        std::mem::take(&mut self.wire.longest)
    }
}

impl Client for Lockmesh {
    type Site = Site;

    async fn connect(site: &Rc<Site>, number: usize, work: Work) -> io::Result<Self> {
        let mut wire = Wire::connect(&site.socket).await?;
        let new_session = session_request();
        let session = match work {
            Work::Cycles | Work::Handoff => wire.new_session(&new_session).await?,
            _ => String::new(),
        };
        let key = format!("/v1/kv/compare/key-{number}");
        let lock = match work {
            Work::Handoff => "/v1/kv/compare/contended".to_owned(),
            _ => format!("/v1/kv/compare/lock-{number}"),
        };
        let mut client = Self {
            wire,
            puts: values().map(|value| request("PUT", &key, &value)),
            read: request("GET", &key, b""),
            read_stale: request("GET", &format!("{key}?stale"), b""),
            new_session,
            enqueue: request("PUT", &format!("{lock}?acquire={session}&wait={WAIT}"), b""),
            acquire: request("PUT", &format!("{lock}?acquire={session}"), b""),
            release: request("PUT", &format!("{lock}?release={session}"), b""),
            session,
        };
        if matches!(work, Work::Reads | Work::StaleReads) {
            client.put().await?;
        }
        Ok(client)
    }

    async fn put(&mut self) -> io::Result<()> {
        self.puts.swap(0, 1);
        self.wire.succeed(&self.puts[0]).await
    }

    async fn read(&mut self) -> io::Result<()> {
        found(self.wire.exchange(&self.read).await?)
    }

    async fn read_stale(&mut self) -> io::Result<()> {
        found(self.wire.exchange(&self.read_stale).await?)
    }

    async fn cycle(&mut self) -> io::Result<()> {
        self.wire.succeed(&self.acquire).await?;
        self.wire.succeed(&self.release).await
    }

    async fn churn(&mut self) -> io::Result<()> {
        let session = self.wire.new_session(&self.new_session).await?;
        self.wire.succeed(&destroy_request(&session)).await
    }

    /// As in the client library: one request, which waits in the lock's queue until the grant.
    async fn acquire(&mut self) -> io::Result<()> {
        while !self.wire.grants(&self.enqueue).await? {}
        Ok(())
    }

    async fn release(&mut self) -> io::Result<()> {
        self.wire.succeed(&self.release).await
    }

    async fn close(mut self) -> io::Result<()> {
        match self.session.is_empty() {
            true => Ok(()),
            false => self.wire.succeed(&destroy_request(&self.session)).await,
        }
    }
}

fn found(head: Head) -> io::Result<()> {
    match head.status {
        200 => Ok(()),
        _ => Err(io::Error::other("a key that was just written is not there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    /// An agent that sends these responses, one for each request.
    async fn agent(listener: UnixListener, answers: &'static [&'static str]) -> Vec<String> {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut asked = Vec::new();
        for body in answers {
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.expect("a request");
            let text = String::from_utf8_lossy(&request[..length]).into_owned();
            asked.push(text.split(" HTTP/").next().unwrap_or_default().to_owned());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            for piece in [head.as_bytes(), body.as_bytes()] {
                stream.write_all(piece).await.expect("written");
                tokio::task::yield_now().await;
            }
        }
        asked
    }

    #[tokio::test]
    async fn a_contender_waits_in_the_queue_until_it_is_granted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let site = Rc::new(Site { socket: folder.path().join("s") });
        let listener = UnixListener::bind(&site.socket).expect("a socket in a fresh folder");
        const ANSWERS: &[&str] = &[r#"{"ID":"me"}"#, "false", "true\n", "true"];
        let agent = tokio::spawn(agent(listener, ANSWERS));
        let mut client = Lockmesh::connect(&site, 0, Work::Handoff).await.expect("connected");
        client.acquire().await.expect("acquired");
        client.release().await.expect("released");
        let asked = agent.await.expect("the agent saw all requests");
        let expected = [
            "PUT /v1/session/create",
            "PUT /v1/kv/compare/contended?acquire=me&wait=60s",
            "PUT /v1/kv/compare/contended?acquire=me&wait=60s",
            "PUT /v1/kv/compare/contended?release=me",
        ];
        assert_eq!(asked, expected);
    }
}
