//! What Consul lacks: who holds which lock, and why locks were lost. Times are wall-clock words for
//! people.

use super::null_as_default;
use serde::{Deserialize, Serialize};

/// An element of `GET /v1/lockmesh/locks`: a lock that is held, or closed by a delay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lock {
    /// Which key.
    pub key: String,
    /// The holder's session; empty for nobody.
    pub session: String,
    /// That session's name.
    pub session_name: String,
    /// That session's node.
    pub node: String,
    /// The fencing token of the grant.
    pub fence: u64,
    /// How often it was granted in the entry's life.
    pub lock_index: u64,
    /// The index of the entry's last change; 0 where there is no entry.
    pub modify_index: u64,
    /// When the grant was made: milliseconds since 1970 by the leader's clock; 0 for nobody's.
    #[serde(rename = "GrantedAtMs")]
    pub granted_at_ms: u64,
    /// How long the key stays closed after its holder's end, as a Go duration; empty where it is
    /// open.
    pub lock_delay: String,
    /// How many sessions wait for it in the queue.
    pub waiters: u64,
}

/// An element of `GET /v1/lockmesh/losses`, newest first: a session that ended without its holder's
/// release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Loss {
    /// The index of the loss.
    pub index: u64,
    /// Milliseconds since 1970 by the leader's clock.
    #[serde(rename = "AtMs")]
    pub at_ms: u64,
    /// The session that ended.
    pub session: String,
    /// Its name.
    pub session_name: String,
    /// Its node.
    pub node: String,
    /// `destroyed`, `ttl-expired`, `check-critical`, `check-deregistered`, `node-deregistered`,
    /// `node-failed`, `host-replaced`, `node-left`, `node-forced-to-leave`, `node-reaped`,
    /// `given-up` or, of a key that was deleted while its session lives on, `key-deleted`.
    pub cause: String,
    /// The check, where it was one.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// For how long the node might be silent, where it failed: `fast`, `default` or `safe`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub health_window: String,
    /// The nodes of the servers that confirmed its silence, where it failed.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub confirmed_by: Vec<String>,
    /// How long before the verdict it was heard last, as a Go duration, where it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub silent_for: String,
    /// The keys that it held; cut off after 64.
    #[serde(deserialize_with = "null_as_default")]
    pub keys: Vec<LostKey>,
    /// How many keys it held in all.
    pub key_count: u64,
}

impl Loss {
    /// The cause with what is known of it, such as `node-failed (silent for 5.1s; window default;
    /// confirmed by s1, s3)`.
    pub fn in_words(&self) -> String {
        let known = |words: &str, what: String| (!what.is_empty()).then(|| format!("{words}{what}"));
        let silence = if self.cause == "given-up" { "no renewal acknowledged for " } else { "silent for " };
        let details = [
            known("", self.check_id.clone()),
            known(silence, self.silent_for.clone()),
            known("window ", self.health_window.clone()),
            known("confirmed by ", self.confirmed_by.join(", ")),
        ];
        let details: Vec<String> = details.into_iter().flatten().collect();
        match details.is_empty() {
            true => self.cause.clone(),
            false => format!("{} ({})", self.cause, details.join("; ")),
        }
    }
}

/// A key that was held at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LostKey {
    /// Which key.
    pub key: String,
    /// The fencing token that is void now.
    pub fence: u64,
}

/// The answer of `GET /v1/lockmesh/servers`: the quorum as one of its servers sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Quorum {
    /// The cluster's id.
    #[serde(rename = "ClusterID")]
    pub cluster_id: String,
    /// The Raft id of the server that answers. Unless it leads, it does not know how the others
    /// are.
    pub seen_by: u64,
    /// The leader's Raft id; 0 where none is known.
    pub leader: u64,
    /// The term.
    pub term: u64,
    /// The last index known to be on a majority of disks.
    pub commit_index: u64,
    /// Every server, in order of their Raft ids.
    #[serde(deserialize_with = "null_as_default")]
    pub servers: Vec<Server>,
}

/// One server of a quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Server {
    /// Its id in the Raft log, never given to another server.
    #[serde(rename = "RaftID")]
    pub raft_id: u64,
    /// Its node's UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its node's name.
    pub node: String,
    /// Its RPC address as `host:port`.
    pub address: String,
    /// Whether it leads.
    pub leader: bool,
    /// Whether it votes; one that came lately gets its vote when it has caught up.
    pub voter: bool,
    /// The last index it is known to have.
    pub last_index: u64,
    /// How long ago the leader heard from it, in Go's words; empty where nobody knows.
    pub last_contact: String,
    /// Whether the leader hears it and it does not lag; `null` where nobody knows.
    pub healthy: Option<bool>,
}
