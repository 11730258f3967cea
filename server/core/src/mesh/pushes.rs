//! Items that a server pushes into the mesh without a request: a verdict into the cell of the
//! failed node, and an event into the cells that gossip does not reach. A few members of the cell
//! receive them and disseminate them by gossip. A member that misses an item gets it with its next
//! sync.

use bytes::Bytes;
use lockmesh_protocol::id::CellNumber;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of members per cell that receive a push.
pub(super) const MEMBERS_PER_PUSH: usize = 3;

/// The maximum number of members to consider when looking for reachable ones.
pub(super) const MAX_CANDIDATES: usize = 64;

/// The time for which the same members are chosen, if alive, so that their connections are reused.
const MEMBER_ROTATION_INTERVAL: Duration = Duration::from_secs(4);

/// The maximum number of items pushed into a cell at once; members get the rest when they sync.
const MAX_ITEMS: usize = 64;

/// The items to push, by cell.
#[derive(Debug, Default)]
pub(crate) struct Pushes(BTreeMap<CellNumber, Vec<Bytes>>);

impl Pushes {
    /// Queues an item for a cell.
    pub(super) fn add(&mut self, cell: CellNumber, item: Bytes) {
        let items = self.0.entry(cell).or_default();
        if items.len() < MAX_ITEMS {
            items.push(item);
        }
    }

    /// Takes all queued items.
    pub(super) fn take(&mut self) -> BTreeMap<CellNumber, Vec<Bytes>> {
        std::mem::take(&mut self.0)
    }
}

/// Returns the member of a cell from which the search for recipients starts.
pub(super) fn first_member(now: Time, members: usize) -> usize {
    let number = now.since(Time(0)).as_millis() / MEMBER_ROTATION_INTERVAL.as_millis();
    // Far from the previous one, so that the same three are not chosen for minutes.
    (number as usize).wrapping_mul(7_919) % members.max(1)
}
