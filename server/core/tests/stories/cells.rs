//! Cells of the mesh: each agent is assigned one when it registers, and none exceeds its limit.

use lockmesh_core::Proposal;
use lockmesh_core::state::{CELL_AGENTS_MAX, State};
use lockmesh_protocol::command::{AgentRegistration, Command, NodeFailure, NodeLeave};
use lockmesh_protocol::id::{CellNumber, LogIndex, NodeName, ServerId, Term, WallTime};
use lockmesh_protocol::lease::{HealthWindow, LeaseKey};
use lockmesh_protocol::record::{Incarnation, MemberStatus, Node, Server};
use lockmesh_protocol::reply::Reply;
use std::collections::BTreeMap;
use std::time::Duration;

const FULL: u32 = CELL_AGENTS_MAX as u32;

/// A state, and the hosts that register in it.
struct Fleet {
    state: State,
    index: u64,
}

impl Fleet {
    /// Registers this many hosts, one after the other.
    fn of(hosts: u32) -> Self {
        let mut fleet = Self { state: State::new(), index: 0 };
        let server = Server {
            id: ServerId(1),
            node: "s1".into(),
            node_id: String::new(),
            address: String::new(),
            instance_id: String::new(),
            format: 1,
        };
        let (cluster_id, servers, lease_key) = ("here".into(), vec![server], LeaseKey([7; 32]));
        fleet.apply(Command::Bootstrap { cluster_id, servers, lease_key });
        fleet.registers(0..hosts);
        fleet
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let proposal = Proposal::new(None, WallTime(0), command);
        self.state.apply(LogIndex(self.index), Term(1), &proposal, &mut Vec::new()).reply.clone()
    }

    fn registers(&mut self, hosts: impl IntoIterator<Item = u32>) {
        for host in hosts {
            let node = Node::of(name(host), format!("5a0f2b6e-3c60-4d3f-9d5c-{host:0>12}"), "10.0.0.1");
            // Another process each time.
            let incarnation =
                Incarnation { process: u128::from(self.index).to_be_bytes(), ..Default::default() };
            let registration = AgentRegistration { incarnation, ..AgentRegistration::of(node) };
            let reply = self.apply(Command::RegisterAgent(registration));
            assert!(matches!(reply, Reply::Agent { .. }), "{reply:?}");
        }
    }

    fn leaves(&mut self, host: u32, prune: bool) {
        let leave = NodeLeave { node: name(host), lease: None, prune };
        assert_eq!(self.apply(Command::LeaveNode(leave)), Reply::Done);
    }

    fn fails(&mut self, host: u32) {
        let failure = NodeFailure {
            lease: self.state.member(&name(host)).expect("it registered").lease(),
            window: HealthWindow::Default,
            confirmed_by: vec![ServerId(1)],
            silent_for: Duration::from_secs(5),
            term: Term(1),
            base: 0,
        };
        assert_eq!(self.apply(Command::FailNode(failure)), Reply::Succeeded(true));
    }

    fn cell(&self, host: u32) -> u16 {
        self.state.member(&name(host)).expect("it registered").cell.0
    }

    /// The size of each cell, failed agents included. Checks the invariants too.
    fn sizes(&self) -> Vec<usize> {
        assert_eq!(self.state.check(), Ok(()));
        let mut sizes: BTreeMap<CellNumber, usize> = BTreeMap::new();
        for agent in self.state.agents().filter(|agent| agent.status != MemberStatus::Left) {
            *sizes.entry(agent.cell).or_default() += 1;
        }
        assert!(sizes.keys().map(|cell| usize::from(cell.0)).eq(0..sizes.len()), "{sizes:?}");
        sizes.into_values().collect()
    }
}

fn name(host: u32) -> NodeName {
    format!("h{host}").into()
}

#[test]
fn new_cell_opens_when_full() {
    let mut fleet = Fleet::of(FULL);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX]);
    fleet.registers([FULL]);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX, 1]);
    fleet.registers(FULL + 1..10_000);
    assert_eq!(fleet.sizes(), [1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 1_024, 784]);
}

#[test]
fn returning_agent_keeps_cell() {
    let mut fleet = Fleet::of(FULL + 2);
    fleet.registers([7]);
    fleet.fails(8);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX, 2], "a failed one may return");
    fleet.registers([8, FULL + 1]);
    assert_eq!([7, 8, FULL, FULL + 1].map(|host| fleet.cell(host)), [0, 0, 1, 1]);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX, 2]);
}

#[test]
fn departed_agent_loses_cell_slot() {
    let mut fleet = Fleet::of(2 * FULL);
    fleet.leaves(5, false);
    fleet.leaves(6, true);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX - 2, CELL_AGENTS_MAX]);
    fleet.registers([2 * FULL, 2 * FULL + 1]);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX, CELL_AGENTS_MAX]);
    fleet.registers([5, 6]);
    assert_eq!((fleet.cell(5), fleet.cell(6)), (2, 2));
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX, CELL_AGENTS_MAX, 2]);
}

#[test]
fn simultaneous_joins_spread_over_cells() {
    let mut fleet = Fleet::of(3 * FULL);
    for host in (0..3).flat_map(|cell| (0..100).map(move |host| cell * FULL + host)) {
        fleet.leaves(host, true);
    }
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX - 100; 3]);
    fleet.registers(10_000..10_060);
    assert_eq!(fleet.sizes(), [CELL_AGENTS_MAX - 80; 3]);
    assert_eq!([10_000, 10_001, 10_002, 10_003].map(|host| fleet.cell(host)), [0, 1, 2, 0]);
}

#[test]
fn empty_cell_unused_until_needed() {
    let mut fleet = Fleet::of(2 * FULL + 1);
    (0..FULL).for_each(|host| fleet.leaves(host, true));
    fleet.registers([10_000]);
    assert_eq!(fleet.cell(10_000), 2, "alone in an empty cell it would have no neighbour");
    fleet.registers(10_001..10_001 + FULL);
    assert_eq!((fleet.cell(10_000 + FULL), fleet.sizes()), (0, vec![2, CELL_AGENTS_MAX, CELL_AGENTS_MAX]));
}

#[test]
fn rebuilt_state_places_agents_identically() {
    let mut fleet = Fleet::of(FULL + 3);
    fleet.leaves(9, false);
    let mut rebuilt = State::new();
    fleet.state.rows().for_each(|row| rebuilt.load(row));
    assert!(rebuilt == fleet.state);
    fleet.registers([20_000]);
    let placed = fleet.cell(20_000);
    fleet.state = rebuilt;
    fleet.registers([20_000]);
    assert_eq!((fleet.cell(20_000), placed), (1, 1));
}
