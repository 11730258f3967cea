//! A client that speaks HTTP/1.1 byte by byte, so that tests see spellings of headers, reasons and
//! bodies as they are.
//!
//! It is blocking and holds no pool: a request is a fresh connection unless a test holds a
//! [`Connection`] itself. It must never be lenient: whatever is not well-formed HTTP is an error.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The longest silence before a test fails instead of hanging.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// On a TCP port.
    Tcp(SocketAddr),
    /// On a Unix socket.
    Unix(PathBuf),
}

/// Asks one server.
#[derive(Clone, Debug)]
pub struct Client {
    /// Whom.
    pub address: Address,
}

impl Client {
    /// `GET`s and panics where there is no answer.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, b"")
    }

    /// `PUT`s and panics where there is no answer.
    pub fn put(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.ask("PUT", path, body.as_ref())
    }

    /// `DELETE`s and panics where there is no answer.
    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, b"")
    }

    /// Any method; panics where there is no answer.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.ask_with(method, path, &[], body)
    }

    /// Any method with further headers; panics where there is no answer.
    pub fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_ask(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: no answer: {error}"))
    }

    /// Any method on a fresh connection.
    ///
    /// # Errors
    /// There was no connection, or no whole answer in time. The request may have been carried out
    /// all the same.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.connect()?.ask(method, path, headers, body)
    }

    /// Opens a connection for a test that wants to hold it or to misuse it.
    ///
    /// # Errors
    /// Nobody listens there. Nothing was sent.
    pub fn connect(&self) -> io::Result<Connection> {
        let stream: Box<dyn Stream> = match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
                stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
                Box::new(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
                stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
                Box::new(stream)
            }
        };
        Ok(Connection { stream: BufReader::new(stream) })
    }
}

/// What a connection is made of.
trait Stream: Read + Write + Send {
    fn end_writing(&self) -> io::Result<()>;
    fn be_patient_for(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn be_patient_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn be_patient_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// One connection, open until dropped.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
}

impl Connection {
    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The connection broke, or no whole answer came in time. The request may have been carried out
    /// all the same. The connection is of no use any more.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.begin(method, path, headers, body)?;
        self.answer(method == "HEAD")
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// The connection broke. A part of the request may have been sent.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "PUT" || method == "POST" {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body);
        match self.send(&bytes) {
            // A server may refuse a long body before it has read it; its answer is still there to
            // be read.
            Err(error) if is_refused_midway(&error) => Ok(()),
            other => other,
        }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection broke. A part of the bytes may have been sent.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Calls a silence of so long an error.
    ///
    /// # Errors
    /// The system refuses, as it does a time of zero. The limit is as it was.
    pub fn be_patient_for(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().be_patient_for(time)
    }

    /// Tells the server that nothing more will be sent.
    ///
    /// # Errors
    /// The connection has ended already.
    pub fn end_writing(&self) -> io::Result<()> {
        self.stream.get_ref().end_writing()
    }

    /// Reads one answer; `bodiless` for the answer to a `HEAD`.
    ///
    /// # Errors
    /// The connection ended or was silent for too long before the answer was whole, or what came is
    /// no HTTP. The connection is of no use any more.
    pub fn answer(&mut self, bodiless: bool) -> io::Result<Answer> {
        let status_line = self.line()?;
        let mut words = status_line.splitn(3, ' ');
        let (version, status) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let reason = words.next().unwrap_or("").to_owned();
        let status = status.parse().map_err(|_| malformed(&status_line))?;
        if version != "HTTP/1.1" && version != "HTTP/1.0" {
            return Err(malformed(&status_line));
        }
        let headers = self.headers()?;
        let mut answer = Answer { status, reason, headers, body: Vec::new() };
        if !bodiless && status != 204 && status != 304 {
            answer.body = self.body(&answer)?;
        }
        Ok(answer)
    }

    fn headers(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(headers);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    fn body(&mut self, answer: &Answer) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if let Some(length) = answer.any_case("content-length") {
            body.resize(length.parse().map_err(|_| malformed(length))?, 0);
            self.stream.read_exact(&mut body)?;
        } else if answer.any_case("transfer-encoding") == Some("chunked") {
            loop {
                let size_line = self.line()?;
                let size = usize::from_str_radix(size_line.trim(), 16).map_err(|_| malformed(&size_line))?;
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..])?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            self.stream.read_to_end(&mut body)?;
        }
        Ok(body)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| malformed("a line that is not UTF-8"))
    }
}

fn is_refused_midway(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {what:?}"))
}

/// An answer as it came over the wire.
#[derive(Clone)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// The words beside the status.
    pub reason: String,
    /// Its headers in order, spelled as they came.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Answer {
    /// A header by its exact spelling.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A header in whatever spelling: for those that every HTTP library spells as it likes.
    pub fn any_case(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|_| panic!("a body that is not UTF-8: {self:?}"))
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Fails unless the status is this one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Fails unless the status is this one and the body contains `text`.
    #[track_caller]
    pub fn expect_text(self, status: u16, text: &str) -> Self {
        assert_eq!(self.status, status, "expected {text:?}: {self:?}");
        assert!(self.text().contains(text), "expected {text:?}: {self:?}");
        self
    }

    /// The answer's `X-Consul-Index`.
    #[track_caller]
    pub fn index(&self) -> u64 {
        let index = self.header("X-Consul-Index").unwrap_or_else(|| panic!("no X-Consul-Index: {self:?}"));
        index.parse().unwrap_or_else(|_| panic!("X-Consul-Index is no number: {self:?}"))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.status, self.reason)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value}")?;
        }
        let shown = &self.body[..self.body.len().min(2000)];
        write!(f, "\n{}", String::from_utf8_lossy(shown))
    }
}
