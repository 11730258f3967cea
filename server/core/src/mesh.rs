//! What a server tells the agents in the mesh: who belongs to it, its keys, and verdicts of late.
//!
//! It follows from the applied state, so any server tells it, and none waits for another one. The
//! roster is kept: it changes where an agent's row does, and is built anew only with the state.
//!
//! **Invariant:** the roster is what [`State::mesh_member`] says of all agents.

mod turn;

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

    fn note_verdict(&mut self, now: Time, verdict: Verdict) {
        self.forget_verdicts(now);
        if self.verdicts.len() >= MAX_VERDICTS {
            self.verdicts.pop_front();
        }
        self.verdicts.push_back(ToldVerdict { applied: now, verdict, signed: None });
    }

    fn news(&mut self, now: Time, state: &State, seconds: u32, has: &RosterDigest) -> MeshNews {
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

    fn len(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::{MAX_VERDICTS, ServedMesh, TOLD};
    use crate::state::State;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::gossip::roster::RosterDigest;
    use lockmesh_protocol::gossip::verdict::Verdict;
    use lockmesh_protocol::id::{AgentNumber, Generation, LogIndex, NodeName, WallTime};
    use lockmesh_protocol::lease::{HealthWindow, LeaseId};
    use lockmesh_protocol::random::Random;
    use lockmesh_protocol::record::{Agent, Incarnation, MemberStatus};
    use lockmesh_protocol::rpc::{CallId, MAX_FRAME_BYTES, ReplyFrame, Response};
    use lockmesh_protocol::time::Time;
    use lockmesh_protocol::wire;
    use std::sync::Arc;

    const NOW: Time = Time(1_000_000);

    fn agent(number: u32, node: String, began: u64, status: MemberStatus) -> Agent {
        Agent {
            number: AgentNumber(number),
            generation: Generation(1),
            node: NodeName::from(node),
            node_id: format!("id of {number}"),
            port: 8301,
            gossip: "[2001:db8::7]:8301".parse().ok(),
            version: String::new(),
            incarnation: Incarnation::default(),
            lease_began: LogIndex(began),
            former_sessions_until: None,
            restart_announced: None,
            status,
            status_since: WallTime(0),
            address: String::new(),
        }
    }

    fn verdict(number: u32) -> Verdict {
        let lease = LeaseId { agent: AgentNumber(number), began: LogIndex(u64::MAX) };
        Verdict { lease, window: HealthWindow::Safe, index: LogIndex(u64::MAX) }
    }

    #[test]
    fn the_roster_that_is_kept_is_the_one_of_the_state() {
        let (mut state, mut random) = (State::default(), Random::new(3));
        let mut kept = ServedMesh::of(&state);
        for began in 1..2_000 {
            let mut draw = |below: u64| random.number() % below;
            let number = AgentNumber(draw(12) as u32);
            let statuses =
                [MemberStatus::Alive, MemberStatus::Restarting, MemberStatus::Left, MemberStatus::Failed];
            // Fewer names than agents, in either case: they take them from each other.
            let node = ["n", "N"][draw(2) as usize].to_owned() + &draw(5).to_string();
            let mut row = agent(number.0, node, began, statuses[draw(4) as usize]);
            if draw(5) == 0 {
                row.gossip = None;
            }
            let change = Change::Agent(number, (draw(6) > 0).then(|| Arc::new(row)));
            state.load(change.clone());
            kept.follow(&state, &[change]);
            let anew = ServedMesh::of(&state);
            assert_eq!(kept.roster.digest(), anew.roster.digest(), "{began}");
            assert_eq!((&kept.agents, kept.len()), (&anew.agents, anew.roster.len()));
        }
    }

    #[test]
    fn all_of_ten_thousand_agents_and_as_many_verdicts_as_are_told_fit_a_frame() {
        let mut state = State::default();
        for number in 0..10_000 {
            // As long as the name of a host can be.
            let node = format!("{number:0>253}");
            let row = agent(number, node, u64::MAX - u64::from(number), MemberStatus::Alive);
            state.load(Change::Agent(row.number, Some(Arc::new(row))));
        }
        let mut mesh = ServedMesh::of(&state);
        (0..1_000).for_each(|number| mesh.note_verdict(NOW, verdict(number)));
        let news = mesh.news(NOW, &state, u32::MAX, &RosterDigest(Vec::new()));
        assert_eq!(news.roster.0.iter().map(|(_, members)| members.len()).sum::<usize>(), 10_000);
        assert_eq!(news.verdicts.len(), MAX_VERDICTS);
        let frame = ReplyFrame(vec![(CallId(1), Response::Mesh(Box::new(news)))]);
        let bytes = wire::encode(&frame).len();
        assert!(bytes < MAX_FRAME_BYTES / 2, "{bytes} bytes");
    }

    #[test]
    fn the_newest_verdicts_are_told_for_a_while() {
        let (mut mesh, state) = (ServedMesh::default(), State::default());
        (0..=MAX_VERDICTS as u32).for_each(|number| mesh.note_verdict(NOW, verdict(number)));
        let news = mesh.news(NOW, &state, 0, &RosterDigest(Vec::new()));
        let told: Vec<_> = news.verdicts.iter().map(|bytes| news.verdict_key.read(bytes)).collect();
        assert_eq!((told.first(), told.len()), (Some(&Ok(verdict(1))), MAX_VERDICTS));
        let later = mesh.news(NOW + TOLD * 2, &state, 0, &RosterDigest(Vec::new()));
        assert!(later.verdicts.is_empty());
    }
}
