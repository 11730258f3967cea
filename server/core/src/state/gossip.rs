//! What the mesh of agents rests on: its keys, and who belongs to it.
//!
//! **Invariant:** of the keys only the number is in a row. The keys follow from the cluster's own
//! secret, and neither is in a backup or an answer to an operator.

use super::State;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::RosterMember;
use lockmesh_protocol::gossip::seal::KeyRing;
use lockmesh_protocol::gossip::verdict::VerdictSigner;
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::record::Agent;
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

impl Step<'_> {
    /// The mesh goes on to the next key, unless it has already.
    pub(super) fn rotate_gossip_key(&mut self, from: u32) -> Reply {
        let next = from.checked_add(1).filter(|_| from == self.state.gossip_key);
        if let Some(next) = next {
            self.set(Change::GossipKey(next));
        }
        Reply::GossipKey(self.state.gossip_key)
    }
}

impl State {
    /// The number of the gossip key that is in use.
    pub fn gossip_key(&self) -> u32 {
        self.gossip_key
    }

    /// The keys of the mesh.
    pub(crate) fn key_ring(&self) -> KeyRing {
        KeyRing::derived(&self.lease_key, self.gossip_key)
    }

    /// What verdicts are signed with.
    pub(crate) fn verdict_signer(&self) -> VerdictSigner {
        VerdictSigner::derived(&self.lease_key)
    }

    /// An agent as the mesh knows it; none where it does not belong there: it takes no datagrams,
    /// does not live, or another agent speaks for its node by now.
    pub(crate) fn mesh_member(&self, number: AgentNumber) -> Option<RosterMember> {
        let agent = self.agents.get(&number)?;
        let address = agent.gossip?;
        let living = self.living_member(&agent.node).filter(|member| member.number == number)?;
        Some(RosterMember { id: MemberId::of_agent(living.lease()), node: agent.node.clone(), address })
    }

    /// The agent that speaks for a node, if it lives.
    pub(crate) fn living_member(&self, node: &NodeName) -> Option<&Arc<Agent>> {
        self.member(&node.folded()).and_then(|member| self.living_agent(member.lease()))
    }

    /// Every agent that registered for a node.
    pub(crate) fn agents_of(&self, folded: &NodeName) -> impl Iterator<Item = AgentNumber> {
        let agents = self.derived.members.get(folded).into_iter().flatten();
        agents.map(|(_, number)| *number)
    }
}
