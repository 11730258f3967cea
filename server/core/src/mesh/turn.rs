//! The mesh in the core's turns: replies to syncs, pushes verdicts that took effect, and sends
//! events and the cluster time to the other servers.

use super::pushes;
use crate::core::Core;
use crate::input::CallToken;
use crate::observed::EventOutcome;
use crate::outbox::{MeshItemsWanted, Outbox};
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::gossip::verdict::Verdict;
use lockmesh_protocol::id::{AgentNumber, CellNumber, WallTime};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use serde::Serialize;

impl Core {
    /// Returns the mesh data that an agent in this cell lacks, given the digest of its roster.
    /// `wall` is the time of this server's clock.
    pub(crate) fn mesh_news(
        &mut self,
        now: Time,
        wall: WallTime,
        asked: (CellNumber, &RosterDigest),
    ) -> MeshNews {
        let WallTime(millis) = self.mesh.clock.at(now, wall);
        let seconds = u32::try_from(millis / 1_000).unwrap_or(u32::MAX);
        self.observer.observed.mesh_syncs += 1;
        self.mesh.news(now, &self.state, (self.applied.0, seconds), asked)
    }

    /// Returns the number of agents in the mesh.
    pub fn mesh_len(&self) -> usize {
        self.mesh.len()
    }

    /// Returns the number of non-empty cells of the mesh.
    pub fn mesh_cells(&self) -> usize {
        self.mesh.cells()
    }

    /// Handles an event that an agent fired at this server, and sends it to the other servers.
    pub(crate) fn spread_event(
        &mut self,
        now: Time,
        token: CallToken,
        (origin, item): (AgentNumber, Bytes),
        outbox: &mut Outbox,
    ) {
        let outcome = self.mesh.events.fired(now, origin, &item);
        self.observer.observed.events[outcome as usize] += 1;
        let denied = |why: &str| Response::Unavailable(Unavailable::Denied(why.into()));
        let response = match outcome {
            EventOutcome::Taken => {
                self.tell_servers(MessageKind::Event, &(origin, &item), outbox);
                let cell = self.state.agent(origin).map(|agent| agent.cell).unwrap_or_default();
                self.mesh.push_event(cell, &item);
                Response::Done
            }
            EventOutcome::Known => Response::Done,
            EventOutcome::Malformed => denied("that is no user event"),
            EventOutcome::TooMany => denied("too many user events: fire fewer"),
        };
        outbox.replies.push((token, response));
    }

    /// Returns `true` if this server sends agents the cluster time rather than its own.
    pub(crate) fn knows_cluster_time(&self) -> bool {
        self.is_serving() || self.mesh.clock.is_told()
    }

    /// Announces the cluster time. Runs once per tick on a leader that serves.
    pub(crate) fn tell_cluster_time(&mut self, now: Time, outbox: &mut Outbox) {
        if let Some(told) = self.mesh.clock.tells(now, self.wall) {
            self.tell_servers(MessageKind::ClusterTime, &told, outbox);
        }
    }

    /// Pushes news to a few members of each cell. Runs once per tick.
    pub(crate) fn tell_mesh(&mut self, now: Time, outbox: &mut Outbox) {
        for (items, members) in self.mesh.take_pushes(now) {
            let wanted = |member: MemberId| {
                let agent = self.state.living_agent(member.lease()?)?;
                let agent_address = self.state.agent_address(agent)?;
                let is_heard = !self.judge.is_under_check(agent.number);
                let (agent, items) = (agent.node.clone(), items.clone());
                is_heard.then_some(MeshItemsWanted { agent, agent_address, items })
            };
            outbox.mesh_items.extend(members.into_iter().filter_map(wanted).take(pushes::MEMBERS));
        }
    }

    /// Handles a message about the mesh. Returns `true` if it was one.
    pub(crate) fn mesh_message(&mut self, now: Time, message: &PeerMessage) -> bool {
        match message.kind {
            MessageKind::Event => {
                if let Some((origin, item)) = message.read::<(AgentNumber, Bytes)>() {
                    self.mesh.events.heard(now, origin, &item);
                }
            }
            // Only the current leader may announce the time.
            MessageKind::ClusterTime if self.engine.leader() != Some(message.from) => {}
            MessageKind::ClusterTime => {
                if let Some(told) = message.read() {
                    self.mesh.clock.hear(now, told);
                }
            }
            _ => return false,
        }
        true
    }

    /// Sends a message to all other servers, without retries.
    fn tell_servers<T: Serialize>(&self, kind: MessageKind, said: &T, outbox: &mut Outbox) {
        let own = self.config.id;
        for server in self.membership().all().into_iter().filter(|server| *server != own) {
            self.send(server, kind, said, outbox);
        }
    }

    /// Records a verdict that took effect, on every server; the leader also pushes it into the
    /// mesh.
    pub(crate) fn tell_verdict(&mut self, now: Time, command: &Command, applied: &Applied) {
        if let (Command::FailNode(failure), Reply::Succeeded(true)) = (command, &applied.reply) {
            let NodeFailure { lease, window, .. } = *failure;
            let verdict = Verdict { lease, window, index: applied.index };
            // Only the agent's own cell: others do not know the agent and could not use the
            // verdict.
            let cell = self.state.agent(lease.agent).map(|agent| agent.cell).unwrap_or_default();
            self.mesh.note_verdict(now, cell, verdict);
            if self.is_serving() {
                self.mesh.push_verdict(&self.state, cell, &verdict);
            }
        }
    }
}
