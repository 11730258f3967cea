//! What a server tells the mesh by itself, so that it is known at once: a verdict in the cell of
//! the node that was failed, and an event in the cells to which no gossip carries it. A few members
//! of the cell are told, and pass it on. One who hears it nowhere asks in time all the same.

use bytes::Bytes;
use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many members of a cell are told.
pub(super) const MEMBERS: usize = 3;

/// So many members are looked at, at most, for those who can be told.
pub(super) const LOOKED_AT: usize = 64;

/// For so long they are the same ones, as far as they live: the connections to them stand.
const SAME_MEMBERS: Duration = Duration::from_secs(4);

/// So many items are told in a cell at once; members ask for those beyond.
const MAX_ITEMS: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Pushes(BTreeMap<CellNumber, Vec<Bytes>>);

impl Pushes {
    /// An item is to be told in a cell.
    pub(super) fn add(&mut self, cell: CellNumber, item: Bytes) {
        let items = self.0.entry(cell).or_default();
        if items.len() < MAX_ITEMS {
            items.push(item);
        }
    }

    /// What is to be told now.
    pub(super) fn take(&mut self) -> BTreeMap<CellNumber, Vec<Bytes>> {
        std::mem::take(&mut self.0)
    }
}

/// From which member of a cell on those are looked for who are told.
pub(super) fn first_member(now: Time, members: usize) -> usize {
    let number = now.since(Time(0)).as_millis() / SAME_MEMBERS.as_millis();
    // Far from the one before, so that the same three are not told for minutes.
    (number as usize).wrapping_mul(7_919) % members.max(1)
}
