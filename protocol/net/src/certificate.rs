//! Creates and parses certificates: the only file that names rcgen and x509-parser.
//!
//! A certificate names its owner's role and node in a URI, and its role again as a DNS name, which
//! a dialler verifies. The TLS library, not this file, decides if a certificate is trusted.

use crate::files::{self, FileError};
use crate::peer::Peer;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The time by which a certificate's validity begins before its issue, for clocks that are slow.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// The reason why a certificate could not be created, read or used. Files are never left partially
/// written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file of an identity could not be read.
    #[error("{error}; {advice}")]
    Unreadable {
        /// The file and the system's error.
        error: FileError,
        /// The correction.
        advice: String,
    },
    /// A file has unexpected content.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The defect, and the correction.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("cannot create the certificate: {0}")]
    Issue(String),
}

/// The reason why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// It is malformed; the error of the parser.
    #[error("{0}")]
    Malformed(String),
    /// Its Lockmesh URI names no owner.
    #[error("the certificate's URI {0:?} is invalid")]
    InvalidOwner(String),
    /// It has more than one Lockmesh URI.
    #[error("the certificate names two owners")]
    TwoOwners,
}

impl FactsError {
    fn malformed(error: impl std::fmt::Display) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// A certificate authority. It holds a secret: with it, anyone can impersonate any server.
pub struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A new certificate with its key.
pub struct Issued {
    /// The certificate.
    pub certificate_pem: String,
    /// Its key, a secret.
    pub key_pem: String,
}

impl Authority {
    /// Creates an authority whose certificate is valid for `life`.
    ///
    /// # Errors
    /// No key can be created, or `life` exceeds what certificates can represent. Nothing was
    /// written: the authority is only in memory until it is saved.
    pub fn create(name: &str, life: Duration) -> Result<Self, CertificateError> {
        let key = KeyPair::generate().map_err(issue_error)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        // No authority below this one: it signs only certificates of members.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = lifetime(life)?;
        let certificate_pem = params.self_signed(&key).map_err(issue_error)?.pem();
        Ok(Self { certificate_pem, issuer: Issuer::new(params, key) })
    }

    /// Loads an authority from its certificate and key.
    ///
    /// # Errors
    /// A file cannot be read, has unexpected content, or does not match the other one. The error
    /// names the file and its defect. Both files are unchanged.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let certificate_pem = files::read_text(certificate)?;
        let key_pem = files::read_text(key)?;
        let wrong = |path: &Path, reason: String| CertificateError::Content { path: path.into(), reason };
        let key_pair = KeyPair::from_pem(&key_pem)
            .map_err(|error| wrong(key, format!("not a private key in PEM form (PKCS #8): {error}")))?;
        let public_key = key_pair.public_key_raw().to_vec();
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key_pair)
            .map_err(|error| wrong(certificate, format!("not a certificate in PEM form: {error}")))?;
        let facts = Facts::of_pem(&certificate_pem).map_err(|error| wrong(certificate, error.to_string()))?;
        // The library that loads an issuer verifies neither this nor the key: only the peers of its
        // members would reject what it signs.
        if !facts.is_authority {
            return Err(wrong(
                certificate,
                "this certificate cannot sign others: it is not an authority".into(),
            ));
        }
        if facts.public_key != public_key {
            return Err(wrong(key, format!("this is not the key of {}", certificate.display())));
        }
        Ok(Self { certificate_pem, issuer })
    }

    /// Returns the certificate that every member trusts.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Writes certificate and key; the key first, readable only by its owner.
    ///
    /// # Errors
    /// A file cannot be written. Each file is complete, either new or unchanged. The key is written
    /// first, so it may be new while the certificate is not: save both again.
    pub fn save(&self, certificate: &Path, key: &Path) -> Result<(), CertificateError> {
        files::write_secret(key, self.issuer.key().serialize_pem().as_bytes())?;
        Ok(files::write_public(certificate, self.certificate_pem.as_bytes())?)
    }

    /// Issues a certificate for a server or an agent, valid for `life` from now. `addresses` are
    /// host names or IP addresses for other tools; Lockmesh itself only checks role and node.
    ///
    /// # Errors
    /// An address is neither an IP address nor an ASCII host name, `life` exceeds what certificates
    /// can represent, or no key can be created. Nothing was written.
    pub fn issue(
        &self,
        owner: &Peer,
        addresses: &[String],
        life: Duration,
    ) -> Result<Issued, CertificateError> {
        let key = KeyPair::generate().map_err(issue_error)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("{} {}", owner.role.as_str(), owner.node));
        params.subject_alt_names = vec![
            SanType::DnsName(owner.role.dns_name().try_into().map_err(issue_error)?),
            SanType::URI(owner.to_uri().as_str().try_into().map_err(issue_error)?),
        ];
        for address in addresses {
            params.subject_alt_names.push(match address.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(address.as_str().try_into().map_err(issue_error)?),
            });
        }
        // TLS 1.3 uses a certificate only to sign.
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Both, for either role: servers dial each other, and the agents that they challenge.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = lifetime(life)?;
        let certificate_pem = params.signed_by(&key, &self.issuer).map_err(issue_error)?.pem();
        Ok(Issued { certificate_pem, key_pem: key.serialize_pem() })
    }
}

impl Issued {
    /// Writes certificate and key; the key first, readable only by its owner.
    ///
    /// # Errors
    /// A file cannot be written. Each file is complete, either new or unchanged. The key is written
    /// first, so it may be new while the certificate is not: save both again.
    pub fn save(&self, certificate: &Path, key: &Path) -> Result<(), CertificateError> {
        files::write_secret(key, self.key_pem.as_bytes())?;
        Ok(files::write_public(certificate, self.certificate_pem.as_bytes())?)
    }
}

/// The contents of a certificate.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The owner; `None` for an authority, or for a certificate that is not Lockmesh's.
    pub owner: Option<Peer>,
    /// The subject, for humans.
    pub subject: String,
    /// The start of its validity.
    pub not_before: SystemTime,
    /// The end of its validity.
    pub not_after: SystemTime,
    /// Set if it may sign others.
    pub is_authority: bool,
    public_key: Vec<u8>,
}

impl Facts {
    /// Parses a certificate in DER form.
    ///
    /// # Errors
    /// The bytes are not a certificate, or it names its owner wrongly or more than once: its holder
    /// must not be trusted.
    pub fn of_der(der: &[u8]) -> Result<Self, FactsError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(FactsError::malformed)?;
        let validity = certificate.validity();
        Ok(Self {
            owner: owner_of(&certificate)?,
            subject: certificate.subject().to_string(),
            not_before: system_time(validity.not_before.timestamp()),
            not_after: system_time(validity.not_after.timestamp()),
            is_authority: certificate.is_ca(),
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
        })
    }

    fn of_pem(pem: &str) -> Result<Self, FactsError> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(FactsError::malformed)?;
        Self::of_der(&pem.contents)
    }
}

/// Returns the owner from the certificate's single Lockmesh URI. Two URIs would be ambiguous, and
/// therefore insecure.
fn owner_of(certificate: &X509Certificate<'_>) -> Result<Option<Peer>, FactsError> {
    let names = certificate.subject_alternative_name().map_err(FactsError::malformed)?;
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    let mut owners = names.filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with("lockmesh:") => Some(Peer::from_uri(uri).ok_or(*uri)),
        _ => None,
    });
    let owner = owners.next().transpose().map_err(|uri| FactsError::InvalidOwner(uri.into()))?;
    match owners.next() {
        Some(_) => Err(FactsError::TwoOwners),
        None => Ok(owner),
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn lifetime(life: Duration) -> Result<(OffsetDateTime, OffsetDateTime), CertificateError> {
    let now = SystemTime::now();
    let too_long = || CertificateError::Issue("its validity would exceed the maximum".into());
    // The end of the year 9999, the last that a certificate can represent.
    let latest = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let end = now.checked_add(life).filter(|end| *end < latest).ok_or_else(too_long)?;
    Ok(((now - CLOCK_SKEW).into(), end.into()))
}

fn system_time(seconds: i64) -> SystemTime {
    // A time before 1970 is past in any case.
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn issue_error(error: rcgen::Error) -> CertificateError {
    CertificateError::Issue(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Authority, CertificateError, Facts};
    use crate::peer::{Peer, Role};
    use std::time::{Duration, SystemTime};

    const HOUR: Duration = Duration::from_secs(3600);

    fn web_1() -> Peer {
        Peer { role: Role::Agent, node: "web-1 ümlaut".into() }
    }

    #[test]
    fn facts_show_owner_and_expiry() {
        let authority = Authority::create("test", HOUR).unwrap();
        let issued = authority.issue(&web_1(), &["10.0.0.1".into(), "web-1.example".into()], HOUR).unwrap();
        let facts = Facts::of_pem(&issued.certificate_pem).unwrap();
        assert_eq!(facts.owner, Some(web_1()));
        assert!(!facts.is_authority);
        let left = facts.not_after.duration_since(SystemTime::now()).unwrap();
        assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
        assert!(Facts::of_pem(authority.certificate_pem()).unwrap().is_authority);
    }

    #[test]
    fn a_saved_authority_signs_on() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("ca.pem"), folder.path().join("ca-key.pem"));
        Authority::create("test", HOUR).unwrap().save(&certificate, &key).unwrap();
        let loaded = Authority::load(&certificate, &key).unwrap();
        let issued = loaded.issue(&web_1(), &[], HOUR).unwrap();
        assert_eq!(Facts::of_pem(&issued.certificate_pem).unwrap().owner, Some(web_1()));
    }

    #[test]
    fn a_wrong_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let authority = Authority::create("one", HOUR).unwrap();
        authority.save(&path("ca.pem"), &path("ca-key.pem")).unwrap();
        Authority::create("two", HOUR).unwrap().save(&path("other.pem"), &path("other-key.pem")).unwrap();
        authority.issue(&web_1(), &[], HOUR).unwrap().save(&path("leaf.pem"), &path("leaf-key.pem")).unwrap();
        std::fs::write(path("junk.pem"), "junk").unwrap();
        let named = |certificate: &str, key: &str| match Authority::load(&path(certificate), &path(key)) {
            Err(error @ (CertificateError::Content { .. } | CertificateError::File(_))) => error.to_string(),
            _ => panic!("{certificate} and {key} must not fit"),
        };
        assert!(named("absent.pem", "ca-key.pem").contains("absent.pem"));
        assert!(named("junk.pem", "ca-key.pem").contains("junk.pem"));
        assert!(named("ca.pem", "junk.pem").contains("junk.pem"));
        assert!(named("ca.pem", "other-key.pem").contains("other-key.pem: this is not the key of"));
        assert!(named("leaf.pem", "leaf-key.pem").contains("not an authority"));
    }

    #[test]
    fn impossible_wishes_are_refused() {
        let authority = Authority::create("test", HOUR).unwrap();
        assert!(authority.issue(&web_1(), &["ünicode.example".into()], HOUR).is_err());
        assert!(authority.issue(&web_1(), &[], Duration::MAX).is_err());
    }
}
