//! Extensions to Consul's API: lock holders, and the reasons for lost locks. Times are wall-clock
//! times for humans.

use super::blob::Blob;
use super::null_as_default;
use serde::{Deserialize, Serialize};

/// An element of `GET /v1/lockmesh/locks`: a lock that is held, or blocked by a lock-delay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lock {
    /// The key.
    pub key: String,
    /// The holder's session; empty without one.
    pub session: String,
    /// That session's name.
    pub session_name: String,
    /// That session's node.
    pub node: String,
    /// The fencing token of the grant.
    pub fence: u64,
    /// The number of grants since the entry was created.
    pub lock_index: u64,
    /// The index of the entry's last change; 0 if there is no entry.
    pub modify_index: u64,
    /// The time of the grant: milliseconds since 1970 by the leader's clock; 0 if the lock is not
    /// held.
    #[serde(rename = "GrantedAtMs")]
    pub granted_at_ms: u64,
    /// The whole lock-delay after its holder's end, as a Go duration; empty if the key is not
    /// blocked. The delay began with the loss of the key, which [`Loss::at_ms`] dates.
    pub lock_delay: String,
    /// The number of sessions in the lock's queue.
    pub waiters: u64,
}

/// An element of `GET /v1/lockmesh/losses`, newest first: a session that ended without a release by
/// its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Loss {
    /// The index of the loss.
    pub index: u64,
    /// The time of the loss: milliseconds since 1970 by the leader's clock.
    #[serde(rename = "AtMs")]
    pub at_ms: u64,
    /// The session that ended.
    pub session: String,
    /// Its name.
    pub session_name: String,
    /// Its node.
    pub node: String,
    /// One of [`Loss::CAUSES`]. `key-deleted` is the cause of a key that was deleted while its
    /// session lives on.
    pub cause: String,
    /// The check, if a check was the cause.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// For a critical check: the first line of its output that is not blank, up to 200 bytes,
    /// without control characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub check_output: String,
    /// The health window of a failed node: `fast`, `default` or `safe`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub health_window: String,
    /// The nodes of the servers that confirmed the failure, for a failed node.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub confirmed_by: Vec<String>,
    /// For a failed node: the time from its last message to the verdict. For `given-up`: the time
    /// since the last acknowledged renewal. A Go duration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub silent_for: String,
    /// The process of a session that ended with it.
    #[serde(rename = "PID", skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The first 64 keys that it held, in ascending order.
    #[serde(deserialize_with = "null_as_default")]
    pub keys: Vec<LostKey>,
    /// The total number of keys that it held.
    pub key_count: u64,
}

impl Loss {
    /// All causes.
    pub const CAUSES: [&'static str; 13] = [
        "destroyed",
        "ttl-expired",
        "check-critical",
        "check-deregistered",
        "node-deregistered",
        "node-failed",
        "host-replaced",
        "node-left",
        "node-forced-to-leave",
        "node-reaped",
        "given-up",
        "key-deleted",
        "process-exited",
    ];

    /// Returns the cause with its details, such as `check-critical (web: connection refused)` or
    /// `node-failed (silent for 5.1s; window default; confirmed by s1, s3)`.
    pub fn in_words(&self) -> String {
        let known = |words: &str, what: String| (!what.is_empty()).then(|| format!("{words}{what}"));
        let silence = if self.cause == "given-up" { "no renewal acknowledged for " } else { "silent for " };
        let check = match self.check_output.as_str() {
            "" => self.check_id.clone(),
            output => format!("{}: {output}", self.check_id),
        };
        let details = [
            known("", check),
            known(silence, self.silent_for.clone()),
            known("window ", self.health_window.clone()),
            known("confirmed by ", self.confirmed_by.join(", ")),
            self.pid.map(|pid| format!("process {pid}")),
        ];
        let details: Vec<String> = details.into_iter().flatten().collect();
        match details.is_empty() {
            true => self.cause.clone(),
            false => format!("{} ({})", self.cause, details.join("; ")),
        }
    }
}

/// A key that the session held at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LostKey {
    /// The key.
    pub key: String,
    /// The fencing token, now invalid.
    pub fence: u64,
}

/// An element of the body of `PUT /v1/lockmesh/fence/verify`: a fencing token to verify.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct FenceClaim {
    /// The key of the lock.
    pub key: String,
    /// The token.
    pub fence: u64,
}

/// The body of `PUT /v1/lockmesh/acquire`: a request for several locks, all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct LocksRequest {
    /// The session that is to hold the locks.
    pub session: String,
    /// The locks.
    pub locks: Vec<LockClaim>,
}

/// A lock of such a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct LockClaim {
    /// The key.
    pub key: String,
    /// `exclusive` or `shared`; exclusive if empty.
    #[serde(default)]
    pub mode: String,
    /// The value that a grant in exclusive mode writes.
    #[serde(default)]
    pub value: Blob,
    /// An opaque number for clients.
    #[serde(default)]
    pub flags: u64,
}

/// The reply to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LocksOutcome {
    /// Set if the session holds all of the locks.
    pub acquired: bool,
    /// The fencing token of each lock, in the order of the request; empty if they were not
    /// acquired.
    pub fences: Vec<FenceClaim>,
}

/// An element of `GET /v1/lockmesh/waits`: a request that waits for locks. In the order of the
/// queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Wait {
    /// Its session.
    pub session: String,
    /// That session's name.
    pub session_name: String,
    /// That session's node.
    pub node: String,
    /// Its position in the queues of all its locks: lower ones are granted first.
    pub queue_position: u64,
    /// The time of the request: milliseconds since 1970 by the leader's clock; 0 if unknown.
    #[serde(rename = "SinceMs")]
    pub since_ms: u64,
    /// The maximum time to wait, as a Go duration.
    pub wait: String,
    /// Set if its session is in a deadlock that still exists.
    pub deadlocked: bool,
    /// Its locks.
    pub locks: Vec<AwaitedLock>,
}

/// A lock of a waiting request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AwaitedLock {
    /// The key.
    pub key: String,
    /// `exclusive` or `shared`.
    pub mode: String,
    /// The number of requests before it in the queue.
    pub ahead: u64,
    /// The sessions that block it: holders first, then earlier requests; at most 8. Empty if the
    /// lock is free for it, or closed by a lock-delay.
    pub blocked_by: Vec<String>,
}

/// The reaction to a request that would close a circle of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadlockPolicy {
    /// It is recorded, and the request waits.
    #[default]
    Report,
    /// It is recorded, and the request is refused.
    Refuse,
}

/// The body of `PUT /v1/lockmesh/deadlocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct DeadlockSettings {
    /// The policy.
    pub policy: DeadlockPolicy,
}

/// The nodes whose agents may send operator requests: the reply of `GET
/// /v1/lockmesh/operator-hosts`, and the body of a `PUT`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct OperatorHosts {
    /// The names of the nodes; with none, the agents of all nodes.
    pub hosts: Vec<String>,
}

/// The reply of `GET /v1/lockmesh/deadlocks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deadlocks {
    /// The policy.
    pub policy: DeadlockPolicy,
    /// The last 16 deadlocks found, newest first.
    pub deadlocks: Vec<Deadlock>,
}

/// A circle of sessions that wait for each other's locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deadlock {
    /// The index of the request or grant that closed it.
    pub index: u64,
    /// The time when it was closed: milliseconds since 1970 by the leader's clock.
    #[serde(rename = "AtMs")]
    pub at_ms: u64,
    /// Set if the request that would have closed it was refused.
    pub refused: bool,
    /// Set while each session still waits for the next one.
    pub exists: bool,
    /// The number of its sessions.
    pub length: u64,
    /// Its first 64 sessions: each waits for the next one, and the last of the circle for the
    /// first.
    pub waits: Vec<DeadlockedSession>,
}

/// A session of a deadlock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeadlockedSession {
    /// The session.
    pub session: String,
    /// Its name.
    pub session_name: String,
    /// Its node.
    pub node: String,
    /// The key that it waits for.
    pub waits_for: String,
}

/// An element of the reply to `PUT /v1/lockmesh/fence/verify`, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FenceVerdict {
    /// The key of the lock.
    pub key: String,
    /// The token of the request.
    pub fence: u64,
    /// Set if the lock is held, and by the grant with this token.
    pub is_current: bool,
    /// The token of the newest grant of the key; 0 if the key is absent or was never locked since
    /// its creation.
    pub newest_fence: u64,
}

/// The reply of `GET /v1/lockmesh/servers`: the quorum from the view of one of its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Quorum {
    /// The cluster's id.
    #[serde(rename = "ClusterID")]
    pub cluster_id: String,
    /// The Raft id of the server that replies. Only the leader knows the health of the others.
    pub seen_by: u64,
    /// The leader's Raft id; 0 if unknown.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// The last index that is known to be on a majority of disks.
    pub commit_index: u64,
    /// All servers, in ascending order of their Raft ids.
    #[serde(deserialize_with = "null_as_default")]
    pub servers: Vec<Server>,
}

/// One server of a quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Server {
    /// Its Raft id, never reused for another server.
    #[serde(rename = "RaftID")]
    pub raft_id: u64,
    /// Its node's UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its node's name.
    pub node: String,
    /// Its RPC address as `host:port`.
    pub address: String,
    /// Set if it is the leader.
    pub leader: bool,
    /// Set if it is a voter; a new server is promoted once it has caught up.
    pub voter: bool,
    /// The last index that it is known to have.
    pub last_index: u64,
    /// The time since the leader last had contact with it, as a Go duration; empty if unknown.
    pub last_contact: String,
    /// Set if the leader has contact with it and it does not lag; `null` if unknown.
    pub healthy: Option<bool>,
    /// Its version, with the commit of its build if known; empty if it was not connected.
    pub version: String,
}
