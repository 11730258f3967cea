//! Autopilot: the leader manages the other servers. It tracks their health, promotes learners that
//! have caught up, removes dead servers, and limits log compaction.
//!
//! A membership changes one server at a time, through a joint membership. A node that returns with
//! an empty disk replaces its former server in one change, so a dead vote is never counted beside
//! the new one. **Invariants:** a server is removed only if the healthy servers among the remaining
//! ones are a majority of them; removing a server ends no session; a roster row lives as long as
//! its server is a member.
//!
//! A commit index reaches the disks with the next write. Until then, a power failure on all servers
//! restores the previous membership, and a removed server has its vote again. A change is therefore
//! *settled* only when a later entry is applied: a server with that entry on disk also has the
//! commit of the change, and a majority has both. Until then the change is not reported as done, no
//! other change begins, and a removed server still votes.

use super::{Fetching, Health};
use crate::core::Core;
use crate::input::CallToken;
use crate::outbox::{Outbox, not_leader};
use crate::raft::engine::MemberChange;
use crate::raft::{Progress, TICK};
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The maximum duration of a leadership transfer before it is aborted.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason to deny a transfer after that.
const NOT_TAKEN_OVER: &str = "the other server did not take over: see whether it is up to date";
/// Interval between snapshot offers to a server that has not installed the snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server with a message within this time counts as present, even if its health threshold is
/// stricter.
const RELIABLE_CONTACT: Duration = Duration::from_secs(1);
/// A server that lags by at most this many entries is up to date: under load that many are in
/// flight.
const RELIABLE_TRAILING: u64 = 10_000;
/// Silence after which a server counts as dead once another server has been promoted in its place.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Silence after which one of an even number of voters is removed, although no other server was
/// promoted in its place: without it the cluster tolerates as many failures, and needs one
/// acknowledgement less. Longer than a reboot takes.
const SPARE_DEAD_AFTER: Duration = Duration::from_secs(300);

impl Core {
    /// Returns the time since the last message from a server. The leader knows it for every server,
    /// a follower for the leader only. Zero for this server.
    pub fn last_contact(&self, now: Time, server: ServerId) -> Option<Duration> {
        match self.engine.leader() {
            _ if server == self.config.id => Some(Duration::ZERO),
            // A follower receives messages from its leader only; silence of the others means
            // nothing.
            Some(leader) if leader == self.config.id || leader == server => {
                self.autopilot.last_heard(now, server)
            }
            _ => None,
        }
    }

    /// Returns the time since this leader last received a message from a server. If there was none,
    /// the time counts from the start of the leader's term.
    pub fn silence_of(&self, now: Time, server: ServerId) -> Duration {
        self.autopilot.unheard_for(now, server)
    }

    /// Returns `true` if this leader has received a message from a majority of the voters within
    /// this time.
    pub fn hears_majority(&self, now: Time, within: Duration) -> bool {
        let is_heard = |id| id == self.config.id || self.silence_of(now, id) <= within;
        self.engine.membership().is_majority(is_heard)
    }

    /// Returns the silence after which a peer is considered gone: the longest election timeout, but
    /// no less than the silence of a busy server.
    pub fn longest_silence(&self) -> Duration {
        (TICK * 2 * self.config.election.ticks as u32).max(RELIABLE_CONTACT)
    }

    /// Returns `true` if the leader considers a server healthy: recent contact, small lag, no
    /// stalled disk, and not corrupt.
    pub fn is_healthy(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        // A corrupt server may replicate perfectly, but its state cannot be trusted.
        let is_corrupt = self.corruption.is_corrupt(server);
        !is_corrupt
            && !self.is_disk_stalled(now, server)
            && self.keeps_up(now, server, autopilot.last_contact_threshold, autopilot.max_trailing_logs)
    }

    /// `true` if this server's disk is stalled, or if another server has acknowledged nothing for
    /// the stall timeout although entries wait.
    fn is_disk_stalled(&self, now: Time, server: ServerId) -> bool {
        if server == self.config.id {
            return self.disk.stalled_for(now).is_some();
        }
        let acknowledged = self.autopilot.acknowledged.get(&server);
        acknowledged.is_some_and(|(_, since)| now.since(*since) >= self.disk.stall_timeout())
    }

    fn notice_acknowledgements(&mut self, now: Time) {
        let (members, last) = (self.engine.membership().all(), self.engine.last_index());
        self.autopilot.acknowledged.retain(|id, _| members.contains(id));
        for server in members.into_iter().filter(|id| *id != self.config.id) {
            let matched = self.progress(server).unwrap_or_default().matched;
            let known = self.autopilot.acknowledged.entry(server).or_insert((matched, now));
            if matched != known.0 || matched >= last {
                *known = (matched, now);
            }
        }
    }

    /// Returns the time since which the leader's finding about a server's health is unchanged.
    pub fn stable_since(&self, server: ServerId) -> Option<WallTime> {
        self.autopilot.health.get(&server).map(|health| health.since)
    }

    /// Returns `true` if a server can be relied on. Unlike health, this tolerates the short silence
    /// or lag of a busy server.
    pub(crate) fn is_reliable(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        // A strict threshold makes health flap with every pause of a disk; votes and transfers must
        // not depend on that.
        let last_heard_allowed = autopilot.last_contact_threshold.max(RELIABLE_CONTACT);
        self.keeps_up(now, server, last_heard_allowed, autopilot.max_trailing_logs.max(RELIABLE_TRAILING))
    }

    fn keeps_up(
        &self,
        now: Time,
        server: ServerId,
        last_heard_allowed: Duration,
        trailing_allowed: u64,
    ) -> bool {
        if server == self.config.id {
            return self.leader().is_some();
        }
        let Some(progress) = self.progress(server) else { return false };
        // If the log is short, even an empty server lags by only a few entries.
        let holds_state = progress.matched > LogIndex(0) && progress.snapshot.is_none();
        let trailing = self.engine.commit_index().0.saturating_sub(progress.matched.0);
        holds_state
            && trailing <= trailing_allowed
            && self
                .autopilot
                .last_heard(now, server)
                .is_some_and(|last_heard| last_heard <= last_heard_allowed)
    }

    pub(crate) fn transfer_leader(
        &mut self,
        now: Time,
        token: CallToken,
        to: Option<ServerId>,
        outbox: &mut Outbox,
    ) {
        let others: Vec<_> =
            self.engine.membership().voters.iter().copied().filter(|id| *id != self.config.id).collect();
        let is_well = |id: &ServerId| self.is_reliable(now, *id) && !self.corruption.is_corrupt(*id);
        let well = others.iter().copied().filter(is_well);
        // The voter with the least to catch up: nothing can be written until it has caught up
        // (thesis, 3.10).
        let most_advanced = well.max_by_key(|id| self.progress(*id).unwrap_or_default().matched);
        match to.or(most_advanced) {
            _ if !self.is_serving() => outbox.fail(token, not_leader()),
            Some(to) if to == self.config.id => outbox.replies.push((token, Response::Done)),
            // The engine would silently abort the first transfer, and its caller would wait for the
            // timeout.
            Some(_) if self.engine.is_transferring() => {
                outbox.deny(token, "another transfer is under way");
            }
            Some(to) if others.contains(&to) => {
                self.engine.transfer_leader(to);
                // The reply is sent when this server steps down or the transfer times out: the
                // engine reports neither.
                if let Some((former, _)) = self.autopilot.transfer.replace((token, now)) {
                    outbox.deny(former, NOT_TAKEN_OVER);
                }
            }
            Some(_) => outbox.deny(token, "that server has no vote"),
            None => outbox.deny(token, "there is no other server that could lead"),
        }
    }

    pub(crate) fn add_server(&mut self, now: Time, token: CallToken, server: ServerId, outbox: &mut Outbox) {
        let members = self.engine.membership();
        if !self.is_serving() {
            outbox.fail(token, not_leader());
        } else if members.voters.contains(&server) || members.learners.contains(&server) {
            outbox.replies.push((token, Response::Done));
        } else if self.state.server(server).is_none() {
            // The row comes first: other servers need the address before they replicate to the
            // server.
            outbox.deny(token, "that server was not found in the roster");
        } else if self.autopilot.leaving.contains(&server) {
            // The next entries delete its row, and an id without a row counts as removed forever.
            outbox.deny(token, "removal of that server is in progress: add it again with a new id");
        } else if !self.may_change_membership() {
            // Each change must be settled before the next begins: see the module documentation.
            outbox.deny(token, "another change of the membership is under way: try again");
        } else {
            self.propose_membership(now, MemberChange::Learner(server), Some(token), outbox);
        }
    }

    pub(crate) fn remove_server(
        &mut self,
        now: Time,
        token: CallToken,
        server: ServerId,
        outbox: &mut Outbox,
    ) {
        let members = self.engine.membership();
        if !self.is_serving() {
            outbox.fail(token, not_leader());
        } else if !members.contains(server) && self.was_known(server) {
            self.remove_again(token, server, outbox);
        } else if members.voters_outgoing.contains(&server) && !members.voters.contains(&server) {
            self.autopilot.waits_for_membership.push(token);
        } else if !members.voters.contains(&server) && !members.learners.contains(&server) {
            outbox.deny(token, "that server was not found in the Raft configuration");
        } else if members.voters == [server] {
            outbox.deny(token, "the only server that votes cannot be removed: add another one first");
        } else if server == self.config.id {
            // A leader that removes itself must lead without counting itself (thesis, 4.2.2); a
            // transfer is simpler.
            outbox.deny(token, "this server leads: transfer the leadership first");
        } else if !self.may_change_membership() {
            outbox.deny(token, "another change of the membership is under way: try again");
        } else if !self.can_do_without(now, server) {
            // The remaining servers might never commit the end of the joint membership, nor later
            // entries.
            outbox.deny(token, "too few of the other servers are well: removing it would lose the quorum");
        } else {
            self.propose_membership(now, MemberChange::Gone(server), Some(token), outbox);
        }
    }

    /// Returns `true` if an id was ever assigned to a server.
    fn was_known(&self, server: ServerId) -> bool {
        server != ServerId(0) && server <= self.state.last_server()
    }

    /// Handles a repeated removal, from a caller that did not receive the reply. A row that is left
    /// over is removed too.
    fn remove_again(&mut self, token: CallToken, server: ServerId, outbox: &mut Outbox) {
        if self.state.server(server).is_some() && !self.autopilot.leaving.contains(&server) {
            if !self.may_change_membership() {
                return outbox.deny(token, "another change of the membership is under way: try again");
            }
            // Left over by a leader that died between the membership change and the deletion of the
            // row.
            self.autopilot.leaving.insert(server);
            self.forget_who_left();
        }
        self.autopilot.waits_for_membership.push(token);
        self.tell_of_membership(outbox);
    }

    fn propose_membership(
        &mut self,
        now: Time,
        change: MemberChange,
        token: Option<CallToken>,
        outbox: &mut Outbox,
    ) {
        match (self.engine.propose_membership(change), token) {
            (Ok(index), token) => self.await_membership(now, index, token),
            (Err(_), Some(token)) => outbox.fail(token, not_leader()),
            (Err(_), None) => {}
        }
    }

    /// Returns `true` if the remaining servers can continue without a server: a majority of them is
    /// healthy, and they are at least the configured minimum.
    fn can_do_without(&self, now: Time, server: ServerId) -> bool {
        let voters = &self.engine.membership().voters;
        if !voters.contains(&server) {
            return true;
        }
        let rest: Vec<_> = voters.iter().copied().filter(|id| *id != server).collect();
        let (autopilot, _) = self.state.autopilot();
        // Stricter than elsewhere: a server that died a moment ago must not count, and a refusal is
        // only a delay.
        let trailing = autopilot.max_trailing_logs.max(RELIABLE_TRAILING);
        let is_there = |id: &&ServerId| self.keeps_up(now, **id, autopilot.last_contact_threshold, trailing);
        let well = rest.iter().filter(is_there).count();
        // A majority of the remaining servers, not of the present ones: after the change they alone
        // decide.
        well > rest.len() / 2 && rest.len() >= autopilot.min_quorum as usize
    }

    /// Starts a new leader's contact times, and removes the rows of servers that never became
    /// members.
    pub(crate) fn start_autopilot(&mut self, now: Time) {
        let members = self.engine.membership().all();
        // Servers that were silent before may have talked to the previous leader, so their silence
        // counts from now.
        self.autopilot.led_since = now;
        // A leader may have died between adding a server's row and its membership, and only this
        // step clears the row. A server that still wants to join retries and gets a new id.
        let strangers = self.state.servers().map(|server| server.id).filter(|id| !members.contains(id));
        self.autopilot.leaving = strangers.collect();
        self.forget_who_left();
    }

    /// Proposes to delete the rows of servers that are no longer members. A proposal can be lost,
    /// for example during a leadership transfer, so it is repeated until the row is gone.
    fn forget_who_left(&mut self) {
        self.autopilot.leaving.retain(|id| self.state.server(*id).is_some());
        for id in self.autopilot.leaving.clone() {
            let forget = Command::ForgetServer(id);
            if !self.is_on_its_way(|command| *command == forget) {
                self.gather_own(forget);
            }
        }
    }

    /// Runs once per tick.
    pub(crate) fn run_autopilot(&mut self, now: Time, outbox: &mut Outbox) {
        // The engine aborts a transfer after one election timeout without reporting it, and accepts
        // the next one. A slow server may still take over after that.
        if let Some((token, _)) =
            self.autopilot.transfer.take_if(|(_, began)| now.since(*began) > TRANSFER_TIMEOUT)
        {
            outbox.deny(token, NOT_TAKEN_OVER);
        }
        // Also before this leader serves: it may need that follower in order to serve.
        self.announce_snapshots_again(now);
        if !self.is_serving() {
            return;
        }
        self.forget_who_left();
        self.raise_format_if_all_read_it();
        self.settle_membership();
        self.notice_health(now);
        self.notice_who_is_ready(now);
        // During a leadership transfer the engine drops proposals, so the change would be lost.
        if self.may_change_membership()
            && !self.engine.is_transferring()
            && let Some(change) = self.wanted_change(now)
        {
            let (action, server) = change.described();
            tracing::info!(action, server = server.0, node = %self.node_of(server), "changing the membership");
            // Before the new voter counts: it replaces the servers that are dead now.
            if let MemberChange::Voter(_) | MemberChange::Successor { .. } = change {
                self.note_replaced(now);
            }
            self.propose_membership(now, change, None, outbox);
        }
    }

    /// Marks the servers that are dead when another one is promoted, so that they can be removed.
    fn note_replaced(&mut self, now: Time) {
        let voters = self.engine.membership().voters.iter().copied();
        let is_dead =
            |id: &ServerId| *id != self.config.id && self.autopilot.unheard_for(now, *id) > DEAD_AFTER;
        let dead: Vec<_> = voters.filter(is_dead).collect();
        self.autopilot.replaced.extend(dead);
    }

    fn announce_snapshots_again(&mut self, now: Time) {
        for server in self.engine.membership().all() {
            let Progress { matched, snapshot } = self.progress(server).unwrap_or_default();
            if self.autopilot.fetching.get(&server).is_some_and(|fetching| fetching.snapshot <= matched) {
                self.autopilot.fetching.remove(&server);
            }
            let Some(snapshot) = snapshot else { continue };
            // The server already has the snapshot: a late rejection of an earlier index set the
            // engine back. The server will not report the snapshot again.
            if snapshot <= matched {
                // "Failure" makes the engine probe again from the server's index, which is all that
                // is needed.
                self.engine.snapshot_failed(server);
                continue;
            }
            // The first offer counts: the server may still be fetching that snapshot and needs the
            // log from there.
            let fetching = self.autopilot.fetching.entry(server).or_insert(Fetching { snapshot, told: now });
            // The offer or its reply may be lost, and the engine sends nothing else until it
            // receives a reply.
            if now.since(fetching.told) > SNAPSHOT_TIMEOUT {
                fetching.told = now;
                self.engine.snapshot_failed(server);
            }
        }
    }

    /// Returns the index up to which the log may be compacted after a durable snapshot. It keeps
    /// the entries that a follower still needs, up to a size limit. For a follower that fetches a
    /// snapshot, the entries after that snapshot are kept longer: otherwise it would have to fetch
    /// another one.
    pub(crate) fn compaction_index(&self, now: Time, snapshot: LogIndex) -> LogIndex {
        // A follower keeps less: its log is needed only if it becomes leader.
        let keep = self.config.log_keep_bytes / if self.engine.is_leader() { 1 } else { 4 };
        let least = self.engine.index_before_last(keep);
        let least_fetching = self.engine.index_before_last(keep.max(self.config.log_keep_fetching_bytes));
        let needed = |id: ServerId| {
            let Progress { matched, snapshot } = self.progress(id).unwrap_or_default();
            let fetching = self.autopilot.fetching.get(&id).map(|fetching| fetching.snapshot).or(snapshot);
            // Nothing extra is kept for a dead server: when it returns, it fetches a newer
            // snapshot.
            let is_there =
                self.autopilot.last_heard(now, id).is_some_and(|last_heard| last_heard <= DEAD_AFTER);
            match fetching.filter(|_| is_there) {
                Some(snapshot) => snapshot.max(matched).max(least_fetching),
                None => matched.max(least),
            }
        };
        let others = self.engine.membership().all().into_iter().filter(|id| *id != self.config.id);
        // Never past the snapshot itself: entries in neither the snapshot nor the log would be lost
        // (thesis, 5).
        others.map(needed).fold(snapshot, LogIndex::min)
    }

    fn notice_health(&mut self, now: Time) {
        self.notice_acknowledgements(now);
        let (members, since) = (self.engine.membership().all(), self.wall);
        self.autopilot.health.retain(|id, _| members.contains(id));
        for server in members {
            let is_healthy = self.is_healthy(now, server);
            let known = self.autopilot.health.get(&server).filter(|known| known.is_healthy == is_healthy);
            if known.is_none() {
                self.autopilot.health.insert(server, Health { is_healthy, since });
            }
        }
    }

    fn notice_who_is_ready(&mut self, now: Time) {
        for learner in self.engine.membership().learners.clone() {
            if self.is_reliable(now, learner) {
                self.autopilot.ready.entry(learner).or_insert(now);
            } else {
                // One bad moment restarts the stabilization time: a flapping server must not get a
                // vote.
                self.autopilot.ready.remove(&learner);
            }
        }
    }

    /// Returns the next change: promotes a learner that was stable long enough, then removes a
    /// voter that it replaces, or that is dead and one too many.
    fn wanted_change(&self, now: Time) -> Option<MemberChange> {
        let members = self.engine.membership();
        let (autopilot, _) = self.state.autopilot();
        let is_stable = |id: &&ServerId| {
            self.autopilot
                .ready
                .get(id)
                .is_some_and(|since| now.since(*since) >= autopilot.server_stabilization_time)
        };
        // Promotions first: one more vote makes a removal safer.
        if let Some(learner) = members.learners.iter().find(is_stable) {
            // The same node under a new id: two voters would count a lost disk and tolerate one
            // failure less.
            let former = members
                .voters
                .iter()
                .find(|id| self.is_same_node_reborn(**id, *learner) && **id != self.config.id);
            return Some(match former {
                Some(former) => MemberChange::Successor { new: *learner, former: *former },
                None => MemberChange::Voter(*learner),
            });
        }
        let goes = |id: &&ServerId| {
            **id != self.config.id
                && (self.has_successor(**id)
                    || (autopilot.cleanup_dead_servers
                        && (self.autopilot.replaced.contains(id) || self.is_spare_and_dead(now, **id))))
                && self.can_do_without(now, **id)
        };
        members.voters.iter().find(goes).map(|id| MemberChange::Gone(*id))
    }

    /// Returns `true` if a server died after another one was promoted, for example in the middle of
    /// its replacement.
    fn is_spare_and_dead(&self, now: Time, id: ServerId) -> bool {
        self.engine.membership().voters.len().is_multiple_of(2)
            && self.autopilot.unheard_for(now, id) > SPARE_DEAD_AFTER
    }

    /// Returns `true` if the same node has returned as another server that has a vote.
    fn has_successor(&self, id: ServerId) -> bool {
        self.engine.membership().voters.iter().any(|voter| self.is_same_node_reborn(id, *voter))
    }

    /// Returns `true` if a server is an earlier registration of the same node, before its data
    /// folder was emptied.
    fn is_same_node_reborn(&self, former: ServerId, now: ServerId) -> bool {
        let node = |id| self.state.server(id).map(|server| server.node.folded());
        former < now && node(former).is_some() && node(former) == node(now)
    }

    /// Handles an applied membership change; `before` lists the former members. A learner leaves
    /// with the first of its two steps, a voter with the last.
    pub(crate) fn notice_membership(&mut self, before: &[ServerId]) {
        let now_there = self.engine.membership().all();
        for gone in before.iter().filter(|id| !now_there.contains(id)) {
            self.autopilot.replaced.remove(gone);
            self.autopilot.ready.remove(gone);
            // Only the leader proposes deleting rows; a new leader finds them at the start of its
            // term.
            if self.is_serving() {
                self.autopilot.leaving.insert(*gone);
            }
        }
        self.forget_who_left();
        self.autopilot.settled_by = None;
        self.settle_membership();
    }

    /// Returns `true` if no earlier membership can take effect again, whatever fails.
    pub fn is_membership_settled(&self) -> bool {
        // Both conditions: a joint membership is followed by another one, even if later entries are
        // applied.
        !self.engine.membership().is_joint()
            && self.autopilot.settled_by.is_some_and(|index| index <= self.applied.0)
    }

    /// Returns `true` if a membership change can begin: the previous one is settled, and none is in
    /// progress.
    pub fn may_change_membership(&self) -> bool {
        self.is_membership_settled() && !self.engine.has_pending_membership()
    }

    /// Proposes the entry that settles the membership. The proposal can be lost, for example during
    /// a leadership transfer, so each tick retries it.
    fn settle_membership(&mut self) {
        // An empty entry is enough: a majority that has it on disk also has the commit of the
        // change.
        if self.is_serving() && !self.engine.membership().is_joint() && self.autopilot.settled_by.is_none() {
            self.autopilot.settled_by = self.engine.propose(vec![Bytes::new()]).ok();
        }
    }

    /// Replies to calls that wait for a membership change, once it is settled and the rows of
    /// removed servers are gone.
    pub(crate) fn tell_of_membership(&mut self, outbox: &mut Outbox) {
        if self.autopilot.waits_for_membership.is_empty() || !self.is_membership_settled() {
            return;
        }
        self.autopilot.leaving.retain(|id| self.state.server(*id).is_some());
        if self.autopilot.leaving.is_empty() {
            let tokens = std::mem::take(&mut self.autopilot.waits_for_membership);
            outbox.replies.extend(tokens.into_iter().map(|token| (token, Response::Done)));
        }
    }
}
