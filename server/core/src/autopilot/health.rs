//! Contact and health of the servers.
//!
//! | a server is | if |
//! |---|---|
//! | present | a message arrived within a second |
//! | healthy | it is in contact and keeps up by the configured thresholds, its disk writes, its state is not corrupt |
//! | reliable | as healthy, but the short silence or lag of a busy server is tolerated |

use super::{Autopilot, Health, Servers};
use crate::cluster::{ClusterView, Turn};
use crate::raft::TICK;
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A server with a message within this time counts as present, even if its health threshold is
/// stricter.
const RELIABLE_CONTACT_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that lags by at most this many entries is up to date: under load that many are in
/// flight.
pub(super) const RELIABLE_TRAILING: u64 = 10_000;

/// How far another server may be behind.
pub(super) struct Limits {
    pub(super) silence: Duration,
    /// In entries of the log.
    pub(super) trailing: u64,
}

/// The other servers, as this one sees them.
#[derive(Debug)]
pub struct AutopilotView<'a> {
    pub(crate) autopilot: &'a Autopilot,
    pub(crate) servers: Servers<'a>,
    pub(crate) now: Time,
}

impl AutopilotView<'_> {
    /// Returns the time since this leader last received a message from a server. If there was none,
    /// the time counts from the start of the leader's term.
    pub fn silence_of(&self, server: ServerId) -> Duration {
        self.autopilot.unheard_for(self.now, server)
    }

    /// Returns `true` if this leader has received a message from a majority of the voters within
    /// this time.
    pub fn hears_majority(&self, within: Duration) -> bool {
        let view = &self.servers.cluster;
        let is_heard = |id| id == view.id || self.silence_of(id) <= within;
        view.membership.is_majority(is_heard)
    }

    /// Returns the silence after which a peer is considered gone: the longest election timeout, but
    /// no less than the silence of a busy server.
    pub fn longest_silence(&self) -> Duration {
        (TICK * 2 * self.servers.election.ticks as u32).max(RELIABLE_CONTACT_TIMEOUT)
    }

    /// Returns `true` if the leader considers a server healthy.
    pub fn is_healthy(&self, server: ServerId) -> bool {
        self.autopilot.is_healthy(&self.servers, self.now, server)
    }

    /// Returns the time since which the leader's finding about a server's health is unchanged.
    pub fn stable_since(&self, server: ServerId) -> Option<WallTime> {
        self.autopilot.health.get(&server).map(|health| health.since)
    }

    /// Returns `true` if no earlier membership can take effect again, whatever fails.
    pub fn is_membership_settled(&self) -> bool {
        self.autopilot.is_membership_settled(&self.servers.cluster)
    }

    /// Returns `true` if a membership change can begin: the previous one is settled, and none is in
    /// progress.
    pub fn may_change_membership(&self) -> bool {
        self.autopilot.may_change_membership(&self.servers)
    }
}

impl Autopilot {
    /// Returns the time since the last message from a server. The leader knows it for every server,
    /// a follower for the leader only. Zero for this server.
    pub(crate) fn last_contact(
        &self,
        view: &ClusterView<'_>,
        now: Time,
        server: ServerId,
    ) -> Option<Duration> {
        match view.leader {
            _ if server == view.id => Some(Duration::ZERO),
            // A follower receives messages from its leader only; silence of the others means
            // nothing.
            Some(leader) if leader == view.id || leader == server => self.last_heard(now, server),
            _ => None,
        }
    }

    pub(super) fn last_heard(&self, now: Time, server: ServerId) -> Option<Duration> {
        self.heard.get(&server).map(|heard| now.since(*heard))
    }

    /// Returns the time since the leader last received a message from a server. A server that never
    /// sent one may have talked to the previous leader, so the time counts from the start of the
    /// term.
    pub(super) fn unheard_for(&self, now: Time, server: ServerId) -> Duration {
        now.since(self.heard.get(&server).copied().unwrap_or_default().max(self.led_since))
    }

    /// Returns `true` if the leader considers a server healthy: recent contact, small lag, no
    /// stalled disk, and not corrupt.
    fn is_healthy(&self, servers: &Servers<'_>, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = servers.cluster.state.autopilot();
        // A corrupt server may replicate perfectly, but its state cannot be trusted.
        let is_corrupt = servers.corruption.is_corrupt(server);
        let thresholds =
            Limits { silence: autopilot.last_contact_threshold, trailing: autopilot.max_trailing_logs };
        !is_corrupt
            && !self.is_disk_stalled(servers, now, server)
            && self.keeps_up(servers, now, server, &thresholds)
    }

    /// Returns `true` if this server's disk is stalled, or if another server has acknowledged
    /// nothing for the stall timeout although entries wait.
    fn is_disk_stalled(&self, servers: &Servers<'_>, now: Time, server: ServerId) -> bool {
        if server == servers.cluster.id {
            return servers.disk.stalled_for(now).is_some();
        }
        let acknowledged = self.acknowledged.get(&server);
        acknowledged.is_some_and(|(_, since)| now.since(*since) >= servers.disk.stall_timeout())
    }

    /// Returns `true` if a server can be relied on. Unlike health, this tolerates the short silence
    /// or lag of a busy server.
    pub(super) fn is_reliable(&self, servers: &Servers<'_>, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = servers.cluster.state.autopilot();
        // A strict threshold makes health flap with every pause of a disk; votes and transfers must
        // not depend on that.
        let silence = autopilot.last_contact_threshold.max(RELIABLE_CONTACT_TIMEOUT);
        let trailing = autopilot.max_trailing_logs.max(RELIABLE_TRAILING);
        self.keeps_up(servers, now, server, &Limits { silence, trailing })
    }

    /// Returns `true` if a server's silence and lag are within limits.
    pub(super) fn keeps_up(
        &self,
        servers: &Servers<'_>,
        now: Time,
        server: ServerId,
        limits: &Limits,
    ) -> bool {
        if server == servers.cluster.id {
            return servers.cluster.known_leader().is_some();
        }
        let Some(progress) = servers.replication.progress.get(&server) else { return false };
        // If the log is short, even an empty server lags by only a few entries.
        let holds_state = progress.matched > LogIndex(0) && progress.snapshot.is_none();
        let trailing = servers.replication.commit_index.0.saturating_sub(progress.matched.0);
        holds_state
            && trailing <= limits.trailing
            && self.last_heard(now, server).is_some_and(|last_heard| last_heard <= limits.silence)
    }

    pub(super) fn note_health(&mut self, servers: &Servers<'_>, turn: &Turn<'_>, since: WallTime) {
        self.note_acknowledgements(servers, turn.now);
        let members = turn.view.membership.all();
        self.health.retain(|id, _| members.contains(id));
        for server in members {
            let is_healthy = self.is_healthy(servers, turn.now, server);
            let known = self.health.get(&server).filter(|known| known.is_healthy == is_healthy);
            if known.is_none() {
                self.health.insert(server, Health { is_healthy, since });
            }
        }
    }

    fn note_acknowledgements(&mut self, servers: &Servers<'_>, now: Time) {
        let (members, last) = (servers.cluster.membership.all(), servers.replication.last_index);
        self.acknowledged.retain(|id, _| members.contains(id));
        for server in servers.cluster.others() {
            let matched = servers.replication.of(server).matched;
            let known = self.acknowledged.entry(server).or_insert((matched, now));
            if matched != known.0 || matched >= last {
                *known = (matched, now);
            }
        }
    }

    pub(super) fn note_who_is_ready(&mut self, servers: &Servers<'_>, turn: &Turn<'_>) {
        for learner in &turn.view.membership.learners {
            if self.is_reliable(servers, turn.now, *learner) {
                self.ready.entry(*learner).or_insert(turn.now);
            } else {
                // One bad moment restarts the stabilization time: a flapping server must not get a
                // vote.
                self.ready.remove(learner);
            }
        }
    }
}
