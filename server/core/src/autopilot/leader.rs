//! Autopilot: the leader looks after the other servers. Who is healthy, who has caught up and gets
//! its vote, who is removed, and how far the log may be compacted.
//!
//! A membership changes one server at a time, through a joint one; who comes back emptied takes its
//! own place in one move, so that no dead vote is ever counted beside its own. **Invariants:** no
//! server is taken out unless those that remain and are well are a majority of the rest; a server
//! that goes takes no session with it; a row of the roster lives as long as its server is a member.
//!
//! A commit index reaches the disks with the next write. Until then a power failure everywhere
//! brings the membership before back, and whoever was taken out has a vote again. So a change is
//! *settled* only once an entry behind it is applied: whoever has that entry on disk has the commit
//! of the change with it, and a majority does. Before that nobody is told that the change is done,
//! no other one begins, and whoever was taken out still votes.

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

/// How long a transfer of leadership may take before it is called off.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that was told of a snapshot and is not there after so long is told again.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that was heard this lately is there, however strict the threshold for its health is.
const RELIABLE_CONTACT: Duration = Duration::from_secs(1);
/// One that lags by no more entries than this follows: under load so many are on their way.
const RELIABLE_TRAILING: u64 = 10_000;
/// After so long without a word a server counts as dead where another one came in its place.
const DEAD_AFTER: Duration = Duration::from_secs(10);

impl Core {
    /// How long ago a server was heard: any other server where this one leads, else the leader.
    /// Zero for itself.
    pub fn last_contact(&self, now: Time, server: ServerId) -> Option<Duration> {
        match self.engine.leader() {
            _ if server == self.config.id => Some(Duration::ZERO),
            // A follower hears its leader only; that the others are silent towards it says nothing
            // of them.
            Some(leader) if leader == self.config.id || leader == server => {
                self.autopilot.last_heard(now, server)
            }
            _ => None,
        }
    }

    /// For how long this leader has not heard a server; one that it never heard, since it began to
    /// lead.
    pub fn silence_of(&self, now: Time, server: ServerId) -> Duration {
        self.autopilot.unheard_for(now, server)
    }

    /// Whether this leader has heard a majority of the voters within this time.
    pub fn hears_majority(&self, now: Time, within: Duration) -> bool {
        let is_heard = |id| id == self.config.id || self.silence_of(now, id) <= within;
        self.engine.membership().is_majority(is_heard)
    }

    /// After how long without a word the one at the other end is taken for gone: what an election
    /// may wait for, and not less than what a busy server may be silent.
    pub fn longest_silence(&self) -> Duration {
        (TICK * 2 * self.config.election.ticks as u32).max(RELIABLE_CONTACT)
    }

    /// Whether the leader finds a server well: heard lately, not far behind, and not corrupt.
    pub fn is_healthy(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        // A corrupt one may follow perfectly: it is its state that must not be relied on.
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

    /// Since when the leader has found a server as well, or as ill, as it is now.
    pub fn stable_since(&self, server: ServerId) -> Option<WallTime> {
        self.autopilot.health.get(&server).map(|health| health.since)
    }

    /// Whether a server is well enough to be counted on: a busy one may be silent for a moment, or
    /// a moment behind.
    pub(crate) fn is_reliable(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        // A strict threshold makes health flap with every pause of a disk; a vote or a transfer
        // must not hang on that.
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
        // Where the log is short, one that holds nothing yet lags by few entries.
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
        // The one that has least to catch up with: until it has, nothing can be written
        // (thesis, 3.10).
        let most_advanced = well.max_by_key(|id| self.progress(*id).unwrap_or_default().matched);
        match to.or(most_advanced) {
            _ if !self.is_serving() => outbox.fail(token, not_leader()),
            Some(to) if to == self.config.id => outbox.replies.push((token, Response::Done)),
            // The engine would call off the first one in silence, and its caller would wait for the
            // time-out.
            Some(_) if self.autopilot.transfer.is_some() => {
                outbox.deny(token, "another transfer is under way");
            }
            Some(to) if others.contains(&to) => {
                self.engine.transfer_leader(to);
                // Answered when this server steps down, or called off after a while: the engine
                // says neither.
                self.autopilot.transfer = Some((token, now));
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
            // The row comes first: others must know where to reach a server before they may have
            // to.
            outbox.deny(token, "that server was not found in the roster");
        } else if self.autopilot.leaving.contains(&server) {
            // Its row goes with the next entries, and an id without a row counts as removed for
            // ever.
            outbox.deny(token, "that server is being forgotten: it must be admitted anew");
        } else if !self.may_change_membership() {
            // Each change must be settled before the next begins: see the top of this file.
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
            // transfer is the simpler way.
            outbox.deny(token, "this server leads: transfer the leadership first");
        } else if !self.may_change_membership() {
            outbox.deny(token, "another change of the membership is under way: try again");
        } else if !self.can_do_without(now, server) {
            // The rest might never commit the end of the joint membership, nor anything behind it.
            outbox.deny(token, "too few of the other servers are well to go on without it");
        } else {
            self.propose_membership(now, MemberChange::Gone(server), Some(token), outbox);
        }
    }

    /// Whether a server has an id that was given to one.
    fn was_known(&self, server: ServerId) -> bool {
        server != ServerId(0) && server <= self.state.last_server()
    }

    /// Who did not hear the answer asks again, and it is as he wants it. A row that is left goes
    /// too.
    fn remove_again(&mut self, token: CallToken, server: ServerId, outbox: &mut Outbox) {
        if self.state.server(server).is_some() && !self.autopilot.leaving.contains(&server) {
            if !self.may_change_membership() {
                return outbox.deny(token, "another change of the membership is under way: try again");
            }
            // Left by a leader that died between the end of the membership and the row's.
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

    /// Whether those that remain without a server go on: a majority of them is well, and they are
    /// enough.
    fn can_do_without(&self, now: Time, server: ServerId) -> bool {
        let voters = &self.engine.membership().voters;
        if !voters.contains(&server) {
            return true;
        }
        let rest: Vec<_> = voters.iter().copied().filter(|id| *id != server).collect();
        let (autopilot, _) = self.state.autopilot();
        // Stricter than elsewhere: one that died a moment ago must not be counted on, and no is
        // only a delay.
        let trailing = autopilot.max_trailing_logs.max(RELIABLE_TRAILING);
        let is_there = |id: &&ServerId| self.keeps_up(now, **id, autopilot.last_contact_threshold, trailing);
        let well = rest.iter().filter(is_there).count();
        // More than half of those who remain, not of those who are there now: from the change on
        // they alone decide.
        well > rest.len() / 2 && rest.len() >= autopilot.min_quorum as usize
    }

    /// A new leader waits anew for a word of everybody, and forgets rows whose servers never became
    /// members.
    pub(crate) fn start_autopilot(&mut self, now: Time) {
        let members = self.engine.membership().all();
        // Whoever was silent before may have spoken to the leader before: that is held against
        // nobody.
        self.autopilot.led_since = now;
        // A leader may have died between the row and the membership of a server, and nobody else
        // would clear the row away. A server that still wants to join asks again, and gets a new
        // id.
        let strangers = self.state.servers().map(|server| server.id).filter(|id| !members.contains(id));
        self.autopilot.leaving = strangers.collect();
        self.forget_who_left();
    }

    /// Proposes that the rows of those go who are no members any more. A proposal may come to
    /// nothing, as while the leadership is to move, so it is made again until the row is gone.
    fn forget_who_left(&mut self) {
        self.autopilot.leaving.retain(|id| self.state.server(*id).is_some());
        for id in self.autopilot.leaving.clone() {
            let forget = Command::ForgetServer(id);
            if !self.is_on_its_way(|command| *command == forget) {
                self.gather_own(forget);
            }
        }
    }

    /// Once a tick.
    pub(crate) fn run_autopilot(&mut self, now: Time, outbox: &mut Outbox) {
        // The engine aborts a transfer after one election timeout without reporting it. Until the
        // next one is accepted, a leader that is unfit to lead blocks the failover.
        let is_aborted = !self.engine.is_transferring();
        if let Some((token, _)) =
            self.autopilot.transfer.take_if(|(_, began)| is_aborted || now.since(*began) > TRANSFER_TIMEOUT)
        {
            outbox.deny(token, "the other server did not take over: see whether it is up to date");
        }
        // Also before it serves: it may need that follower to serve at all.
        self.announce_snapshots_again(now);
        if !self.is_serving() {
            return;
        }
        self.forget_who_left();
        self.raise_format_if_all_read_it();
        self.settle_membership();
        self.notice_health(now);
        self.notice_who_is_ready(now);
        // While the leadership moves, the engine drops proposals: the change would only come to
        // nothing.
        if self.may_change_membership()
            && self.autopilot.transfer.is_none()
            && let Some(change) = self.wanted_change(now)
        {
            let (action, server) = change.described();
            tracing::info!(action, server = server.0, node = %self.node_of(server), "changing the membership");
            // Before the newcomer counts: those that are dead now are the ones that it makes up
            // for.
            if let MemberChange::Voter(_) | MemberChange::Successor { .. } = change {
                self.note_replaced(now);
            }
            self.propose_membership(now, change, None, outbox);
        }
    }

    /// Another server comes: those that are dead by now are no longer waited for.
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
            // It has it already: a late refusal of what it had not yet took the engine back. It
            // will not say so again.
            if snapshot <= matched {
                // "Failure" makes the engine probe again from what the server has, which is all
                // that is wanted.
                self.engine.snapshot_failed(server);
                continue;
            }
            // The first one told counts: as long as the server fetches, it may get that one, and
            // needs the log from there.
            let fetching = self.autopilot.fetching.entry(server).or_insert(Fetching { snapshot, told: now });
            // The message or the answer may be lost, and the engine sends nothing else until it
            // hears of one.
            if now.since(fetching.told) > SNAPSHOT_TIMEOUT {
                fetching.told = now;
                self.engine.snapshot_failed(server);
            }
        }
    }

    /// How far the log may be compacted behind a durable snapshot: not past what a follower still
    /// needs, as long as that is not too much to keep. Of a follower that is given a snapshot, what
    /// comes behind the snapshot is kept for longer: it would have to fetch another one in vain
    /// otherwise.
    pub(crate) fn compaction_index(&self, now: Time, snapshot: LogIndex) -> LogIndex {
        // Who follows keeps less: only if it leads one day others ask it for this.
        let keep = self.config.log_keep_bytes / if self.engine.is_leader() { 1 } else { 4 };
        let least = self.engine.index_before_last(keep);
        let least_fetching = self.engine.index_before_last(keep.max(self.config.log_keep_fetching_bytes));
        let needed = |id: ServerId| {
            let Progress { matched, snapshot } = self.progress(id).unwrap_or_default();
            let fetching = self.autopilot.fetching.get(&id).map(|fetching| fetching.snapshot).or(snapshot);
            // Of a dead one nothing is kept beyond what is kept for all: when it comes back it
            // fetches a newer snapshot.
            let is_there =
                self.autopilot.last_heard(now, id).is_some_and(|last_heard| last_heard <= DEAD_AFTER);
            match fetching.filter(|_| is_there) {
                Some(snapshot) => snapshot.max(matched).max(least_fetching),
                None => matched.max(least),
            }
        };
        let others = self.engine.membership().all().into_iter().filter(|id| *id != self.config.id);
        // Never past the snapshot itself: what is neither in it nor in the log would be lost
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
                // One bad moment begins the time anew: a server that comes and goes must not get a
                // vote.
                self.autopilot.ready.remove(&learner);
            }
        }
    }

    /// A learner that was well for long enough gets its vote; then whoever it replaces goes.
    fn wanted_change(&self, now: Time) -> Option<MemberChange> {
        let members = self.engine.membership();
        let (autopilot, _) = self.state.autopilot();
        let is_stable = |id: &&ServerId| {
            self.autopilot
                .ready
                .get(id)
                .is_some_and(|since| now.since(*since) >= autopilot.server_stabilization_time)
        };
        // Votes first: with one more the quorum can better do without whoever goes.
        if let Some(learner) = members.learners.iter().find(is_stable) {
            // The same node under a new id: both as voters would count a disk that is gone, and one
            // failure less would be borne.
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
                    || (autopilot.cleanup_dead_servers && self.autopilot.replaced.contains(id)))
                && self.can_do_without(now, **id)
        };
        members.voters.iter().find(goes).map(|id| MemberChange::Gone(*id))
    }

    /// Whether the same node came back as another server, which has its vote.
    fn has_successor(&self, id: ServerId) -> bool {
        self.engine.membership().voters.iter().any(|voter| self.is_same_node_reborn(id, *voter))
    }

    /// Whether a server was the same node in an earlier life of its data folder.
    fn is_same_node_reborn(&self, former: ServerId, now: ServerId) -> bool {
        let node = |id| self.state.server(id).map(|server| server.node.folded());
        former < now && node(former).is_some() && node(former) == node(now)
    }

    /// A change of the membership was applied; `before` are those who belonged to it. A learner
    /// goes with the first of its two steps, a voter with the last.
    pub(crate) fn notice_membership(&mut self, before: &[ServerId]) {
        let now_there = self.engine.membership().all();
        for gone in before.iter().filter(|id| !now_there.contains(id)) {
            self.autopilot.replaced.remove(gone);
            self.autopilot.ready.remove(gone);
            // Only the leader proposes the end of rows; another one finds them when it begins to
            // lead.
            if self.is_serving() {
                self.autopilot.leaving.insert(*gone);
            }
        }
        self.forget_who_left();
        self.autopilot.settled_by = None;
        self.settle_membership();
    }

    /// Whether no membership but this one can count again, whatever fails.
    pub fn is_membership_settled(&self) -> bool {
        // Both: a joint membership has another one to come, whatever is applied behind it.
        !self.engine.membership().is_joint()
            && self.autopilot.settled_by.is_some_and(|index| index <= self.applied.0)
    }

    /// Whether a change of the membership can begin: the one before is settled, and none is under
    /// way.
    pub fn may_change_membership(&self) -> bool {
        self.is_membership_settled() && !self.engine.has_pending_membership()
    }

    /// Proposes the entry that settles the membership. It may come to nothing, as while the
    /// leadership is to move, so it is tried again at the next tick.
    fn settle_membership(&mut self) {
        // An empty entry will do. What counts is that a majority has it on disk, and with it the
        // commit of the change.
        if self.is_serving() && !self.engine.membership().is_joint() && self.autopilot.settled_by.is_none() {
            self.autopilot.settled_by = self.engine.propose(vec![Bytes::new()]).ok();
        }
    }

    /// Answers those who wait for a change of the membership, once it is settled and those who left
    /// are forgotten.
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
