//! What agents in the mesh ask of a server: what they lack of it, and that it looks at others.

use super::Frontend;
use super::actions::{Actions, AnswerKind};
use super::event::CallRef;
use super::pending::CallKind;
use crate::input::Input;
use crate::outbox::not_leader;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::record::Agent;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;

/// How many others an agent may accuse in one call.
pub(super) const MAX_ACCUSED: usize = 64;

impl Frontend {
    /// An agent asks what it lacks of the mesh: told at once, from what this server has applied.
    pub(super) fn sync_mesh(&mut self, now: Time, peer: &Peer, has: &RosterDigest) -> Response {
        let cell = match self.mesh_agent(peer) {
            Ok(agent) => agent.cell,
            Err(why) => return Response::Unavailable(why),
        };
        let WallTime(millis) = self.wall_at(now);
        let seconds = u32::try_from(millis / 1_000).unwrap_or(u32::MAX);
        Response::Mesh(Box::new(self.core.mesh_news(now, seconds, (cell, has))))
    }

    /// An agent has probed others in vain.
    pub(super) fn accuse(
        &mut self,
        now: Time,
        (from, peer): (CallRef, &Peer),
        accused: Vec<LeaseId>,
        actions: &mut Actions,
    ) {
        let refusal = (accused.len() > MAX_ACCUSED).then(|| {
            let why =
                format!("{} nodes are accused at once, but at most {MAX_ACCUSED} may be", accused.len());
            Unavailable::Denied(why)
        });
        let accuser = || self.mesh_agent(peer).map(|agent| agent.lease());
        match refusal.map_or_else(accuser, Err) {
            Ok(accuser) => {
                self.ask(now, from, CallKind::Lease, |token| Input::Accuse(token, accuser, accused));
            }
            Err(why) => actions.answer(from, Response::Unavailable(why), AnswerKind::Other),
        }
    }

    /// The agent that asks. The keys of the mesh are for those who are registered and live: whoever
    /// was failed registers anew first.
    fn mesh_agent(&self, peer: &Peer) -> Result<&Agent, Unavailable> {
        let state = self.core.state();
        if self.core.set_back().is_some() || state.cluster_id().is_empty() {
            return Err(not_leader());
        }
        state.living_member(&peer.node).map(|agent| &**agent).ok_or_else(|| {
            // A follower that lags has not heard of a registration yet.
            let why = format!(
                "this server knows of no living agent of the node {:?}: ask again soon, or register first",
                peer.node
            );
            Unavailable::Denied(why)
        })
    }
}
