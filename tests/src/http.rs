//! An HTTP/1.1 client without an HTTP library, so that tests see header spellings, reasons and
//! bodies exactly as sent.
//!
//! The client blocks and keeps no pool: each request uses a new connection unless a test holds a
//! [`Connection`]. It is never lenient: malformed HTTP is an error.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The longest silence before a test fails instead of hanging.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// The address of a server.
#[derive(Clone, Debug)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    /// The server's address.
    pub address: Address,
}

impl Client {
    /// Sends a `GET`; panics without a response.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, b"")
    }

    /// Sends a `PUT`; panics without a response.
    pub fn put(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.ask("PUT", path, body.as_ref())
    }

    /// Sends a `DELETE`; panics without a response.
    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, b"")
    }

    /// Sends a request with any method; panics without a response.
    pub fn ask(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.ask_with(method, path, &[], body)
    }

    /// Sends a request with any method and additional headers; panics without a response.
    pub fn ask_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_ask(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: no response: {error}"))
    }

    /// Sends a request with any method on a new connection.
    ///
    /// # Errors
    /// There was no connection, or no complete response in time. The request may still have been
    /// executed.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.connect()?.ask(method, path, headers, body)
    }

    /// Opens a connection for a test that holds or misuses it.
    ///
    /// # Errors
    /// No server listens there. Nothing was sent.
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

/// A transport of a connection.
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

/// A connection, open until dropped.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
}

impl Connection {
    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// The connection broke, or no complete response came in time. The request may still have been
    /// executed. The connection is unusable afterwards.
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

    /// Sends a request without waiting for its response.
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
            // A server may reject a long body before reading all of it; its response can still be
            // read.
            Err(error) if is_refused_midway(&error) => Ok(()),
            other => other,
        }
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// The connection broke. A part of the bytes may have been sent.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Sets the maximum silence before a read fails.
    ///
    /// # Errors
    /// The system rejects the value, for instance zero. The limit is unchanged.
    pub fn be_patient_for(&self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().be_patient_for(time)
    }

    /// Shuts down the sending side of the connection.
    ///
    /// # Errors
    /// The connection has already ended.
    pub fn end_writing(&self) -> io::Result<()> {
        self.stream.get_ref().end_writing()
    }

    /// Reads one response; `bodiless` for the response to a `HEAD`.
    ///
    /// # Errors
    /// The connection ended or was silent for too long before the response was complete, or the
    /// response is not HTTP. The connection is unusable afterwards.
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

/// A response as received.
#[derive(Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// The headers in order, spelled as received.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns a header by its exact spelling.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns a header in any spelling, for headers that HTTP libraries spell differently.
    pub fn any_case(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|_| panic!("a body that is not UTF-8: {self:?}"))
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Fails unless the response has this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Fails unless the response has this status and the body contains `text`.
    #[track_caller]
    pub fn expect_text(self, status: u16, text: &str) -> Self {
        assert_eq!(self.status, status, "expected {text:?}: {self:?}");
        assert!(self.text().contains(text), "expected {text:?}: {self:?}");
        self
    }

    /// Returns the response's `X-Consul-Index`.
    #[track_caller]
    pub fn index(&self) -> u64 {
        let index = self.header("X-Consul-Index").unwrap_or_else(|| panic!("no X-Consul-Index: {self:?}"));
        index.parse().unwrap_or_else(|_| panic!("X-Consul-Index is not a number: {self:?}"))
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
