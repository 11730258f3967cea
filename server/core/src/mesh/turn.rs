//! The mesh in the core's turns: what somebody asks is answered, a verdict is told that took
//! effect, and an event goes to the other servers.

use crate::core::Core;
use crate::input::CallToken;
use crate::observed::EventOutcome;
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::gossip::mesh::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::gossip::verdict::Verdict;
use lockmesh_protocol::id::{AgentNumber, CellNumber};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;

impl Core {
    /// What an agent in this cell lacks of the mesh that has this of its roster. `seconds` is the
    /// cluster's time.
    pub(crate) fn mesh_news(
        &mut self,
        now: Time,
        seconds: u32,
        asked: (CellNumber, &RosterDigest),
    ) -> MeshNews {
        self.observer.observed.mesh_syncs += 1;
        self.mesh.news(now, &self.state, (self.applied.0, seconds), asked)
    }

    /// How many agents are in the mesh.
    pub fn mesh_len(&self) -> usize {
        self.mesh.len()
    }

    /// How many cells of the mesh there is anybody in.
    pub fn mesh_cells(&self) -> usize {
        self.mesh.cells()
    }

    /// An agent has fired an event at this server, which tells the others. What is lost on the way
    /// to them is lost.
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
                let own = self.config.id;
                for server in self.membership().all().into_iter().filter(|server| *server != own) {
                    self.send(server, MessageKind::Event, &(origin, &item), outbox);
                }
                Response::Done
            }
            EventOutcome::Known => Response::Done,
            EventOutcome::Malformed => denied("that is no user event"),
            EventOutcome::TooMany => denied("too many user events: fire fewer"),
        };
        outbox.replies.push((token, response));
    }

    /// Takes a message about the mesh; whether it was one.
    pub(crate) fn mesh_message(&mut self, now: Time, message: &PeerMessage) -> bool {
        if message.kind != MessageKind::Event {
            return false;
        }
        if let Some((origin, item)) = Self::read_context::<(AgentNumber, Bytes)>(message) {
            self.mesh.events.heard(now, origin, &item);
        }
        true
    }

    /// A verdict that took effect is told to the mesh, by every server.
    pub(crate) fn tell_verdict(&mut self, now: Time, command: &Command, applied: &Applied) {
        if let (Command::FailNode(failure), Reply::Succeeded(true)) = (command, &applied.reply) {
            let NodeFailure { lease, window, .. } = *failure;
            let verdict = Verdict { lease, window, index: applied.index };
            // Others do not know of the agent, and would pass on what says nothing to them.
            let cell = self.state.agent(lease.agent).map(|agent| agent.cell).unwrap_or_default();
            self.mesh.note_verdict(now, cell, verdict);
        }
    }
}
