//! TLS 1.3 with certificates on both sides: the only file that names rustls.
//!
//! **Invariant:** a connection is established only if both certificates were signed by the trusted
//! authority, are within their validity, and name an owner. No setting weakens this.

use crate::certificate::{CertificateError, Facts, FactsError};
use crate::expiry::CertificateLife;
use crate::files;
use crate::peer::Peer;
use lockmesh_protocol::dialect::Dialect;
use rustls::client::VerifierBuilderError;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::tls13::OkmBlock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The origin of an authority's certificate.
const INIT: &str = "copy the authority's ca.pem there, which `lockmesh operator tls init` makes";

/// The origin of a member's certificate and key.
const ISSUE: &str = "make one with `lockmesh operator tls issue`";

/// The paths of a member's certificate, its key and the trusted authorities.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The authorities' certificates; more than one during their replacement.
    pub authorities: PathBuf,
    /// The member's own certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// The member's key.
    pub key: PathBuf,
}

/// The identity of this process, with its proof, and the trusted authorities.
#[derive(Clone)]
pub struct Identity {
    peer: Peer,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    reset_secret: ResetSecret,
    lives: Vec<CertificateLife>,
    fingerprint: Vec<u8>,
    certificate: Vec<u8>,
}

impl Identity {
    /// Loads the files and verifies that they match.
    ///
    /// # Errors
    /// A file cannot be read, has unexpected content, or does not match the others. The error names
    /// the file and the correction. An identity in use stays in use.
    pub fn load(files: &IdentityFiles) -> Result<Self, CertificateError> {
        let authorities = certificates(&files.authorities, &read(&files.authorities, "tls.ca", INIT)?)?;
        let chain = certificates(&files.certificate, &read(&files.certificate, "tls.certificate", ISSUE)?)?;
        let key = private_key(&files.key)?;
        let facts = facts(&files.certificate, &chain[0])?;
        let peer = facts.owner.clone().ok_or_else(|| {
            wrong(
                &files.certificate,
                "it names no Lockmesh node: make one with `lockmesh operator tls issue`",
            )
        })?;
        let provider = Arc::new(ring::default_provider());
        make_sure_of_key(files, &provider, &chain, &key)?;
        let shown: Vec<u8> = authorities.iter().chain(&chain).flat_map(|der| der.to_vec()).collect();
        let mut lives = vec![CertificateLife::new(&files.certificate, &facts)];
        let roots = Arc::new(trusted(files, authorities, &mut lives)?);
        make_sure_of_trust(files, &provider, &roots, &chain)?;
        let broken = |error: ConfigError| wrong(&files.certificate, error.to_string());
        let reset_secret = ResetSecret::of_key(&key);
        // Keyed, so that another key gives another fingerprint too.
        let fingerprint = reset_secret.sign(&shown);
        let certificate = chain[0].to_vec();
        let server = server_config(&provider, &roots, chain.clone(), key.clone_key()).map_err(broken)?;
        let client = client_config(&provider, &roots, chain, key).map_err(broken)?;
        Ok(Self {
            peer,
            server: Arc::new(server),
            client: Arc::new(client),
            reset_secret,
            lives,
            fingerprint,
            certificate,
        })
    }

    /// Returns the owner of this identity.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the validity of the certificates: its own first, then the authorities'.
    pub fn lives(&self) -> &[CertificateLife] {
        &self.lives
    }

    /// Returns its own certificate, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns `true` if key, certificates and authorities are the same.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    pub(crate) fn client_config(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    pub(crate) fn reset_secret(&self) -> &ResetSecret {
        &self.reset_secret
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// The key that signs the stateless resets of a restarted process: they notify a peer that the
/// previous process's connections are gone. It is derived from the certificate's key, so that both
/// processes have the same one.
#[derive(Clone)]
pub(crate) struct ResetSecret(Vec<u8>);

impl ResetSecret {
    /// The size of a signature in bytes.
    pub(crate) const SIGNATURE_BYTES: usize = 32;

    fn of_key(key: &PrivateKeyDer<'_>) -> Self {
        Self(hmac_sha256(b"lockmesh: QUIC stateless reset", key.secret_der()))
    }

    /// Signs a message.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        hmac_sha256(&self.0, message)
    }
}

fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("it is a suite of TLS 1.3");
    suite.hkdf_provider.hmac_sign(&OkmBlock::new(key), message).as_ref().to_vec()
}

/// Verifies that the key is the certificate's.
fn make_sure_of_key(
    files: &IdentityFiles,
    provider: &CryptoProvider,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(), CertificateError> {
    match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(wrong(&files.key, format!("this is not the key of {}", files.certificate.display())))
        }
        Err(other) => Err(wrong(&files.key, format!("not a usable key: {other}"))),
    }
}

/// Returns the trusted authorities, and adds their validity to `lives`.
fn trusted(
    files: &IdentityFiles,
    authorities: Vec<CertificateDer<'static>>,
    lives: &mut Vec<CertificateLife>,
) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        lives.push(CertificateLife::new(&files.authorities, &facts(&files.authorities, &authority)?));
        roots.add(authority).map_err(|error| wrong(&files.authorities, error.to_string()))?;
    }
    Ok(roots)
}

/// Verifies the certificate as peers do, so that a defect is reported at startup.
fn make_sure_of_trust(
    files: &IdentityFiles,
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
) -> Result<(), CertificateError> {
    let authorities = files.authorities.display();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| wrong(&files.authorities, error.to_string()))?;
    match verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        )) => Err(wrong(&files.certificate, format!("none of the authorities in {authorities} signed it"))),
        Err(error) => Err(wrong(&files.certificate, error.to_string())),
    }
}

/// The reason why a peer's owner is unknown after the handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("the peer showed no certificate")]
    NoCertificate,
    #[error("the peer's certificate cannot be read")]
    UnreadableCertificate,
    #[error(transparent)]
    InvalidCertificate(#[from] FactsError),
    #[error("the peer's certificate names no Lockmesh node")]
    NoOwner,
}

/// The reason why the TLS library rejects an identity.
#[derive(Debug, thiserror::Error)]
enum ConfigError {
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
    #[error(transparent)]
    Identity(#[from] rustls::Error),
}

/// Returns the owner named by a peer's verified certificate, and the earliest expiry in its chain.
/// `chain` is the TLS library's result after the handshake.
pub(crate) fn verified_peer(chain: Option<Box<dyn std::any::Any>>) -> Result<(Peer, SystemTime), PeerError> {
    let chain = chain.ok_or(PeerError::NoCertificate)?;
    let chain =
        chain.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| PeerError::UnreadableCertificate)?;
    let certificate = chain.first().ok_or(PeerError::NoCertificate)?;
    let facts = Facts::of_der(certificate)?;
    let mut end = facts.not_after;
    // A new connection would be rejected once any of them has expired.
    for other in &chain[1..] {
        end = end.min(Facts::of_der(other)?.not_after);
    }
    Ok((facts.owner.ok_or(PeerError::NoOwner)?, end))
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, ConfigError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = Dialect::ALL.map(|dialect| dialect.alpn().to_vec()).to_vec();
    // Connections live for days, so caching sessions for a faster handshake would only cost memory;
    // and a resumed session would not verify the peer's certificate again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, ConfigError> {
    let verifier: Arc<dyn ServerCertVerifier> =
        rustls::client::WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()?;
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        // The name warns of verifiers that verify less; this one is the library's own.
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = Dialect::ALL.map(|dialect| dialect.alpn().to_vec()).to_vec();
    // As on the server: each handshake must verify the certificate of the peer.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Reads a file of an identity, which `key` of the configuration names.
fn read(path: &Path, key: &str, origin: &str) -> Result<String, CertificateError> {
    files::read_text(path).map_err(|error| {
        if error.is_refused() {
            return error.into();
        }
        let advice = match error.is_absent() {
            true => format!("{origin}, or set `{key}` to the path of the file"),
            false => format!("let the user of this process read it, or set `{key}` to another file"),
        };
        CertificateError::Unreadable { error, advice }
    })
}

fn certificates(path: &Path, text: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.map_err(|error| wrong(path, format!("a broken certificate: {error}")))?;
    if found.is_empty() {
        return Err(wrong(path, "it contains no certificate in PEM form"));
    }
    Ok(found)
}

/// Reads a key, which must not be readable by every user.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let key = PrivateKeyDer::from_pem_slice(read(path, "tls.key", ISSUE)?.as_bytes())
        .map_err(|error| wrong(path, format!("it contains no private key in PEM form: {error}")))?;
    // Every user of the host could impersonate the node; a group may be permitted to read it.
    match files::is_public(path)? {
        true => Err(wrong(path, format!("every user can read this key: run `chmod 600 {}`", path.display()))),
        false => Ok(key),
    }
}

fn facts(path: &Path, certificate: &CertificateDer<'_>) -> Result<Facts, CertificateError> {
    Facts::of_der(certificate).map_err(|error| wrong(path, error.to_string()))
}

fn wrong(path: &Path, reason: impl Into<String>) -> CertificateError {
    CertificateError::Content { path: path.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Authority;
    use crate::peer::Role;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn load_error_names_file_and_setting() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = IdentityFiles {
            authorities: path("ca.pem"),
            certificate: path("agent.pem"),
            key: path("agent-key.pem"),
        };
        let refusal = || Identity::load(&files).err().unwrap().to_string();
        let text = refusal();
        assert!(text.contains("ca.pem") && text.contains("lockmesh operator tls init"), "{text}");
        assert!(text.ends_with("or set `tls.ca` to the path of the file"), "{text}");

        let hour = Duration::from_secs(3600);
        let authority = Authority::create("test", hour).unwrap();
        authority.save(&files.authorities, &path("ca-key.pem")).unwrap();
        let text = refusal();
        assert!(text.contains("agent.pem") && text.contains("`lockmesh operator tls issue`"), "{text}");
        assert!(text.contains("`tls.certificate`"), "{text}");

        let peer = Peer { role: Role::Agent, node: "web-1".into() };
        authority.issue(&peer, &[], hour).unwrap().save(&files.certificate, &files.key).unwrap();
        assert!(Identity::load(&files).is_ok());
        let allow = |mode| std::fs::set_permissions(&files.key, Permissions::from_mode(mode)).unwrap();
        allow(0o644);
        assert!(refusal().contains("every user can read this key: run `chmod 600 "), "{}", refusal());
        allow(0o640);
        assert!(Identity::load(&files).is_ok(), "a group may be allowed");
        std::fs::remove_file(&files.key).unwrap();
        assert!(refusal().contains("`tls.key`"), "{}", refusal());
        std::fs::create_dir(&files.key).unwrap();
        assert!(refusal().contains("let the user of this process read it"), "{}", refusal());
    }
}
