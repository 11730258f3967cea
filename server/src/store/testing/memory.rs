//! A backup of a state in memory: it has the same parts as a backup of a file.

use crate::store::checkpoint::{RowSource, Visit};
use crate::store::file::StoreFault;
use crate::store::rows::{self, RowKey};
use crate::store::{Backup, checkpoint};
use lockmesh_core::State;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::raft::log::SnapshotMeta;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The rows as they would be stored in the file.
struct MemoryRows(BTreeMap<Vec<u8>, Vec<u8>>);

impl RowSource for MemoryRows {
    fn each(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreFault> {
        for (key, value) in self.0.range(from.to_vec()..) {
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }
}

/// Returns a backup of the current state.
pub fn backup_of(mark: SnapshotMeta, state: &State) -> Backup {
    let row = |change| {
        let RowKey(key) = rows::key(&change).expect("a state is made of rows");
        (key, rows::encode(&change))
    };
    let rows = MemoryRows(state.rows().map(row).collect());
    let cluster_id = state.cluster_id().to_owned();
    let mark = (mark, Checksum::of(state.rows()));
    Backup::new(PathBuf::from("/memory"), Box::new(rows), mark, cluster_id, checkpoint::PART_BYTES)
}
