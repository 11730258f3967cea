//! Service to the other servers: admission, announcements, removal, and the status of the quorum.

use super::Frontend;
use super::actions::{Actions, Announcement, AnswerKind, RosterChange};
use super::event::CallRef;
use super::pending::{CallKind, Pending};
use crate::input::Input;
use crate::proposal::Proposal;
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::bootstrap::{Introduction, Standing};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::record::{NewServer, Server};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Joined, Response, ServerStatus, Status, Unavailable};
use lockmesh_protocol::time::Time;
use std::sync::Arc;

/// The progress of a server's removal from the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Not removed.
    No,
    /// The server has applied the end of its membership. A power failure on all servers may restore
    /// the previous membership, which needs its vote: it still stores entries and votes, but serves
    /// no agent.
    Applied,
    /// The other servers have deleted its row: it sends nothing.
    Settled,
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
        if self.removal == Removal::Settled {
            return;
        }
        // Its term may be higher after failed elections: its message would depose a leader (thesis,
        // 4.2.3).
        if self.was_removed(sender) {
            actions.removed_senders.push(sender);
        } else if message.kind == MessageKind::Snapshot {
            self.fetch_snapshot(now, sender, message, actions);
        } else {
            self.input(now, Input::Peer(sender, message));
        }
    }

    /// Returns `true` if a server was removed from the quorum: its id was assigned and has no row
    /// any more. Ids are never reused.
    pub fn was_removed(&self, server: ServerId) -> bool {
        let state = self.core.state();
        server <= state.last_server() && state.server(server).is_none()
    }

    /// Detects this server's own removal: it has applied the end of its membership, or its row is
    /// gone.
    pub(super) fn notice_own_removal(&mut self, actions: &mut Actions) {
        let me = self.config.own_record.id;
        if self.was_removed(me) {
            return self.leave_for_good(actions);
        }
        let is_member = self.core.membership().contains(me);
        // A joining server replays the log from before it was a member.
        let membership_ended = self.was_member && !is_member;
        self.was_member |= is_member;
        if membership_ended && self.removal == Removal::No {
            tracing::warn!(
                server = me.0,
                "this server was removed from the quorum: it no longer serves agents, but stores entries and votes \
                 until the removal is final"
            );
            self.removal = Removal::Applied;
            self.end_service(&Unavailable::Removed, actions);
        }
    }

    /// Stops for good: this server was removed, and no failure can restore a membership that
    /// includes it.
    pub(super) fn leave_for_good(&mut self, actions: &mut Actions) {
        // Other servers repeat the notice whenever they drop a message of this one.
        if self.removal == Removal::Settled {
            return;
        }
        tracing::error!(
            server = self.config.own_record.id.0,
            "this server was removed from the quorum and serves no more: stop it; to add it again, empty its data \
             folder and start it: it joins as a new server"
        );
        self.removal = Removal::Settled;
        // Stored on disk, since its own log may never contain the removal.
        actions.removed = true;
        self.end_service(&Unavailable::Removed, actions);
    }

    /// Detects that a leader has found this server's state corrupt: from now on it rejects all
    /// requests, but still stores entries and votes.
    pub(super) fn notice_corruption(&mut self, actions: &mut Actions) {
        let Some(index) = self.core.corruption_checks().found_corrupt().filter(|_| !self.corrupt) else {
            return;
        };
        tracing::error!(
            server = self.config.own_record.id.0,
            index = index.0,
            "the state of this server is corrupt: a corruption check found it to differ from that of a majority of the \
             servers. It still votes but serves no agent: stop it, empty its data folder and start it: it joins as a \
             new server"
        );
        self.corrupt = true;
        actions.corrupt = true;
        self.end_service(&Unavailable::Corrupt, actions);
    }

    /// Returns `true` if a member runs, or may run, another version of the program than this
    /// server.
    pub(super) fn versions_differ(&self) -> bool {
        let own = self.versions.get(&self.config.own_record.id);
        // A member that has not reported its version may run any.
        self.core.membership().each().any(|member| self.versions.get(&member) != own)
    }

    /// Returns the reason why this server no longer serves requests.
    pub(super) fn out_of_service(&self) -> Option<Unavailable> {
        let removed = (self.removal != Removal::No).then_some(Unavailable::Removed);
        removed.or_else(|| self.corrupt.then_some(Unavailable::Corrupt))
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
        // They may be in the log, and the other servers may commit them.
        for from in self.pending.take_writes() {
            let unknown = Unavailable::Unknown(format!("the outcome of the request is unknown: {why}"));
            actions.answer(from, Response::Unavailable(unknown), AnswerKind::Write);
        }
    }

    /// Follows a change of the roster: reports the servers' addresses to the shell, and announces
    /// this server if its row is outdated.
    pub(super) fn notice_roster(&mut self, actions: &mut Actions) {
        let state = self.core.state();
        if state.servers().next().is_none() {
            return;
        }
        let last = state.last_server();
        // Higher ids belong to servers that join while this one replays the log.
        self.versions.retain(|id, _| *id > last || state.server(*id).is_some());
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

    /// Admits a server: it first gets an id and is then added as a learner.
    pub(super) fn admit(&mut self, now: Time, from: CallRef, server: NewServer, actions: &mut Actions) {
        let node = server.node.folded();
        let state = self.core.state();
        if state.cluster_id().is_empty() {
            let not_yet = Response::Unavailable(Unavailable::NotLeader { leader: None });
            return actions.answer(from, not_yet, AnswerKind::Other);
        }
        // Only a healthy server counts: a server with an emptied folder returns under its old name
        // with a new instance id.
        let alive = state.servers().find(|row| {
            row.node.folded() == node
                && row.instance_id != server.instance_id
                && self.core.autopilot(now).is_healthy(now, row.id)
        });
        // Only the leader knows the health of servers; on a follower the core rejects the request.
        if let (true, Some(alive)) = (self.core.is_serving(), alive) {
            let why = format!(
                "node {} is here already, as server {} at {}, and alive: a node name belongs to one server",
                alive.node, alive.id, alive.address
            );
            let denied = Response::Unavailable(Unavailable::Denied(why));
            return actions.answer(from, denied, AnswerKind::Other);
        }
        self.propose_own(now, from, CallKind::Admission, Command::AdmitServer(server));
    }

    /// Handles a server's announcement of its new address.
    pub(super) fn note_announcement(
        &mut self,
        now: Time,
        from: CallRef,
        peer: &Peer,
        server: Server,
        actions: &mut Actions,
    ) {
        let is_it = |row: &Arc<Server>| {
            row.instance_id == server.instance_id && row.node.folded() == peer.node.folded()
        };
        // The instance id distinguishes a server from another one with the same folder. A
        // follower's roster may be outdated; there the core rejects the request.
        if self.core.is_serving() && !self.core.state().server(server.id).is_some_and(is_it) {
            let why = format!("server {} of this quorum is another one", server.id);
            let denied = Response::Unavailable(Unavailable::Denied(why));
            return actions.answer(from, denied, AnswerKind::Other);
        }
        self.propose_own(now, from, CallKind::Announcement, Command::UpdateServer(server));
    }

    /// Prepares a stop. A leader transfers the leadership first, so that clients notice nothing.
    pub(super) fn leave(&mut self, now: Time, actions: &mut Actions) {
        if self.core.is_serving() && self.has_other_voters() {
            let token = self.pending.insert(Pending::Leave);
            self.input(now, Input::TransferLeader(token, None));
        } else {
            actions.may_leave = true;
        }
    }

    fn propose_own(&mut self, now: Time, from: CallRef, kind: CallKind, command: Command) {
        let token = self.pending.insert(Pending::Call(from, kind));
        let at = self.wall_at(now);
        self.input(now, Input::Propose(token, Proposal { request: None, at, command }));
    }

    /// Replies to another server's request with its outcome.
    pub(super) fn reply_to_server(
        &mut self,
        from: CallRef,
        kind: &CallKind,
        response: Response,
        actions: &mut Actions,
    ) {
        let response = match (kind, response) {
            (CallKind::Admission, Response::Applied(applied)) => match applied.reply {
                Reply::Server(id) => {
                    let token = self.pending.insert(Pending::Call(from, CallKind::Joining(id)));
                    return self.next.push(Input::AddServer(token, id));
                }
                other => Response::Unavailable(refused(&other)),
            },
            (CallKind::Joining(server), Response::Done) => Response::Joined(Joined {
                server: *server,
                cluster_id: self.core.state().cluster_id().into(),
                servers: self.core.state().servers().map(|row| (**row).clone()).collect(),
            }),
            (CallKind::Announcement, Response::Applied(applied)) => match applied.reply {
                Reply::Done => Response::Done,
                other => Response::Unavailable(refused(&other)),
            },
            (_, other) => self.with_leader_hint(other),
        };
        actions.answer(from, response, AnswerKind::Other);
    }

    /// Returns this server's introduction, for servers that do not belong to a quorum yet.
    pub(super) fn introduction(&self) -> Introduction {
        let Server { id: server, node, node_id, address, instance_id, format } =
            self.config.own_record.clone();
        let cluster_id = self.config.cluster_id.clone();
        let others = self.core.state().servers().filter(|row| row.id != server);
        Introduction {
            server: NewServer { node, node_id, address, instance_id, format },
            expect: 0,
            standing: Standing::Member { cluster_id, server },
            knows: others.map(|row| row.address.clone()).collect(),
        }
    }

    /// Returns the quorum's status as seen by this server.
    pub(super) fn status(&self, now: Time, caller: &NodeName) -> Status {
        let log = self.core.log_status();
        let caller = caller.folded();
        let mut agents = self.core.state().agents();
        Status {
            cluster_id: self.core.state().cluster_id().to_string(),
            server: self.config.own_record.id,
            leader: self.core.leader(),
            last_contact: self.core.leader().and_then(|leader| self.core.last_contact(now, leader)),
            term: log.term,
            last_index: log.last_index,
            commit_index: log.commit_index,
            applied_index: log.applied_index,
            first_index: log.first_index,
            membership_index: log.membership_index,
            servers: self.server_statuses(now),
            agents: agents.len() as u64,
            caller: agents.find(|agent| agent.node.folded() == caller).map(|agent| agent.number),
        }
    }

    fn server_statuses(&self, now: Time) -> Vec<ServerStatus> {
        let status = |id: ServerId| {
            let row = self.core.state().server(id);
            let is_me = id == self.config.own_record.id;
            let own_index = is_me.then(|| self.core.log_status().last_index);
            let matched = self.core.progress(id).map(|progress| progress.matched);
            ServerStatus {
                id,
                node_id: row.map(|row| row.node_id.clone()).unwrap_or_default(),
                node: row.map(|row| row.node.to_string()).unwrap_or_default(),
                address: row.map(|row| row.address.clone()).unwrap_or_default(),
                voter: self.core.membership().voters.contains(&id),
                last_index: own_index.or(matched).unwrap_or_default(),
                last_contact: self.core.last_contact(now, id),
                healthy: self.core.autopilot(now).is_healthy(now, id),
                stable_since: self.core.autopilot(now).stable_since(id),
                version: self.versions.get(&id).cloned().unwrap_or_default(),
            }
        };
        self.core.membership().all().into_iter().map(status).collect()
    }
}

fn refused(reply: &Reply) -> Unavailable {
    match reply {
        Reply::Refused(refusal) => Unavailable::Denied(refusal.to_string()),
        other => Unavailable::Denied(format!("unexpected reply to a server: {other:?}")),
    }
}
