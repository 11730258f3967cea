//! Which process of which boot of which host this agent is: what its node's lease hangs on.

use lockmesh_net::{Identity, random};
use lockmesh_protocol::record::Incarnation;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;

/// Where the kernel tells its boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This process.
///
/// # Errors
/// The system has no random numbers. A kernel that tells no boot id is no error: every boot of it
/// is taken for the same one, and the certificate still tells hosts apart.
pub(crate) fn of_this_process(identity: &Identity) -> io::Result<Incarnation> {
    let boot = fs::read_to_string(BOOT_ID).unwrap_or_else(|error| {
        tracing::warn!(file = BOOT_ID, %error, "cannot read the kernel's boot id: a restart of this host is not noticed");
        String::new()
    });
    let digest: [u8; 32] = Sha256::digest(boot.trim()).into();
    Ok(Incarnation {
        process: random::bytes()?,
        boot: digest[..16].try_into().expect("a digest is longer"),
        certificate: Sha256::digest(identity.certificate()).into(),
    })
}
