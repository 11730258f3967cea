//! HTTP checks: one request on a new connection, which follows redirects as Go's client does.
//!
//! The status of the final response decides, even if its body breaks off or does not end within the
//! timeout, as in Consul. Only HTTP/1.1 is spoken.

use super::error::ProbeError;
use super::output::{Tail, io_text};
use super::url::{Url, UrlError, masked};
use super::{Limits, critical, drive, tcp, tls};
use crate::go::path::percent_decode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, HOST,
    HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE, TRAILER, TRANSFER_ENCODING, USER_AGENT,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lockmesh_agent_core::definitions::HttpTarget;
use lockmesh_agent_core::registry::Outcome;
use lockmesh_protocol::record::CheckStatus;
use std::error::Error;
use std::io::{self, Write};
use tokio::time::{Instant, timeout_at};

/// The maximum number of requests of a run: the first one, and one for each redirect.
const MAX_REQUESTS: usize = 10;

/// The maximum size in bytes of the headers of a response, and of what is read at once.
const MAX_HEADERS: usize = 64 << 10;

/// The maximum number of header fields that a check defines.
const MAX_FIELDS: usize = 1_000;

/// The number of compressed bytes that are expanded at once. They become up to a thousand times as
/// many, and other tasks must run in between.
const GZIP_PIECE: usize = 1 << 10;

/// Headers that describe the connection and the body. The client sets them itself.
const OWN_HEADERS: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER];

/// Headers that are not sent to the host of another domain.
const SECRET_HEADERS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, WWW_AUTHENTICATE];

/// The progress of a run. It is kept if the timeout ends the run.
struct BodyProgress {
    /// The URL of the current request, for errors.
    url: String,
    /// The status of the final response.
    status: Option<(StatusCode, String)>,
    body: Body,
}

/// The tail of the body of the final response.
enum Body {
    Plain(Tail),
    Gzip(Box<MultiGzDecoder<Tail>>),
}

/// One request.
struct Hop {
    url: Url,
    method: Method,
    headers: HeaderMap,
    /// The value of the `Host` header, if it is not the URL's.
    host: Option<HeaderValue>,
    body: Bytes,
}

/// Sends the request of a check.
pub(super) async fn request(target: &HttpTarget, limits: &Limits) -> Outcome {
    let method = if target.method.is_empty() { "GET" } else { &target.method };
    let mut hop = match Hop::first(target, method) {
        Ok(hop) => hop,
        Err(error) => return critical(error.to_string()),
    };
    let body = Body::Plain(Tail::new(limits.max_output_bytes));
    let mut progress = BodyProgress { url: masked(&target.url), status: None, body };
    let ended = timeout_at(limits.deadline, follow(target, &mut hop, &mut progress, limits.deadline)).await;
    let Some((code, text)) = &progress.status else {
        let error = match ended {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(())) | Err(_) => {
                "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into()
            }
        };
        return critical(format!("{} {:?}: {error}", verb(method), progress.url));
    };
    let status = match code.as_u16() {
        200..=299 => CheckStatus::Passing,
        // As in Consul: such a target is overloaded, but alive.
        429 => CheckStatus::Warning,
        _ => CheckStatus::Critical,
    };
    let output = format!("HTTP {method} {}: {text} Output: {}", masked(&target.url), progress.body.text());
    Outcome { status, output }
}

/// Sends requests until a response is not a redirect, and reads its body.
async fn follow(
    target: &HttpTarget,
    hop: &mut Hop,
    progress: &mut BodyProgress,
    deadline: Instant,
) -> Result<(), ProbeError> {
    for _ in 0..MAX_REQUESTS {
        progress.url = hop.url.shown();
        let Some((status, location)) = exchange(target, hop, progress, deadline).await? else {
            return Ok(());
        };
        progress.url = masked(&location);
        hop.redirect(status, &location).map_err(|error| match error {
            UrlError::Invalid(why) => {
                ProbeError::Request(format!("failed to parse Location header {:?}: {why}", masked(&location)))
            }
            UrlError::Unsupported(why) => ProbeError::Request(why),
        })?;
    }
    Err(ProbeError::Redirects(MAX_REQUESTS))
}

/// Sends a request on a new connection. Returns the redirect that is to be followed; otherwise the
/// response is final and its body has been read.
async fn exchange(
    target: &HttpTarget,
    hop: &Hop,
    progress: &mut BodyProgress,
    deadline: Instant,
) -> Result<Option<(StatusCode, String)>, ProbeError> {
    let request = hop.request()?;
    let address = hop.url.address();
    let stream = tcp::dial(&address, deadline).await?;
    let stream: Box<dyn tls::Stream> = if hop.url.is_https {
        Box::new(tls::handshake(stream, &address, &target.tls, tls::ANY_PROTOCOL).await?)
    } else {
        Box::new(stream)
    };
    let mut client = http1::Builder::new();
    // As Go's client writes the names of headers.
    client.title_case_headers(true).max_buf_size(MAX_HEADERS);
    let shaken = client.handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(broken)?;
    let respond = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        if !target.disable_redirects
            && let Some(location) = redirect(&response)
        {
            return Ok(Some((response.status(), location)));
        }
        progress.status = Some((response.status(), status_text(&response)));
        progress.body.read(response, hop.accepts_gzip()).await;
        Ok(None)
    };
    drive(connection, respond).await
}

/// Returns the location of a response that is a redirect.
fn redirect(response: &Response<Incoming>) -> Option<String> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|location| is_redirect && !location.is_empty())?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

impl Hop {
    fn first(target: &HttpTarget, name: &str) -> Result<Self, ProbeError> {
        let method = Method::from_bytes(name.as_bytes())
            .map_err(|_| ProbeError::Request(format!("net/http: invalid method {name:?}")))?;
        let url = Url::parse(&target.url).map_err(|error| {
            ProbeError::Request(match error {
                UrlError::Invalid(why) => format!("parse {:?}: {why}", masked(&target.url)),
                UrlError::Unsupported(why) => format!("{} {:?}: {why}", verb(name), masked(&target.url)),
            })
        })?;
        let in_request = |error| ProbeError::Request(format!("{} {:?}: {error}", verb(name), url.shown()));
        let mut given = headers(target).map_err(in_request)?;
        let host = given.remove(HOST).filter(|host| !host.is_empty());
        OWN_HEADERS.iter().for_each(|name| drop(given.remove(name)));
        for (name, default) in [(USER_AGENT, "Consul Health Check"), (ACCEPT, "text/plain, text/*, */*")] {
            if given.get(&name).is_none_or(HeaderValue::is_empty) {
                given.insert(name, HeaderValue::from_static(default));
            }
        }
        // Each request has a connection of its own, which the target need not keep.
        given.insert(CONNECTION, HeaderValue::from_static("close"));
        let body = Bytes::from(target.body.clone());
        Ok(Self { url, method, headers: given, host, body })
    }

    /// Turns this request into the one that follows a redirect.
    fn redirect(&mut self, status: StatusCode, location: &str) -> Result<(), UrlError> {
        let next = self.url.join(location)?;
        // As in Go's client, other redirects turn a request into a GET without a body.
        if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
            self.body = Bytes::new();
            if self.method != Method::HEAD {
                self.method = Method::GET;
            }
        }
        // As in Go's client, the check's `Host` is kept only for a relative location.
        if Url::parse(location).is_ok() {
            self.host = None;
        }
        let (old, new) = (self.url.host().to_ascii_lowercase(), next.host().to_ascii_lowercase());
        let is_below = new.strip_suffix(&old).is_some_and(|front| front.ends_with('.'));
        if new != old && !is_below {
            SECRET_HEADERS.iter().for_each(|name| drop(self.headers.remove(name)));
        }
        self.url = next;
        Ok(())
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, ProbeError> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        let invalid = |error| ProbeError::Request(format!("{error}"));
        *request.uri_mut() = self.url.request_target().parse().map_err(invalid)?;
        let invalid = |_| ProbeError::Request("http: invalid Host header".into());
        let headers = request.headers_mut();
        let host = self.host.clone().map_or_else(|| HeaderValue::from_str(&self.url.authority), Ok);
        headers.insert(HOST, host.map_err(invalid)?);
        headers.extend(self.headers.clone());
        if self.accepts_gzip() {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        // As in Go's client, a header of the check has priority over the user in its URL.
        if let Some(user) = &self.url.user
            && !headers.contains_key(AUTHORIZATION)
        {
            let user = percent_decode(user).unwrap_or(user.as_bytes().into());
            let has_password = user.contains(&b':');
            let user = if has_password { user.into_owned() } else { [&user, &b":"[..]].concat() };
            let basic = format!("Basic {}", STANDARD.encode(user));
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&basic).map_err(invalid)?);
        }
        Ok(request)
    }

    /// Returns `true` if the client asks for compression and undoes it; a check that asks for it
    /// itself receives the body as it is.
    fn accepts_gzip(&self) -> bool {
        let asks = self.headers.contains_key(ACCEPT_ENCODING) || self.headers.contains_key(RANGE);
        !asks && self.method != Method::HEAD
    }
}

fn headers(target: &HttpTarget) -> Result<HeaderMap, ProbeError> {
    let invalid = |what: &str, name| ProbeError::Request(format!("net/http: invalid {what} {name:?}"));
    let mut headers = HeaderMap::new();
    for (name, values) in &target.header {
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("header field name", name))?;
        for value in values {
            let value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| invalid("header field value for", name))?;
            if headers.len() == MAX_FIELDS {
                return Err(ProbeError::Request("net/http: too many header fields".into()));
            }
            headers.append(key.clone(), value);
        }
    }
    Ok(headers)
}

impl Body {
    /// Reads a body until it ends or breaks off.
    async fn read(&mut self, response: Response<Incoming>, undoes_gzip: bool) {
        let encoding = response.headers().get(CONTENT_ENCODING);
        let is_gzip = encoding.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(b"gzip"));
        if let Self::Plain(tail) = self
            && undoes_gzip
            && is_gzip
        {
            *self = Self::Gzip(Box::new(MultiGzDecoder::new(tail.take())));
        }
        let mut body = response.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let Some(bytes) = frame.data_ref() else { continue };
            match self {
                Self::Plain(tail) => tail.push(bytes),
                Self::Gzip(decoder) => {
                    for piece in bytes.chunks(GZIP_PIECE) {
                        // As with a body that breaks off, the bytes that were expanded so far
                        // count.
                        if decoder.write_all(piece).is_err() {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    fn text(&mut self) -> String {
        match self {
            Self::Plain(tail) => tail.text(),
            Self::Gzip(decoder) => {
                // A body that broke off has no end; what was expanded until there counts.
                let _ = decoder.flush();
                decoder.get_ref().text()
            }
        }
    }
}

/// Returns the method in the notation of Go's errors: `Get`.
fn verb(method: &str) -> String {
    let mut letters = method.chars();
    letters.next().into_iter().chain(letters.flat_map(char::to_lowercase)).collect()
}

fn status_text(response: &Response<Incoming>) -> String {
    let own =
        response.extensions().get::<ReasonPhrase>().map(|reason| String::from_utf8_lossy(reason.as_bytes()));
    let reason = own.unwrap_or_else(|| response.status().canonical_reason().unwrap_or_default().into());
    format!("{} {reason}", response.status().as_u16()).trim_end().into()
}

fn broken(error: hyper::Error) -> ProbeError {
    let has_ended = error.is_incomplete_message() || error.is_canceled() || error.is_closed();
    ProbeError::Exchange(match error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        _ if has_ended => "EOF".into(),
        Some(error) => io_text(error),
        None if error.is_parse() => {
            format!("net/http: HTTP/1.x transport connection broken: malformed HTTP response: {error}")
        }
        None => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::passing;
    use super::super::tests::limits;
    use super::super::tls::tests::identity;
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::interval;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(500);
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

    async fn listen() -> (TcpListener, HttpTarget) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        (listener, HttpTarget { url, ..HttpTarget::default() })
    }

    /// Reads a request to the end of its body.
    async fn read_request(stream: &mut TcpStream) -> String {
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                if body.len() >= length.map_or(0, |length| length.parse().expect("a number")) {
                    return text;
                }
            }
            assert!(stream.read_buf(&mut read).await.expect("the check sends") > 0, "broken off: {text}");
        }
    }

    /// Runs a check against a server that gives one response to each connection. Returns the
    /// outcome and the requests, with `HOST` in place of the server's address.
    async fn run(change: impl FnOnce(&mut HttpTarget), responses: &[&[u8]]) -> (Outcome, Vec<String>) {
        let (listener, mut target) = listen().await;
        change(&mut target);
        let address = listener.local_addr().expect("it is bound").to_string();
        let mut requests = Vec::new();
        let serve = async {
            for response in responses {
                let (mut stream, _) = listener.accept().await.expect("the check connects");
                requests.push(read_request(&mut stream).await.replace(&address, "HOST"));
                let response = String::from_utf8_lossy(response).replace("HOST", &address);
                stream.write_all(response.as_bytes()).await.expect("the check reads");
            }
        };
        let limits = limits(LONG);
        let (outcome, ()) = tokio::join!(request(&target, &limits), serve);
        (Outcome { output: outcome.output.replace(&address, "HOST"), ..outcome }, requests)
    }

    /// Runs a check whose server does something else with the connection.
    async fn run_against<F: Future<Output = ()>>(
        timeout: Duration,
        serve: impl FnOnce(TcpStream) -> F,
    ) -> Outcome {
        let (listener, target) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("the check connects");
            read_request(&mut stream).await;
            serve(stream).await;
        };
        let limits = limits(timeout);
        let (outcome, ()) = tokio::join!(request(&target, &limits), serve);
        assert!(Instant::now() < limits.deadline + Duration::from_secs(1), "the timeout ends a run");
        Outcome { output: outcome.output.replace(&target.url, "URL"), ..outcome }
    }

    /// Contract: 92.
    #[tokio::test]
    async fn request_defaults_match_consul() {
        let (outcome, requests) = run(|_| (), &[OK]).await;
        assert_eq!(outcome, passing("HTTP GET http://HOST/: 200 OK Output: hi".into()));
        let [request] = &requests[..] else { panic!("one request: {requests:?}") };
        let mut lines: Vec<&str> = request.trim_end().lines().collect();
        lines[1..].sort_unstable();
        let expected = [
            "GET / HTTP/1.1",
            "Accept-Encoding: gzip",
            "Accept: text/plain, text/*, */*",
            "Connection: close",
            "Host: HOST",
            "User-Agent: Consul Health Check",
        ];
        assert_eq!(lines, expected);
    }

    /// Contract: 92.
    #[tokio::test]
    async fn definition_sets_method_headers_body() {
        let change = |target: &mut HttpTarget| {
            target.method = "POST".into();
            target.url = target.url.replace("http://", "http://me:s%20t@");
            target.body = "ping".into();
            let fields = [
                ("host", "web.example"),
                ("User-Agent", "probe"),
                ("X-A", "1"),
                ("Content-Length", "9"),
                ("Accept", ""),
            ];
            target.header = fields.map(|(name, value)| (name.into(), vec![value.into()])).into();
        };
        let (outcome, requests) = run(change, &[OK]).await;
        assert_eq!(outcome, passing("HTTP POST http://***@HOST/: 200 OK Output: hi".into()));
        for line in [
            "POST / HTTP/1.1",
            "Host: web.example",
            "User-Agent: probe",
            "Accept: text/plain, text/*, */*",
            "X-A: 1",
            "Content-Length: 4",
            "Authorization: Basic bWU6cyB0",
        ] {
            assert_eq!(requests[0].lines().filter(|sent| *sent == line).count(), 1, "{line}: {requests:?}");
        }
        assert!(requests[0].ends_with("\r\n\r\nping"), "{requests:?}");
    }

    /// Contract: 91, 93.
    #[tokio::test]
    async fn status_decides_and_output_truncated() {
        for (line, status) in [
            ("204 No Content", CheckStatus::Passing),
            ("299 Fine by me", CheckStatus::Passing),
            ("429 Too Many Requests", CheckStatus::Warning),
            ("304 Not Modified", CheckStatus::Critical),
            ("302 Found", CheckStatus::Critical),
            ("404 Not Found", CheckStatus::Critical),
            ("599", CheckStatus::Critical),
        ] {
            let response = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n");
            let (outcome, _) = run(|_| (), &[response.as_bytes()]).await;
            let output = format!("HTTP GET http://HOST/: {line} Output: ");
            assert_eq!(outcome, Outcome { status, output });
        }
        let body = format!("{}{}", "a".repeat(1904), "b".repeat(4096));
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 6000\r\n\r\n{body}");
        let (outcome, _) = run(|_| (), &[response.as_bytes()]).await;
        let output = format!("HTTP GET http://HOST/: 200 OK Output: {}", "b".repeat(4096));
        assert_eq!(outcome, passing(output));
    }

    /// Contract: 91.
    #[tokio::test]
    async fn redirects_followed_unless_disabled() {
        let moved: &[u8] = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n";
        let change = |target: &mut HttpTarget| {
            target.method = "POST".into();
            target.body = "ping".into();
        };
        let (outcome, requests) = run(change, &[moved, OK]).await;
        assert_eq!(outcome, passing("HTTP POST http://HOST/: 200 OK Output: hi".into()));
        assert!(requests[1].starts_with("GET /x HTTP/1.1\r\n") && requests[1].ends_with("\r\n\r\n"));

        let kept = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: x\r\nContent-Length: 0\r\n\r\n";
        let (_, requests) = run(change, &[kept, OK]).await;
        assert!(requests[1].starts_with("POST /x HTTP/1.1\r\n") && requests[1].ends_with("\r\n\r\nping"));

        let (outcome, _) = run(|target| target.disable_redirects = true, &[moved]).await;
        assert_eq!(outcome, critical("HTTP GET http://HOST/: 302 Found Output: ".into()));

        let (outcome, requests) = run(|_| (), &[moved; MAX_REQUESTS]).await;
        assert_eq!(outcome, critical(r#"Get "/x": stopped after 10 redirects"#.into()));
        assert_eq!(requests.len(), 10);

        let elsewhere = b"HTTP/1.1 301 Moved Permanently\r\nLocation: ftp://web\r\nContent-Length: 0\r\n\r\n";
        let (outcome, _) = run(|_| (), &[elsewhere]).await;
        assert_eq!(outcome, critical(r#"Get "ftp://web": unsupported protocol scheme "ftp""#.into()));
    }

    #[tokio::test]
    async fn secrets_stay_with_their_host() {
        let moved = |location: &str| {
            format!("HTTP/1.1 308 Permanent Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
        };
        let change = |target: &mut HttpTarget| {
            let fields = [("Authorization", "secret"), ("Host", "web.example"), ("X-A", "1")];
            target.header = fields.map(|(name, value)| (name.into(), vec![value.into()])).into();
        };
        let (_, requests) = run(change, &[moved("/x").as_bytes(), OK]).await;
        assert!(requests[1].contains("Authorization: secret") && requests[1].contains("Host: web.example"));
        let (_, requests) = run(change, &[moved("http://HOST/x").as_bytes(), OK]).await;
        assert!(requests[1].contains("Authorization: secret") && requests[1].contains("Host: HOST"));

        let (listener, target) = listen().await;
        let mut hop =
            Hop::first(&HttpTarget { url: target.url, ..HttpTarget::default() }, "GET").expect("valid");
        hop.headers.insert(AUTHORIZATION, HeaderValue::from_static("secret"));
        hop.redirect(StatusCode::FOUND, "http://other.example/").expect("it is a URL");
        assert!(!hop.headers.contains_key(AUTHORIZATION));
        drop(listener);
    }

    #[tokio::test]
    async fn unsendable_definition_is_critical() {
        type Change = fn(&mut HttpTarget);
        let cases: [(Change, &str); 7] = [
            (|target| target.url = ":x".into(), r#"parse ":x": missing protocol scheme"#),
            (|target| target.url = "x".into(), r#"Get "x": unsupported protocol scheme """#),
            (|target| target.method = "G T".into(), r#"net/http: invalid method "G T""#),
            (
                |target| drop(target.header.insert("a b".into(), vec![String::new()])),
                r#"Get "http://HOST/": net/http: invalid header field name "a b""#,
            ),
            (
                |target| drop(target.header.insert("X-A".into(), vec!["a\nb".into()])),
                r#"Get "http://HOST/": net/http: invalid header field value for "X-A""#,
            ),
            (
                |target| drop(target.header.insert("X-A".into(), vec!["a".into(); 50_000])),
                r#"Get "http://HOST/": net/http: too many header fields"#,
            ),
            (
                |target| target.url = "http://me:secret@127.0.0.1:0/".into(),
                r#"Get "http://***@127.0.0.1:0/": dial tcp 127.0.0.1:0: connect: connection refused"#,
            ),
        ];
        for (change, error) in cases {
            assert_eq!(run(change, &[]).await.0, critical(error.into()));
        }
    }

    #[tokio::test]
    async fn protocol_violation_is_critical() {
        let outcome = run_against(LONG, async |stream| drop(stream)).await;
        assert_eq!(outcome, critical(r#"Get "URL": EOF"#.into()));
        let outcome = run_against(LONG, async |mut stream| {
            stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n").await.expect("the check reads");
        });
        let broken = r#"Get "URL": net/http: HTTP/1.x transport connection broken: malformed HTTP response"#;
        let outcome = outcome.await;
        assert!(outcome.output.starts_with(broken), "{outcome:?}");
        let outcome = run_against(LONG, async |mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while stream.write_all(b"X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").await.is_ok() {}
        });
        assert_eq!(outcome.await.status, CheckStatus::Critical, "endless headers");
    }

    /// Contract: 93.
    #[tokio::test]
    async fn timeout_ends_every_response() {
        let late = r#"Get "URL": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#;
        let outcome = run_against(SHORT, async |mut stream| {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        assert_eq!(outcome.await, critical(late.into()), "silence");
        let drip = async |mut stream: TcpStream, head: &[u8]| {
            let _ = stream.write_all(head).await;
            let mut pace = interval(SHORT / 30);
            while stream.write_all(b"x").await.is_ok() {
                pace.tick().await;
            }
        };
        let outcome = run_against(SHORT, |stream| drip(stream, b"HTTP/1.1 200 OK\r\nX-")).await;
        assert_eq!(outcome, critical(late.into()), "a header that never ends");
        let outcome =
            run_against(
                SHORT,
                async |mut stream| {
                    while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
                },
            );
        assert_eq!(outcome.await, critical(late.into()), "interim responses without end");
        let outcome = run_against(SHORT, |stream| drip(stream, b"HTTP/1.1 200 OK\r\n\r\n")).await;
        assert!(outcome.output.starts_with("HTTP GET URL: 200 OK Output: xx"), "{outcome:?}");
        let flood = async |mut stream: TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 500 Internal Server Error\r\n\r\n").await;
            while stream.write_all(&[b'x'; 64 << 10]).await.is_ok() {}
        };
        let outcome = run_against(SHORT, flood).await;
        let tail = "x".repeat(4096);
        assert_eq!(outcome, critical(format!("HTTP GET URL: 500 Internal Server Error Output: {tail}")));
    }

    #[tokio::test]
    async fn https_verifies_unless_disabled() {
        let (acceptor, _) = identity(&[]);
        let (listener, target) = listen().await;
        let mut target = HttpTarget { url: target.url.replace("http:", "https:"), ..target };
        let serve = async || {
            let (stream, _) = listener.accept().await.expect("the check connects");
            if let Ok(mut stream) = acceptor.accept(stream).await {
                assert!(stream.read(&mut [0; 1024]).await.expect("the check sends") > 0);
                stream.write_all(OK).await.expect("the check reads");
            }
        };
        let limits = limits(LONG);
        let (outcome, ()) = tokio::join!(request(&target, &limits), serve());
        let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
        assert_eq!(outcome, critical(format!("Get {:?}: {unknown}", target.url)));
        target.tls.skip_verify = true;
        let (outcome, ()) = tokio::join!(request(&target, &limits), serve());
        assert_eq!(outcome, passing(format!("HTTP GET {}: 200 OK Output: hi", target.url)));
    }

    fn gzipped(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).expect("memory takes it");
        encoder.finish().expect("memory takes it")
    }

    #[tokio::test]
    async fn compressed_body_fully_decompressed() {
        let respond = |body: Vec<u8>| {
            run_against(LONG, async move |mut stream| {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            })
        };
        let output = |body: &str| passing(format!("HTTP GET URL: 200 OK Output: {body}"));
        assert_eq!(respond(gzipped(b"ready")).await, output("ready"));
        assert_eq!(respond(b"not compressed".to_vec()).await, output(""));
        let bomb = gzipped(&vec![b'x'; 20 << 20]);
        assert_eq!(respond(bomb).await, output(&"x".repeat(4096)));
    }
}
