//! TLS to Consul: its options, the connections, and their errors in words for the operator.

use crate::MigrateError;
use lockmesh_agent::monitor::printable;
use lockmesh_agent::probes::system_roots;
use lockmesh_client::{Stream, Wrapped, Wrapper};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore, SignatureScheme};

/// The options of an `https://` source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The PEM file with the authority of Consul's certificate; without one, those of the system.
    pub ca_file: Option<PathBuf>,
    /// The PEM file with a certificate, if Consul verifies its clients.
    pub client_cert: Option<PathBuf>,
    /// The PEM file with the key of that certificate.
    pub client_key: Option<PathBuf>,
    /// The name in Consul's certificate, if it is not the host of the address.
    pub tls_server_name: Option<String>,
}

/// Turns connections to Consul into TLS connections.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    identity: Arc<Identity>,
}

/// The certificate for Consul, if there is one.
#[derive(Debug)]
struct Identity {
    key: Option<Arc<CertifiedKey>>,
    was_requested: AtomicBool,
}

/// The reason why a handshake failed, and the correction.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Fault(String);

impl Tls {
    /// Reads the files. `host` is the name in Consul's certificate, unless the options have one.
    pub(super) async fn new(args: &TlsOptions, host: &str) -> Result<Self, MigrateError> {
        let name = args.tls_server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| {
            MigrateError::usage(format!(
                "{error}: give the name in Consul's certificate with --tls-server-name NAME"
            ))
        })?;
        let roots = match &args.ca_file {
            Some(file) => Arc::new(authorities(file)?),
            None => system_roots().await,
        };
        if roots.is_empty() {
            return Err(MigrateError::failed(
                "this system has no trusted authorities: give the file of Consul's with --ca-file FILE",
            ));
        }
        let provider = Arc::new(ring::default_provider());
        let key = match (&args.client_cert, &args.client_key) {
            (Some(certificate), Some(key)) => Some(Arc::new(certified(certificate, key, &provider)?)),
            _ => None,
        };
        let identity = Arc::new(Identity { key, was_requested: AtomicBool::new(false) });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(MigrateError::failed)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&identity) as Arc<dyn ResolvesClientCert>);
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name, identity })
    }

    /// Returns the reason of an ended connection, if Consul has requested a certificate: in TLS 1.3
    /// it rejects one after the handshake.
    pub(super) fn rejection(&self) -> Option<&'static str> {
        self.identity.was_requested.load(Ordering::Relaxed).then_some(match self.identity.key {
            Some(_) => {
                "Consul may have rejected the certificate: give one that the authority of Consul signed with \
                 --client-cert FILE and --client-key FILE"
            }
            None => {
                "Consul verifies its clients: give a certificate with --client-cert FILE and --client-key FILE"
            }
        })
    }

    /// Describes an error of a handshake; one of the connection stays as it is.
    fn described(&self, error: io::Error) -> io::Error {
        let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref()) else { return error };
        let text = match inner {
            Error::InvalidMessage(_) => "the port does not speak TLS: write http:// in --from, or name the \
                                         port `ports.https` of Consul's configuration"
                .to_owned(),
            Error::InvalidCertificate(defect) => self.rejected(defect),
            Error::AlertReceived(alert) => match self.rejection() {
                Some(reason) => format!("{reason} ({alert:?})"),
                None => format!(
                    "Consul ended the handshake ({alert:?}): its configuration must permit TLS 1.2 or later"
                ),
            },
            other => format!("the handshake failed: {other}; name Consul's HTTPS port with --from"),
        };
        io::Error::other(Fault(text))
    }

    /// The reason why Consul's certificate is rejected.
    fn rejected(&self, defect: &CertificateError) -> String {
        match defect {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "no trusted authority signed its certificate: give the file of Consul's authority with \
                 --ca-file FILE"
                    .to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: renew it in Consul, or correct the clock of this host"
                    .to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: correct the clock of this host".to_owned()
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                // Each is in the form `DnsName("server.dc1.consul")`.
                let bare = |name: &String| name.split_once('(').map(|(_, rest)| rest.replace(')', ""));
                let names: Vec<String> = presented.iter().filter_map(bare).collect();
                format!(
                    "its certificate is not for {} but for {}: give its name with --tls-server-name NAME",
                    self.name.to_str(),
                    // The peer chose the names, which may contain control characters.
                    printable(&names.join(", "))
                )
            }
            other => format!(
                "its certificate is invalid: {other}; give Consul another, or the file of its authority \
                 with --ca-file FILE"
            ),
        }
    }
}

/// `true` if an error has the reason why a handshake failed, and the correction.
pub(super) fn is_fault(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Fault>())
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Wrapper for Tls {
    fn wrap(&self, stream: TcpStream) -> Wrapped<'_> {
        Box::pin(async move {
            let stream = self.connector.connect(self.name.clone(), stream).await;
            let stream = stream.map_err(|error| self.described(error))?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was_requested.store(true, Ordering::Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

fn authorities(file: &Path) -> Result<RootCertStore, MigrateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("--ca-file", file)? {
        roots.add(certificate).map_err(|error| unusable("--ca-file", file, &error))?;
    }
    Ok(roots)
}

fn certified(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, MigrateError> {
    let chain = certificates("--client-cert", certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread("--client-key", key, error))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            unusable("--client-key", key, &format!("it is not the key of {}", certificate.display()))
        }
        other => unusable("--client-key", key, &other),
    })
}

fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, MigrateError> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.and_then(|found| match found.is_empty() {
        true => Err(pem::Error::NoItemsFound),
        false => Ok(found),
    });
    found.map_err(|error| unread(option, file, error))
}

fn unread(option: &str, file: &Path, error: pem::Error) -> MigrateError {
    match error {
        pem::Error::Io(error) => unusable(option, file, &error),
        // The reader skips the PEM label of an encrypted key.
        pem::Error::NoItemsFound => unusable(option, file, &"it has none in PEM form, or it is encrypted"),
        other => unusable(option, file, &other),
    }
}

fn unusable(option: &str, file: &Path, reason: &dyn std::fmt::Display) -> MigrateError {
    MigrateError::failed(format!("cannot use {}: {reason}; give another file with {option}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::side::of_consul;
    use super::super::tests::Pair;
    use super::super::tests::fake::Fake;
    use super::super::{Options, consul};
    use super::*;
    use lockmesh_client::Address;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
    use tempfile::TempDir;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::version::{TLS12, TLS13};
    use tokio_rustls::rustls::{ServerConfig, SupportedProtocolVersion};

    /// An authority, and the files of a client.
    struct Authority {
        issuer: CertifiedIssuer<'static, KeyPair>,
        folder: TempDir,
    }

    fn params(names: &[&str]) -> CertificateParams {
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).expect("names")
    }

    impl Authority {
        fn new() -> Self {
            let key = || KeyPair::generate().expect("a key");
            let mut authority = params(&[]);
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer = CertifiedIssuer::self_signed(authority, key()).expect("it is good");
            let this = Self { issuer, folder: tempfile::tempdir().expect("a folder") };
            let client_key = key();
            let client = params(&["client"]).signed_by(&client_key, &this.issuer).expect("signed");
            for (name, text) in
                [("ca", this.issuer.pem()), ("cert", client.pem()), ("key", client_key.serialize_pem())]
            {
                std::fs::write(this.file(name), text).expect("written");
            }
            this
        }

        fn file(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// A server's certificate and TLS versions. With `clients`, it verifies them.
        fn acceptor(
            &self,
            params: CertificateParams,
            clients: bool,
            versions: &[&'static SupportedProtocolVersion],
        ) -> TlsAcceptor {
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &self.issuer).expect("signed");
            let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
            let provider = Arc::new(ring::default_provider());
            let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)
                .expect("ring has them");
            let config = match clients {
                false => config.with_no_client_auth(),
                true => {
                    let mut roots = RootCertStore::empty();
                    roots.add(self.issuer.der().clone()).expect("a certificate");
                    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                    config.with_client_cert_verifier(verifier.build().expect("it is good"))
                }
            };
            let config = config.with_single_cert(vec![certificate.der().clone()], private);
            TlsAcceptor::from(Arc::new(config.expect("the key matches")))
        }

        fn with_ca(&self) -> TlsOptions {
            TlsOptions { ca_file: Some(self.file("ca")), ..TlsOptions::default() }
        }

        fn with_client(&self, files: &Self) -> TlsOptions {
            let (client_cert, client_key) = (Some(files.file("cert")), Some(files.file("key")));
            TlsOptions { client_cert, client_key, ..self.with_ca() }
        }
    }

    /// Migrates one key from a server with TLS.
    async fn outcome(tls: TlsAcceptor, args: TlsOptions) -> Result<(), String> {
        let pair = Pair::with(Fake::with_tls(false, Some(tls)).await).await;
        pair.fill(1);
        let from = format!("https://127.0.0.1:{}", pair.consul.port);
        pair.migrate(&Options { from, tls: args, ..pair.args() }).await?;
        pair.assert_equal();
        Ok(())
    }

    #[tokio::test]
    async fn mutual_tls_copies_keys() {
        let authority = Authority::new();
        for version in [&TLS12, &TLS13] {
            let tls = authority.acceptor(params(&["127.0.0.1"]), true, &[version]);
            assert_eq!(outcome(tls, authority.with_client(&authority)).await, Ok(()));
        }
        let named = authority.acceptor(params(&["server.dc1.consul"]), false, &[&TLS13]);
        let args = TlsOptions { tls_server_name: Some("server.dc1.consul".into()), ..authority.with_ca() };
        assert_eq!(outcome(named, args).await, Ok(()));
    }

    #[tokio::test]
    async fn rejected_certificate_error_includes_advice() {
        let (authority, other) = (Authority::new(), Authority::new());
        let good = || params(&["127.0.0.1"]);
        let (mut expired, mut future) = (good(), good());
        expired.not_after = date_time_ymd(2020, 1, 1);
        future.not_before = date_time_ymd(2999, 1, 1);
        let misnamed = params(&["server.dc1.consul"]);
        for (params, args, advice) in [
            (good(), other.with_ca(), "no trusted authority signed its certificate: give the file"),
            (good(), TlsOptions::default(), "with --ca-file FILE"),
            (expired, authority.with_ca(), "its certificate has expired: renew it"),
            (future, authority.with_ca(), "its certificate is not valid yet: correct the clock"),
            (misnamed, authority.with_ca(), "is not for 127.0.0.1 but for \"server.dc1.consul\":"),
        ] {
            let tls = authority.acceptor(params, false, &[&TLS12, &TLS13]);
            let error = outcome(tls, args).await.expect_err(advice);
            assert!(error.contains(advice), "{error}");
        }
    }

    #[tokio::test]
    async fn client_certificate_requirement_reported() {
        let (authority, other) = (Authority::new(), Authority::new());
        for version in [&TLS12, &TLS13] {
            for (args, advice) in [
                (authority.with_ca(), "verifies its clients: give a certificate with --client-cert FILE"),
                (authority.with_client(&other), "may have rejected the certificate: give one that"),
            ] {
                let tls = authority.acceptor(params(&["127.0.0.1"]), true, &[version]);
                let error = outcome(tls, args).await.expect_err(advice);
                assert!(error.contains(advice), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn port_without_tls_reported() {
        let authority = Authority::new();
        let pair = Pair::with(Fake::start(false).await).await;
        let plain = format!("https://127.0.0.1:{}", pair.consul.port);
        let args = Options { from: plain, tls: authority.with_ca(), ..pair.args() };
        let error = pair.migrate(&args).await.expect_err("no TLS");
        assert!(error.contains("the port does not speak TLS: write http:// in --from"), "{error}");
        pair.consul.world().proxy = Some((400, "Client sent an HTTP request to an HTTPS server."));
        let error = pair.migrate(&pair.args()).await.expect_err("TLS is needed");
        assert!(error.contains("HTTPS server; write https:// in --from"), "{error}");
        let args = Options { tls: authority.with_ca(), ..pair.args() };
        let error = pair.migrate(&args).await.expect_err("no use for the options");
        assert!(error.contains("need an https:// address"), "{error}");
    }

    #[tokio::test]
    async fn unusable_file_error_names_option() {
        let (authority, other) = (Authority::new(), Authority::new());
        let from_ca = |name| TlsOptions { ca_file: Some(authority.file(name)), ..TlsOptions::default() };
        let mixed = TlsOptions { client_key: Some(other.file("key")), ..authority.with_client(&authority) };
        let keyless =
            TlsOptions { client_key: Some(other.file("cert")), ..authority.with_client(&authority) };
        for (args, option, reason) in [
            (from_ca("absent"), "--ca-file", "No such file"),
            (from_ca("key"), "--ca-file", "none in PEM form"),
            (mixed, "--client-key", "it is not the key of"),
            (keyless, "--client-key", "none in PEM form"),
            (
                TlsOptions { tls_server_name: Some("a b".into()), ..authority.with_ca() },
                "--tls-server-name",
                "",
            ),
        ] {
            let error = Tls::new(&args, "consul").await.expect_err(reason).to_string();
            assert!(error.contains(option) && error.contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn a_fault_may_pass() {
        let tls = Tls::new(&Authority::new().with_ca(), "consul").await.expect("it is good");
        let source = tls.described(io::Error::other(Error::HandshakeNotComplete));
        assert!(is_fault(&source));
        let address = Address::Tcp { host: "consul".into(), port: 1 };
        let error = of_consul(lockmesh_client::Error::Unreachable { address, source });
        assert!(matches!(&error, MigrateError::Unreachable(text) if text.contains("with --from")), "{error}");
    }

    #[tokio::test]
    async fn https_default_port() {
        let (authority, pair) = (Authority::new(), Pair::with(Fake::start(false).await).await);
        for (from, address) in
            [("h", "h:8501"), ("h:8500/", "h:8500"), ("h:443", "h:443"), ("[::1]", "[::1]:8501")]
        {
            let from = format!("https://{from}");
            let args = Options { from, tls: authority.with_ca(), ..pair.args() };
            let (client, _) = consul(&args).await.expect("it is good");
            assert_eq!(client.address().to_string(), address);
        }
    }
}
