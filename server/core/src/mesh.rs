//! What a server tells the agents in the mesh: who belongs to it, its keys, and verdicts of late.
//!
//! It follows from the applied state, so any server tells it, and none waits for another one. The
//! roster is kept: it changes where an agent's row does, and is built anew only with the state.
//!
//! **Invariant:** the roster is what [`State::mesh_member`] says of all agents.

use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::mesh::{MAX_VERDICTS, MeshNews};
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest};
use lockmesh_protocol::gossip::seal::KeyRing;
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictKey, VerdictSigner};
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long a verdict is told: every agent asks twice in that time.
const TOLD: Duration = Duration::from_secs(90);

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct ServedMesh {
    roster: Roster,
    /// Every agent's node, by its folded name, and what the roster has of it.
    agents: BTreeMap<AgentNumber, (NodeName, Option<MemberId>)>,
    keys: Option<Keys>,
    /// The oldest first.
    verdicts: VecDeque<ToldVerdict>,
}

/// What follows from the cluster's secret; made when it is asked for.
#[derive(Debug)]
struct Keys {
    ring: KeyRing,
    signer: VerdictSigner,
    verdict_key: VerdictKey,
}

#[derive(Debug)]
struct ToldVerdict {
    applied: Time,
    verdict: Verdict,
    /// With its signature, once somebody has asked.
    signed: Option<Bytes>,
}

impl ServedMesh {
    /// That of a server with this state.
    pub(crate) fn of(state: &State) -> Self {
        let mut mesh = Self::default();
        mesh.restart(state);
        mesh
    }

    /// The state is another one.
    pub(crate) fn restart(&mut self, state: &State) {
        let numbers = || state.agents().map(|agent| agent.number);
        self.roster = Roster::of(numbers().filter_map(|number| state.mesh_member(number)));
        let known = |number| state.mesh_member(number).map(|member| member.id);
        let agents = state.agents().map(|agent| (agent.number, (agent.node.folded(), known(agent.number))));
        self.agents = agents.collect();
        self.keys = None;
    }

    /// Learns what became true; `state` is the one after it.
    pub(crate) fn follow(&mut self, state: &State, changes: &[Change]) {
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            return self.restart(state);
        }
        for change in changes {
            match change {
                Change::Agent(number, _) => self.follow_agent(state, *number),
                Change::LeaseKey(_) | Change::GossipKey(_) => self.keys = None,
                _ => {}
            }
        }
    }

    /// A verdict took effect.
    pub(crate) fn note_verdict(&mut self, now: Time, verdict: Verdict) {
        self.forget_verdicts(now);
        if self.verdicts.len() >= MAX_VERDICTS {
            self.verdicts.pop_front();
        }
        self.verdicts.push_back(ToldVerdict { applied: now, verdict, signed: None });
    }

    /// What somebody lacks who has that of the roster.
    pub(crate) fn news(&mut self, now: Time, state: &State, seconds: u32, has: &RosterDigest) -> MeshNews {
        self.forget_verdicts(now);
        let keys = self.keys.get_or_insert_with(|| Keys::of(state));
        let signed = |told: &mut ToldVerdict| {
            told.signed.get_or_insert_with(|| keys.signer.sign(&told.verdict).into()).clone()
        };
        MeshNews {
            seconds,
            ring: keys.ring.clone(),
            verdict_key: keys.verdict_key,
            roster: self.roster.news(has),
            verdicts: self.verdicts.iter_mut().map(signed).collect(),
        }
    }

    /// How many agents are in the mesh.
    pub(crate) fn len(&self) -> usize {
        self.roster.len()
    }

    /// An agent's row changed: it may have taken a node from another one, or given it back.
    fn follow_agent(&mut self, state: &State, number: AgentNumber) {
        let before = self.agents.get(&number).map(|(node, _)| node.clone());
        let node = state.agent(number).map(|agent| agent.node.folded());
        let numbers: Vec<_> = before.iter().chain(&node).flat_map(|node| state.agents_of(node)).collect();
        numbers.into_iter().chain([number]).for_each(|number| self.look_at(state, number));
    }

    fn look_at(&mut self, state: &State, number: AgentNumber) {
        let known = self.agents.remove(&number).and_then(|(_, member)| member);
        let member = state.mesh_member(number);
        let id = member.as_ref().map(|member| member.id);
        if let Some(gone) = known.filter(|known| Some(*known) != id) {
            self.roster.remove(gone);
        }
        if let Some(member) = member {
            self.roster.insert(member);
        }
        if let Some(agent) = state.agent(number) {
            self.agents.insert(number, (agent.node.folded(), id));
        }
    }

    fn forget_verdicts(&mut self, now: Time) {
        while self.verdicts.front().is_some_and(|told| now.since(told.applied) > TOLD) {
            self.verdicts.pop_front();
        }
    }
}

impl Keys {
    fn of(state: &State) -> Self {
        let signer = state.verdict_signer();
        Self { ring: state.key_ring(), verdict_key: signer.key(), signer }
    }
}
