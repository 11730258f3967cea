//! Checks over HTTP/2: gRPC's health protocol, and a ping.
//!
//! The messages of the health protocol have one field each, so they are encoded here.

use super::error::ProbeError;
use super::{Limits, critical, drive, passing, tcp, tls};
use crate::go::path::percent_decode;
use bytes::{Buf, Bytes, BytesMut};
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, RecvStream};
use hyper::header::{CONTENT_TYPE, TE};
use hyper::{HeaderMap, Method, Request, StatusCode};
use lockmesh_agent_core::definitions::TlsTarget;
use lockmesh_agent_core::registry::Outcome;
use tokio::time::{Instant, timeout_at};

/// The protocol that is offered in the TLS handshake.
const PROTOCOLS: &[&[u8]] = &[b"h2"];

/// The maximum size in bytes of a response's headers.
const MAX_HEADERS: u32 = 8 << 10;

/// The maximum size in bytes of a response to a health request, which has 7 bytes.
const MAX_RESPONSE: usize = 4 << 10;

/// The size in bytes of the flag and the length before a message.
const PREFIX: usize = 5;

/// The value of `status` in a response that means SERVING.
const SERVING: u64 = 1;

/// The names of gRPC's status codes in Go.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

type Client = (SendRequest<Bytes>, Connection<Box<dyn tls::Stream>, Bytes>);

/// Asks a server for the health of a service, or its own.
pub(super) async fn health(target: &str, tls: Option<&TlsTarget>, limits: &Limits) -> Outcome {
    let (address, service) = target.split_once('/').unwrap_or((target, ""));
    match timeout_at(limits.deadline, serving(address, service, tls, limits)).await {
        Ok(Ok(true)) => passing(format!("gRPC check {target}: success")),
        Ok(Ok(false)) => critical("gRPC application didn't report service healthy".into()),
        Ok(Err(error)) => critical(error.to_string()),
        Err(_) => critical(rpc_error("DeadlineExceeded", "context deadline exceeded").to_string()),
    }
}

/// Sends a ping and awaits its acknowledgement.
pub(super) async fn ping(address: &str, tls: Option<&TlsTarget>, limits: &Limits) -> Outcome {
    let success = "HTTP2 ping was successful".into();
    match timeout_at(limits.deadline, acknowledged(address, tls, limits.deadline)).await {
        Ok(Ok(())) => passing(success),
        Ok(Err(error)) => critical(error.to_string()),
        Err(_) => critical(ProbeError::Ping("context deadline exceeded".into()).to_string()),
    }
}

async fn acknowledged(address: &str, tls: Option<&TlsTarget>, deadline: Instant) -> Result<(), ProbeError> {
    let stream = transport(address, tls, deadline).await.map_err(|cause| {
        let address = address.into();
        ProbeError::NoTransport { address, cause: Box::new(cause) }
    })?;
    let failed = |error: h2::Error| ProbeError::Ping(error.to_string());
    let ended = || ProbeError::Ping("EOF".into());
    // The sender keeps the connection open.
    let (_sender, mut connection) = open(stream).await.map_err(failed)?;
    let Some(mut pings) = connection.ping_pong() else { return Err(ended()) };
    tokio::select! {
        biased;
        pong = pings.ping(Ping::opaque()) => pong.map(drop).map_err(failed),
        result = &mut connection => Err(result.map_or_else(failed, |()| ended())),
    }
}

/// Returns `true` if the service is SERVING.
async fn serving(
    address: &str,
    service: &str,
    tls: Option<&TlsTarget>,
    limits: &Limits,
) -> Result<bool, ProbeError> {
    let unavailable = |why: &str| rpc_error("Unavailable", &format!("connection error: desc = \"{why}\""));
    let stream = transport(address, tls, limits.deadline).await.map_err(|error| match error {
        ProbeError::Tls(why) => unavailable(&format!("transport: authentication handshake failed: {why}")),
        why => unavailable(&format!("transport: Error while dialing: {why}")),
    })?;
    let request = request(address, tls, limits)?;
    let broken = |error: h2::Error| unavailable(&format!("error reading from server: {error}"));
    let (sender, connection) = open(stream).await.map_err(broken)?;
    let call = async {
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, mut body) = sender.send_request(request, false).map_err(broken)?;
        body.send_data(encoded(service), true).map_err(broken)?;
        let (head, mut body) = response.await.map_err(broken)?.into_parts();
        check_head(head.status)?;
        // A response without a body has its status in the headers.
        if head.headers.contains_key("grpc-status") {
            check_status(&head.headers)?;
        }
        let message = read(&mut body, broken).await?;
        check_status(&body.trailers().await.map_err(broken)?.unwrap_or_default())?;
        let status = decoded(message).ok_or_else(|| rpc_error("Internal", "malformed health response"))?;
        Ok(status == SERVING)
    };
    drive(connection, call).await
}

async fn transport(
    address: &str,
    tls: Option<&TlsTarget>,
    deadline: Instant,
) -> Result<Box<dyn tls::Stream>, ProbeError> {
    let stream = tcp::dial(address, deadline).await?;
    let Some(target) = tls else { return Ok(Box::new(stream)) };
    Ok(Box::new(tls::handshake(stream, address, target, PROTOCOLS).await?))
}

async fn open(stream: Box<dyn tls::Stream>) -> Result<Client, h2::Error> {
    Builder::new().enable_push(false).max_header_list_size(MAX_HEADERS).handshake(stream).await
}

fn request(address: &str, tls: Option<&TlsTarget>, limits: &Limits) -> Result<Request<()>, ProbeError> {
    let name = tls.map_or("", |tls| &tls.server_name);
    let authority = if name.is_empty() { address } else { name };
    let scheme = if tls.is_some() { "https" } else { "http" };
    Request::builder()
        .method(Method::POST)
        .uri(format!("{scheme}://{authority}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        // Required by gRPC: it reveals proxies that would drop the trailers.
        .header(TE, "trailers")
        .header("grpc-timeout", format!("{}m", limits.timeout.as_millis()))
        .body(())
        .map_err(|error| rpc_error("Internal", &error.to_string()))
}

/// Reads the body of a response.
async fn read(
    body: &mut RecvStream,
    broken: impl Fn(h2::Error) -> ProbeError,
) -> Result<BytesMut, ProbeError> {
    let mut read = BytesMut::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.map_err(&broken)?;
        if read.len() + bytes.len() > MAX_RESPONSE {
            return Err(rpc_error("ResourceExhausted", "the health response is too large"));
        }
        read.extend_from_slice(&bytes);
    }
    Ok(read)
}

fn check_head(status: StatusCode) -> Result<(), ProbeError> {
    // As gRPC maps statuses of HTTP to its own.
    let code = match status.as_u16() {
        200 => return Ok(()),
        400 => "Internal",
        401 => "Unauthenticated",
        403 => "PermissionDenied",
        404 => "Unimplemented",
        429 | 502..=504 => "Unavailable",
        _ => "Unknown",
    };
    let reason = status.canonical_reason().unwrap_or_default();
    let text = format!("unexpected HTTP status code received from server: {} ({reason})", status.as_u16());
    Err(rpc_error(code, &text))
}

fn check_status(headers: &HeaderMap) -> Result<(), ProbeError> {
    let Some(status) = headers.get("grpc-status") else {
        return Err(rpc_error("Internal", "server closed the stream without sending trailers"));
    };
    let number: Option<usize> = status.to_str().ok().and_then(|status| status.parse().ok());
    let code = number.and_then(|number| CODES.get(number)).copied().unwrap_or("Unknown");
    if number == Some(0) {
        return Ok(());
    }
    let message = headers.get("grpc-message").and_then(|message| message.to_str().ok()).unwrap_or_default();
    let message = percent_decode(message).unwrap_or(message.as_bytes().into());
    Err(rpc_error(code, &String::from_utf8_lossy(&message)))
}

fn rpc_error(code: &'static str, text: &str) -> ProbeError {
    ProbeError::Rpc { code, text: text.into() }
}

/// Encodes a `HealthCheckRequest` with its prefix.
fn encoded(service: &str) -> Bytes {
    let mut message = Vec::new();
    // In protobuf, an empty field is not encoded.
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    framed.into()
}

/// Returns the status in a `HealthCheckResponse` with its prefix; `None` if it is malformed.
fn decoded(mut framed: BytesMut) -> Option<u64> {
    if framed.len() < PREFIX || framed.get_u8() != 0 || framed.get_u32() as usize != framed.len() {
        return None;
    }
    let mut status = 0;
    while framed.has_remaining() {
        let tag = varint(&mut framed)?;
        let skipped = match tag & 7 {
            // All other fields are skipped: newer servers may send some.
            0 if tag >> 3 == 1 => {
                status = varint(&mut framed)?;
                0
            }
            0 => varint(&mut framed).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(&mut framed)?).ok()?,
            5 => 4,
            _ => return None,
        };
        if skipped > framed.len() {
            return None;
        }
        framed.advance(skipped);
    }
    Some(status)
}

fn varint(bytes: &mut BytesMut) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{closed_port, limits};
    use super::super::tls::tests::identity;
    use super::*;
    use hyper::Response;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(200);

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        (listener, address)
    }

    /// Returns the health that a check sees if the server responds with these parts.
    async fn seen(service: &str, head: &[(&str, &str)], body: &[u8], trailers: &[(&str, &str)]) -> Outcome {
        let (listener, address) = listen().await;
        let serve = async {
            let (stream, _) = listener.accept().await.expect("the check connects");
            let mut server = h2::server::handshake(stream).await.expect("the check speaks HTTP/2");
            let map = |fields: &[(&str, &str)]| -> HeaderMap {
                let parse = |(name, value): &(&str, &str)| {
                    (name.parse().expect("a name"), value.parse().expect("a value"))
                };
                fields.iter().filter(|(name, _)| *name != ":status").map(parse).collect()
            };
            while let Some(Ok((mut request, mut reply))) = server.accept().await {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                assert_eq!(request.headers()["content-type"], "application/grpc");
                // The connection must be driven while the body is read.
                let sent = tokio::select! {
                    sent = request.body_mut().data() => sent.expect("a message").expect("it arrives"),
                    _ = server.accept() => panic!("a check sends one request"),
                };
                assert_eq!(sent, encoded(service));
                let status = head.iter().find(|(name, _)| *name == ":status").map_or("200", |(_, code)| code);
                let mut response = Response::builder().status(status).body(()).expect("the parts are valid");
                *response.headers_mut() = map(head);
                let mut stream = reply.send_response(response, false).expect("the check waits");
                stream.send_data(Bytes::copy_from_slice(body), trailers.is_empty()).expect("it waits");
                if !trailers.is_empty() {
                    stream.send_trailers(map(trailers)).expect("it waits");
                }
            }
        };
        let target = if service.is_empty() { address } else { format!("{address}/{service}") };
        let check = async {
            let outcome = health(&target, None, &limits(LONG)).await;
            Outcome { output: outcome.output.replace(&target, "TARGET"), ..outcome }
        };
        tokio::join!(check, serve).0
    }

    /// Contract: 102.
    #[tokio::test]
    async fn serving_grpc_service_passes() {
        let ok = [("grpc-status", "0")];
        for service in ["", "web", &"x".repeat(300)] {
            let outcome = seen(service, &[], &[0, 0, 0, 0, 2, 8, 1], &ok).await;
            assert_eq!(outcome, passing("gRPC check TARGET: success".into()));
        }
        let unhealthy = critical("gRPC application didn't report service healthy".into());
        for body in [&[0, 0, 0, 0, 2, 8, 2][..], &[0, 0, 0, 0, 0]] {
            assert_eq!(seen("web", &[], body, &ok).await, unhealthy);
        }
    }

    #[tokio::test]
    async fn server_errors_match_go() {
        let fields = [("grpc-status", "5"), ("grpc-message", "unknown%20service")];
        let unknown = critical("rpc error: code = NotFound desc = unknown service".into());
        assert_eq!(seen("web", &[], &[], &fields).await, unknown);
        assert_eq!(seen("web", &fields, &[], &[]).await, unknown);
        for (head, body, text) in [
            (
                &[(":status", "404")][..],
                &[][..],
                "Unimplemented desc = unexpected HTTP status code received from server: 404 (Not Found)",
            ),
            (&[], &[], "Internal desc = server closed the stream without sending trailers"),
            (&[], &[0; MAX_RESPONSE + 1], "ResourceExhausted desc = the health response is too large"),
            (&[("grpc-status", "99")], &[], "Unknown desc = "),
        ] {
            let error = critical(format!("rpc error: code = {text}"));
            assert_eq!(seen("web", head, body, &[]).await, error);
        }
        let malformed = critical("rpc error: code = Internal desc = malformed health response".into());
        assert_eq!(seen("web", &[], &[1, 0, 0, 0, 0], &[("grpc-status", "0")]).await, malformed);
    }

    #[tokio::test]
    async fn a_silent_server_times_out() {
        let (_listener, address) = listen().await;
        let error = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
        assert_eq!(health(&address, None, &limits(SHORT)).await, critical(error.into()));
        let error = "HTTP2 ping failed: context deadline exceeded";
        assert_eq!(ping(&address, None, &limits(SHORT)).await, critical(error.into()));
        let (_socket, closed) = closed_port();
        let error = format!("Failed to dial to {closed}: dial tcp {closed}: connect: connection refused");
        assert_eq!(ping(&closed, None, &limits(LONG)).await, critical(error));
    }

    /// Contract: 102.
    #[tokio::test]
    async fn ping_requires_http2() {
        let (listener, address) = listen().await;
        let serve = async {
            let (stream, _) = listener.accept().await.expect("the check connects");
            let mut server = h2::server::handshake(stream).await.expect("the check speaks HTTP/2");
            assert!(server.accept().await.is_none_or(|request| request.is_err()), "a ping is no request");
        };
        let limits = limits(LONG);
        let (outcome, ()) = tokio::join!(ping(&address, None, &limits), serve);
        assert_eq!(outcome, passing("HTTP2 ping was successful".into()));

        let (listener, address) = listen().await;
        let (acceptor, _) = identity(PROTOCOLS);
        let serve = async {
            let (stream, _) = listener.accept().await.expect("the check connects");
            let stream = acceptor.accept(stream).await.expect("the check accepts any certificate");
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(PROTOCOLS[0]));
            let mut server = h2::server::handshake(stream).await.expect("the check speaks HTTP/2");
            let _ = server.accept().await;
        };
        let target = TlsTarget { server_name: String::new(), skip_verify: true };
        let (outcome, ()) = tokio::join!(ping(&address, Some(&target), &limits), serve);
        assert_eq!(outcome, passing("HTTP2 ping was successful".into()));

        let (listener, address) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("the check connects");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("the check reads");
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let (outcome, ()) = tokio::join!(ping(&address, None, &limits), serve);
        assert!(outcome.output.starts_with("HTTP2 ping failed: "), "{outcome:?}");
    }

    #[test]
    fn arbitrary_responses_never_panic() {
        let with_fields = [0, 0, 0, 0, 9, 0x12, 1, 7, 0x1d, 1, 2, 3, 4, 8];
        assert_eq!(decoded(BytesMut::from(&with_fields[..])), None, "the status is missing");
        proptest::proptest!(|(bytes: Vec<u8>)| {
            let mut framed = BytesMut::from(&[0][..]);
            framed.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            framed.extend_from_slice(&bytes);
            let _ = decoded(framed);
            let _ = decoded(BytesMut::from(&bytes[..]));
        });
    }
}
