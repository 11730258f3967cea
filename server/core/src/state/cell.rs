//! Cells: the mesh is cut into parts, so that what a host keeps and hears of others does not grow
//! with the fleet.
//!
//! A cell is given with the registration. A new agent goes where the fewest are, so that hosts
//! which come together, as those of a rack do, are spread over the cells with room. Where all are
//! full, a new cell opens; it is small as long as few come. No agent is ever moved: its neighbours
//! would have to learn of each other anew.

use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::record::{Agent, MemberStatus};
use std::collections::BTreeMap;

/// How many agents a cell has at most. A host keeps the roster of its cell, some 100 KiB at this
/// size; and its death is noticed no sooner by ten thousand neighbours than by a thousand.
pub const CELL_AGENTS_MAX: usize = 1_024;

/// How many agents are in each cell that has any. Those that failed count: they may come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cells(BTreeMap<CellNumber, usize>);

impl Cells {
    /// An agent is there.
    pub(super) fn insert(&mut self, agent: &Agent) {
        if is_in_its_cell(agent) {
            *self.0.entry(agent.cell).or_default() += 1;
        }
    }

    /// An agent that was there is not any more, or not as it was.
    pub(super) fn remove(&mut self, agent: &Agent) {
        if let Some(count) = self.0.get_mut(&agent.cell).filter(|_| is_in_its_cell(agent)) {
            *count -= 1;
            // Nothing stays of an empty cell, or a state that is rebuilt from its rows would differ
            // from this one.
            if *count == 0 {
                self.0.remove(&agent.cell);
            }
        }
    }

    /// How many agents the largest cell has.
    pub(super) fn largest(&self) -> usize {
        self.0.values().copied().max().unwrap_or_default()
    }

    /// The cell of an agent that registers: the one that it is in. Whoever left is in none, and its
    /// place may be another one's by now.
    pub(super) fn of(&self, before: Option<&Agent>) -> CellNumber {
        let present = before.filter(|before| is_in_its_cell(before)).map(|before| before.cell);
        present.unwrap_or_else(|| self.for_another())
    }

    /// Where one more agent goes.
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
