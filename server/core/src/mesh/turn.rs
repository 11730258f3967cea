//! The mesh in the core's turns: what somebody asks is answered, and a verdict is told that took
//! effect.

use crate::core::Core;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::gossip::mesh::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::gossip::verdict::Verdict;
use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::reply::{Applied, Reply};
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
        self.mesh.news(now, &self.state, seconds, asked)
    }

    /// How many agents are in the mesh.
    pub fn mesh_len(&self) -> usize {
        self.mesh.len()
    }

    /// How many cells of the mesh there is anybody in.
    pub fn mesh_cells(&self) -> usize {
        self.mesh.cells()
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
