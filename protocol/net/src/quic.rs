//! QUIC: the one file that names quinn and the sockets under it.
//!
//! A stream begins with one byte that says what it is for; then frames follow, in both directions.
//! Buffers are small, because a server keeps thousands of connections. **Invariant:** a
//! [`Connection`] exists only after both certificates were verified, and its [`Connection::peer`]
//! is the one that the peer's certificate names.

use crate::expiry;
use crate::frame::{FrameCutter, FrameError};
use crate::peer::{Peer, Role};
use crate::random;
use crate::tls::{self, Dialect, Identity, ResetSecret};
use bytes::Bytes;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{
    AckFrequencyConfig, ClientConfig, ConnectionError, ConnectionId, ConnectionIdGenerator, EndpointConfig,
    IdleTimeout, ServerConfig, TokioRuntime, TransportConfig, TransportErrorCode, VarInt,
};
use serde::de::DeserializeOwned;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::AbortHandle;

/// How many packets may come before one is acknowledged by itself. An answer acknowledges what it
/// answers, so most packets need none of their own, and each of those wakes the other end for
/// nothing.
const PACKETS_PER_ACK: u32 = 8;

/// How a connection's end behaves. Both ends' idle times count; the shorter one wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// A connection from which nothing is heard for so long is lost.
    pub idle_time: Duration,
    /// How often a quiet connection is kept alive; `None` to let it close when idle.
    pub keep_alive: Option<Duration>,
    /// How many bytes of one stream may be on their way.
    pub stream_window: u32,
    /// How many bytes of one connection may be on their way, in each direction.
    pub connection_window: u32,
    /// How many handshakes may be under way at once.
    pub max_handshakes: usize,
    /// How large the kernel's buffers of the socket shall be; the kernel may give less.
    pub socket_buffer: Option<usize>,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            idle_time: Duration::from_secs(6),
            keep_alive: Some(Duration::from_secs(2)),
            stream_window: 512 << 10,
            connection_window: 1 << 20,
            max_handshakes: 1024,
            socket_buffer: None,
        }
    }
}

/// What a stream is for: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Calls of an agent, or of a server that relays them.
    Calls,
    /// Raft between servers.
    Raft,
}

impl Purpose {
    fn to_byte(self) -> u8 {
        match self {
            Self::Calls => 1,
            Self::Raft => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Calls, Self::Raft].into_iter().find(|purpose| purpose.to_byte() == byte)
    }

    /// Whether a peer of this role may open such a stream.
    pub fn is_open_to(self, role: Role) -> bool {
        match self {
            Self::Calls => true,
            Self::Raft => role == Role::Server,
        }
    }
}

/// Why a connection was closed, as the other end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// There is nothing left to say.
    Done,
    /// This process ends.
    Shutdown,
    /// The peer may not do what it wanted.
    Denied,
    /// The peer sent something that cannot be understood.
    Malformed,
    /// The server has as many connections as it takes.
    Full,
    /// The peer was a server of this quorum and was removed from it, for good.
    Removed,
}

impl Close {
    fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Done => 0,
            Self::Shutdown => 1,
            Self::Denied => 2,
            Self::Malformed => 3,
            Self::Full => 4,
            Self::Removed => 5,
        })
    }
}

/// Why there is no connection, or no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection, or the attempt to make one, ended: certainly nothing more will arrive.
    #[error("{0}")]
    Lost(String),
    /// The peer's certificate does not name who it should, or nobody.
    #[error("{0}")]
    Stranger(String),
    /// The peer sent something that cannot be understood.
    #[error("the peer sent {0}")]
    Malformed(String),
    /// The peer called and then wanted nothing any more: nobody was refused.
    #[error("it went away before it was known")]
    Withdrawn,
}

impl LinkError {
    /// The same, with the address of those that a name stands for at which it happened.
    pub(crate) fn at(self, address: SocketAddr) -> Self {
        match self {
            Self::Lost(reason) => Self::Lost(format!("{reason} ({address})")),
            Self::Stranger(reason) => Self::Stranger(format!("{reason} ({address})")),
            Self::Malformed(what) => Self::Malformed(format!("{what} ({address})")),
            Self::Withdrawn => Self::Withdrawn,
        }
    }
}

/// One UDP socket with all the connections that begin or end at it.
#[derive(Debug)]
pub struct Endpoint {
    endpoint: quinn::Endpoint,
    transport: Arc<TransportConfig>,
    max_handshakes: usize,
    serves: bool,
    dialling: Mutex<ClientConfig>,
}

impl Endpoint {
    /// Listens at an address; port 0 picks a free one. `[::]` is all addresses of both families, or
    /// of IPv4 on a host that has no IPv6.
    ///
    /// # Errors
    /// The address cannot be bound, as one that is in use. Nothing listens.
    pub fn listen(address: SocketAddr, identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        Self::new(socket_or_v4(address, options.socket_buffer)?, identity, options, true)
    }

    /// Listens on a socket that was bound before.
    ///
    /// # Errors
    /// The runtime cannot take the socket, which is closed. Nothing listens.
    pub fn listen_on(socket: UdpSocket, identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        Self::new(socket, identity, options, true)
    }

    /// Dials only, over IPv4 and IPv6.
    ///
    /// # Errors
    /// There is no socket to be had, neither for IPv6 nor for IPv4.
    pub fn dial_only(identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        Self::new(socket_or_v4(any, options.socket_buffer)?, identity, options, false)
    }

    fn new(socket: UdpSocket, identity: &Identity, options: &QuicOptions, serves: bool) -> io::Result<Self> {
        let transport = Arc::new(transport(options));
        let runtime = Arc::new(TokioRuntime);
        let endpoint = quinn::Endpoint::new(endpoint_config(identity), None, socket, runtime)?;
        let dialling = Mutex::new(client_config(identity, &transport));
        let this = Self { endpoint, transport, max_handshakes: options.max_handshakes, serves, dialling };
        this.replace_identity(identity);
        Ok(this)
    }

    /// Uses other certificates for all connections that begin from now on; those that stand are
    /// kept.
    pub fn replace_identity(&self, identity: &Identity) {
        *self.dialling.lock().unwrap_or_else(PoisonError::into_inner) =
            client_config(identity, &self.transport);
        if self.serves {
            let config = server_config(identity, &self.transport, self.max_handshakes);
            self.endpoint.set_server_config(Some(config));
        }
    }

    /// Where the socket is bound.
    ///
    /// # Errors
    /// What the system said of the socket; the endpoint itself is as it was.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// How many connections there are.
    pub fn connection_count(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Connects to a peer that must have this role.
    ///
    /// # Errors
    /// There is no connection, and nothing was sent but the handshake. [`LinkError::Stranger`]
    /// where the peer's certificate is not believed or names another role: no repeat helps before a
    /// certificate changes. [`LinkError::Lost`] for everything else. That the peer does not believe
    /// this end may show only later: see [`Connection::identity_refusal`].
    pub async fn connect(&self, address: SocketAddr, role: Role) -> Result<Connection, LinkError> {
        let config = self.dialling.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let connecting = self
            .endpoint
            .connect_with(config, address, role.dns_name())
            .map_err(|error| LinkError::Lost(error.to_string()))?;
        let connection = Connection::verified(connecting.await.map_err(stranger_or_lost)?)?;
        if connection.peer.role != role {
            let reason = format!("{address} is {}, but a {} was called", connection.peer, role.as_str());
            connection.close(Close::Denied, &reason);
            return Err(LinkError::Stranger(reason));
        }
        Ok(connection)
    }

    /// The next one who calls; `None` when the endpoint was closed.
    pub async fn accept(&self) -> Option<Arrival> {
        self.endpoint.accept().await.map(Arrival)
    }

    /// Closes every connection and takes no new one; returns when the peers were told.
    pub async fn close(&self, reason: &str) {
        self.endpoint.close(Close::Shutdown.code(), reason.as_bytes());
        self.endpoint.wait_idle().await;
    }
}

/// Somebody who called and is not yet known.
#[derive(Debug)]
pub struct Arrival(quinn::Incoming);

impl Arrival {
    /// Where the call came from.
    pub fn remote_address(&self) -> SocketAddr {
        readable(self.0.remote_address())
    }

    /// Turns it away unheard.
    pub fn refuse(self) {
        self.0.refuse();
    }

    /// Does the handshake, which verifies the peer's certificate.
    ///
    /// # Errors
    /// There is no connection. [`LinkError::Withdrawn`] where the peer went away by itself;
    /// [`LinkError::Stranger`] where its certificate names nobody, of which it was told;
    /// [`LinkError::Lost`] for everything else, also where TLS does not trust its certificate.
    pub async fn handshake(self) -> Result<Connection, LinkError> {
        let connecting = self.0.accept().map_err(lost)?;
        Connection::verified(connecting.await.map_err(withdrawn_or_lost)?)
    }
}

/// A connection to a verified peer; cheap to clone. It ends when all clones and streams are
/// dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    connection: quinn::Connection,
    peer: Peer,
    dialect: Dialect,
    /// Looks after the end of the peer's certificate as long as there is a clone.
    _watch: Arc<CertificateWatch>,
}

/// What both ends speak, as TLS negotiated it.
fn negotiated(connection: &quinn::Connection) -> Dialect {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let dialect = data.and_then(|data| Dialect::named(data.protocol.as_deref()?));
    // TLS refuses a peer that speaks none; the first is understood by all.
    dialect.unwrap_or(Dialect::First)
}

/// The task that closes a connection when the peer's certificate ends; it ends with this value.
#[derive(Debug)]
struct CertificateWatch(AbortHandle);

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    fn verified(connection: quinn::Connection) -> Result<Self, LinkError> {
        let chain = connection.peer_identity().ok_or("the peer showed no certificate".to_owned());
        match chain.and_then(tls::verified_peer) {
            Ok((peer, end)) => {
                let watch = tokio::spawn(close_at(connection.clone(), peer.clone(), end));
                let dialect = negotiated(&connection);
                let _watch = Arc::new(CertificateWatch(watch.abort_handle()));
                Ok(Self { connection, peer, dialect, _watch })
            }
            Err(reason) => {
                connection.close(Close::Denied.code(), reason.as_bytes());
                Err(LinkError::Stranger(reason))
            }
        }
    }

    /// Why the connection ended, where one end did not believe the other's certificate; to be asked
    /// before this end closes it. A server says so only after the caller's own handshake is done.
    pub fn identity_refusal(&self) -> Option<String> {
        self.connection.close_reason().as_ref().and_then(identity_refusal)
    }

    /// Who is at the other end, as its certificate says.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What the other end understands.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Where the other end is now.
    pub fn remote_address(&self) -> SocketAddr {
        readable(self.connection.remote_address())
    }

    /// How long a message and its acknowledgement take, as measured.
    pub fn round_trip_time(&self) -> Duration {
        self.connection.rtt()
    }

    /// How many datagrams have arrived. While a connection is kept alive, they do so all the time.
    pub fn datagrams_received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// Opens a stream. The other end hears of it at once.
    ///
    /// # Errors
    /// The connection has ended. The other end may have heard of the stream, but of nothing on it.
    pub async fn open(&self, purpose: Purpose) -> Result<(FrameSender, FrameReceiver), LinkError> {
        let (mut send, receive) = self.connection.open_bi().await.map_err(lost)?;
        send.write_all(&[purpose.to_byte()]).await.map_err(lost)?;
        Ok((FrameSender(send), FrameReceiver::new(receive)))
    }

    /// The next stream that the other end opens.
    ///
    /// # Errors
    /// [`LinkError::Lost`] where the connection has ended, or the stream before it said what it is
    /// for. [`LinkError::Malformed`] where it is for something unknown: the peer is at fault.
    pub async fn accept(&self) -> Result<(Purpose, FrameSender, FrameReceiver), LinkError> {
        let (send, mut receive) = self.connection.accept_bi().await.map_err(lost)?;
        let mut byte = [0];
        receive.read_exact(&mut byte).await.map_err(lost)?;
        let purpose = Purpose::from_byte(byte[0]);
        let purpose = purpose
            .ok_or_else(|| LinkError::Malformed(format!("a stream of the unknown kind {}", byte[0])))?;
        Ok((purpose, FrameSender(send), FrameReceiver::new(receive)))
    }

    /// Closes the connection and tells the other end why.
    pub fn close(&self, close: Close, reason: &str) {
        self.connection.close(close.code(), reason.as_bytes());
    }

    /// Whether the other end closed the connection because this server was removed from the quorum.
    pub fn is_closed_by_removal(&self) -> bool {
        match self.connection.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => close.error_code == Close::Removed.code(),
            _ => false,
        }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Waits for the connection's end and says why it came.
    pub async fn closed(&self) -> String {
        self.connection.closed().await.to_string()
    }
}

/// Closes a connection when the peer's certificate has ended: whoever began in time is no better
/// than who begins now. The other end hears why, and both say so in their logs.
async fn close_at(connection: quinn::Connection, peer: Peer, end: SystemTime) {
    tokio::select! {
        _ = connection.closed() => return,
        () = expiry::ended(end) => {}
    }
    let (reason, address) =
        (format!("the certificate of {peer} has ended"), readable(connection.remote_address()));
    tracing::warn!(%address, %reason, "closed a connection: issue a new certificate and reload");
    connection.close(Close::Denied.code(), reason.as_bytes());
}

/// An address as people write it: a socket for both families shows IPv4 peers as `::ffff:10.0.0.1`.
fn readable(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct FrameSender(quinn::SendStream);

impl FrameSender {
    /// What is sent here leaves before what waits on the connection's other streams.
    pub fn prioritize(&mut self) {
        // It fails only where the stream has ended, which the next frame tells.
        let _ = self.0.set_priority(1);
    }

    /// Sends frames; they leave at once, and this returns when they found room in the send window.
    ///
    /// # Errors
    /// The stream or its connection has ended. Nothing is known of what became of the frames: all,
    /// some or none of them may arrive.
    pub async fn send(&mut self, mut frames: Vec<Bytes>) -> Result<(), LinkError> {
        self.0.write_all_chunks(&mut frames).await.map_err(lost)
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub struct FrameReceiver {
    stream: quinn::RecvStream,
    cutter: FrameCutter,
}

impl FrameReceiver {
    fn new(stream: quinn::RecvStream) -> Self {
        Self { stream, cutter: FrameCutter::default() }
    }

    /// The next frame; `None` when the other end finished the stream. Not safe to drop half-way.
    ///
    /// # Errors
    /// [`LinkError::Lost`] where the stream or its connection has ended, [`LinkError::Malformed`]
    /// where the peer is at fault. What was received before stands; nothing more comes from this
    /// stream.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinkError> {
        loop {
            if let Some(frame) = self.cutter.next_message().map_err(malformed)? {
                return Ok(Some(frame));
            }
            match self.stream.read_chunk(usize::MAX, true).await.map_err(lost)? {
                Some(chunk) => self.cutter.feed(chunk.bytes),
                None if self.cutter.is_within_frame() => {
                    return Err(LinkError::Malformed("a frame without its end".into()));
                }
                None => return Ok(None),
            }
        }
    }
}

fn lost(error: impl std::error::Error) -> LinkError {
    LinkError::Lost(error.to_string())
}

fn stranger_or_lost(error: ConnectionError) -> LinkError {
    identity_refusal(&error).map_or_else(|| lost(error), LinkError::Stranger)
}

/// Which end did not believe the other's certificate, and why, where a connection ended by one of
/// TLS's alerts about certificates.
fn identity_refusal(error: &ConnectionError) -> Option<String> {
    /// QUIC's code for TLS's alert 0.
    const ALERTS: u64 = 0x100;
    let (code, who, reason) = match error {
        ConnectionError::TransportError(error) => {
            (error.code, "its certificate is not trusted here", error.reason.as_str().into())
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            (close.error_code, "it does not trust the certificate of this end", reason)
        }
        _ => return None,
    };
    match u64::from(code).checked_sub(ALERTS)? {
        // unknown_ca, and decrypt_error, which the signature of another authority of the same name
        // gives.
        48 | 51 => Some(format!("{who}, as no authority in `tls.ca` has signed it: {reason}")),
        // From bad_certificate to access_denied, and certificate_required.
        42..=49 | 116 => Some(format!("{who}: {reason}")),
        _ => None,
    }
}

fn withdrawn_or_lost(error: ConnectionError) -> LinkError {
    match &error {
        // What a peer's own reason becomes as long as nothing is encrypted yet.
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
        {
            LinkError::Withdrawn
        }
        _ => lost(error),
    }
}

fn malformed(error: FrameError) -> LinkError {
    LinkError::Malformed(error.to_string())
}

fn transport(options: &QuicOptions) -> TransportConfig {
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK));
    let idle_time = IdleTimeout::try_from(options.idle_time).unwrap_or(VarInt::MAX.into());
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(16))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(idle_time))
        .keep_alive_interval(options.keep_alive)
        .stream_receive_window(VarInt::from_u32(options.stream_window))
        .receive_window(VarInt::from_u32(options.connection_window))
        .send_window(options.connection_window.into())
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .ack_frequency_config(Some(acknowledgements))
        .initial_rtt(Duration::from_millis(100));
    transport
}

/// Lets a restarted process tell its peers at once that their connections are gone; they would
/// otherwise find out only when the idle time is over.
fn endpoint_config(identity: &Identity) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(ResetKey(identity.reset_secret().clone())));
    config.cid_generator(|| Box::new(ConnectionIds));
    config
}

/// Connection ids that are not told apart from those of an earlier life, so that its connections
/// are answered too.
struct ConnectionIds;

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&random::seed().to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

struct ResetKey(ResetSecret);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(&self.0.sign(data));
    }

    fn signature_len(&self) -> usize {
        ResetSecret::SIGNATURE_BYTES
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Only the process itself would ask, about what it signed; nothing secret hangs on the
        // comparison's time.
        if self.0.sign(data) == signature { Ok(()) } else { Err(CryptoError) }
    }
}

fn client_config(identity: &Identity, transport: &Arc<TransportConfig>) -> ClientConfig {
    let tls = QuicClientConfig::try_from(identity.client_config()).expect("TLS 1.3 has QUIC's first cipher");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(transport.clone());
    config
}

fn server_config(
    identity: &Identity,
    transport: &Arc<TransportConfig>,
    max_handshakes: usize,
) -> ServerConfig {
    let tls = QuicServerConfig::try_from(identity.server_config()).expect("TLS 1.3 has QUIC's first cipher");
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport.clone()).max_incoming(max_handshakes);
    config.incoming_buffer_size(64 << 10).incoming_buffer_size_total(16 << 20);
    config
}

/// All addresses are those of IPv4 where the host has no IPv6.
pub(crate) fn socket_or_v4(address: SocketAddr, buffer: Option<usize>) -> io::Result<UdpSocket> {
    let is_any_v6 = address.ip() == Ipv6Addr::UNSPECIFIED;
    socket(address, buffer).or_else(|error| match error.kind() {
        // A port that is in use is no reason to listen on half of the addresses.
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
        _ if is_any_v6 => socket((Ipv4Addr::UNSPECIFIED, address.port()).into(), buffer).map_err(|_| error),
        _ => Err(error),
    })
}

fn socket(address: SocketAddr, buffer: Option<usize>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}
