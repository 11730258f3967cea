//! The leader looks after the other servers: who is well, who has caught up and gets its vote, who goes.
//!
//! A membership changes one server at a time, through a joint one; who comes back emptied takes its own place in one
//! move, so that no dead vote is ever counted beside its own. **Invariants:** no server is taken out unless those
//! that remain and are well are a majority of the rest; a server that goes takes no session with it; a row of the
//! roster lives as long as its server is a member.
//!
//! A commit index reaches the disks with the next write. Until then a power failure everywhere brings the membership
//! before back, and whoever was taken out has a vote again. So a change is *settled* only once an entry behind it is
//! applied: whoever has that entry on disk has the commit of the change with it, and a majority does. Before that
//! nobody is told that the change is done, no other one begins, and whoever was taken out still votes.

use crate::core::{Core, deny, fail, lost_leadership, not_leader};
use crate::input::Ticket;
use crate::outbox::Outbox;
use crate::raft::Progress;
use crate::raft::engine::MemberChange;
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a transfer of leadership may take before it is called off.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that was told of an image and is not there after so long is told again.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that was heard this lately is there, however strict the threshold for its health is.
const RELIABLE_SILENCE: Duration = Duration::from_secs(1);
/// One that lags by no more entries than this follows: under load so many are on their way.
const RELIABLE_TRAILING: u64 = 10_000;
/// After so long without a word a server counts as dead where another one came in its place.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// What is known of the other servers. All but `heard` is the leader's.
#[derive(Debug, Default)]
pub(crate) struct Quorum {
    /// When each was heard last.
    heard: BTreeMap<ServerId, Time>,
    /// When this server began to lead.
    led_since: Time,
    /// How each member was found at the last tick.
    health: BTreeMap<ServerId, Health>,
    /// Since when a learner could have its vote.
    ready: BTreeMap<ServerId, Time>,
    /// Servers that were told of an image and are not there yet.
    fetching: BTreeMap<ServerId, Fetching>,
    /// Servers that were dead when another one got its vote.
    replaced: BTreeSet<ServerId>,
    /// Servers that are no members any more, until their rows are gone.
    leaving: BTreeSet<ServerId>,
    /// A transfer of leadership, and when it began.
    pub(crate) transfer: Option<(Ticket, Time)>,
    /// The entry behind the newest membership that settles it, where there is one already.
    settled_by: Option<LogIndex>,
    /// Those who wait until the membership is settled, and the rows of those who left are gone.
    pub(crate) waits_for_membership: Vec<Ticket>,
}

/// Whether a server is well, and since when that has been so without a break.
#[derive(Clone, Copy, Debug)]
struct Health {
    is_healthy: bool,
    since: WallTime,
}

/// A server that was told of an image, and may be fetching it ever since.
#[derive(Debug)]
struct Fetching {
    /// The image that it was told of first. Later ones are newer.
    image: LogIndex,
    /// When it was told last.
    told: Time,
}

impl Quorum {
    /// A server said something.
    pub(crate) fn heard(&mut self, now: Time, server: ServerId) {
        self.heard.insert(server, now);
    }

    /// This server no longer leads.
    pub(crate) fn step_down(&mut self, outbox: &mut Outbox) {
        if let Some((ticket, _)) = self.transfer.take() {
            outbox.replies.push((ticket, Response::Done));
        }
        for ticket in self.waits_for_membership.drain(..) {
            fail(outbox, ticket, lost_leadership());
        }
        let heard = std::mem::take(&mut self.heard);
        *self = Self { heard, ..Self::default() };
    }

    fn silence(&self, now: Time, server: ServerId) -> Option<Duration> {
        self.heard.get(&server).map(|heard| now.since(*heard))
    }

    /// For how long a leader has waited for a word: whoever it never heard may have spoken to the one before it.
    fn patience(&self, now: Time, server: ServerId) -> Duration {
        now.since(self.heard.get(&server).copied().unwrap_or_default().max(self.led_since))
    }
}

impl Core {
    /// How long ago a server was heard: any other server where this one leads, else the leader. Zero for itself.
    pub fn last_contact(&self, now: Time, server: ServerId) -> Option<Duration> {
        match self.engine.leader() {
            _ if server == self.config.id => Some(Duration::ZERO),
            Some(leader) if leader == self.config.id || leader == server => self.quorum.silence(now, server),
            _ => None,
        }
    }

    /// Whether the leader finds a server well: heard lately, not far behind, and not corrupt.
    pub fn is_healthy(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        let is_corrupt = self.corruption.is_corrupt(server);
        !is_corrupt
            && self.keeps_up(now, server, autopilot.last_contact_threshold, autopilot.max_trailing_logs)
    }

    /// Since when the leader has found a server as well, or as ill, as it is now.
    pub fn stable_since(&self, server: ServerId) -> Option<WallTime> {
        self.quorum.health.get(&server).map(|health| health.since)
    }

    /// Whether a server is well enough to be counted on: a busy one may be silent for a moment, or a moment behind.
    fn is_reliable(&self, now: Time, server: ServerId) -> bool {
        let (autopilot, _) = self.state.autopilot();
        let silence_allowed = autopilot.last_contact_threshold.max(RELIABLE_SILENCE);
        self.keeps_up(now, server, silence_allowed, autopilot.max_trailing_logs.max(RELIABLE_TRAILING))
    }

    fn keeps_up(
        &self,
        now: Time,
        server: ServerId,
        silence_allowed: Duration,
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
            && self.quorum.silence(now, server).is_some_and(|silence| silence <= silence_allowed)
    }

    pub(crate) fn transfer_leader(
        &mut self,
        now: Time,
        ticket: Ticket,
        to: Option<ServerId>,
        outbox: &mut Outbox,
    ) {
        let others: Vec<_> =
            self.engine.membership().voters.iter().copied().filter(|id| *id != self.config.id).collect();
        let is_well = |id: &ServerId| self.is_reliable(now, *id) && !self.corruption.is_corrupt(*id);
        let well = others.iter().copied().filter(is_well);
        let most_advanced = well.max_by_key(|id| self.progress(*id).unwrap_or_default().matched);
        match to.or(most_advanced) {
            _ if !self.is_serving() => fail(outbox, ticket, not_leader()),
            Some(to) if to == self.config.id => outbox.replies.push((ticket, Response::Done)),
            Some(_) if self.quorum.transfer.is_some() => {
                deny(outbox, ticket, "another transfer is under way");
            }
            Some(to) if others.contains(&to) => {
                self.engine.transfer_leader(to);
                self.quorum.transfer = Some((ticket, now));
            }
            Some(_) => deny(outbox, ticket, "that server has no vote"),
            None => deny(outbox, ticket, "there is no other server that could lead"),
        }
    }

    pub(crate) fn add_server(&mut self, now: Time, ticket: Ticket, server: ServerId, outbox: &mut Outbox) {
        let members = self.engine.membership();
        if !self.is_serving() {
            fail(outbox, ticket, not_leader());
        } else if members.voters.contains(&server) || members.learners.contains(&server) {
            outbox.replies.push((ticket, Response::Done));
        } else if self.state.server(server).is_none() {
            deny(outbox, ticket, "that server was not found in the roster");
        } else if self.quorum.leaving.contains(&server) {
            deny(outbox, ticket, "that server is being forgotten: it must be admitted anew");
        } else if !self.may_change_membership() {
            deny(outbox, ticket, "another change of the membership is under way: try again");
        } else {
            self.propose_membership(now, MemberChange::Learner(server), Some(ticket), outbox);
        }
    }

    pub(crate) fn remove_server(&mut self, now: Time, ticket: Ticket, server: ServerId, outbox: &mut Outbox) {
        let members = self.engine.membership();
        if !self.is_serving() {
            fail(outbox, ticket, not_leader());
        } else if !members.contains(server) && self.was_known(server) {
            self.remove_again(ticket, server, outbox);
        } else if members.voters_outgoing.contains(&server) && !members.voters.contains(&server) {
            self.quorum.waits_for_membership.push(ticket);
        } else if !members.voters.contains(&server) && !members.learners.contains(&server) {
            deny(outbox, ticket, "that server was not found in the Raft configuration");
        } else if members.voters == [server] {
            deny(outbox, ticket, "the only server that votes cannot be removed: add another one first");
        } else if server == self.config.id {
            deny(outbox, ticket, "this server leads: transfer the leadership first");
        } else if !self.may_change_membership() {
            deny(outbox, ticket, "another change of the membership is under way: try again");
        } else if !self.can_do_without(now, server) {
            deny(outbox, ticket, "too few of the other servers are well to go on without it");
        } else {
            self.propose_membership(now, MemberChange::Gone(server), Some(ticket), outbox);
        }
    }

    /// Whether a server has an id that was given to one.
    fn was_known(&self, server: ServerId) -> bool {
        server != ServerId(0) && server <= self.state.last_server()
    }

    /// Who did not hear the answer asks again, and it is as he wants it. A row that is left goes too.
    fn remove_again(&mut self, ticket: Ticket, server: ServerId, outbox: &mut Outbox) {
        if self.state.server(server).is_some() && !self.quorum.leaving.contains(&server) {
            if !self.may_change_membership() {
                return deny(outbox, ticket, "another change of the membership is under way: try again");
            }
            self.quorum.leaving.insert(server);
            self.forget_who_left();
        }
        self.quorum.waits_for_membership.push(ticket);
        self.tell_of_membership(outbox);
    }

    fn propose_membership(
        &mut self,
        now: Time,
        change: MemberChange,
        ticket: Option<Ticket>,
        outbox: &mut Outbox,
    ) {
        match (self.engine.propose_membership(change), ticket) {
            (Ok(index), ticket) => self.await_membership(now, index, ticket),
            (Err(_), Some(ticket)) => fail(outbox, ticket, not_leader()),
            (Err(_), None) => {}
        }
    }

    /// Whether those that remain without a server go on: a majority of them is well, and they are enough.
    fn can_do_without(&self, now: Time, server: ServerId) -> bool {
        let voters = &self.engine.membership().voters;
        if !voters.contains(&server) {
            return true;
        }
        let rest: Vec<_> = voters.iter().copied().filter(|id| *id != server).collect();
        let (autopilot, _) = self.state.autopilot();
        // Stricter than elsewhere: one that died a moment ago must not be counted on, and no is only a delay.
        let trailing = autopilot.max_trailing_logs.max(RELIABLE_TRAILING);
        let is_there = |id: &&ServerId| self.keeps_up(now, **id, autopilot.last_contact_threshold, trailing);
        let well = rest.iter().filter(is_there).count();
        well > rest.len() / 2 && rest.len() >= autopilot.min_quorum as usize
    }

    /// A new leader waits anew for a word of everybody, and forgets rows whose servers never became members.
    pub(crate) fn begin_to_look_after_servers(&mut self, now: Time) {
        let members = self.engine.membership().all();
        self.quorum.led_since = now;
        let strangers = self.state.servers().map(|server| server.id).filter(|id| !members.contains(id));
        self.quorum.leaving = strangers.collect();
        self.forget_who_left();
    }

    /// Proposes that the rows of those go who are no members any more. A proposal may come to nothing, as while the
    /// leadership is to move, so it is made again until the row is gone.
    fn forget_who_left(&mut self) {
        self.quorum.leaving.retain(|id| self.state.server(*id).is_some());
        for id in self.quorum.leaving.clone() {
            let forget = Command::ForgetServer(id);
            if !self.is_on_its_way(&forget) {
                self.gather_own(forget);
            }
        }
    }

    /// Once a tick.
    pub(crate) fn look_after_servers(&mut self, now: Time, outbox: &mut Outbox) {
        if let Some((ticket, _)) =
            self.quorum.transfer.take_if(|(_, began)| now.since(*began) > TRANSFER_TIMEOUT)
        {
            deny(outbox, ticket, "the other server did not take over: see whether it is up to date");
        }
        // Also before it serves: it may need that follower to serve at all.
        self.tell_again_of_images(now);
        if !self.is_serving() {
            return;
        }
        self.forget_who_left();
        self.settle_membership();
        self.notice_health(now);
        self.notice_who_is_ready(now);
        if self.may_change_membership()
            && self.quorum.transfer.is_none()
            && let Some(change) = self.wanted_change(now)
        {
            tracing::info!(?change, "the membership changes");
            if let MemberChange::Voter(_) | MemberChange::Successor { .. } = change {
                self.note_replaced(now);
            }
            self.propose_membership(now, change, None, outbox);
        }
    }

    /// Another server comes: those that are dead by now are no longer waited for.
    fn note_replaced(&mut self, now: Time) {
        let voters = self.engine.membership().voters.iter().copied();
        let is_dead = |id: &ServerId| *id != self.config.id && self.quorum.patience(now, *id) > DEAD_AFTER;
        let dead: Vec<_> = voters.filter(is_dead).collect();
        self.quorum.replaced.extend(dead);
    }

    fn tell_again_of_images(&mut self, now: Time) {
        for server in self.engine.membership().all() {
            let Progress { matched, snapshot } = self.progress(server).unwrap_or_default();
            if self.quorum.fetching.get(&server).is_some_and(|fetching| fetching.image <= matched) {
                self.quorum.fetching.remove(&server);
            }
            let Some(image) = snapshot else { continue };
            // It has it already: a late refusal of what it had not yet took the engine back. It will not say so again.
            if image <= matched {
                self.engine.snapshot_failed(server);
                continue;
            }
            let fetching = self.quorum.fetching.entry(server).or_insert(Fetching { image, told: now });
            if now.since(fetching.told) > SNAPSHOT_TIMEOUT {
                fetching.told = now;
                self.engine.snapshot_failed(server);
            }
        }
    }

    /// How far the log may be cut behind a durable image: not past what a follower still needs, as long as that is
    /// not too much to keep. Of a follower that is given an image, what comes behind the image is kept for longer: it
    /// would have to fetch another one in vain otherwise.
    pub(crate) fn cut_index(&self, now: Time, image: LogIndex) -> LogIndex {
        // Who follows keeps less: only if it leads one day others ask it for this.
        let keep = self.config.log_keep_bytes / if self.engine.is_leader() { 1 } else { 4 };
        let least = self.engine.index_before_last(keep);
        let least_fetching = self.engine.index_before_last(keep.max(self.config.log_keep_fetching_bytes));
        let needed = |id: ServerId| {
            let Progress { matched, snapshot } = self.progress(id).unwrap_or_default();
            let fetching = self.quorum.fetching.get(&id).map(|fetching| fetching.image).or(snapshot);
            let is_there = self.quorum.silence(now, id).is_some_and(|silence| silence <= DEAD_AFTER);
            match fetching.filter(|_| is_there) {
                Some(image) => image.max(matched).max(least_fetching),
                None => matched.max(least),
            }
        };
        let others = self.engine.membership().all().into_iter().filter(|id| *id != self.config.id);
        others.map(needed).fold(image, LogIndex::min)
    }

    fn notice_health(&mut self, now: Time) {
        let (members, since) = (self.engine.membership().all(), self.wall);
        self.quorum.health.retain(|id, _| members.contains(id));
        for server in members {
            let is_healthy = self.is_healthy(now, server);
            let known = self.quorum.health.get(&server).filter(|known| known.is_healthy == is_healthy);
            if known.is_none() {
                self.quorum.health.insert(server, Health { is_healthy, since });
            }
        }
    }

    fn notice_who_is_ready(&mut self, now: Time) {
        for learner in self.engine.membership().learners.clone() {
            if self.is_reliable(now, learner) {
                self.quorum.ready.entry(learner).or_insert(now);
            } else {
                self.quorum.ready.remove(&learner);
            }
        }
    }

    /// A learner that was well for long enough gets its vote; then whoever it replaces goes.
    fn wanted_change(&self, now: Time) -> Option<MemberChange> {
        let members = self.engine.membership();
        let (autopilot, _) = self.state.autopilot();
        let is_stable = |id: &&ServerId| {
            self.quorum
                .ready
                .get(id)
                .is_some_and(|since| now.since(*since) >= autopilot.server_stabilization_time)
        };
        if let Some(learner) = members.learners.iter().find(is_stable) {
            let former = members.voters.iter().find(|id| self.was(**id, *learner) && **id != self.config.id);
            return Some(match former {
                Some(former) => MemberChange::Successor { new: *learner, former: *former },
                None => MemberChange::Voter(*learner),
            });
        }
        let goes = |id: &&ServerId| {
            **id != self.config.id
                && (self.has_successor(**id)
                    || (autopilot.cleanup_dead_servers && self.quorum.replaced.contains(id)))
                && self.can_do_without(now, **id)
        };
        members.voters.iter().find(goes).map(|id| MemberChange::Gone(*id))
    }

    /// Whether the same node came back as another server, which has its vote.
    fn has_successor(&self, id: ServerId) -> bool {
        self.engine.membership().voters.iter().any(|voter| self.was(id, *voter))
    }

    /// Whether a server was the same node in an earlier life of its data folder.
    fn was(&self, former: ServerId, now: ServerId) -> bool {
        let node = |id| self.state.server(id).map(|server| server.node.folded());
        former < now && node(former).is_some() && node(former) == node(now)
    }

    /// A change of the membership was applied; `before` are those who belonged to it. A learner goes with the first of
    /// its two steps, a voter with the last.
    pub(crate) fn notice_membership(&mut self, before: &[ServerId]) {
        let now_there = self.engine.membership().all();
        for gone in before.iter().filter(|id| !now_there.contains(id)) {
            self.quorum.replaced.remove(gone);
            self.quorum.ready.remove(gone);
            if self.is_serving() {
                self.quorum.leaving.insert(*gone);
            }
        }
        self.forget_who_left();
        self.quorum.settled_by = None;
        self.settle_membership();
    }

    /// Whether no membership but this one can count again, whatever fails.
    pub fn is_membership_settled(&self) -> bool {
        !self.engine.membership().is_joint()
            && self.quorum.settled_by.is_some_and(|index| index <= self.applied.0)
    }

    /// Whether a change of the membership can begin: the one before is settled, and none is under way.
    pub fn may_change_membership(&self) -> bool {
        self.is_membership_settled() && !self.engine.has_pending_membership()
    }

    /// Proposes the entry that settles the membership. It may come to nothing, as while the leadership is to move, so
    /// it is tried again at the next tick.
    fn settle_membership(&mut self) {
        if self.is_serving() && !self.engine.membership().is_joint() && self.quorum.settled_by.is_none() {
            self.quorum.settled_by = self.engine.propose(vec![Bytes::new()]).ok();
        }
    }

    /// Answers those who wait for a change of the membership, once it is settled and those who left are forgotten.
    pub(crate) fn tell_of_membership(&mut self, outbox: &mut Outbox) {
        if self.quorum.waits_for_membership.is_empty() || !self.is_membership_settled() {
            return;
        }
        self.quorum.leaving.retain(|id| self.state.server(*id).is_some());
        if self.quorum.leaving.is_empty() {
            let tickets = std::mem::take(&mut self.quorum.waits_for_membership);
            outbox.replies.extend(tickets.into_iter().map(|ticket| (ticket, Response::Done)));
        }
    }
}
