//! What the driver does for and about the other servers.

use super::{Asked, Driver, What, wall_time};
use crate::forming::announce;
use crate::mailbox::ReplySink;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_core::{Input, Proposal, Ticket};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::forming::{Introduction, Standing};
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::record::{NewServer, Server};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{CallId, Joined, Response, ServerStatus, Status, Unavailable};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// Whether a change says who the servers are.
pub(super) fn is_of_roster(change: &Change) -> bool {
    matches!(change, Change::Server(..) | Change::LastServer(_) | Change::Cleared)
}

impl Driver {
    /// Sends what there is for the other servers; what was lost at once is heard in the next turn.
    pub(super) fn send(&mut self, messages: &mut Vec<(ServerId, PeerMessage)>) {
        if messages.is_empty() {
            return;
        }
        let mut lost = Vec::new();
        self.peers.send(messages, &mut lost);
        self.next.extend(lost.into_iter().map(Input::Unreachable));
    }

    /// The roster may have changed: the other servers are reached where it says now, and it must say where this one is.
    pub(super) fn notice_roster(&mut self) {
        let state = self.core.state();
        if state.servers().next().is_none() {
            return;
        }
        self.peers.update(state.servers().map(Arc::as_ref), state.last_server());
        if let Some(announcing) = self.announcing.take() {
            announcing.abort();
        }
        if state.server(self.portrait.id).is_some_and(|row| **row != self.portrait) {
            let addresses = state.servers().map(|server| server.address.clone());
            let addresses = addresses.chain([self.portrait.address.clone()]).collect();
            self.announcing = Some(self.peers.spawn(|endpoint| {
                let me = self.portrait.clone();
                announce(endpoint, me, watch::channel(addresses).1)
            }));
        }
    }

    /// A server wants to belong to the quorum: first it gets an id, then it is taken in as a learner.
    pub(super) fn admit(&mut self, call: CallId, replies: ReplySink, server: NewServer) {
        let (node, now) = (server.node.folded(), self.now());
        let state = self.core.state();
        if state.cluster_id().is_empty() {
            let not_yet = Response::Unavailable(Unavailable::NotLeader { leader: None });
            return self.postman.answer(&replies, call, not_yet);
        }
        let alive = state.servers().find(|row| {
            row.node.folded() == node && row.birth != server.birth && self.core.is_healthy(now, row.id)
        });
        if let (true, Some(alive)) = (self.core.is_serving(), alive) {
            let why = format!(
                "node {} is here already, as server {} at {}, and alive: a node name belongs to one server",
                alive.node, alive.id, alive.address
            );
            return self.postman.answer(&replies, call, Response::Unavailable(Unavailable::Denied(why)));
        }
        self.propose_own(call, replies, What::Admission, Command::AdmitServer(server));
    }

    /// A server of the quorum is somewhere else now.
    pub(super) fn note_announcement(&mut self, call: CallId, replies: ReplySink, server: Server) {
        let is_it = |row: &Arc<Server>| {
            row.birth == server.birth && row.node.folded() == replies.peer().node.folded()
        };
        if self.core.is_serving() && !self.core.state().server(server.id).is_some_and(is_it) {
            let why = format!("server {} of this quorum is another one", server.id);
            return self.postman.answer(&replies, call, Response::Unavailable(Unavailable::Denied(why)));
        }
        self.propose_own(call, replies, What::Announcement, Command::UpdateServer(server));
    }

    /// This server is about to stop. One that leads hands the leadership over first, so that nobody has to notice.
    pub(super) fn leave(&mut self, left: oneshot::Sender<()>) {
        // Where there is nothing to hand over, or nobody to hand it to, dropping the sender says that it is done.
        if self.core.is_serving() && self.core.membership().voters.len() > 1 {
            self.last_ticket += 1;
            let ticket = Ticket(self.last_ticket);
            self.leaving = Some((ticket, left));
            self.handle(Input::TransferLeader(ticket, None));
        }
    }

    /// What became of the leadership that was to be handed over.
    pub(super) fn notice_departure(&mut self, ticket: Ticket) {
        if let Some((_, left)) = self.leaving.take_if(|(waiting, _)| *waiting == ticket) {
            // The one who waited may have lost patience.
            let _ = left.send(());
        }
    }

    fn propose_own(&mut self, call: CallId, replies: ReplySink, what: What, command: Command) {
        let ticket = self.ticket(call, replies, what);
        self.handle(Input::Propose(ticket, Proposal { request: None, at: wall_time(), command }));
    }

    /// What became of another server's wish.
    pub(super) fn reply_to_server(&mut self, asked: Asked, response: Response) {
        let Asked { call, replies, what } = asked;
        let response = match (what, response) {
            (What::Admission, Response::Applied(applied)) => match applied.reply {
                Reply::Server(id) => {
                    let ticket = self.ticket(call, replies, What::Joining(id));
                    return self.next.push(Input::AddServer(ticket, id));
                }
                other => Response::Unavailable(refused(&other)),
            },
            (What::Joining(server), Response::Done) => Response::Joined(Joined {
                server,
                cluster_id: self.core.state().cluster_id().into(),
                servers: self.core.state().servers().map(|row| (**row).clone()).collect(),
            }),
            (What::Announcement, Response::Applied(applied)) => match applied.reply {
                Reply::Done => Response::Done,
                other => Response::Unavailable(refused(&other)),
            },
            (_, other) => self.with_leader_hint(other),
        };
        self.postman.answer(&replies, call, response);
    }

    /// Who this server is, for those that belong to nothing yet.
    pub(super) fn introduction(&self) -> Introduction {
        let Server { id: server, node, node_id, address, birth } = self.portrait.clone();
        let cluster_id = self.peers.me().map(|me| me.cluster_id.clone()).unwrap_or_default();
        let others = self.core.state().servers().filter(|row| row.id != server);
        Introduction {
            server: NewServer { node, node_id, address, birth },
            expect: 0,
            standing: Standing::Member { cluster_id, server },
            knows: others.map(|row| row.address.clone()).collect(),
        }
    }

    pub(super) fn status(&self, asker: &NodeName) -> Status {
        let log = self.core.log_status();
        let asker = asker.folded();
        let mut agents = self.core.state().agents();
        Status {
            cluster_id: self.core.state().cluster_id().to_string(),
            server: self.portrait.id,
            leader: self.core.leader(),
            last_contact: self.core.leader().and_then(|leader| self.core.last_contact(self.now(), leader)),
            term: log.term,
            last_index: log.last_index,
            commit_index: log.commit_index,
            applied_index: log.applied_index,
            first_index: log.first_index,
            membership_index: log.membership_index,
            servers: self.servers(),
            agents: agents.len() as u64,
            asker: agents.find(|agent| agent.node.folded() == asker).map(|agent| agent.number),
        }
    }

    fn servers(&self) -> Vec<ServerStatus> {
        let (members, now) = (self.core.membership(), self.now());
        let server = |id: ServerId| {
            let row = self.core.state().server(id);
            let own_index = (id == self.portrait.id).then(|| self.core.log_status().last_index);
            let matched = self.core.progress(id).map(|progress| progress.matched);
            ServerStatus {
                id,
                node_id: row.map(|row| row.node_id.clone()).unwrap_or_default(),
                node: row.map(|row| row.node.to_string()).unwrap_or_default(),
                address: row.map(|row| row.address.clone()).unwrap_or_default(),
                voter: members.voters.contains(&id),
                last_index: own_index.or(matched).unwrap_or_default(),
                last_contact: self.core.last_contact(now, id),
                healthy: self.core.is_healthy(now, id),
            }
        };
        members.all().into_iter().map(server).collect()
    }
}

fn refused(reply: &Reply) -> Unavailable {
    match reply {
        Reply::Refused(refusal) => Unavailable::Denied(refusal.to_string()),
        other => Unavailable::Denied(format!("an answer that fits no server: {other:?}")),
    }
}
