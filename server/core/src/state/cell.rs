//! Cells: the mesh is divided into parts, so that a host's roster and gossip traffic do not grow
//! with the fleet.
//!
//! A cell is assigned at registration. A new agent joins the smallest cell, so hosts that start
//! together, such as those of one rack, are spread over the cells with room. If all cells are full,
//! a new one opens; it is small as long as few agents join. Agents never move: their neighbours
//! would have to learn of them again.

use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::record::{Agent, MemberStatus};
use std::collections::BTreeMap;

/// The maximum number of agents in a cell. A host keeps the roster of its cell, about 100 KiB at
/// this size. Ten thousand neighbours would detect a failure no sooner than a thousand.
pub const CELL_AGENTS_MAX: usize = 1_024;

/// The number of agents in each non-empty cell. Failed agents count: they may return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cells(BTreeMap<CellNumber, usize>);

impl Cells {
    /// Counts an agent.
    pub(super) fn insert(&mut self, agent: &Agent) {
        if is_in_its_cell(agent) {
            *self.0.entry(agent.cell).or_default() += 1;
        }
    }

    /// Uncounts an agent that was removed or changed.
    pub(super) fn remove(&mut self, agent: &Agent) {
        if let Some(count) = self.0.get_mut(&agent.cell).filter(|_| is_in_its_cell(agent)) {
            *count -= 1;
            // Empty cells are removed, or a state rebuilt from its rows would differ.
            if *count == 0 {
                self.0.remove(&agent.cell);
            }
        }
    }

    /// The size of the largest cell.
    pub(super) fn largest(&self) -> usize {
        self.0.values().copied().max().unwrap_or_default()
    }

    /// The cell of an agent that registers: its present one, if any. An agent that left is in no
    /// cell, and its slot may be taken.
    pub(super) fn of(&self, before: Option<&Agent>) -> CellNumber {
        let present = before.filter(|before| is_in_its_cell(before)).map(|before| before.cell);
        present.unwrap_or_else(|| self.for_another())
    }

    /// The cell for one more agent.
    fn for_another(&self) -> CellNumber {
        let smallest = self.0.iter().min_by_key(|(number, count)| (**count, **number));
        let with_room = smallest.filter(|(_, count)| **count < CELL_AGENTS_MAX);
        let unused = || (0..=u16::MAX).map(CellNumber).find(|number| !self.0.contains_key(number));
        // There are more cells than any fleet needs: 67 million agents fill them.
        with_room.map(|(number, _)| *number).or_else(unused).unwrap_or_default()
    }
}

fn is_in_its_cell(agent: &Agent) -> bool {
    agent.status != MemberStatus::Left
}
