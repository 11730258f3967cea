//! The servers' verdict on a host, which members forward: signed, because members may be dishonest.
//! The only file that names the signature (Ed25519).

use crate::id::LogIndex;
use crate::lease::{HealthWindow, LeaseId, LeaseKey};
use crate::wire;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum size of a signed verdict in bytes.
pub const MAX_VERDICT_BYTES: usize = 128;

/// A verdict: a majority of the servers could not reach a node for this window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The failed lease.
    pub lease: LeaseId,
    /// Sessions with this window or a shorter one ended.
    pub window: HealthWindow,
    /// The index of the log entry with the decision.
    pub index: LogIndex,
}

/// The key that signs verdicts. It is derived from the cluster's secret, so only the servers have
/// it.
pub struct VerdictSigner(SigningKey);

/// The key that verifies verdicts. Every agent receives it with its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VerdictKey([u8; 32]);

/// The reason why bytes are not a verdict of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// They are not a verdict.
    #[error("no verdict")]
    Malformed,
    /// The servers did not sign it.
    #[error("a verdict that the servers did not sign")]
    Forged,
}

impl VerdictSigner {
    /// Derives the signer of a cluster.
    pub fn derived(secret: &LeaseKey) -> Self {
        Self::new(secret.derived("verdicts", 0))
    }

    /// Creates a signer from a secret that is not used for anything else.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&secret))
    }

    /// Returns the key that verifies this signer's verdicts.
    pub fn key(&self) -> VerdictKey {
        VerdictKey(self.0.verifying_key().to_bytes())
    }

    /// Returns a verdict with its signature. The bytes are the same on every server.
    pub fn sign(&self, verdict: &Verdict) -> Vec<u8> {
        let mut bytes = said(verdict);
        let signature = self.0.sign(&bytes);
        bytes.extend(signature.to_bytes());
        bytes
    }
}

impl VerdictKey {
    /// Verifies and parses a verdict.
    ///
    /// # Errors
    /// It is not a verdict, or the servers did not sign it.
    pub fn read(&self, bytes: &[u8]) -> Result<Verdict, VerdictError> {
        let (verdict, said, signature) = parts(bytes)?;
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| VerdictError::Forged)?;
        // Strictly: a verdict has exactly one valid signature, so that a variant does not count as
        // new.
        key.verify_strict(said, &Signature::from_bytes(signature)).map_err(|_| VerdictError::Forged)?;
        Ok(verdict)
    }
}

impl Verdict {
    /// Parses a verdict without verifying its signature.
    ///
    /// # Errors
    /// The bytes are not a verdict.
    pub fn claimed(bytes: &[u8]) -> Result<Self, VerdictError> {
        parts(bytes).map(|(verdict, ..)| verdict)
    }
}

/// Splits a signed verdict into the verdict, its signed bytes, and the signature.
fn parts(bytes: &[u8]) -> Result<(Verdict, &[u8], &[u8; SIGNATURE_BYTES]), VerdictError> {
    if bytes.len() > MAX_VERDICT_BYTES {
        return Err(VerdictError::Malformed);
    }
    let (said, signature) = bytes.split_last_chunk().ok_or(VerdictError::Malformed)?;
    let verdict = said.strip_prefix(PURPOSE).ok_or(VerdictError::Malformed)?;
    let verdict = wire::decode::<Verdict, MAX_VERDICT_BYTES>(verdict);
    Ok((verdict.map_err(|_| VerdictError::Malformed)?, said, signature))
}

const SIGNATURE_BYTES: usize = 64;

/// The prefix of the signed bytes, so that they cannot be mistaken for anything else.
const PURPOSE: &[u8] = b"lockmesh verdict\0";

fn said(verdict: &Verdict) -> Vec<u8> {
    [PURPOSE, &wire::encode(verdict)].concat()
}

impl fmt::Debug for VerdictSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secret.
        f.write_str("VerdictSigner(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::AgentNumber;

    fn verdict() -> Verdict {
        let lease = LeaseId { agent: AgentNumber(u32::MAX), began: LogIndex(u64::MAX) };
        Verdict { lease, window: HealthWindow::Safe, index: LogIndex(u64::MAX) }
    }

    #[test]
    fn server_signature_verifies() {
        let signer = VerdictSigner::new([7; 32]);
        let signed = signer.sign(&verdict());
        assert!(signed.len() <= MAX_VERDICT_BYTES, "{}", signed.len());
        assert_eq!(signer.key().read(&signed), Ok(verdict()));
        assert_eq!(VerdictSigner::new([7; 32]).sign(&verdict()), signed);
    }

    #[test]
    fn forged_or_altered_verdict_rejected() {
        let signer = VerdictSigner::new([7; 32]);
        let foreign = VerdictSigner::new([8; 32]).sign(&verdict());
        assert_eq!(signer.key().read(&foreign), Err(VerdictError::Forged));
        let signed = signer.sign(&verdict());
        for place in 0..signed.len() {
            let mut changed = signed.clone();
            changed[place] ^= 1;
            assert!(signer.key().read(&changed).is_err(), "byte {place}");
        }
        for length in 0..signed.len() {
            assert!(signer.key().read(&signed[..length]).is_err(), "{length} bytes");
        }
        assert!(signer.key().read(&[signed, vec![0]].concat()).is_err());
        assert_eq!(format!("{signer:?}"), "VerdictSigner(…)");
    }
}
