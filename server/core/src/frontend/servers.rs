//! Service to the other servers: admission, announcements, removal, and the status of the quorum.

use super::Frontend;
use super::actions::{Actions, Announcement, AnswerKind, RosterChange};
use super::event::CallRef;
use super::pending::{CallKind, Pending};
use super::stalls::has_other_voters;
use super::status::with_leader_hint;
use crate::core::Core;
use crate::input::{Input, ServerRequest};
use crate::outbox::not_leader;
use crate::raft::log::Membership;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::record::{NewServer, Server};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Joined, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The progress of a server's removal from the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// Not removed.
    No,
    /// The server has applied the end of its membership. A power failure on all servers may restore
    /// the previous membership, which needs its vote: it still stores entries and votes, but serves
    /// no agent.
    Applied,
    /// The other servers have deleted its row: it sends nothing.
    Settled,
}

/// This server's eligibility to serve agents: a removed or corrupt server serves none.
#[derive(Debug)]
pub(super) struct Eligibility {
    id: ServerId,
    removal: Removal,
    /// `true` if this process has seen this server as a member of the quorum.
    was_member: bool,
    /// `true` if this server's state was found corrupt.
    corrupt: bool,
}

impl Eligibility {
    pub(super) fn new(id: ServerId, is_member: bool, corrupt: bool) -> Self {
        Self { id, removal: Removal::No, was_member: is_member, corrupt }
    }

    /// Rejects all requests of a server that no longer serves.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        let removed = self.is_removed().then_some(Unavailable::Removed);
        removed.or_else(|| self.corrupt.then_some(Unavailable::Corrupt)).map_or(Ok(()), Err)
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removal != Removal::No
    }

    /// Returns `true` if no failure can restore a membership that includes this server.
    pub(super) fn is_removal_settled(&self) -> bool {
        self.removal == Removal::Settled
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Follows this server's membership. Returns `true` if it ended now.
    fn apply_membership(&mut self, is_member: bool) -> bool {
        // A joining server replays the log from before it was a member.
        let membership_ended = self.was_member && !is_member;
        self.was_member |= is_member;
        if !membership_ended || self.is_removed() {
            return false;
        }
        tracing::warn!(
            server = self.id.0,
            "this server was removed from the quorum: it no longer serves agents, but stores entries and votes \
             until the removal is final"
        );
        self.removal = Removal::Applied;
        true
    }

    /// Makes the removal final. Returns `false` if it was already.
    fn settle_removal(&mut self) -> bool {
        // Other servers repeat the notice whenever they drop a message of this one.
        if self.is_removal_settled() {
            return false;
        }
        tracing::error!(
            server = self.id.0,
            "this server was removed from the cluster and is not serving: stop it; to add it again, empty its data folder \
             and start it: it joins as a new server"
        );
        self.removal = Removal::Settled;
        true
    }

    /// Marks this server's state as corrupt, as found at an index. Returns `false` if it was
    /// already.
    fn mark_corrupt(&mut self, index: LogIndex) -> bool {
        if self.corrupt {
            return false;
        }
        tracing::error!(
            server = self.id.0,
            index = index.0,
            "the state of this server is corrupt: a corruption check found it to differ from that of a majority of the \
             servers. It still votes but serves no agent: stop it, empty its data folder and start it: it joins as a \
             new server"
        );
        self.corrupt = true;
        true
    }
}

/// The program versions of the servers, as reported when they last connected.
#[derive(Debug, Default)]
pub(super) struct ProgramVersions(BTreeMap<ServerId, String>);

impl ProgramVersions {
    pub(super) fn insert(&mut self, server: ServerId, version: String) {
        self.0.insert(server, version);
    }

    pub(super) fn get(&self, server: ServerId) -> Option<&String> {
        self.0.get(&server)
    }

    /// Returns `true` if a member runs, or may run, another version of the program than server
    /// `own`.
    pub(super) fn differ(&self, own: ServerId, membership: &Membership) -> bool {
        // A member that has not reported its version may run any.
        membership.each().any(|member| self.get(member) != self.get(own))
    }

    /// Forgets the servers that were removed from the quorum.
    fn forget_removed(&mut self, state: &State) {
        // Higher ids belong to servers that join while this one replays the log.
        self.0.retain(|id, _| *id > state.last_server() || state.server(*id).is_some());
    }
}

/// Returns `true` if a change affects the roster.
pub(super) fn is_of_roster(change: &Change) -> bool {
    matches!(change, Change::Server(..) | Change::LastServer(_) | Change::Cleared)
}

impl Frontend {
    /// Handles a message from another server. Messages from removed servers, whose ids have no row
    /// any more, are dropped.
    pub(super) fn peer(&mut self, now: Time, sender: ServerId, message: PeerMessage, actions: &mut Actions) {
        // Its log may still list it as a voter; the others have removed it and must not be
        // disturbed.
        if self.eligibility.is_removal_settled() {
            return;
        }
        // Its term may be higher after failed elections: its message would depose a leader (thesis,
        // 4.2.3).
        if self.was_removed(sender) {
            actions.removed_senders.push(sender);
        } else if message.kind == MessageKind::Snapshot {
            let applied = self.core.replica().applied_index();
            if let Some(message) = self.checkpoints.fetch(now, sender, message, applied, actions) {
                self.input(now, Input::Peer(sender, message));
            }
        } else {
            if message.kind == MessageKind::Heartbeat {
                let applied = self.core.replica().applied_index();
                self.checkpoints.heartbeat(now, message.index, applied);
            }
            self.input(now, Input::Peer(sender, message));
        }
    }

    /// Returns `true` if a server was removed from the quorum: its id was assigned and has no row
    /// any more. Ids are never reused.
    pub fn was_removed(&self, server: ServerId) -> bool {
        let state = self.core.replica().state();
        server <= state.last_server() && state.server(server).is_none()
    }

    /// Detects this server's own removal: it has applied the end of its membership, or its row is
    /// gone.
    pub(super) fn notice_own_removal(&mut self, actions: &mut Actions) {
        let me = self.config.own_record.id;
        if self.was_removed(me) {
            return self.leave_for_good(actions);
        }
        if self.eligibility.apply_membership(self.core.replica().membership().contains(me)) {
            self.end_service(&Unavailable::Removed, actions);
        }
    }

    /// Stops for good: this server was removed, and no failure can restore a membership that
    /// includes it.
    pub(super) fn leave_for_good(&mut self, actions: &mut Actions) {
        if self.eligibility.settle_removal() {
            // Stored on disk, since its own log may never contain the removal.
            actions.removed = true;
            self.end_service(&Unavailable::Removed, actions);
        }
    }

    /// Detects that a leader has found this server's state corrupt: from now on it rejects all
    /// requests, but still stores entries and votes.
    pub(super) fn notice_corruption(&mut self, actions: &mut Actions) {
        let found = self.core.corruption_checks().found_corrupt();
        if found.is_some_and(|index| self.eligibility.mark_corrupt(index)) {
            actions.corrupt = true;
            self.end_service(&Unavailable::Corrupt, actions);
        }
    }

    /// Stops serving: rejects all requests from now on, so that clients use another server, and
    /// answers all waiting calls. The outcome of waiting writes is unknown.
    fn end_service(&mut self, why: &Unavailable, actions: &mut Actions) {
        for parked in self.watches.take_all() {
            actions.answer(parked.from, Response::Unavailable(why.clone()), AnswerKind::BlockingRead);
        }
        for from in self.pending.take_reads() {
            actions.answer(from, Response::Unavailable(why.clone()), AnswerKind::Read);
        }
        for from in self.views.take_all_waiting() {
            actions.answer(from, Response::Unavailable(why.clone()), AnswerKind::BlockingRead);
        }
        // They may be in the log, and the other servers may commit them.
        for from in self.pending.take_writes() {
            let unknown = Unavailable::Unknown(format!("the outcome of the request is unknown: {why}"));
            actions.answer(from, Response::Unavailable(unknown), AnswerKind::Write);
        }
    }

    /// Follows a change of the roster: reports the servers' addresses to the shell, and announces
    /// this server if its row is outdated.
    pub(super) fn notice_roster(&mut self, actions: &mut Actions) {
        let state = self.core.replica().state();
        if state.servers().next().is_none() {
            return;
        }
        self.versions.forget_removed(state);
        let me = &self.config.own_record;
        let has_moved = state.server(me.id).is_some_and(|row| **row != *me);
        let is_current = state.server(me.id).is_some_and(|row| **row == *me);
        let announce = has_moved.then(|| {
            let addresses = state.servers().map(|server| server.address.clone());
            let addresses = addresses.chain([me.address.clone()]).collect();
            Announcement { me: me.clone(), addresses }
        });
        actions.roster = Some(RosterChange { announce, is_current });
    }

    /// Prepares a stop. A leader transfers the leadership first, so that clients notice nothing.
    pub(super) fn leave(&mut self, now: Time, actions: &mut Actions) {
        if self.core.replica().is_serving() && has_other_voters(&self.core) {
            let token = self.pending.insert(Pending::Leave);
            self.input(now, Input::Servers(ServerRequest::TransferLeader(token, None)));
        } else {
            actions.may_leave = true;
        }
    }

    /// Replies to another server's request with its outcome. An admitted server has an id and is
    /// then added as a learner: returns the input for that.
    pub(super) fn reply_to_server(
        &mut self,
        from: CallRef,
        kind: &CallKind,
        response: Response,
        actions: &mut Actions,
    ) -> Option<Input> {
        let response = match (kind, response) {
            (CallKind::Admission, Response::Applied(applied)) => match applied.reply {
                Reply::Server(id) => {
                    let token = self.pending.insert(Pending::Call(from, CallKind::Joining(id)));
                    return Some(Input::Servers(ServerRequest::AddServer(token, id)));
                }
                other => Response::Unavailable(refused(&other)),
            },
            (CallKind::Joining(server), Response::Done) => Response::Joined(Joined {
                server: *server,
                cluster_id: self.core.replica().state().cluster_id().into(),
                servers: self.core.replica().state().servers().map(|row| (**row).clone()).collect(),
            }),
            (CallKind::Announcement, Response::Applied(applied)) => match applied.reply {
                Reply::Done => Response::Done,
                other => Response::Unavailable(refused(&other)),
            },
            (_, other) => with_leader_hint(&self.core, other),
        };
        actions.answer(from, response, AnswerKind::Other);
        None
    }
}

/// Checks a server that requests to join.
pub(super) fn check_admission(core: &Core, now: Time, server: &NewServer) -> Result<(), Unavailable> {
    let node = server.node.folded();
    let state = core.replica().state();
    if state.cluster_id().is_empty() {
        return Err(not_leader());
    }
    // Only a healthy server counts: a server with an emptied folder returns under its old name
    // with a new instance id.
    let alive = state.servers().find(|row| {
        row.node.folded() == node
            && row.instance_id != server.instance_id
            && core.autopilot(now).is_healthy(row.id)
    });
    // Only the leader knows the health of servers; on a follower the core rejects the request.
    match alive.filter(|_| core.replica().is_serving()) {
        Some(alive) => Err(Unavailable::Denied(format!(
            "node {} is here already, as server {} at {}, and alive: a node name belongs to one server",
            alive.node, alive.id, alive.address
        ))),
        None => Ok(()),
    }
}

/// Checks a server's announcement of its new address.
pub(super) fn check_announcement(core: &Core, peer: &Peer, server: &Server) -> Result<(), Unavailable> {
    let is_it =
        |row: &Arc<Server>| row.instance_id == server.instance_id && row.node.folded() == peer.node.folded();
    // The instance id distinguishes a server from another one with the same folder. A follower's
    // roster may be outdated; there the core rejects the request.
    if core.replica().is_serving() && !core.replica().state().server(server.id).is_some_and(is_it) {
        return Err(Unavailable::Denied(format!("server {} of this quorum is another one", server.id)));
    }
    Ok(())
}

fn refused(reply: &Reply) -> Unavailable {
    match reply {
        Reply::Refused(refusal) => Unavailable::Denied(refusal.to_string()),
        other => Unavailable::Denied(format!("unexpected reply to a server: {other:?}")),
    }
}
