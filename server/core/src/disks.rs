//! Servers whose disks reject writes, as reported by the servers to each other.
//!
//! A leader cannot commit when the disks of a majority are full, and cannot see why: the others
//! still reply to its heartbeats. Each server whose disk rejects writes therefore reports the
//! reason to the others for as long as that lasts. If a majority is affected, the leader rejects
//! writes with the reason instead of *No cluster leader*, and does not hand over: no other server
//! could be elected. **Invariant:** no vote and no commit depends on these messages. A reason
//! expires after [`FRESH`].

use crate::core::Core;
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The format version from which a server understands [`MessageKind::DiskRefuses`].
const SINCE_FORMAT: u8 = 2;
/// Interval between the reports of a server whose disk rejects writes.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// The lifetime of a reason: after that the server writes again or is gone.
const FRESH: Duration = Duration::from_secs(3);
/// The maximum length of another server's reason, in characters.
const LONGEST_REASON: usize = 200;

/// The servers whose disks reject writes.
#[derive(Debug, Default)]
pub(crate) struct RefusingDisks {
    /// Other servers, with the reason and the time of their last report.
    others: BTreeMap<ServerId, (Time, String)>,
    told: Option<Time>,
}

impl Core {
    /// Handles another server's report about its disk. Returns `true` if the message is of this
    /// kind.
    pub(crate) fn disk_message(&mut self, now: Time, message: &PeerMessage) -> bool {
        if message.kind != MessageKind::DiskRefuses {
            return false;
        }
        if let Some(reason) = message.read::<String>() {
            let reason = reason.chars().take(LONGEST_REASON).collect();
            self.refusing_disks.others.insert(message.from, (now, reason));
        }
        true
    }

    /// Reports to the other servers, at an interval, that this server's disk rejects writes.
    pub(crate) fn tell_disk_refuses(&mut self, now: Time, reason: &str, outbox: &mut Outbox) {
        if self.refusing_disks.told.is_some_and(|told| now.since(told) < TELL_INTERVAL) {
            return;
        }
        self.refusing_disks.told = Some(now);
        for server in self.engine.membership().all() {
            // An older build cannot read the message.
            let reads_it = self.state.server(server).is_some_and(|row| row.format >= SINCE_FORMAT);
            if server != self.config.id && reads_it {
                self.send(server, MessageKind::DiskRefuses, &reason.to_owned(), outbox);
            }
        }
    }

    /// Returns the reason why no majority of the voters can write; `None` if one can, as far as
    /// this server knows. `own` is the reason of its own disk.
    pub(crate) fn why_no_majority_writes(&self, now: Time, own: Option<&str>) -> Option<String> {
        let others = self.refusing_disks.others.iter();
        let fresh = others.filter(|(_, (told, _))| now.since(*told) <= FRESH);
        let mut refusing: BTreeMap<ServerId, &str> =
            fresh.map(|(server, (_, reason))| (*server, reason.as_str())).collect();
        refusing.remove(&self.config.id);
        refusing.extend(own.map(|reason| (self.config.id, reason)));
        if self.engine.membership().is_majority(|server| !refusing.contains_key(&server)) {
            return None;
        }
        let mut servers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (server, reason) in refusing {
            servers.entry(reason).or_default().push(self.node_of(server));
        }
        let texts = servers.iter().map(|(reason, nodes)| format!("{reason} on {}", listed(nodes)));
        Some(texts.collect::<Vec<_>>().join("; "))
    }
}

fn listed(nodes: &[&str]) -> String {
    let word = if nodes.len() == 1 { "server" } else { "servers" };
    format!("{word} {}", nodes.join(", "))
}
