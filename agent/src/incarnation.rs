//! The incarnation of this agent: its process, boot and host, which its node's lease depends on.

use lockmesh_net::{Identity, random};
use lockmesh_protocol::record::Incarnation;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;

/// The kernel's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the id of the host's boot.
///
/// # Errors
/// The kernel does not show it.
pub(crate) fn boot_id() -> io::Result<String> {
    fs::read_to_string(BOOT_ID).map(|boot| boot.trim().to_owned())
}

/// Returns a digest of the id of the host's boot. If the kernel does not show the id, all boots
/// count as the same one.
pub(crate) fn boot_digest() -> [u8; 16] {
    let boot = boot_id().unwrap_or_else(|error| {
        tracing::warn!(file = BOOT_ID, %error, "cannot read the kernel's boot id; reboots are not detected");
        String::new()
    });
    let digest: [u8; 32] = Sha256::digest(boot).into();
    digest[..16].try_into().expect("a digest is longer")
}

/// Returns the incarnation of this process.
///
/// # Errors
/// The system has no random numbers. A missing boot id is not an error: all boots then count as the
/// same one, and the certificate still distinguishes hosts.
pub(crate) fn of_this_process(identity: &Identity) -> io::Result<Incarnation> {
    Ok(Incarnation {
        process: random::bytes()?,
        boot: boot_digest(),
        certificate: Sha256::digest(identity.certificate()).into(),
    })
}
