//! Accepted and rejected handshakes, on real sockets.

use lockmesh_net::admission::{Admission, Admitted, RETRY_ABOVE};
use lockmesh_net::certificate::Authority;
use lockmesh_net::{
    Connection, Endpoint, Identity, IdentityFiles, LinkError, Peer, Purpose, QuicOptions, Role,
};
use lockmesh_protocol::dialect::Dialect;
use lockmesh_protocol::rpc::{Call, CallFrame, CallId};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::UdpSocket;

const DAY: Duration = Duration::from_secs(86_400);

/// An authority with its own folder.
struct Cluster {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Cluster {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", 90 * DAY).unwrap();
        authority.save(&folder.path().join("ca.pem"), &folder.path().join("ca-key.pem")).unwrap();
        Self { folder, authority }
    }

    fn files(&self, role: Role, life: Duration) -> IdentityFiles {
        let path = |name: &str| self.folder.path().join(name);
        let files = IdentityFiles {
            authorities: path("ca.pem"),
            certificate: path("member.pem"),
            key: path("member-key.pem"),
        };
        let issued = self.authority.issue(&Peer { role, node: "web-1".into() }, &[], life).unwrap();
        issued.save(&files.certificate, &files.key).unwrap();
        files
    }

    fn identity(&self, role: Role) -> Identity {
        Identity::load(&self.files(role, 60 * DAY)).unwrap()
    }

    fn listen(&self, role: Role) -> Endpoint {
        listen(&self.identity(role), "127.0.0.1:0")
    }

    fn dialler(&self, role: Role) -> Endpoint {
        Endpoint::dial_only(&self.identity(role), &QuicOptions::default()).unwrap()
    }
}

fn listen(identity: &Identity, address: &str) -> Endpoint {
    Endpoint::listen(address.parse().unwrap(), identity, &QuicOptions::default()).unwrap()
}

/// Returns both ends of one attempt.
async fn meet(
    listener: &Endpoint,
    dialler: &Endpoint,
    role: Role,
) -> (Result<Connection, LinkError>, Result<Connection, LinkError>) {
    let address = listener.local_address().unwrap();
    let accept = async { listener.accept().await.unwrap().handshake().await };
    tokio::join!(accept, dialler.connect(address, role))
}

/// Relays datagrams between a dialler and a listener, except the dialler's first `lost` ones;
/// returns the address to dial.
async fn relay_without_the_first(lost: usize, listener: SocketAddr) -> SocketAddr {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let (near, far) = (bind().await.unwrap(), bind().await.unwrap());
    let address = near.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut there, mut back) = ([0; 2048], [0; 2048]);
        let (mut dialler, mut count) = (None, 0);
        loop {
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut there) => {
                    (dialler, count) = (Some(from), count + 1);
                    if count > lost {
                        far.send_to(&there[..length], listener).await.unwrap();
                    }
                }
                Ok(length) = far.recv(&mut back) => {
                    near.send_to(&back[..length], dialler.unwrap()).await.unwrap();
                }
            }
        }
    });
    address
}

/// Returns the final result of a dialler: its own library may accept the connection before the
/// other end has verified it.
async fn verdict(dialled: Result<Connection, LinkError>) -> String {
    match dialled {
        Ok(connection) => connection.closed().await,
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn peers_authenticate_and_exchange_frames() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let cluster = Cluster::new();
        let listener = listen(&cluster.identity(Role::Server), address);
        let dialler = cluster.dialler(Role::Agent);
        let (accepted, dialled) = meet(&listener, &dialler, Role::Server).await;
        let (accepted, dialled) = (accepted.unwrap(), dialled.unwrap());
        assert_eq!(accepted.peer(), &Peer { role: Role::Agent, node: "web-1".into() });
        assert_eq!(dialled.peer(), &Peer { role: Role::Server, node: "web-1".into() });
        let (mut sender, _receiver) = dialled.open(Purpose::Calls).await.unwrap();
        let (purpose, _sender, mut receiver) = accepted.accept().await.unwrap();
        assert_eq!(purpose, Purpose::Calls);
        sender.send_one(&Call::Cancel(CallId(1))).await.unwrap();
        assert_eq!(receiver.receive().await, Ok(Some(CallFrame(vec![Call::Cancel(CallId(1))]))));
    }
}

/// As in the simulator: an attempt that starts during a network fault succeeds after its end.
#[tokio::test]
async fn handshake_survives_lost_first_datagram() {
    let cluster = Cluster::new();
    let (listener, dialler) = (cluster.listen(Role::Server), cluster.dialler(Role::Agent));
    let address = relay_without_the_first(1, listener.local_address().unwrap()).await;
    let accept = async { listener.accept().await.unwrap().handshake().await };
    let (accepted, dialled) = tokio::join!(accept, dialler.connect(address, Role::Server));
    accepted.unwrap();
    dialled.unwrap();
}

#[tokio::test]
async fn both_ends_reject_foreign_authority() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let (accepted, dialled) =
        meet(&ours.listen(Role::Server), &theirs.dialler(Role::Agent), Role::Server).await;
    assert!(accepted.is_err());
    assert!(verdict(dialled).await.contains("certificate"));

    // A peer that trusts both authorities, but shows a foreign certificate, is rejected by the
    // listener.
    let files = theirs.files(Role::Agent, 60 * DAY);
    let both = format!("{}{}", ours.authority.certificate_pem(), theirs.authority.certificate_pem());
    std::fs::write(&files.authorities, both).unwrap();
    let dialler = Endpoint::dial_only(&Identity::load(&files).unwrap(), &QuicOptions::default()).unwrap();
    let (accepted, dialled) = meet(&ours.listen(Role::Server), &dialler, Role::Server).await;
    let reason = accepted.unwrap_err().to_string();
    assert!(reason.contains("certificate"), "{reason}");
    assert!(!verdict(dialled).await.is_empty());
}

#[tokio::test]
async fn peer_without_certificate_rejected() {
    let cluster = Cluster::new();
    let listener = cluster.listen(Role::Server);
    let dialler = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let config = without_certificate(&cluster.folder.path().join("ca.pem"));
    let connecting =
        dialler.connect_with(config, listener.local_address().unwrap(), "server.lockmesh").unwrap();
    let accept = async { listener.accept().await.unwrap().handshake().await };
    let (accepted, dialled) = tokio::join!(accept, connecting);
    let reason = accepted.unwrap_err().to_string();
    assert!(reason.contains("certificate"), "{reason}");
    if let Ok(connection) = dialled {
        let told = connection.closed().await.to_string();
        assert!(told.contains("certificate"), "{told}");
    }
}

fn without_certificate(authority: &Path) -> quinn::ClientConfig {
    in_first_dialect(trusting(authority).with_no_client_auth())
}

type TlsBuilder = rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>;

fn trusting(authority: &Path) -> TlsBuilder {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
}

fn in_first_dialect(mut tls: rustls::ClientConfig) -> quinn::ClientConfig {
    tls.alpn_protocols = vec![b"lockmesh/1".to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

#[tokio::test]
async fn both_ends_negotiate_dialect() {
    let cluster = Cluster::new();
    let listener = cluster.listen(Role::Server);
    let (accepted, dialled) = meet(&listener, &cluster.dialler(Role::Agent), Role::Server).await;
    let dialects = (accepted.unwrap().dialect(), dialled.unwrap().dialect());
    assert_eq!(dialects, (Dialect::Tenth, Dialect::Tenth));
    // A peer of an earlier build.
    let files = cluster.files(Role::Agent, DAY);
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let tls = trusting(&files.authorities).with_client_auth_cert(chain, key).unwrap();
    let dialler = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = listener.local_address().unwrap();
    let connecting = dialler.connect_with(in_first_dialect(tls), address, "server.lockmesh").unwrap();
    let accept = async { listener.accept().await.unwrap().handshake().await };
    let (accepted, dialled) = tokio::join!(accept, connecting);
    assert_eq!((accepted.unwrap().dialect(), dialled.is_ok()), (Dialect::First, true));
}

#[tokio::test]
async fn agent_cannot_impersonate_server() {
    let cluster = Cluster::new();
    let (accepted, dialled) =
        meet(&cluster.listen(Role::Agent), &cluster.dialler(Role::Agent), Role::Server).await;
    assert!(accepted.is_err());
    let reason = verdict(dialled).await;
    assert_eq!(reason, "it is agent \"web-1\"");
}

#[tokio::test]
async fn certificate_rotation_keeps_connections() {
    let (old, new) = (Cluster::new(), Cluster::new());
    let (listener, dialler) = (old.listen(Role::Server), old.dialler(Role::Agent));
    let (accepted, dialled) = meet(&listener, &dialler, Role::Server).await;
    let (accepted, dialled) = (accepted.unwrap(), dialled.unwrap());
    listener.replace_identity(&new.identity(Role::Server));
    let (_, refused) = meet(&listener, &dialler, Role::Server).await;
    assert!(refused.is_err());
    dialler.replace_identity(&new.identity(Role::Agent));
    let (again, _) = meet(&listener, &dialler, Role::Server).await;
    assert!(again.is_ok());
    let _stream = dialled.open(Purpose::Calls).await.unwrap();
    assert!(accepted.accept().await.is_ok());
}

#[tokio::test]
async fn restarted_process_resets_old_connections() {
    let cluster = Cluster::new();
    let identity = cluster.identity(Role::Server);
    let never = QuicOptions { idle_time: 365 * DAY, keep_alive: None, ..QuicOptions::default() };
    let dialler = Endpoint::dial_only(&cluster.identity(Role::Agent), &never).unwrap();
    // The first process has its own runtime, which ends as abruptly as a kill.
    let (address, connection) = {
        let (found, runtime) = (tokio::sync::oneshot::channel(), tokio::runtime::Runtime::new().unwrap());
        let first_life = identity.clone();
        runtime.spawn(async move {
            let listener = Endpoint::listen(([127, 0, 0, 1], 0).into(), &first_life, &never).unwrap();
            found.0.send(listener.local_address().unwrap()).unwrap();
            let connection = listener.accept().await.unwrap().handshake().await.unwrap();
            connection.closed().await;
        });
        let address = found.1.await.unwrap();
        let connection = dialler.connect(address, Role::Server).await.unwrap();
        runtime.shutdown_background();
        (address, connection)
    };
    while std::net::UdpSocket::bind(address).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _second_life = listen(&identity, &address.to_string());
    let (mut sender, _receiver) = connection.open(Purpose::Calls).await.unwrap();
    let _ = sender.send(vec![vec![0; 1000].into()]).await;
    assert!(connection.closed().await.contains("reset"));
}

#[tokio::test]
async fn expired_or_mismatched_certificate_rejected() {
    let cluster = Cluster::new();
    let error = |files: &IdentityFiles| Identity::load(files).unwrap_err().to_string();
    let ended = cluster.files(Role::Agent, Duration::ZERO);
    // Certificates count whole seconds, so this one may be valid for the rest of the current one.
    while Identity::load(&ended).is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reason = error(&ended);
    assert!(reason.contains("member.pem") && reason.contains("expired"), "{reason}");
    let soon = cluster.files(Role::Agent, 3 * DAY);
    let identity = Identity::load(&soon).unwrap();
    let warning = identity.lives()[0].warning(SystemTime::now()).unwrap();
    assert!(warning.contains("member.pem") && warning.contains("ends in 2 d 23 h"), "{warning}");
    assert_eq!(identity.lives()[1].warning(SystemTime::now()), None);
    let good = cluster.files(Role::Agent, DAY);
    let foreign = IdentityFiles { key: cluster.folder.path().join("ca-key.pem"), ..good.clone() };
    assert!(error(&foreign).contains("ca-key.pem: this is not the key of"), "{}", error(&foreign));
    let other = Cluster::new();
    let unsigned = IdentityFiles { authorities: other.folder.path().join("ca.pem"), ..good.clone() };
    assert!(error(&unsigned).contains("signed it"), "{}", error(&unsigned));
    let nobody = IdentityFiles { certificate: good.authorities.clone(), ..good };
    assert!(error(&nobody).contains("names no Lockmesh node"), "{}", error(&nobody));
}

/// `cargo test -p lockmesh-net --test handshakes -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a measurement: run it by name"]
async fn memory_per_connection() {
    const CONNECTIONS: u64 = 1000;
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let cluster = Cluster::new();
    let (listener, dialler) = (cluster.listen(Role::Server), cluster.dialler(Role::Agent));
    let (mut kept, mut before) = (Vec::new(), 0);
    for number in 0..CONNECTIONS + 100 {
        if number == 100 {
            before = resident();
        }
        let (accepted, dialled) = meet(&listener, &dialler, Role::Server).await;
        let (accepted, dialled) = (accepted.unwrap(), dialled.unwrap());
        let stream = dialled.open(Purpose::Calls).await.unwrap();
        kept.push((accepted.accept().await.unwrap(), stream, accepted, dialled));
    }
    let each = (resident() - before) / CONNECTIONS;
    println!("{CONNECTIONS} connections with a stream: {each} bytes each, both ends together");
}

#[tokio::test]
async fn early_disconnect_is_withdrawn() {
    let cluster = Cluster::new();
    let (listener, dialler) = (cluster.listen(Role::Server), cluster.dialler(Role::Agent));
    let address = listener.local_address().unwrap();
    let arrival = tokio::select! {
        arrival = listener.accept() => arrival.unwrap(),
        _ = dialler.connect(address, Role::Server) => panic!("no reply has been sent yet"),
    };
    assert_eq!(arrival.handshake().await.unwrap_err(), LinkError::Withdrawn);
}

#[tokio::test]
async fn connection_closes_at_certificate_expiry() {
    let cluster = Cluster::new();
    let listener = cluster.listen(Role::Server);
    let files = cluster.files(Role::Agent, Duration::from_secs(3));
    let dialler = Endpoint::dial_only(&Identity::load(&files).unwrap(), &QuicOptions::default()).unwrap();
    let (accepted, dialled) = meet(&listener, &dialler, Role::Server).await;
    let (accepted, dialled) = (accepted.expect("it lives still"), dialled.unwrap());
    let reason = tokio::time::timeout(Duration::from_secs(60), dialled.closed()).await;
    let reason = reason.expect("the listener looks again when the certificate ends");
    assert!(reason.contains("the certificate of agent \"web-1\" has ended"), "{reason}");
    accepted.closed().await;
    let (accepted, dialled) = meet(&listener, &dialler, Role::Server).await;
    assert!(accepted.is_err());
    assert!(verdict(dialled).await.contains("certificate"), "and no new connection is accepted");
}

/// Returns the first packets of as many handshakes, whose dialler never sends another.
async fn initials(dialler: &Endpoint, count: usize) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = sink.local_addr().unwrap();
    let (mut packets, mut buffer) = (BTreeMap::new(), [0; 2048]);
    for begun in 1..=count {
        let mut connecting = pin!(dialler.connect(address, Role::Server));
        while packets.len() < begun {
            let length = tokio::select! {
                length = sink.recv(&mut buffer) => length.unwrap(),
                _ = &mut connecting => panic!("nothing replies"),
            };
            // Behind the version and its length is the connection id, by which the packets differ.
            let id = buffer[6..6 + usize::from(buffer[5])].to_vec();
            // The end of the last attempt is a shorter packet.
            if length >= 1200 {
                packets.entry(id).or_insert_with(|| buffer[..length].to_vec());
            }
        }
    }
    packets.into_values().collect()
}

#[tokio::test]
async fn handshake_flood_answered_with_retries() {
    const FLOOD: usize = RETRY_ABOVE + 16;
    let cluster = Cluster::new();
    let never = QuicOptions { idle_time: 365 * DAY, ..QuicOptions::default() };
    let listener = Endpoint::listen(([127, 0, 0, 1], 0).into(), &cluster.identity(Role::Server), &never);
    let (listener, dialler) = (listener.unwrap(), cluster.dialler(Role::Agent));
    let address = listener.local_address().unwrap();
    let flood = initials(&dialler, FLOOD).await;
    let (admitted, mut connected) = tokio::sync::mpsc::channel(FLOOD);
    tokio::spawn(async move {
        let admission = Admission::new(512);
        while let Some(arrival) = listener.accept().await {
            // Those of the flood do not end.
            if let Admitted::Yes(arrival, turn) = admission.admit(arrival) {
                let admitted = admitted.clone();
                tokio::spawn(async move { admitted.send((arrival.handshake().await, turn)).await });
            }
        }
    });
    let (mut retries, mut buffer) = (0, [0; 2048]);
    for packet in &flood {
        // In step, so that no buffer overflows.
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        stranger.send_to(packet, address).await.unwrap();
        stranger.recv(&mut buffer).await.unwrap();
        retries += usize::from(buffer[0] & 0xf0 == 0xf0);
    }
    assert_eq!(retries, FLOOD - RETRY_ABOVE);
    let dialled = dialler.connect(address, Role::Server).await.unwrap();
    let (accepted, _turn) = connected.recv().await.unwrap();
    assert_eq!(accepted.unwrap().peer().node, dialled.peer().node);
}
