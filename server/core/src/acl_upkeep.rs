//! The leader's own changes of the access control lists: their configured start, and the ends of
//! tokens.

use crate::cluster::ClusterView;
use crate::core::ClusterStart;
use lockmesh_protocol::acl::record::{ANONYMOUS_SECRET, GLOBAL_MANAGEMENT};
use lockmesh_protocol::acl::{AclChange, AclCommand, AclMode, AclSettings, Links, NewToken};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, WallTime};
use lockmesh_protocol::lease::LeaseKey;
use sha2::{Digest, Sha256};
use std::fmt;

/// The format version with access control lists.
const SINCE: u8 = 11;

/// The access control lists of a cluster that has none yet.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AclStart {
    /// The settings.
    pub settings: AclChange,
    /// The secret of the first management token; need not be a UUID.
    pub initial_management: Option<String>,
}

impl fmt::Debug for AclStart {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AclStart").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Returns the changes that the leader makes. Called once per tick on a leader that serves.
pub(crate) fn wanted_changes(view: &ClusterView<'_>, start: &ClusterStart, wall: WallTime) -> Vec<Command> {
    let ClusterStart { acl: start, lease_key, .. } = start;
    let acl = view.state.acl();
    let is_one_on_its_way = || view.proposals.is_on_its_way(|command| matches!(command, Command::Acl(_)));
    if view.state.format() < SINCE || is_one_on_its_way() {
        return Vec::new();
    }
    let is_wanted = start.settings.mode.is_some_and(|mode| mode != AclMode::Off);
    let begins = is_wanted && *acl.settings() == AclSettings::default();
    let configure = begins.then(|| AclCommand::Configure(start.settings.clone()));
    // In the same batch as the settings: no request finds the lists without the token.
    let is_without_management =
        acl.settings().bootstrap_index == LogIndex(0) && (begins || acl.settings().mode != AclMode::Off);
    // One that has another token would be refused each time.
    let is_free = |secret: &&String| secret.as_str() != ANONYMOUS_SECRET && !acl.has_secret(secret);
    let secret = start.initial_management.as_ref().filter(|_| is_without_management).filter(is_free);
    let bootstrap =
        secret.map(|secret| AclCommand::Bootstrap(Box::new(initial_management(lease_key, secret)), None));
    let is_end_due = acl.first_end().is_some_and(|end| end <= wall);
    let expire = is_end_due.then_some(AclCommand::ExpireTokens(wall));
    [configure, bootstrap, expire].into_iter().flatten().map(Command::Acl).collect()
}

fn initial_management(key: &LeaseKey, secret: &str) -> NewToken {
    // Only servers know the key, so nobody can guess secrets by their ids.
    let digest = Sha256::new().chain_update(b"accessor").chain_update(key.0).chain_update(secret).finalize();
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    NewToken {
        accessor: parts.join("-"),
        secret: secret.into(),
        description: "Initial Management Token".into(),
        links: Links { policies: vec![GLOBAL_MANAGEMENT.into()], ..Links::default() },
        is_local: false,
        expires_at: None,
    }
}
