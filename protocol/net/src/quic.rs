//! QUIC: the only file that names quinn and the sockets under it.
//!
//! A stream starts with one byte for its purpose, followed by frames in both directions. Buffers
//! are small, because a server keeps thousands of connections. **Invariant:** a [`Connection`]
//! exists only after both certificates were verified, and its [`Connection::peer`] is the owner
//! named by the peer's certificate.

use crate::expiry;
use crate::frame::{self, FrameCutter, FrameError, FrameQueue};
use crate::peer::{Peer, Role};
use crate::random;
use crate::tls::{self, Identity, ResetSecret};
use bytes::Bytes;
use lockmesh_protocol::dialect::Dialect;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{
    AckFrequencyConfig, ClientConfig, ConnectionError, ConnectionId, ConnectionIdGenerator, EndpointConfig,
    IdleTimeout, ServerConfig, TokioRuntime, TransportConfig, TransportErrorCode, VarInt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::AbortHandle;

/// The number of packets that may arrive before a separate acknowledgement is sent. A reply also
/// acknowledges its request, so most packets need no separate acknowledgement, and each of those
/// wakes the other end unnecessarily.
const PACKETS_PER_ACK: u32 = 8;

/// The size in bytes above which a frame is decoded on another thread. Frames of several messages
/// are shorter.
const LONG_FRAME: usize = 128 << 10;

/// The options of a connection. For the idle timeout, the shorter value of both ends applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// The time without a received packet after which a connection is lost.
    pub idle_time: Duration,
    /// The keep-alive interval of an idle connection; `None` to let it close when idle.
    pub keep_alive: Option<Duration>,
    /// The flow-control window of one stream, in bytes.
    pub stream_window: u32,
    /// The flow-control window of one connection, in bytes, in each direction.
    pub connection_window: u32,
    /// The maximum number of arrivals that wait to be accepted.
    pub max_arrivals: usize,
    /// The size in bytes of the socket's kernel buffers. The one for received packets must hold all
    /// that arrive while the process does something else. The kernel may grant less, but not less
    /// than its default.
    pub socket_buffer: usize,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            idle_time: Duration::from_secs(6),
            keep_alive: Some(Duration::from_secs(2)),
            stream_window: 512 << 10,
            // One stream more than those that carry long answers: of renewals.
            connection_window: 3 * (512 << 10),
            max_arrivals: 1024,
            socket_buffer: 8 << 20,
        }
    }
}

/// The purpose of a stream: its first byte.
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

    /// Returns `true` if a peer of this role may open such a stream.
    pub fn is_open_to(self, role: Role) -> bool {
        match self {
            Self::Calls => true,
            // Raft trusts its messages: an agent could depose a leader or forge entries.
            Self::Raft => role == Role::Server,
        }
    }
}

/// The reason for closing a connection, as sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The connection is no longer needed.
    Done,
    /// This process exits.
    Shutdown,
    /// The peer is not permitted to do what it attempted.
    Denied,
    /// The peer sent an invalid message.
    Malformed,
    /// The server has reached its connection limit.
    Full,
    /// The peer was a server of this quorum and was removed permanently.
    Removed,
    /// The peer's node has opened newer connections, and has no more places.
    Displaced,
}

impl Close {
    fn code(self) -> VarInt {
        // Peers of other builds interpret the numbers, so none may change its meaning.
        VarInt::from_u32(match self {
            Self::Done => 0,
            Self::Shutdown => 1,
            Self::Denied => 2,
            Self::Malformed => 3,
            Self::Full => 4,
            Self::Removed => 5,
            Self::Displaced => 6,
        })
    }
}

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection, or the attempt to create one, ended: no more data will arrive.
    #[error("{0}")]
    Lost(String),
    /// The peer's certificate names another peer, or none.
    #[error("{0}")]
    Stranger(String),
    /// The peer sent an invalid message.
    #[error("the peer sent {0}")]
    Malformed(String),
    /// The peer disconnected during the handshake; it was not rejected.
    #[error("the peer disconnected during the handshake")]
    Withdrawn,
}

impl LinkError {
    /// Adds the resolved address at which the error occurred.
    pub(crate) fn at(self, address: SocketAddr) -> Self {
        match self {
            Self::Lost(reason) => Self::Lost(format!("{reason} ({address})")),
            Self::Stranger(reason) => Self::Stranger(format!("{reason} ({address})")),
            Self::Malformed(what) => Self::Malformed(format!("{what} ({address})")),
            Self::Withdrawn => Self::Withdrawn,
        }
    }
}

/// One UDP socket with all of its incoming and outgoing connections.
#[derive(Debug)]
pub struct Endpoint {
    endpoint: quinn::Endpoint,
    transport: Arc<TransportConfig>,
    max_arrivals: usize,
    serves: bool,
    dialling: Mutex<ClientConfig>,
}

impl Endpoint {
    /// Listens on an address; port 0 picks a free one. `[::]` means all addresses of both families,
    /// or of IPv4 on a host without IPv6.
    ///
    /// # Errors
    /// The address cannot be bound, for example because it is in use. Nothing listens.
    pub fn listen(address: SocketAddr, identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        Self::new(socket_or_v4(address, options.socket_buffer)?, identity, options, true)
    }

    /// Listens on a socket that is already bound.
    ///
    /// # Errors
    /// The runtime cannot use the socket, which is closed. Nothing listens.
    pub fn listen_on(socket: UdpSocket, identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        Self::new(socket, identity, options, true)
    }

    /// Creates an endpoint that only dials, over IPv4 and IPv6.
    ///
    /// # Errors
    /// No socket is available, neither for IPv6 nor for IPv4.
    pub fn dial_only(identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        Self::new(socket_or_v4(any, options.socket_buffer)?, identity, options, false)
    }

    fn new(socket: UdpSocket, identity: &Identity, options: &QuicOptions, serves: bool) -> io::Result<Self> {
        let transport = Arc::new(transport(options));
        let runtime = Arc::new(TokioRuntime);
        let endpoint = quinn::Endpoint::new(endpoint_config(identity), None, socket, runtime)?;
        let dialling = Mutex::new(client_config(identity, &transport));
        let this = Self { endpoint, transport, max_arrivals: options.max_arrivals, serves, dialling };
        this.replace_identity(identity);
        Ok(this)
    }

    /// Replaces the certificates for new connections; existing connections are kept.
    pub fn replace_identity(&self, identity: &Identity) {
        *self.dialling.lock().unwrap_or_else(PoisonError::into_inner) =
            client_config(identity, &self.transport);
        if self.serves {
            let config = server_config(identity, &self.transport, self.max_arrivals);
            self.endpoint.set_server_config(Some(config));
        }
    }

    /// Returns the bound address of the socket.
    ///
    /// # Errors
    /// The socket's system error; the endpoint is unaffected.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Returns the number of connections.
    pub fn connection_count(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Connects to a peer that must have this role.
    ///
    /// # Errors
    /// There is no connection, and only the handshake was sent. [`LinkError::Stranger`] if the
    /// peer's certificate is not trusted or names another role: retrying is pointless until a
    /// certificate changes. [`LinkError::Lost`] for everything else. A rejection of this end's
    /// certificate by the peer may only appear later: see [`Connection::identity_refusal`].
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

    /// Returns the next incoming connection; `None` when the endpoint was closed.
    pub async fn accept(&self) -> Option<Arrival> {
        self.endpoint.accept().await.map(Arrival)
    }

    /// Closes every connection and accepts no new ones; returns when the peers were notified.
    pub async fn close(&self, reason: &str) {
        self.endpoint.close(Close::Shutdown.code(), reason.as_bytes());
        self.endpoint.wait_idle().await;
    }
}

/// An incoming connection whose peer is not verified yet.
#[derive(Debug)]
pub struct Arrival(quinn::Incoming);

impl Arrival {
    /// Returns the source address.
    pub fn remote_address(&self) -> SocketAddr {
        readable(self.0.remote_address())
    }

    /// Returns `true` if the peer has proved that it receives packets at its source address.
    pub fn is_validated(&self) -> bool {
        self.0.remote_address_validated()
    }

    /// Requests the proof that the peer receives packets at its source address (a Retry packet);
    /// the peer arrives again.
    pub fn retry(self) {
        // Fails only for an address that is validated; such an arrival is refused by its drop.
        let _ = self.0.retry();
    }

    /// Rejects the connection without a handshake.
    pub fn refuse(self) {
        self.0.refuse();
    }

    /// Performs the handshake, which verifies the peer's certificate.
    ///
    /// # Errors
    /// There is no connection. [`LinkError::Withdrawn`] if the peer disconnected.
    /// [`LinkError::Stranger`] if its certificate names no owner, which the peer is notified of.
    /// [`LinkError::Lost`] for everything else, including a certificate that TLS does not trust.
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
    /// Watches the expiry of the peer's certificate while there is a clone.
    _watch: Arc<CertificateWatch>,
}

/// Returns the protocol version that TLS negotiated.
fn negotiated(connection: &quinn::Connection) -> Dialect {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let dialect = data.and_then(|data| Dialect::named(data.protocol.as_deref()?));
    // TLS rejects a peer without a known version; all peers understand the first one.
    dialect.unwrap_or(Dialect::First)
}

/// The task that closes a connection when the peer's certificate expires; it ends with this value.
#[derive(Debug)]
struct CertificateWatch(AbortHandle);

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    fn verified(connection: quinn::Connection) -> Result<Self, LinkError> {
        match tls::verified_peer(connection.peer_identity()) {
            Ok((peer, end)) => {
                let watch = tokio::spawn(close_at(connection.clone(), peer.clone(), end));
                let dialect = negotiated(&connection);
                let _watch = Arc::new(CertificateWatch(watch.abort_handle()));
                Ok(Self { connection, peer, dialect, _watch })
            }
            Err(error) => {
                let reason = error.to_string();
                connection.close(Close::Denied.code(), reason.as_bytes());
                Err(LinkError::Stranger(reason))
            }
        }
    }

    /// Returns the reason if the connection ended because one end did not trust the other's
    /// certificate. Call it before closing this end. A server reports such a rejection only after
    /// the client's handshake is complete.
    pub fn identity_refusal(&self) -> Option<String> {
        self.connection.close_reason().as_ref().and_then(identity_refusal)
    }

    /// Returns the peer, as named by its certificate.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the protocol version that the peer understands.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the peer's current address.
    pub fn remote_address(&self) -> SocketAddr {
        readable(self.connection.remote_address())
    }

    /// Returns the measured round-trip time.
    pub fn round_trip_time(&self) -> Duration {
        self.connection.rtt()
    }

    /// Returns the number of datagrams received. It increases continuously while a connection is
    /// kept alive.
    pub fn datagrams_received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// Opens a stream. The peer is notified at once.
    ///
    /// # Errors
    /// The connection has ended. The peer may know of the stream, but received nothing on it.
    pub async fn open(&self, purpose: Purpose) -> Result<(FrameSender, FrameReceiver), LinkError> {
        let (mut send, receive) = self.connection.open_bi().await.map_err(lost)?;
        // A stream becomes visible to the peer only with its first byte.
        send.write_all(&[purpose.to_byte()]).await.map_err(lost)?;
        Ok((FrameSender(send), FrameReceiver::new(receive)))
    }

    /// Returns the next stream that the peer opens.
    ///
    /// # Errors
    /// [`LinkError::Lost`] if the connection has ended, or the stream ended before its purpose
    /// byte. [`LinkError::Malformed`] if the purpose is unknown: the peer is at fault.
    pub async fn accept(&self) -> Result<(Purpose, FrameSender, FrameReceiver), LinkError> {
        let (send, mut receive) = self.connection.accept_bi().await.map_err(lost)?;
        let mut byte = [0];
        receive.read_exact(&mut byte).await.map_err(lost)?;
        let purpose = Purpose::from_byte(byte[0]);
        let purpose = purpose
            .ok_or_else(|| LinkError::Malformed(format!("a stream of unknown purpose {}", byte[0])))?;
        Ok((purpose, FrameSender(send), FrameReceiver::new(receive)))
    }

    /// Closes the connection and sends the reason to the peer.
    pub fn close(&self, close: Close, reason: &str) {
        self.connection.close(close.code(), reason.as_bytes());
    }

    /// Returns `true` if the peer closed the connection because this server was removed from the
    /// quorum.
    pub fn is_closed_by_removal(&self) -> bool {
        match self.connection.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => close.error_code == Close::Removed.code(),
            _ => false,
        }
    }

    /// Returns `true` if the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> String {
        self.connection.closed().await.to_string()
    }
}

/// Closes a connection when the peer's certificate expires: an earlier connection has no advantage
/// over a new one. Both ends log the reason.
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

/// Converts an address to its usual notation: a dual-stack socket shows IPv4 peers as
/// `::ffff:10.0.0.1`.
fn readable(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct FrameSender(quinn::SendStream);

impl FrameSender {
    /// Gives this stream priority over the connection's other streams.
    pub fn prioritize(&mut self) {
        // Fails only if the stream has ended, which the next frame reports.
        let _ = self.0.set_priority(1);
    }

    /// Sends frames immediately; returns when they fit into the send window.
    ///
    /// # Errors
    /// The stream or its connection has ended. The fate of the frames is unknown: all, some or none
    /// of them may arrive.
    pub async fn send(&mut self, mut frames: Vec<Bytes>) -> Result<(), LinkError> {
        self.0.write_all_chunks(&mut frames).await.map_err(lost)
    }

    /// Sends one message immediately; returns when it fits into the send window.
    ///
    /// # Errors
    /// The message exceeds a frame and was not sent; or as of [`FrameSender::send`].
    pub async fn send_one<T: Serialize>(&mut self, message: &T) -> Result<(), LinkError> {
        let mut queue = FrameQueue::default();
        queue.push(message).map_err(|error| LinkError::Lost(error.to_string()))?;
        self.send(queue.take()).await
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

    /// Returns the next frame; `None` when the peer finished the stream. Not cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Lost`] if the stream or its connection has ended, [`LinkError::Malformed`] if
    /// the peer is at fault. Earlier frames are valid; the stream returns no more.
    pub async fn receive<T>(&mut self) -> Result<Option<T>, LinkError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        loop {
            if let Some(frame) = self.cutter.next_frame().map_err(malformed)? {
                return decoded(frame).await.map(Some);
            }
            match self.stream.read_chunk(usize::MAX, true).await.map_err(lost)? {
                Some(chunk) => self.cutter.feed(chunk.bytes),
                None if self.cutter.is_within_frame() => {
                    return Err(LinkError::Malformed("a truncated frame".into()));
                }
                None => return Ok(None),
            }
        }
    }
}

/// Decodes a frame; a long one on another thread, because other streams must not wait for it.
async fn decoded<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, LinkError> {
    if bytes.len() <= LONG_FRAME {
        return frame::decode(&bytes).map_err(malformed);
    }
    let decoding = tokio::task::spawn_blocking(move || frame::decode(&bytes));
    decoding.await.map_err(lost)?.map_err(malformed)
}

fn lost(error: impl std::error::Error) -> LinkError {
    LinkError::Lost(error.to_string())
}

fn stranger_or_lost(error: ConnectionError) -> LinkError {
    identity_refusal(&error).map_or_else(|| lost(error), LinkError::Stranger)
}

/// Returns which end rejected the other's certificate, and the reason, for a connection that ended
/// with a TLS certificate alert.
fn identity_refusal(error: &ConnectionError) -> Option<String> {
    /// QUIC's code for TLS's alert 0.
    const ALERTS: u64 = 0x100;
    let (code, who, reason) = match error {
        ConnectionError::TransportError(error) => {
            // The certificate is trusted, but the address is that of another role.
            if let Some(owner) = owner_in(&error.reason) {
                return Some(format!("it is {owner}"));
            }
            (error.code, "its certificate is not trusted here", error.reason.as_str().into())
        }
        ConnectionError::ConnectionClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            (close.error_code, "it does not trust the certificate of this end", reason)
        }
        _ => return None,
    };
    match u64::from(code).checked_sub(ALERTS)? {
        // unknown_ca, and decrypt_error, which results from a signature by another authority of the
        // same name.
        48 | 51 => Some(format!("{who}, as no authority in `tls.ca` has signed it: {reason}")),
        // From bad_certificate to access_denied, and certificate_required.
        42..=49 | 116 => Some(format!("{who}: {reason}")),
        _ => None,
    }
}

/// Returns the owner in the TLS library's text about a certificate for another role.
fn owner_in(reason: &str) -> Option<Peer> {
    let (_, names) = reason.split_once("certificate not valid for name")?;
    let uris = names.split('"').filter(|name| name.starts_with("lockmesh://"));
    uris.filter_map(Peer::from_uri).next()
}

fn withdrawn_or_lost(error: ConnectionError) -> LinkError {
    match &error {
        // The form of a peer's own reason before encryption is established.
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
        // Not used: a peer must not make this end buffer them.
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(idle_time))
        .keep_alive_interval(options.keep_alive)
        .stream_receive_window(VarInt::from_u32(options.stream_window))
        .receive_window(VarInt::from_u32(options.connection_window))
        .send_window(options.connection_window.into())
        // Gossip has a UDP socket of its own.
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .ack_frequency_config(Some(acknowledgements))
        // Below the default of 333 ms, so that a lost packet of a handshake is sent again sooner.
        .initial_rtt(Duration::from_millis(100));
    transport
}

/// Enables stateless resets: a restarted process notifies its peers at once that their connections
/// are gone, instead of leaving them to the idle timeout.
fn endpoint_config(identity: &Identity) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(ResetKey(identity.reset_secret().clone())));
    config.cid_generator(|| Box::new(ConnectionIds));
    config
}

/// Connection ids of the same form as those of an earlier process, so that packets of its
/// connections are answered too.
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
        // Only this process verifies its own signatures, so the comparison need not be
        // constant-time.
        if self.0.sign(data) == signature { Ok(()) } else { Err(CryptoError) }
    }
}

fn client_config(identity: &Identity, transport: &Arc<TransportConfig>) -> ClientConfig {
    let tls = QuicClientConfig::try_from(identity.client_config()).expect("TLS 1.3 has QUIC's first cipher");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(transport.clone());
    config
}

fn server_config(identity: &Identity, transport: &Arc<TransportConfig>, max_arrivals: usize) -> ServerConfig {
    let tls = QuicServerConfig::try_from(identity.server_config()).expect("TLS 1.3 has QUIC's first cipher");
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport.clone()).max_incoming(max_arrivals);
    // Far below the defaults of 10 and 100 MiB: the peers of these packets are not verified yet.
    config.incoming_buffer_size(64 << 10).incoming_buffer_size_total(16 << 20);
    config
}

/// Binds a socket. `[::]` falls back to all IPv4 addresses on a host without IPv6.
pub(crate) fn socket_or_v4(address: SocketAddr, buffer: usize) -> io::Result<UdpSocket> {
    let is_any_v6 = address.ip() == Ipv6Addr::UNSPECIFIED;
    socket(address, buffer).or_else(|error| match error.kind() {
        // A port in use is no reason to listen on only half of the addresses.
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
        // The error is that of the configured address, even if the other one fails too.
        _ if is_any_v6 => socket((Ipv4Addr::UNSPECIFIED, address.port()).into(), buffer).map_err(|_| error),
        _ => Err(error),
    })
}

fn socket(address: SocketAddr, buffer: usize) -> io::Result<UdpSocket> {
    let open = || Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP));
    let mut socket = open()?;
    let defaults = (socket.recv_buffer_size()?, socket.send_buffer_size()?);
    socket.set_recv_buffer_size(buffer)?;
    socket.set_send_buffer_size(buffer)?;
    // The kernel grants its maximum at most, which may be less than its default.
    if socket.recv_buffer_size()? < defaults.0 || socket.send_buffer_size()? < defaults.1 {
        socket = open()?;
    }
    if address.is_ipv6() && address.ip().is_unspecified() {
        // The default depends on the host (`net.ipv6.bindv6only`).
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}
