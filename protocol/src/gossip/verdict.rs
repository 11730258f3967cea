//! The servers' verdict on a host, as it goes from member to member: signed, because whoever passes
//! it on may lie. The one file that names the signature (Ed25519).

use crate::id::LogIndex;
use crate::lease::{HealthWindow, LeaseId, LeaseKey};
use crate::wire;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A signed verdict takes at most so many bytes.
pub const MAX_VERDICT_BYTES: usize = 128;

/// A majority of the servers did not hear from a node for this window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The lease that was failed.
    pub lease: LeaseId,
    /// Sessions of this window and of shorter ones ended.
    pub window: HealthWindow,
    /// The index of the entry that decided it.
    pub index: LogIndex,
}

/// What the servers sign verdicts with: it follows from the cluster's secret, so each of them has
/// it, and nobody else.
pub struct VerdictSigner(SigningKey);

/// Shows that a verdict is the servers'. Every agent is given it with its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VerdictKey([u8; 32]);

/// Why bytes are no verdict of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// They are no verdict at all.
    #[error("no verdict")]
    Malformed,
    /// The servers did not sign it.
    #[error("a verdict that the servers did not sign")]
    Forged,
}

impl VerdictSigner {
    /// The signer of a cluster.
    pub fn derived(secret: &LeaseKey) -> Self {
        Self::new(secret.derived("verdicts", 0))
    }

    /// A signer by a secret that nothing else uses.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&secret))
    }

    /// What shows that verdicts are this signer's.
    pub fn key(&self) -> VerdictKey {
        VerdictKey(self.0.verifying_key().to_bytes())
    }

    /// A verdict and its signature. The same one is the same bytes, whichever server signs it.
    pub fn sign(&self, verdict: &Verdict) -> Vec<u8> {
        let mut bytes = said(verdict);
        let signature = self.0.sign(&bytes);
        bytes.extend(signature.to_bytes());
        bytes
    }
}

impl VerdictKey {
    /// Reads a verdict that the servers signed.
    ///
    /// # Errors
    /// It is none, or they did not.
    pub fn read(&self, bytes: &[u8]) -> Result<Verdict, VerdictError> {
        let (verdict, said, signature) = parts(bytes)?;
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| VerdictError::Forged)?;
        // Strictly: one verdict has one signature, so nobody makes news of it by another.
        key.verify_strict(said, &Signature::from_bytes(signature)).map_err(|_| VerdictError::Forged)?;
        Ok(verdict)
    }
}

impl Verdict {
    /// What bytes say, whoever has signed them.
    ///
    /// # Errors
    /// They are no verdict.
    pub fn claimed(bytes: &[u8]) -> Result<Self, VerdictError> {
        parts(bytes).map(|(verdict, ..)| verdict)
    }
}

/// A verdict, what is signed of it, and the signature.
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

/// In front of what is signed, so that it can be nothing else.
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
    fn what_the_servers_signed_is_read_by_everybody() {
        let signer = VerdictSigner::new([7; 32]);
        let signed = signer.sign(&verdict());
        assert!(signed.len() <= MAX_VERDICT_BYTES, "{}", signed.len());
        assert_eq!(signer.key().read(&signed), Ok(verdict()));
        assert_eq!(VerdictSigner::new([7; 32]).sign(&verdict()), signed);
    }

    #[test]
    fn what_anybody_else_signed_or_changed_is_not() {
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
