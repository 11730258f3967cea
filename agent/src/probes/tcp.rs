//! Connections and datagrams, dialed as Go does it: the addresses of a name in turn.

use super::error::ProbeError;
use super::output::io_text;
use super::{Limits, blocking, critical, passing, tls};
use lockmesh_agent_core::definitions::TlsTarget;
use lockmesh_agent_core::registry::Outcome;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

/// The maximum number of addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;

/// The texts of C libraries for a name that does not exist or has no address.
const NO_SUCH_HOST: [&str; 4] = [
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "Name has no usable address",
];

/// Connects, and performs a TLS handshake if requested.
pub(super) async fn connect(address: &str, tls: Option<&TlsTarget>, limits: &Limits) -> Outcome {
    let kind = if tls.is_some() { "TCP+TLS" } else { "TCP" };
    match timeout_at(limits.deadline, establish(address, tls, limits.deadline)).await {
        Ok(Ok(())) => passing(format!("{kind} connect {address}: Success")),
        Ok(Err(error)) => critical(error.to_string()),
        Err(_) if tls.is_some() => critical("context deadline exceeded".into()),
        Err(_) => critical(format!("dial tcp {address}: i/o timeout")),
    }
}

async fn establish(address: &str, tls: Option<&TlsTarget>, deadline: Instant) -> Result<(), ProbeError> {
    let stream = dial(address, deadline).await?;
    if let Some(target) = tls {
        let mut stream = tls::handshake(stream, address, target, tls::ANY_PROTOCOL).await?;
        // The target has proved itself; a lost farewell is not a fault.
        let _ = stream.shutdown().await;
    }
    Ok(())
}

/// Sends an empty datagram. Only an error is critical, because many servers do not reply.
pub(super) async fn send_datagram(address: &str, limits: &Limits) -> Outcome {
    let success = passing(format!("UDP connect {address}: Success"));
    let socket = match open_datagram(address, limits.deadline).await {
        Ok(socket) => socket,
        Err(error) => return critical(error.to_string()),
    };
    let ends = || {
        let ends = (socket.local_addr(), socket.peer_addr());
        if let (Ok(local), Ok(peer)) = ends { format!("{local}->{peer}") } else { address.into() }
    };
    if let Err(error) = socket.send(&[]).await {
        return critical(format!("write udp {}: write: {}", ends(), io_text(&error)));
    }
    match timeout_at(limits.deadline, socket.recv(&mut [0])).await {
        Ok(Err(error)) => critical(format!("read udp {}: read: {}", ends(), io_text(&error))),
        Ok(Ok(_)) | Err(_) => success,
    }
}

async fn open_datagram(address: &str, deadline: Instant) -> Result<UdpSocket, ProbeError> {
    let peers = resolve("udp", address, deadline).await?;
    let peer = *peers.first().ok_or_else(|| no_such_host("udp", address))?;
    let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let open = async {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.connect(peer).await?;
        Ok(socket)
    };
    open.await.map_err(|error| refused("udp", peer, &error))
}

/// Connects to the first address of a name that accepts. The error is that of the first address.
pub(super) async fn dial(address: &str, deadline: Instant) -> Result<TcpStream, ProbeError> {
    let peers = resolve("tcp", address, deadline).await?;
    let mut first = None;
    for (tried, peer) in peers.iter().enumerate() {
        // Each address has a part of the time, so that a silent one does not use it up.
        let left = deadline.saturating_duration_since(Instant::now());
        let waiting = u32::try_from(peers.len() - tried).unwrap_or(u32::MAX);
        let error = match timeout(left / waiting, TcpStream::connect(peer)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => refused("tcp", *peer, &error),
            Err(_) => ProbeError::Dial { network: "tcp", peer: *peer, why: "i/o timeout".into() },
        };
        first.get_or_insert(error);
    }
    Err(first.unwrap_or_else(|| no_such_host("tcp", address)))
}

fn no_such_host(network: &'static str, name: &str) -> ProbeError {
    ProbeError::Lookup { network, name: name.into(), why: "no such host".into() }
}

fn refused(network: &'static str, peer: SocketAddr, error: &io::Error) -> ProbeError {
    ProbeError::Dial { network, peer, why: format!("connect: {}", io_text(error)) }
}

async fn resolve(
    network: &'static str,
    address: &str,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, ProbeError> {
    let (host, port) = split(address).map_err(|why| {
        let address = address.into();
        ProbeError::Address { network, address, why }
    })?;
    // As Go dials it: an address without a host means this host.
    if host.is_empty() {
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return Ok(local.map(|ip| SocketAddr::new(ip, port)).into());
    }
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let failed = |why: &str| ProbeError::Lookup { network, name: host.into(), why: why.into() };
    let name = host.to_owned();
    let lookup = blocking(move || (name.as_str(), port).to_socket_addrs());
    match timeout_at(deadline, lookup).await {
        Ok(Some(Ok(found))) => Ok(found.take(MAX_ADDRESSES).collect()),
        Ok(Some(Err(error))) => {
            let text = error.to_string();
            let why = text.rsplit(": ").next().filter(|why| !NO_SUCH_HOST.contains(why));
            Err(why.map_or_else(|| no_such_host(network, host), failed))
        }
        Ok(None) => Err(no_such_host(network, host)),
        Err(_) => Err(failed("i/o timeout")),
    }
}

/// Returns the host of an address, without brackets; the whole address if it has no port.
pub(super) fn host(address: &str) -> &str {
    split_text(address).map_or(address, |(host, _)| host)
}

fn split(address: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = split_text(address)?;
    Ok((host, port.parse().map_err(|_| "invalid port")?))
}

fn split_text(address: &str) -> Result<(&str, &str), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("missing port in address")?;
    match host.strip_prefix('[') {
        Some(host) => Ok((host.strip_suffix(']').ok_or("missing ']' in address")?, port)),
        None if host.contains(':') => Err("too many colons in address"),
        None => Ok((host, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{closed_port, limits};
    use super::*;
    use lockmesh_protocol::record::CheckStatus;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(30);

    /// Contract: 94.
    #[tokio::test]
    async fn open_port_passes_closed_critical() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let outcome = connect(&address, None, &limits(LONG)).await;
        assert_eq!(outcome, passing(format!("TCP connect {address}: Success")));
        let (_socket, closed) = closed_port();
        let outcome = connect(&closed, None, &limits(LONG)).await;
        assert_eq!(outcome, critical(format!("dial tcp {closed}: connect: connection refused")));
    }

    #[tokio::test]
    async fn names_resolved_invalid_addresses_rejected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        for address in [format!("localhost:{port}"), format!(":{port}")] {
            let outcome = connect(&address, None, &limits(LONG)).await;
            assert_eq!(outcome, passing(format!("TCP connect {address}: Success")));
        }
        for (address, error) in [
            ("localhost", "dial tcp: address localhost: missing port in address"),
            ("", "dial tcp: address : missing port in address"),
            ("::1:80", "dial tcp: address ::1:80: too many colons in address"),
            ("[::1:80", "dial tcp: address [::1:80: missing ']' in address"),
            ("localhost:99999", "dial tcp: address localhost:99999: invalid port"),
        ] {
            assert_eq!(connect(address, None, &limits(LONG)).await, critical(error.into()));
        }
        assert_eq!(host("[::1]:80"), "::1");
        assert_eq!(host("web:80"), "web");
    }

    #[tokio::test]
    async fn tls_handshake_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let outcome = connect(&address, Some(&TlsTarget::default()), &limits(SHORT)).await;
        assert_eq!(outcome, critical("context deadline exceeded".into()));
    }

    #[tokio::test]
    async fn plaintext_server_fails_tls_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let replies = async {
            let (mut stream, _) = listener.accept().await.expect("the check connects");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("the check reads");
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let target = TlsTarget::default();
        let limits = limits(LONG);
        let (outcome, ()) = tokio::join!(connect(&address, Some(&target), &limits), replies);
        assert_eq!(outcome, critical("tls: first record does not look like a TLS handshake".into()));
    }

    /// Contract: 94.
    #[tokio::test]
    async fn udp_silence_or_reply_passes() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a port is free");
        let address = server.local_addr().expect("it is bound").to_string();
        let success = passing(format!("UDP connect {address}: Success"));
        assert_eq!(send_datagram(&address, &limits(SHORT)).await, success);
        let (size, _) = server.recv_from(&mut [0; 8]).await.expect("the check sent it");
        assert_eq!(size, 0);
        let reply = async {
            let (_, peer) = server.recv_from(&mut [0; 8]).await.expect("the check sends");
            server.send_to(b"pong", peer).await.expect("the check reads");
        };
        let long = limits(LONG);
        let (outcome, ()) = tokio::join!(send_datagram(&address, &long), reply);
        assert_eq!(outcome, success);
        assert!(Instant::now() < long.deadline, "a reply ends the run");
    }

    /// Contract: 94.
    #[tokio::test]
    async fn refused_datagram_is_critical() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a port is free");
        let address = server.local_addr().expect("it is bound").to_string();
        // A connected socket receives from its peer only.
        server.connect("127.0.0.1:9").await.expect("a datagram socket connects to any peer");
        let outcome = send_datagram(&address, &limits(LONG)).await;
        assert_eq!(outcome.status, CheckStatus::Critical);
        let end = format!("->{address}: read: connection refused");
        assert!(outcome.output.starts_with("read udp ") && outcome.output.ends_with(&end), "{outcome:?}");
    }
}
