//! The replicated basis of the mesh: its members, its keys, and key rotation.
//!
//! **Invariant:** only the number of the current key is in a row. The keys are derived from the
//! cluster's own secret, and neither is in a backup or in a reply to an operator.

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

/// Switches the mesh to the next key, unless that has already happened.
pub(super) fn rotate_gossip_key(step: &mut Step<'_>, from: u32) -> Reply {
    let next = from.checked_add(1).filter(|_| from == step.state.gossip_key);
    if let Some(next) = next {
        step.set(Change::GossipKey(next));
    }
    Reply::GossipKey(step.state.gossip_key)
}

impl State {
    /// The number of the current gossip key.
    pub fn gossip_key(&self) -> u32 {
        self.gossip_key
    }

    /// The keys of the mesh.
    pub(crate) fn key_ring(&self) -> KeyRing {
        KeyRing::derived(&self.lease_key, self.gossip_key)
    }

    /// The key that signs verdicts.
    pub(crate) fn verdict_signer(&self) -> VerdictSigner {
        VerdictSigner::derived(&self.lease_key)
    }

    /// An agent as a mesh member; `None` if it accepts no datagrams, is not alive, or was replaced
    /// as its node's agent.
    pub(crate) fn mesh_member(&self, number: AgentNumber) -> Option<RosterMember> {
        let agent = self.members.agents.get(&number)?;
        let address = agent.gossip?;
        let living = self.living_member(&agent.node).filter(|member| member.number == number)?;
        Some(RosterMember { id: MemberId::of_agent(living.lease()), node: agent.node.clone(), address })
    }

    /// The agent of a node, if alive.
    pub(crate) fn living_member(&self, node: &NodeName) -> Option<&Arc<Agent>> {
        self.members.of_node(&node.folded()).and_then(|member| self.members.living(member.lease()))
    }

    /// All agents that registered for a node.
    pub(crate) fn agents_of(&self, folded: &NodeName) -> impl Iterator<Item = AgentNumber> {
        self.members.registered_for(folded)
    }
}
