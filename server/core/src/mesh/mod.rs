//! The data that a server sends to agents in the mesh: members, keys, and recent verdicts and
//! events.
//!
//! Except for events, all of it follows from the applied state, so any server can send it without
//! waiting for another. Events are not in the state: servers send them to each other and drop them
//! after a while. Rosters are cached: they follow changes of agent rows and are rebuilt only with
//! the whole state.
//!
//! An agent receives the data of its own cell only and does not know about cells: its roster is its
//! mesh.
//!
//! **Invariant:** the rosters equal [`State::mesh_member`] of all agents.

mod clock;
mod events;
mod pushes;

use crate::cluster::{ClusterView, Decision, Turn};
use crate::input::CallToken;
use crate::judge::Judge;
use crate::observed::{EventOutcome, MeshCounts};
use crate::outbox::MeshItemsWanted;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::State;
use bytes::Bytes;
use clock::ClusterClock;
use events::ServedEvents;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest, RosterMember};
use lockmesh_protocol::gossip::seal::KeyRing;
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictKey, VerdictSigner};
use lockmesh_protocol::gossip::{MAX_VERDICTS, MeshNews};
use lockmesh_protocol::id::{AgentNumber, CellNumber, LogIndex, NodeName, WallTime};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use pushes::Pushes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time for which a verdict or an event is sent: every agent syncs twice within it.
const NEWS_LIFETIME: Duration = Duration::from_secs(90);

/// An input of the mesh.
#[derive(Debug)]
pub(crate) enum MeshInput<'a> {
    /// A tick of a leader that serves; the time is that of its own clock.
    Announce(WallTime),
    /// A tick, on every server.
    Push,
    /// An event that an agent fired at this server.
    Fire(CallToken, AgentNumber, Bytes),
    /// A message between servers for which [`MessageKind::is_of_mesh`] holds.
    Message(&'a PeerMessage),
}

/// The mesh data of this server: rosters, keys, verdicts and events.
#[derive(Debug, Default)]
pub(crate) struct ServedMesh {
    /// The rosters of the non-empty cells.
    rosters: BTreeMap<CellNumber, Roster>,
    /// Each agent's folded node name, and its position in the rosters.
    agents: BTreeMap<AgentNumber, (NodeName, Option<(CellNumber, MemberId)>)>,
    keys: Option<Keys>,
    /// Recent verdicts on the agents of each cell, oldest first.
    verdicts: BTreeMap<CellNumber, VecDeque<RecentVerdict>>,
    /// Recent events of all cells.
    events: ServedEvents,
    clock: ClusterClock,
    pushes: Pushes,
    counts: MeshCounts,
}

/// Keys derived from the cluster's secret; created on demand.
#[derive(Debug)]
struct Keys {
    ring: KeyRing,
    signer: VerdictSigner,
    verdict_key: VerdictKey,
}

#[derive(Debug)]
struct RecentVerdict {
    applied: Time,
    verdict: Verdict,
    /// The verdict with its signature, created on demand.
    signed: Option<Bytes>,
}

impl ServedMesh {
    /// Returns the mesh data of a server with this state.
    pub(crate) fn of(state: &State) -> Self {
        let mut mesh = Self::default();
        mesh.restart(state);
        mesh
    }

    /// Rebuilds everything for a replaced state.
    pub(crate) fn restart(&mut self, state: &State) {
        let mut members: BTreeMap<CellNumber, Vec<RosterMember>> = BTreeMap::new();
        self.agents.clear();
        for agent in state.agents() {
            let member = state.mesh_member(agent.number);
            let known = member.as_ref().map(|member| (agent.cell, member.id));
            self.agents.insert(agent.number, (agent.node.folded(), known));
            members.entry(agent.cell).or_default().extend(member);
        }
        members.retain(|_, members| !members.is_empty());
        self.rosters = members.into_iter().map(|(cell, members)| (cell, Roster::of(members))).collect();
        self.keys = None;
    }

    /// Handles one input. The caller carries out the decisions, in their order. Nodes that the
    /// failure detector checks receive no news.
    pub(crate) fn handle(
        &mut self,
        view: &ClusterView<'_>,
        now: Time,
        (judge, input): (&Judge, MeshInput<'_>),
        decisions: &mut Vec<Decision>,
    ) {
        let turn = &mut Turn { view, now, decisions };
        match input {
            MeshInput::Announce(wall) => {
                if let Some(time) = self.clock.announcement_due(now, wall) {
                    turn.send_to_others(MessageKind::ClusterTime, &time);
                }
            }
            MeshInput::Push => self.push(turn, judge),
            MeshInput::Fire(token, origin, item) => self.fire(turn, token, origin, &item),
            MeshInput::Message(message) => self.message(turn, message),
        }
    }

    /// Returns the measurements since the last call.
    pub(crate) fn take_counts(&mut self) -> MeshCounts {
        std::mem::take(&mut self.counts)
    }

    /// Returns `true` if a leader has announced the cluster time, or this server has as leader.
    pub(crate) fn knows_time(&self) -> bool {
        self.clock.is_announced()
    }

    /// Handles an event that an agent fired at this server, and sends it to the other servers.
    fn fire(&mut self, turn: &mut Turn<'_>, token: CallToken, origin: AgentNumber, item: &Bytes) {
        let outcome = self.events.fired(turn.now, origin, item);
        self.counts.events[outcome as usize] += 1;
        match outcome {
            EventOutcome::Taken => {
                turn.send_to_others(MessageKind::Event, &(origin, item));
                let cell = turn.view.state.agent(origin).map(|agent| agent.cell).unwrap_or_default();
                self.push_event(cell, item);
                turn.reply(token, Response::Done);
            }
            EventOutcome::Known => turn.reply(token, Response::Done),
            EventOutcome::Malformed => turn.deny(token, "that is no user event"),
            EventOutcome::TooMany => turn.deny(token, "too many user events: fire fewer"),
        }
    }

    /// Pushes news to a few members of each cell.
    fn push(&mut self, turn: &mut Turn<'_>, judge: &Judge) {
        let state = turn.view.state;
        for (items, members) in self.take_pushes(turn.now) {
            let wanted = |member: MemberId| {
                let agent = state.living_agent(member.lease()?)?;
                let agent_address = state.agent_address(agent)?;
                let is_heard = !judge.is_under_check(agent.number);
                let (agent, items) = (agent.node.clone(), items.clone());
                is_heard.then_some(MeshItemsWanted { agent, agent_address, items })
            };
            let wanted = members.into_iter().filter_map(wanted).take(pushes::MEMBERS_PER_PUSH);
            turn.decisions.extend(wanted.map(Decision::Push));
        }
    }

    fn message(&mut self, turn: &Turn<'_>, message: &PeerMessage) {
        // Only the current leader may announce the time.
        let is_of_leader = turn.view.leader == Some(message.from);
        if message.kind == MessageKind::Event {
            if let Some((origin, item)) = message.read::<(AgentNumber, Bytes)>() {
                self.events.add(turn.now, origin, &item);
            }
        } else if is_of_leader && let Some(time) = message.read() {
            self.clock.note_announcement(turn.now, time);
        }
    }

    /// Follows an applied command, on every server. A verdict that took effect is recorded; the
    /// leader also pushes it into the mesh.
    pub(crate) fn applied(
        &mut self,
        view: &ClusterView<'_>,
        now: Time,
        (command, applied): (&Command, &Applied),
        changes: &[Change],
    ) {
        self.follow(view.state, changes);
        if let (Command::FailNode(failure), Reply::Succeeded(true)) = (command, &applied.reply) {
            let NodeFailure { lease, window, .. } = *failure;
            let verdict = Verdict { lease, window, index: applied.index };
            // Only the agent's own cell: others do not know the agent and could not use the
            // verdict.
            let cell = view.state.agent(lease.agent).map(|agent| agent.cell).unwrap_or_default();
            self.note_verdict(now, cell, verdict);
            if view.is_serving() {
                self.push_verdict(view.state, cell, &verdict);
            }
        }
    }

    /// Follows applied changes; `state` is the state after them.
    fn follow(&mut self, state: &State, changes: &[Change]) {
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

    fn note_verdict(&mut self, now: Time, cell: CellNumber, verdict: Verdict) {
        self.verdicts.retain(|_, recent| {
            forget(now, recent);
            !recent.is_empty()
        });
        let recent = self.verdicts.entry(cell).or_default();
        if recent.len() >= MAX_VERDICTS {
            recent.pop_front();
        }
        recent.push_back(RecentVerdict { applied: now, verdict, signed: None });
    }

    /// Queues a verdict of this leader for its cell.
    fn push_verdict(&mut self, state: &State, cell: CellNumber, verdict: &Verdict) {
        let keys = self.keys.get_or_insert_with(|| Keys::of(state));
        self.pushes.add(cell, keys.signer.sign(verdict).into());
    }

    /// Queues an event that was fired at this server for all cells except its origin, where gossip
    /// spreads it.
    fn push_event(&mut self, origin: CellNumber, item: &Bytes) {
        let others = self.rosters.keys().filter(|cell| **cell != origin);
        others.for_each(|cell| self.pushes.add(*cell, item.clone()));
    }

    /// Takes the items to send now, and the candidates in each cell: the first few that can be
    /// reached receive them.
    fn take_pushes(&mut self, now: Time) -> Vec<(Vec<Bytes>, Vec<MemberId>)> {
        let members = |cell| {
            let roster = self.rosters.get(&cell)?;
            let first = pushes::first_member(now, roster.len());
            let members = roster.members().skip(first).chain(roster.members().take(first));
            Some(members.take(pushes::MAX_CANDIDATES).map(|member| member.id).collect())
        };
        let taken = self.pushes.take().into_iter();
        taken.filter_map(|(cell, items)| Some((items, members(cell)?))).collect()
    }

    /// Returns the data that an agent in this cell lacks, as of a log index, given the digest of
    /// its roster. `wall` is the time of this server's clock.
    pub(crate) fn news(
        &mut self,
        now: Time,
        state: &State,
        (as_of, wall): (LogIndex, WallTime),
        (cell, has): (CellNumber, &RosterDigest),
    ) -> MeshNews {
        let WallTime(millis) = self.clock.at(now, wall);
        let seconds = u32::try_from(millis / 1_000).unwrap_or(u32::MAX);
        self.counts.syncs += 1;
        let keys = self.keys.get_or_insert_with(|| Keys::of(state));
        let signed = |recent: &mut RecentVerdict| {
            recent.signed.get_or_insert_with(|| keys.signer.sign(&recent.verdict).into()).clone()
        };
        let recent: Option<Vec<_>> = self.verdicts.get_mut(&cell).map(|recent| {
            forget(now, recent);
            recent.iter_mut().map(signed).collect()
        });
        MeshNews {
            as_of,
            seconds,
            ring: keys.ring.clone(),
            verdict_key: keys.verdict_key,
            roster: self.rosters.get(&cell).unwrap_or(&Roster::default()).news(has),
            items: recent.unwrap_or_default().into_iter().chain(self.events.current(now)).collect(),
            event_time: self.events.time(),
        }
    }

    /// Returns the number of agents in the mesh.
    pub(crate) fn len(&self) -> usize {
        self.rosters.values().map(Roster::len).sum()
    }

    /// Returns the number of non-empty cells.
    pub(crate) fn cells(&self) -> usize {
        self.rosters.len()
    }

    /// Follows a changed agent row: the agent may have taken over a node from another agent, or
    /// returned it.
    fn follow_agent(&mut self, state: &State, number: AgentNumber) {
        let before = self.agents.get(&number).map(|(node, _)| node.clone());
        let node = state.agent(number).map(|agent| agent.node.folded());
        let numbers: Vec<_> = before.iter().chain(&node).flat_map(|node| state.agents_of(node)).collect();
        numbers.into_iter().chain([number]).for_each(|number| self.look_at(state, number));
    }

    fn look_at(&mut self, state: &State, number: AgentNumber) {
        let known = self.agents.remove(&number).and_then(|(_, known)| known);
        let agent = state.agent(number);
        let member = agent.and_then(|agent| Some((agent.cell, state.mesh_member(number)?)));
        let present = member.as_ref().map(|(cell, member)| (*cell, member.id));
        if let Some((cell, gone)) = known.filter(|known| Some(*known) != present) {
            self.remove(cell, gone);
        }
        if let Some((cell, member)) = member {
            self.rosters.entry(cell).or_default().insert(member);
        }
        if let Some(agent) = agent {
            self.agents.insert(number, (agent.node.folded(), present));
        }
    }

    fn remove(&mut self, cell: CellNumber, gone: MemberId) {
        let Some(roster) = self.rosters.get_mut(&cell) else { return };
        roster.remove(gone);
        if roster.is_empty() {
            self.rosters.remove(&cell);
        }
    }
}

/// Drops verdicts that were sent for long enough.
fn forget(now: Time, recent: &mut VecDeque<RecentVerdict>) {
    while recent.front().is_some_and(|recent| now.since(recent.applied) > NEWS_LIFETIME) {
        recent.pop_front();
    }
}

impl Keys {
    fn of(state: &State) -> Self {
        let signer = state.verdict_signer();
        Self { ring: state.key_ring(), verdict_key: signer.key(), signer }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{MAX_VERDICTS, NEWS_LIFETIME, ServedMesh};
    use crate::state::{CELL_AGENTS_MAX, State};
    use bytes::Bytes;
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::gossip::member::MemberId;
    use lockmesh_protocol::gossip::roster::{Roster, RosterDigest};
    use lockmesh_protocol::gossip::verdict::Verdict;
    use lockmesh_protocol::id::{AgentNumber, CellNumber, Generation, LogIndex, NodeName, WallTime};
    use lockmesh_protocol::lease::{HealthWindow, LeaseId};
    use lockmesh_protocol::random::Random;
    use lockmesh_protocol::record::{Agent, Incarnation, MemberStatus};
    use lockmesh_protocol::rpc::{CallId, MAX_FRAME_BYTES, ReplyFrame, Response};
    use lockmesh_protocol::time::Time;
    use lockmesh_protocol::wire;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    const NOW: Time = Time(1_000_000);

    const CELL: CellNumber = CellNumber(0);

    pub(crate) fn agent(number: u32, node: String, began: u64, status: MemberStatus) -> Agent {
        Agent {
            number: AgentNumber(number),
            generation: Generation(1),
            node: NodeName::from(node),
            node_id: format!("id of {number}"),
            port: 8301,
            gossip: "[2001:db8::7]:8301".parse().ok(),
            cell: CELL,
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

    pub(crate) fn load(state: &mut State, row: Agent) {
        state.load(Change::Agent(row.number, Some(Arc::new(row))));
    }

    fn digests(mesh: &ServedMesh) -> Vec<(CellNumber, RosterDigest)> {
        mesh.rosters.iter().map(|(cell, roster)| (*cell, roster.digest())).collect()
    }

    #[test]
    fn incremental_rosters_match_state() {
        let (mut state, mut random) = (State::default(), Random::new(3));
        let mut kept = ServedMesh::of(&state);
        for began in 1..2_000 {
            let mut draw = |below: u64| random.number() % below;
            let number = AgentNumber(draw(12) as u32);
            let statuses =
                [MemberStatus::Alive, MemberStatus::Restarting, MemberStatus::Left, MemberStatus::Failed];
            // Fewer names than agents, in either case: agents take names over from each other.
            let node = ["n", "N"][draw(2) as usize].to_owned() + &draw(5).to_string();
            let mut row = agent(number.0, node, began, statuses[draw(4) as usize]);
            row.cell = CellNumber(draw(3) as u16);
            if draw(5) == 0 {
                row.gossip = None;
            }
            let change = Change::Agent(number, (draw(6) > 0).then(|| Arc::new(row)));
            state.load(change.clone());
            kept.follow(&state, &[change]);
            let anew = ServedMesh::of(&state);
            assert_eq!(digests(&kept), digests(&anew), "{began}");
            assert_eq!((&kept.agents, kept.len()), (&anew.agents, anew.len()));
        }
    }

    #[test]
    fn agents_receive_own_cell_only() {
        let mut state = State::default();
        for number in 0..10_000 {
            let mut row = agent(number, format!("n{number}"), 1, MemberStatus::Alive);
            row.cell = CellNumber((number / 1_000) as u16);
            load(&mut state, row);
        }
        let mut mesh = ServedMesh::of(&state);
        assert_eq!((mesh.cells(), mesh.len()), (10, 10_000));
        (0..10_000).step_by(100).for_each(|number| {
            mesh.note_verdict(NOW, CellNumber((number / 1_000) as u16), verdict(number));
        });
        for cell in 0..10 {
            let (mut roster, nothing) = (Roster::default(), RosterDigest(Vec::new()));
            let news = mesh.news(NOW, &state, (LogIndex(0), WallTime(0)), (CellNumber(cell), &nothing));
            roster.apply(news.roster);
            let numbers = u32::from(cell) * 1_000..u32::from(cell + 1) * 1_000;
            let lease = |number| LeaseId { agent: AgentNumber(number), began: LogIndex(1) };
            let mut members = numbers.clone().map(|number| MemberId::of_agent(lease(number)));
            assert!(members.all(|member| roster.get(member).is_some()) && roster.len() == 1_000);
            let recent = news.items.iter().map(|bytes| news.verdict_key.read(bytes).expect("it is signed"));
            assert!(recent.eq(numbers.step_by(100).map(verdict)), "cell {cell}");
        }
        let nobody =
            mesh.news(NOW, &state, (LogIndex(0), WallTime(0)), (CellNumber(10), &RosterDigest(Vec::new())));
        assert!(nobody.roster.0.iter().all(|(_, members)| members.is_empty()) && nobody.items.is_empty());
    }

    #[test]
    fn news_pushed_to_other_cells() {
        let mut state = State::default();
        for number in 0..40 {
            let mut row = agent(number, format!("n{number}"), 1, MemberStatus::Alive);
            row.cell = CellNumber(number as u16 % 4);
            load(&mut state, row);
        }
        let mut mesh = ServedMesh::of(&state);
        let cells = |recent: Vec<(Vec<Bytes>, Vec<MemberId>)>| {
            let cells = recent.into_iter().map(|(items, members)| {
                let cell = |member: &MemberId| member.lease().expect("the member is an agent").agent.0 % 4;
                let cells: BTreeSet<u32> = members.iter().map(cell).collect();
                assert_eq!((cells.len(), members.len()), (1, 10), "all of one cell");
                (cells.first().copied(), items.len())
            });
            cells.collect::<Vec<_>>()
        };
        let event = Bytes::from_static(b"an event");
        mesh.push_event(CellNumber(1), &event);
        mesh.push_verdict(&state, CellNumber(2), &verdict(2));
        assert_eq!(cells(mesh.take_pushes(NOW)), [(Some(0), 1), (Some(2), 2), (Some(3), 1)]);
        assert!(mesh.take_pushes(NOW).is_empty());
        // An empty cell receives nothing, and the number of items is limited.
        (0..1_000).for_each(|_| mesh.push_event(CellNumber(1), &event));
        mesh.pushes.add(CellNumber(9), event);
        assert_eq!(cells(mesh.take_pushes(NOW)), [(Some(0), 64), (Some(2), 64), (Some(3), 64)]);
    }

    #[test]
    fn push_targets_rotate_over_time() {
        let mut state = State::default();
        (0..900).for_each(|number| {
            load(&mut state, agent(number, format!("n{number}"), 1, MemberStatus::Alive));
        });
        let mut mesh = ServedMesh::of(&state);
        let mut first = |seconds: u64| {
            mesh.push_verdict(&state, CELL, &verdict(2));
            let (_, members) = mesh.take_pushes(NOW + Duration::from_secs(seconds)).remove(0);
            assert_eq!(members.len(), 64);
            members[0]
        };
        assert_eq!(first(0), first(1), "the connection is reused");
        let recent: BTreeSet<_> = (0..100).map(|number| first(number * 5)).collect();
        assert!(recent.len() > 60, "{}", recent.len());
    }

    #[test]
    fn full_cell_and_verdicts_fit_frame() {
        let mut state = State::default();
        for number in 0..CELL_AGENTS_MAX as u32 {
            // The maximum length of a host name.
            let node = format!("{number:0>253}");
            load(&mut state, agent(number, node, u64::MAX - u64::from(number), MemberStatus::Alive));
        }
        let mut mesh = ServedMesh::of(&state);
        (0..1_000).for_each(|number| mesh.note_verdict(NOW, CELL, verdict(number)));
        let news = mesh.news(NOW, &state, (LogIndex(0), WallTime(0)), (CELL, &RosterDigest(Vec::new())));
        assert_eq!(news.roster.0.iter().map(|(_, members)| members.len()).sum::<usize>(), CELL_AGENTS_MAX);
        assert_eq!(news.items.len(), MAX_VERDICTS);
        let frame = ReplyFrame(vec![(CallId(1), Response::Mesh(Box::new(news)))]);
        let bytes = wire::encode(&frame).len();
        assert!(bytes < MAX_FRAME_BYTES / 16, "{bytes} bytes");
    }

    #[test]
    fn newest_verdicts_served_until_expiry() {
        let (mut mesh, state) = (ServedMesh::default(), State::default());
        let nothing = RosterDigest(Vec::new());
        (0..=MAX_VERDICTS as u32).for_each(|number| mesh.note_verdict(NOW, CELL, verdict(number)));
        let news = mesh.news(NOW, &state, (LogIndex(0), WallTime(0)), (CELL, &nothing));
        let recent: Vec<_> = news.items.iter().map(|bytes| news.verdict_key.read(bytes)).collect();
        assert_eq!((recent.first(), recent.len()), (Some(&Ok(verdict(1))), MAX_VERDICTS));
        assert!(
            mesh.news(NOW + NEWS_LIFETIME * 2, &state, (LogIndex(0), WallTime(0)), (CELL, &nothing))
                .items
                .is_empty()
        );
        // Verdicts are also dropped in a cell whose agents no longer sync.
        mesh.note_verdict(NOW, CellNumber(1), verdict(1));
        mesh.note_verdict(NOW + NEWS_LIFETIME * 2, CELL, verdict(2));
        assert!(mesh.verdicts.keys().eq(&[CELL]));
    }
}
