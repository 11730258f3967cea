//! Changes of the membership: additions and removals on request, promotions and removals of its
//! own, one change at a time. See the [module above](super) for when a change is settled.

use super::health::{Limits, RELIABLE_TRAILING};
use super::{Autopilot, DEAD_AFTER, Servers};
use crate::cluster::{ClusterView, Decision, Turn};
use crate::input::CallToken;
use crate::raft::engine::MemberChange;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Silence after which one of an even number of voters is removed, although no other server was
/// promoted in its place: without it the cluster tolerates as many failures, and needs one
/// acknowledgement less. Longer than a reboot takes.
const SPARE_DEAD_AFTER: Duration = Duration::from_secs(300);

/// The reason to keep a voter whose removal would leave fewer voters than configured.
fn short_of_minimum(servers: &Servers<'_>, server: ServerId) -> Option<String> {
    let voters = &servers.cluster.membership.voters;
    let rest = voters.iter().filter(|id| **id != server).count();
    let (autopilot, _) = servers.cluster.state.autopilot();
    (rest < voters.len() && rest < autopilot.min_quorum as usize).then(|| {
        format!(
            "cannot remove server {server}: {rest} voters would remain, and MinQuorum is {}",
            autopilot.min_quorum
        )
    })
}

const CHANGE_IS_UNDER_WAY: &str = "another change of the membership is under way: try again";

impl Autopilot {
    /// Starts a new leader's contact times, and removes the rows of servers that never became
    /// members.
    pub(super) fn start(&mut self, turn: &mut Turn<'_>) {
        let members = turn.view.membership.all();
        // Servers that were silent before may have talked to the previous leader, so their silence
        // counts from now.
        self.led_since = turn.now;
        // A leader may have died between adding a server's row and its membership, and only this
        // step clears the row. A server that still wants to join retries and gets a new id.
        let strangers = turn.view.state.servers().map(|server| server.id);
        self.leaving = strangers.filter(|id| !members.contains(id)).collect();
        self.forget_who_left(turn);
    }

    pub(super) fn add_server(
        &mut self,
        servers: &Servers<'_>,
        turn: &mut Turn<'_>,
        token: CallToken,
        server: ServerId,
    ) {
        let (view, members) = (turn.view, turn.view.membership);
        if members.voters.contains(&server) || members.learners.contains(&server) {
            turn.reply(token, Response::Done);
        } else if view.state.server(server).is_none() {
            // The row comes first: other servers need the address before they replicate to the
            // server.
            turn.deny(token, "that server was not found in the roster");
        } else if self.leaving.contains(&server) {
            // The next entries delete its row, and an id without a row counts as removed forever.
            turn.deny(token, "removal of that server is in progress: add it again with a new id");
        } else if !self.may_change_membership(servers) {
            // Each change must be settled before the next begins: see the module documentation.
            turn.deny(token, CHANGE_IS_UNDER_WAY);
        } else {
            turn.decide(Decision::ChangeMembership(MemberChange::Learner(server), Some(token)));
        }
    }

    pub(super) fn remove_server(
        &mut self,
        servers: &Servers<'_>,
        turn: &mut Turn<'_>,
        token: CallToken,
        server: ServerId,
    ) {
        let (view, members) = (turn.view, turn.view.membership);
        if !members.contains(server) && was_known(view, server) {
            self.remove_again(servers, turn, token, server);
        } else if members.voters_outgoing.contains(&server) && !members.voters.contains(&server) {
            self.waits_for_membership.push(token);
        } else if !members.voters.contains(&server) && !members.learners.contains(&server) {
            turn.deny(token, "that server was not found in the Raft configuration");
        } else if members.voters == [server] {
            turn.deny(token, "the only server that votes cannot be removed: add another one first");
        } else if server == view.id {
            // A leader that removes itself must lead without counting itself (thesis, 4.2.2); a
            // transfer is simpler.
            turn.deny(token, "this server leads: transfer the leadership first");
        } else if !self.may_change_membership(servers) {
            turn.deny(token, CHANGE_IS_UNDER_WAY);
        } else if let Some(short) = short_of_minimum(servers, server) {
            turn.deny(token, &short);
        } else if !self.can_do_without(servers, turn.now, server) {
            // The remaining servers might never commit the end of the joint membership, nor later
            // entries.
            turn.deny(token, "too few of the other servers are well: removing it would lose the quorum");
        } else {
            turn.decide(Decision::ChangeMembership(MemberChange::Gone(server), Some(token)));
        }
    }

    /// Handles a repeated removal, from a caller that did not receive the reply. A row that is left
    /// over is removed too.
    fn remove_again(
        &mut self,
        servers: &Servers<'_>,
        turn: &mut Turn<'_>,
        token: CallToken,
        server: ServerId,
    ) {
        if turn.view.state.server(server).is_some() && !self.leaving.contains(&server) {
            if !self.may_change_membership(servers) {
                return turn.deny(token, CHANGE_IS_UNDER_WAY);
            }
            // Left over by a leader that died between the membership change and the deletion of the
            // row.
            self.leaving.insert(server);
            self.forget_who_left(turn);
        }
        self.waits_for_membership.push(token);
        self.reply_if_settled(turn);
    }

    /// Returns `true` if the remaining servers can continue without a server: a majority of them is
    /// healthy.
    fn can_do_without(&self, servers: &Servers<'_>, now: Time, server: ServerId) -> bool {
        let voters = &servers.cluster.membership.voters;
        if !voters.contains(&server) {
            return true;
        }
        let rest: Vec<_> = voters.iter().copied().filter(|id| *id != server).collect();
        let (autopilot, _) = servers.cluster.state.autopilot();
        // Stricter than elsewhere: a server that died a moment ago must not count, and a refusal is
        // only a delay.
        let trailing = autopilot.max_trailing_logs.max(RELIABLE_TRAILING);
        let limits = Limits { silence: autopilot.last_contact_threshold, trailing };
        let well = rest.iter().filter(|id| self.keeps_up(servers, now, **id, &limits)).count();
        // A majority of the remaining servers, not of the present ones: after the change they alone
        // decide.
        well > rest.len() / 2
    }

    /// Proposes to delete the rows of servers that are no longer members. A proposal can be lost,
    /// for example during a leadership transfer, so it is repeated until the row is gone.
    pub(super) fn forget_who_left(&mut self, turn: &mut Turn<'_>) {
        self.leaving.retain(|id| turn.view.state.server(*id).is_some());
        for id in &self.leaving {
            let forget = Command::ForgetServer(*id);
            if !turn.is_on_its_way(|command| *command == forget) {
                turn.propose_own(forget);
            }
        }
    }

    /// Begins the change that the autopilot wants, if any.
    pub(super) fn change_membership(&mut self, servers: &Servers<'_>, turn: &mut Turn<'_>) {
        // During a leadership transfer the engine drops proposals, so the change would be lost.
        if self.may_change_membership(servers)
            && !servers.replication.is_transferring
            && let Some(change) = self.wanted_change(servers, turn.now)
        {
            let (action, server) = change.described();
            let node = turn.view.node_of(server);
            tracing::info!(action, server = server.0, %node, "changing the membership");
            // Before the new voter counts: it replaces the servers that are dead now.
            if let MemberChange::Voter(_) | MemberChange::Successor { .. } = change {
                self.note_replaced(turn);
            }
            turn.decide(Decision::ChangeMembership(change, None));
        }
    }

    /// Marks the servers that are dead when another one is promoted, so that they can be removed.
    fn note_replaced(&mut self, turn: &Turn<'_>) {
        let voters = turn.view.membership.voters.iter().copied();
        let is_dead = |id: &ServerId| *id != turn.view.id && self.unheard_for(turn.now, *id) > DEAD_AFTER;
        let dead: Vec<_> = voters.filter(is_dead).collect();
        self.replaced.extend(dead);
    }

    /// Returns the next change: promotes a learner that was stable long enough, then removes a
    /// voter that it replaces, or that is dead and one too many.
    fn wanted_change(&self, servers: &Servers<'_>, now: Time) -> Option<MemberChange> {
        let view = &servers.cluster;
        let members = view.membership;
        let (autopilot, _) = view.state.autopilot();
        let is_stable = |id: &&ServerId| {
            self.ready.get(id).is_some_and(|since| now.since(*since) >= autopilot.server_stabilization_time)
        };
        // Promotions first: one more vote makes a removal safer.
        if let Some(learner) = members.learners.iter().find(is_stable) {
            // The same node under a new id: two voters would count a lost disk and tolerate one
            // failure less.
            let former =
                members.voters.iter().find(|id| is_same_node_reborn(view, **id, *learner) && **id != view.id);
            return Some(match former {
                Some(former) => MemberChange::Successor { new: *learner, former: *former },
                None => MemberChange::Voter(*learner),
            });
        }
        let goes = |id: &&ServerId| {
            **id != view.id
                && (has_successor(view, **id)
                    || (autopilot.cleanup_dead_servers
                        && (self.replaced.contains(id) || self.is_spare_and_dead(view, now, **id))))
                && short_of_minimum(servers, **id).is_none()
                && self.can_do_without(servers, now, **id)
        };
        members.voters.iter().find(goes).map(|id| MemberChange::Gone(*id))
    }

    /// Returns `true` if a server died after another one was promoted, for example in the middle of
    /// its replacement.
    fn is_spare_and_dead(&self, view: &ClusterView<'_>, now: Time, id: ServerId) -> bool {
        view.membership.voters.len().is_multiple_of(2) && self.unheard_for(now, id) > SPARE_DEAD_AFTER
    }

    /// Handles an applied membership change; `before` lists the former members. A learner leaves
    /// with the first of its two steps, a voter with the last.
    pub(super) fn membership_applied(
        &mut self,
        turn: &mut Turn<'_>,
        before: &[ServerId],
        caller: Option<CallToken>,
    ) {
        // The change is in effect but not settled: its caller waits for one more entry, as do those
        // that retry, so that a retry never gets an earlier reply.
        self.waits_for_membership.extend(caller);
        let now_there = turn.view.membership.all();
        for gone in before.iter().filter(|id| !now_there.contains(id)) {
            self.replaced.remove(gone);
            self.ready.remove(gone);
            // Only the leader proposes deleting rows; a new leader finds them at the start of its
            // term.
            if turn.view.is_serving() {
                self.leaving.insert(*gone);
            }
        }
        self.forget_who_left(turn);
        self.settled_by = None;
        self.settle_membership(turn);
    }

    /// Returns `true` if no earlier membership can take effect again, whatever fails.
    pub(super) fn is_membership_settled(&self, view: &ClusterView<'_>) -> bool {
        // Both conditions: a joint membership is followed by another one, even if later entries are
        // applied.
        !view.membership.is_joint() && self.settled_by.is_some_and(|index| index <= view.applied.0)
    }

    /// Returns `true` if a membership change can begin: the previous one is settled, and none is in
    /// progress.
    pub(super) fn may_change_membership(&self, servers: &Servers<'_>) -> bool {
        self.is_membership_settled(&servers.cluster) && !servers.replication.has_pending_membership
    }

    /// Proposes the entry that settles the membership. The proposal can be lost, for example during
    /// a leadership transfer, so each tick retries it.
    pub(super) fn settle_membership(&mut self, turn: &mut Turn<'_>) {
        // An empty entry is enough: a majority that has it on disk also has the commit of the
        // change.
        if turn.view.is_serving() && !turn.view.membership.is_joint() && self.settled_by.is_none() {
            turn.decide(Decision::SettleMembership);
        }
    }

    /// Replies to calls that wait for a membership change, once it is settled and the rows of
    /// removed servers are gone.
    pub(super) fn reply_if_settled(&mut self, turn: &mut Turn<'_>) {
        if self.waits_for_membership.is_empty() || !self.is_membership_settled(turn.view) {
            return;
        }
        self.leaving.retain(|id| turn.view.state.server(*id).is_some());
        if self.leaving.is_empty() {
            for token in self.waits_for_membership.drain(..) {
                turn.reply(token, Response::Done);
            }
        }
    }
}

/// Returns `true` if an id was ever assigned to a server.
fn was_known(view: &ClusterView<'_>, server: ServerId) -> bool {
    server != ServerId(0) && server <= view.state.last_server()
}

/// Returns `true` if the same node has returned as another server that has a vote.
fn has_successor(view: &ClusterView<'_>, id: ServerId) -> bool {
    view.membership.voters.iter().any(|voter| is_same_node_reborn(view, id, *voter))
}

/// Returns `true` if a server is an earlier registration of the same node, before its data folder
/// was emptied.
fn is_same_node_reborn(view: &ClusterView<'_>, former: ServerId, now: ServerId) -> bool {
    let node = |id| view.state.server(id).map(|server| server.node.folded());
    former < now && node(former).is_some() && node(former) == node(now)
}
