//! Servers whose disks reject writes, as reported by the servers to each other.
//!
//! A leader cannot commit when the disks of a majority are full, and cannot see why: the others
//! still reply to its heartbeats. Each server whose disk rejects writes therefore reports the
//! reason to the others for as long as that lasts. If a majority is affected, the leader rejects
//! writes with the reason instead of *No cluster leader*, and does not hand over: no other server
//! could be elected. **Invariant:** no vote and no commit depends on these messages. A reason
//! expires after [`REPORT_LIFETIME`].

use crate::cluster::{ClusterView, Turn};
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The format version from which a server understands [`MessageKind::DiskRefuses`].
const SINCE_FORMAT: u8 = 2;
/// Interval between the reports of a server whose disk rejects writes.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The lifetime of a reason: after that the server writes again or is gone.
const REPORT_LIFETIME: Duration = Duration::from_secs(3);
/// The maximum length of another server's reason, in characters.
const MAX_REASON_CHARS: usize = 200;

/// The servers whose disks reject writes.
#[derive(Debug, Default)]
pub(crate) struct RefusingDisks {
    /// Other servers, with the reason and the time of their last report.
    others: BTreeMap<ServerId, (Time, String)>,
    reported_at: Option<Time>,
}

impl RefusingDisks {
    /// Handles another server's report about its disk.
    pub(crate) fn message(&mut self, now: Time, message: &PeerMessage) {
        if let Some(reason) = message.read::<String>() {
            let reason = reason.chars().take(MAX_REASON_CHARS).collect();
            self.others.insert(message.from, (now, reason));
        }
    }

    /// Reports to the other servers, at an interval, that this server's disk rejects writes.
    pub(crate) fn report(&mut self, turn: &mut Turn<'_>, reason: &str) {
        if self.reported_at.is_some_and(|reported_at| turn.now.since(reported_at) < REPORT_INTERVAL) {
            return;
        }
        self.reported_at = Some(turn.now);
        for server in turn.view.others() {
            // An older build cannot read the message.
            let reads_it = turn.view.state.server(server).is_some_and(|row| row.format >= SINCE_FORMAT);
            if reads_it {
                turn.send(server, MessageKind::DiskRefuses, &reason.to_owned());
            }
        }
    }

    /// Returns the reason why no majority of the voters can write; `None` if one can, as far as
    /// this server knows. `own` is the reason of its own disk.
    pub(crate) fn why_no_majority_writes(
        &self,
        view: &ClusterView<'_>,
        now: Time,
        own: Option<&str>,
    ) -> Option<String> {
        let fresh =
            self.others.iter().filter(|(_, (reported_at, _))| now.since(*reported_at) <= REPORT_LIFETIME);
        let mut refusing: BTreeMap<ServerId, &str> =
            fresh.map(|(server, (_, reason))| (*server, reason.as_str())).collect();
        refusing.remove(&view.id);
        refusing.extend(own.map(|reason| (view.id, reason)));
        if view.membership.is_majority(|server| !refusing.contains_key(&server)) {
            return None;
        }
        let mut servers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (server, reason) in refusing {
            servers.entry(reason).or_default().push(view.node_of(server));
        }
        let texts = servers.iter().map(|(reason, nodes)| format!("{reason} on {}", listed(nodes)));
        Some(texts.collect::<Vec<_>>().join("; "))
    }
}

fn listed(nodes: &[&str]) -> String {
    let word = if nodes.len() == 1 { "server" } else { "servers" };
    format!("{word} {}", nodes.join(", "))
}
