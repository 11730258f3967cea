//! TLS as a client of any server: TLS 1.2 and 1.3, the system's roots, errors in Go's words.
//!
//! Separate from the cluster's own TLS, which accepts only the cluster's certificates.

use super::error::ProbeError;
use super::output::io_text;
use super::{blocking, tcp};
use lockmesh_agent_core::definitions::TlsTarget;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// No protocol is negotiated.
pub(super) const ANY_PROTOCOL: &[&[u8]] = &[];

/// The system's roots, read once, as Go does.
static ROOTS: OnceCell<Arc<RootCertStore>> = OnceCell::const_new();

/// A connection with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Performs a handshake with the server at an address.
pub(super) async fn handshake(
    stream: TcpStream,
    address: &str,
    target: &TlsTarget,
    protocols: &[&[u8]],
) -> Result<TlsStream<TcpStream>, ProbeError> {
    handshake_with(system_roots().await, stream, address, target, protocols).await
}

async fn handshake_with(
    roots: Arc<RootCertStore>,
    stream: TcpStream,
    address: &str,
    target: &TlsTarget,
    protocols: &[&[u8]],
) -> Result<TlsStream<TcpStream>, ProbeError> {
    let name = if target.server_name.is_empty() { tcp::host(address) } else { &target.server_name };
    // Certificates have no dot at the end of a name.
    let name = name.trim_end_matches('.');
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| ProbeError::Tls(format!("tls: {name:?} is not a valid server name")))?;
    let config = config(roots, target.skip_verify, protocols)?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(server, stream);
    handshake.await.map_err(|error| ProbeError::Tls(error_text(&error, name)))
}

/// Returns the system's roots; empty if it has none.
pub async fn system_roots() -> Arc<RootCertStore> {
    ROOTS.get_or_init(load_roots).await.clone()
}

async fn load_roots() -> Arc<RootCertStore> {
    let load = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    // Without roots, each verification fails and reports the unknown authority.
    Arc::new(blocking(load).await.unwrap_or_else(RootCertStore::empty))
}

fn config(
    roots: Arc<RootCertStore>,
    skip_verify: bool,
    protocols: &[&[u8]],
) -> Result<ClientConfig, ProbeError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| ProbeError::Tls(format!("tls: {error}")))?;
    let mut config = if skip_verify {
        let verifier = Arc::new(AnyCertificate(provider));
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
    } else {
        builder.with_root_certificates(roots).with_no_client_auth()
    };
    // Each run opens a new connection and does not resume the session of an earlier one.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn error_text(error: &io::Error, name: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let unverified = |why: &str| format!("tls: failed to verify certificate: x509: {why}");
    match inner {
        None => io_text(error),
        Some(Error::InvalidMessage(_)) => "tls: first record does not look like a TLS handshake".into(),
        Some(Error::AlertReceived(alert)) => format!("remote error: tls:{}", words(&format!("{alert:?}"))),
        Some(Error::InvalidCertificate(fault)) => match fault {
            CertificateError::UnknownIssuer => unverified("certificate signed by unknown authority"),
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                unverified("certificate has expired or is not yet valid")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                unverified(&format!("certificate is not valid for {name}"))
            }
            other => unverified(&other.to_string()),
        },
        Some(other) => format!("tls: {other}"),
    }
}

/// Separates the words of a name in camel case, each with a space before it.
fn words(name: &str) -> String {
    let apart = |letter: char| {
        let space = letter.is_ascii_uppercase().then_some(' ');
        space.into_iter().chain([letter.to_ascii_lowercase()])
    };
    name.chars().flat_map(apart).collect()
}

/// Accepts every certificate, as the check demands.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::{AlertDescription, ServerConfig};

    /// Returns a server that has a certificate for `web.example`, and the authority that signed it.
    pub(in super::super) fn identity(protocols: &[&[u8]]) -> (TlsAcceptor, CertificateDer<'static>) {
        let key = || KeyPair::generate().expect("keys can be made");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("the parameters are valid");
        let leaf = CertificateParams::new(vec!["web.example".into()]).expect("the name is valid");
        let leaf_key = key();
        let leaf = leaf.signed_by(&leaf_key, &authority).expect("the authority can sign");
        let private = PrivateKeyDer::try_from(leaf_key.serialize_der()).expect("it is a key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], private)
            .expect("the key matches");
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        (TlsAcceptor::from(Arc::new(config)), authority.der().clone())
    }

    /// Performs a handshake with a server whose authority is trusted or not.
    async fn outcome(trusted: bool, target: TlsTarget) -> Result<(), String> {
        let (acceptor, authority) = identity(ANY_PROTOCOL);
        let mut roots = RootCertStore::empty();
        if trusted {
            roots.add(authority).expect("it is a certificate");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let serve = async {
            let (stream, _) = listener.accept().await.expect("the check connects");
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        };
        let check = async {
            let stream = TcpStream::connect(&address).await.expect("it listens");
            let shaken = handshake_with(Arc::new(roots), stream, &address, &target, ANY_PROTOCOL).await;
            let _ = shaken.map_err(|error| error.to_string())?.shutdown().await;
            Ok(())
        };
        tokio::join!(check, serve).0
    }

    fn named(name: &str) -> TlsTarget {
        TlsTarget { server_name: name.into(), skip_verify: false }
    }

    #[tokio::test]
    async fn certificate_trust_and_name_verified() {
        assert_eq!(outcome(true, named("web.example")).await, Ok(()));
        assert_eq!(outcome(true, named("web.example.")).await, Ok(()));
        let unverified = |why: &str| Err(format!("tls: failed to verify certificate: x509: {why}"));
        let unknown = unverified("certificate signed by unknown authority");
        assert_eq!(outcome(false, named("web.example")).await, unknown);
        let misnamed = unverified("certificate is not valid for 127.0.0.1");
        assert_eq!(outcome(true, TlsTarget::default()).await, misnamed);
        let invalid = Err(r#"tls: "a b" is not a valid server name"#.into());
        assert_eq!(outcome(true, named("a b")).await, invalid);
    }

    #[test]
    fn alerts_have_gos_words() {
        let alert = Error::AlertReceived(AlertDescription::HandshakeFailure);
        let error = io::Error::new(io::ErrorKind::InvalidData, alert);
        assert_eq!(error_text(&error, "web"), "remote error: tls: handshake failure");
    }

    #[tokio::test]
    async fn skip_verify_accepts_any_certificate() {
        let target = TlsTarget { server_name: String::new(), skip_verify: true };
        assert_eq!(outcome(false, target).await, Ok(()));
    }

    #[tokio::test]
    async fn server_hangup_is_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let hang_up = async { drop(listener.accept().await) };
        let check = async {
            let stream = TcpStream::connect(&address).await.expect("it listens");
            handshake(stream, &address, &TlsTarget::default(), ANY_PROTOCOL).await.map(drop)
        };
        let (shaken, ()) = tokio::join!(check, hang_up);
        let error = shaken.expect_err("the server hung up").to_string();
        assert!(["EOF", "connection reset by peer"].contains(&error.as_str()), "{error}");
    }
}
