//! Identity of servers: a server counts only after it has shown that it belongs to this agent's
//! cluster.
//!
//! Ids, terms and applied indexes of two clusters are not comparable. No field of a status is used
//! before the server's cluster id and index base are compared. **Invariant:** a rejected server is
//! never leader or home, and its roster never replaces the known one.

use super::{Actions, LeaderTracker, wake_at};
use crate::cluster::{
    Cluster, ClusterChoice, ClusterRefusal, FOLLOW_TIMEOUT, INTRODUCTION_TIMEOUT, LAG_TIMEOUT, Pin, Verdict,
};
use crate::servers::{Contact, KnownServer, Slot};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::rpc::Status;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The interval between attempts to contact a listed server that nothing else needs, 70 to 130 % of
/// this. Each listed server is contacted within 60 s.
const CONTACT_INTERVAL: Duration = Duration::from_secs(40);

/// The time for which an agent without a pin waits for its preferred server before it contacts all
/// others.
const INTRODUCTION_DELAY: Duration = Duration::from_millis(500);

/// The maximum duration of such a contact.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

impl LeaderTracker {
    /// Applies the configured cluster, and the pin of an earlier process.
    #[must_use]
    pub fn with_cluster(mut self, choice: ClusterChoice, pin: Option<Pin>, now: Time) -> Self {
        self.cluster = Cluster::new(choice, pin, now);
        self
    }

    /// Applies a configuration that selects another cluster, or none.
    pub fn choose_cluster(&mut self, choice: ClusterChoice, now: Time) {
        let moves = self.cluster.choose(choice, now);
        if moves {
            self.move_to_another_cluster(now);
        }
        // All servers are judged again by their next replies.
        for (_, server) in self.servers.iter_mut() {
            server.refusal = None;
            if let Some(up) = server.up_mut() {
                (up.older_since, up.index, up.query) = (None, None, None);
            }
        }
        self.find_split();
    }

    /// Returns the cluster that registered this agent; `None` before that, or if the agent follows
    /// any.
    pub fn pin(&self) -> Option<&Pin> {
        self.cluster.pin()
    }

    /// Records that the leader registered this agent.
    pub fn registered(&mut self) {
        self.cluster.registered();
    }

    /// Returns `true` once after the agent moved to another cluster, which voids its registration.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Returns `true` if the server's index is not known on this connection.
    pub fn wants_index(&self, slot: Slot) -> bool {
        !self.cluster.follows_any() && self.servers.up(slot).is_some_and(|up| up.index.is_none())
    }

    /// Records the index of a server's reply to a read.
    pub fn index_heard(&mut self, slot: Slot, index: LogIndex) {
        let Some(up) = self.servers.up_mut(slot).filter(|up| up.index.is_none()) else { return };
        up.index = Some(index);
        if !up.is_heard {
            // Its status may have come first and could not be used then.
            self.ask_again(slot);
        }
    }

    /// Returns `true` if the server at this slot has shown on this connection that it belongs to
    /// this agent's cluster.
    pub fn is_ours(&self, slot: Slot) -> bool {
        self.servers.up(slot).is_some_and(|up| up.is_heard)
    }

    /// Returns `true` if the server at this slot is rejected.
    pub fn is_refused(&self, slot: Slot) -> bool {
        self.servers.get(slot).is_some_and(|server| server.refusal.is_some())
    }

    /// Returns `true` if a server with this status belongs to this agent's cluster.
    pub fn accepts(&self, slot: Slot, status: &Status) -> bool {
        let is_newer =
            |index: LogIndex| !self.cluster.is_older(index.0.saturating_sub(status.applied_index.0));
        let index = self.servers.up(slot).and_then(|up| up.index);
        !self.cluster.is_split
            && !self.cluster.is_foreign(&status.cluster_id)
            && (self.cluster.follows_any() || index.is_some_and(is_newer))
    }

    /// Returns the rejected servers, by address, with the reason.
    pub fn refusals(&self) -> Vec<(String, ClusterRefusal)> {
        let refused = self
            .servers
            .iter()
            .filter_map(|(_, server)| Some((server.address.clone(), server.refusal.clone()?)));
        let mut refused: Vec<_> = refused.collect();
        refused.sort_unstable();
        refused
    }

    /// Returns `true` if a listed server has shown that it belongs to another cluster. An older
    /// copy of this agent's cluster does not count: a follower that lags looks like one.
    pub fn lists_another_cluster(&self) -> bool {
        let is_foreign = |server: &KnownServer| {
            server.is_seed && matches!(server.refusal, Some(ClusterRefusal::OtherCluster(_)))
        };
        !self.cluster.follows_any() && self.servers.iter().any(|(_, server)| is_foreign(server))
    }

    /// Returns the problem with the rejected servers, as a message for operators.
    pub fn complaint(&self) -> Option<String> {
        let refusals = self.refusals();
        let expected = self.cluster.expected().filter(|_| !refusals.is_empty())?;
        if self.cluster.is_split {
            let claims =
                self.servers.iter().filter(|(_, server)| server.is_seed).filter_map(|(_, server)| {
                    Some(format!("{} belongs to the cluster {}", server.address, server.cluster.as_ref()?))
                });
            let claims = claims.collect::<Vec<_>>().join(", ");
            return Some(format!(
                "the listed servers are of more than one cluster: {claims}. This agent registers with none of them; list \
                 the servers of one cluster in `upstream.servers`, or set `upstream.cluster_id`"
            ));
        }
        let whys = refusals.iter().map(|(address, refusal)| match refusal {
            ClusterRefusal::OtherCluster(other) => format!("{address} belongs to the cluster {other}"),
            ClusterRefusal::OlderCopy(base) => format!(
                "{address} is an older copy of this agent's cluster (index base {base}, not {})",
                self.cluster.index_base()
            ),
        });
        let whys = whys.collect::<Vec<_>>().join(", ");
        let ours = self
            .servers
            .iter()
            .find(|(_, server)| server.refusal.is_none() && server.cluster.as_deref() == Some(expected));
        let ours = ours.map(|(_, server)| format!(" ({})", server.address)).unwrap_or_default();
        Some(format!(
            "this agent belongs to the cluster {expected}{ours}, but {whys}: remove the wrong servers from \
             `upstream.servers`; to move this agent to another cluster, set `upstream.cluster_id`"
        ))
    }

    /// Returns `true` once the agent knows with which cluster it may register.
    pub(super) fn is_settled(&self, now: Time) -> bool {
        if self.cluster.is_split {
            return false;
        }
        let is_introduced =
            |server: &KnownServer| !server.is_seed || server.has_answered || server.failures() > 0;
        !self.cluster.is_open()
            || now >= self.cluster.began + INTRODUCTION_TIMEOUT
            || self.servers.iter().all(|(_, server)| is_introduced(server))
    }

    /// Compares the cluster that a server reports with this agent's.
    pub(super) fn judge(&mut self, slot: Slot, status: &Status, now: Time) -> Verdict {
        let server = self.servers.server_mut(slot);
        // It has not found its quorum yet, or has no state yet.
        if status.server == ServerId::default() || status.cluster_id.is_empty() {
            server.has_answered = true;
            return Verdict::Unknown;
        }
        server.cluster = Some(status.cluster_id.clone());
        self.choose_current(&status.cluster_id, now);
        self.find_split();
        if self.cluster.is_split || self.cluster.is_foreign(&status.cluster_id) {
            let server = self.servers.server_mut(slot);
            server.has_answered = true;
            // An agent that follows any cluster reports no mismatch.
            server.refusal = Some(ClusterRefusal::OtherCluster(status.cluster_id.clone()));
            return Verdict::Refused;
        }
        if self.cluster.follows_any() {
            self.servers.server_mut(slot).has_answered = true;
            return Verdict::Ours;
        }
        self.judge_index_base(slot, status, now)
    }

    fn judge_index_base(&mut self, slot: Slot, status: &Status, now: Time) -> Verdict {
        let server = self.servers.server_mut(slot);
        let Contact::Up(up) = &mut server.contact else { return Verdict::Unknown };
        let Some(index) = up.index else { return Verdict::Unknown };
        let base = index.0.saturating_sub(status.applied_index.0);
        server.has_answered = true;
        if self.cluster.is_older(base) {
            let since = *up.older_since.get_or_insert(now);
            // Asked again: a follower may not have applied the entry that raised the base.
            up.index = None;
            if now.since(since) < LAG_TIMEOUT {
                return Verdict::Unknown;
            }
            server.refusal = Some(ClusterRefusal::OlderCopy(base));
            return Verdict::Refused;
        }
        (up.older_since, server.refusal) = (None, None);
        if self.cluster.raise(base) {
            self.doubt_all_but(slot, now);
        }
        Verdict::Ours
    }

    /// Chooses a cluster without a pin: the first one that answers, while a server claims to belong
    /// to it. An agent that follows any cluster moves on after a while without a leader.
    fn choose_current(&mut self, cluster_id: &str, now: Time) {
        let may_move = if self.cluster.follows_any() {
            self.leader.is_none() && now.since(self.no_leader_since) >= FOLLOW_TIMEOUT
        } else {
            self.cluster.is_open() && !self.is_claimed(self.cluster.expected())
        };
        let is_free =
            self.cluster.expected().is_none() && (self.cluster.follows_any() || self.cluster.is_open());
        if (may_move || is_free) && self.cluster.follow(cluster_id) {
            self.move_to_another_cluster(now);
        }
    }

    fn is_claimed(&self, cluster_id: Option<&str>) -> bool {
        self.servers
            .iter()
            .any(|(_, server)| server.cluster.is_some() && server.cluster.as_deref() == cluster_id)
    }

    /// Detects that the listed servers belong to two clusters while the agent has yet to choose.
    fn find_split(&mut self) {
        let mut claims = self.servers.iter().filter(|(_, server)| server.is_seed);
        let first = claims.find_map(|(_, server)| server.cluster.clone());
        let is_other = |cluster: &Option<String>| cluster.is_some() && *cluster != first;
        self.cluster.is_split = self.cluster.is_open()
            && self.servers.iter().any(|(_, server)| server.is_seed && is_other(&server.cluster));
    }

    /// Disconnects a rejected server; it is contacted again later.
    pub(super) fn refuse(&mut self, slot: Slot, now: Time) {
        self.is_no_leader(slot, now);
        self.claimed = self.claimed.filter(|(claimed, _)| *claimed != slot);
        if self.home == Some(slot) {
            self.home = None;
        }
        let contact_at = self.next_contact(now);
        let server = self.servers.server_mut(slot);
        server.doubt();
        server.contact_at = Some(contact_at);
        self.refused.insert(slot);
        if self.cluster.is_split {
            // Servers that were accepted before the split was known.
            for (other, server) in self.servers.iter_mut() {
                if server.is_seed && server.up().is_some() && server.refusal.is_none() {
                    server.refusal = server.cluster.clone().map(ClusterRefusal::OtherCluster);
                    server.doubt();
                    self.refused.insert(other);
                }
            }
            (self.leader, self.home, self.claimed) = (None, None, None);
        }
    }

    /// Requires servers below a raised index base to show theirs again.
    fn doubt_all_but(&mut self, slot: Slot, now: Time) {
        let others: Vec<Slot> =
            self.servers.iter().map(|(other, _)| other).filter(|other| *other != slot).collect();
        self.move_to_another_cluster(now);
        for other in others {
            self.servers.server_mut(other).doubt();
            self.ask_again(other);
        }
        self.has_moved = false;
    }

    /// Discards everything learned from another cluster, or from an older copy.
    fn move_to_another_cluster(&mut self, now: Time) {
        self.forget_leader(now);
        (self.term, self.home, self.claimed) = (Term(0), None, None);
        self.servers.forget_roster();
        for up in self.servers.iter_mut().filter_map(|(_, server)| server.up_mut()) {
            up.is_heard = false;
        }
        self.has_moved = true;
    }

    /// Contacts listed servers that nothing else needs.
    pub(super) fn contact(&mut self, actions: &mut Actions, now: Time) {
        if self.cluster.follows_any() {
            return;
        }
        // All of them before the first registration: one server alone cannot show that the others
        // belong to another cluster.
        let is_open = self.cluster.is_open();
        // The preferred server comes first, because the first server that answers becomes home.
        let others_at = self.cluster.began + INTRODUCTION_DELAY;
        if is_open && self.home.is_none() && !self.cluster.is_split && now < others_at {
            return wake_at(actions, others_at);
        }
        let slots: Vec<Slot> =
            self.servers.iter().filter(|(_, server)| server.is_seed).map(|(slot, _)| slot).collect();
        for slot in slots {
            if is_open {
                actions.keep.insert(slot);
                continue;
            }
            self.contact_if_due(slot, actions, now);
        }
        if is_open && !self.cluster.is_split && now < self.cluster.began + INTRODUCTION_TIMEOUT {
            wake_at(actions, self.cluster.began + INTRODUCTION_TIMEOUT);
        }
    }

    /// Contacts a listed server of a known cluster for a while, at intervals, until it answers.
    fn contact_if_due(&mut self, slot: Slot, actions: &mut Actions, now: Time) {
        let next = self.next_contact(now);
        let server = self.servers.server_mut(slot);
        if server.up().is_some_and(|up| up.is_heard) {
            // It has shown that it belongs to this cluster.
            server.contact_at = None;
            return;
        }
        if server.has_answered && server.refusal.is_none() {
            return;
        }
        let at = *server.contact_at.get_or_insert(next);
        if now < at {
            wake_at(actions, at);
        } else if now < at + CONTACT_TIMEOUT {
            actions.keep.insert(slot);
            wake_at(actions, at + CONTACT_TIMEOUT);
        } else {
            server.contact_at = Some(next);
            wake_at(actions, next);
        }
    }

    fn next_contact(&mut self, now: Time) -> Time {
        now + CONTACT_INTERVAL.mul_f64(self.spread())
    }
}
