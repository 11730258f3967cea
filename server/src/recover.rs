//! Restarts a cluster from one surviving server after a permanent loss of quorum: the last resort.
//!
//! The survivor's log counts as committed, and the survivor as the only voter. Entries that only
//! the others had are lost, and may have been acknowledged. Indexes and fencing tokens therefore
//! continue far above all that may have been assigned. **No check can prove that the others are
//! really lost**: if they still run, or are started again, there are two clusters (split brain).

use crate::bootstrap::{self, BootstrapState};
use crate::stopped::{self, FolderError};
use crate::store::{
    DirtyRows, HeldFolder, SEGMENT_BYTES, Store, StoreEvent, StoreHandle, StoreHealth, StoreOptions,
};
use lockmesh_core::raft::log::{
    EntryKind, HardState, LogEntry, LogWrite, Membership, Recovered, SnapshotMeta,
};
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{Fence, LogIndex, ServerId};
use lockmesh_protocol::record::Server;
use std::fmt;
use std::path::Path;
use std::sync::mpsc;

/// The distance of new indexes from the survivor's: more than the lost servers' logs can hold.
const INDEX_JUMP: u64 = 1 << 32;
/// The same for fencing tokens.
const FENCE_JUMP: u64 = 1 << 32;
/// The cache of each file in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// The result of a recovery, to be shown to operators.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The server that is now the only voter.
    pub server: Server,
    /// Its cluster.
    pub cluster_id: String,
    /// The last entry of its log, which counts as committed.
    pub index: LogIndex,
    /// The number of its last entries that it did not know to be committed.
    pub unsure: u64,
    /// The servers that no longer belong to the cluster. They must never be started again with
    /// their data.
    pub removed: Vec<Server>,
}

/// Makes a stopped server the only voter of its cluster, and keeps its id. Blocks while it works.
///
/// The other servers' data folders must be emptied before they are started again; then they join as
/// new ones.
///
/// `accept_loss` also allows this if the newest commits of its log are lost, which it had
/// acknowledged.
///
/// # Errors
/// The folder is unchanged, unless the disk failed half-way: then recover again. The error names
/// the file and the remedy.
pub fn recover(folder: &Path, accept_loss: bool) -> Result<Recovery, FolderError> {
    let held = Store::hold(folder)?;
    let mut record = stopped::record(folder)?;
    let BootstrapState::Member(membership) = &mut record.state else {
        return Err(FolderError::never_a_member(folder));
    };
    // Opening would create a new store, and prevent any recovery.
    if !held.has_store()? {
        return Err(FolderError::no_store(folder));
    }
    let recovery = begin_cluster_of_one(&held, folder, membership, accept_loss)?;
    tracing::warn!("{recovery}");
    membership.servers = vec![recovery.server.clone()];
    // A copy becomes an original when it restarts the cluster.
    record.files = held.origins()?.first().copied();
    if std::mem::take(&mut record.corrupt) {
        tracing::warn!("this server's state was found corrupt; it counts as correct from now on");
    }
    record.write(folder)?;
    held.remove_former_log()?;
    Ok(recovery)
}

/// Writes the first state of a cluster of one server: indexes and fencing tokens far above all that
/// its store, or the original of a copied store, can have assigned.
pub(crate) fn begin_cluster_of_one(
    held: &HeldFolder,
    folder: &Path,
    membership: &bootstrap::Membership,
    accept_loss: bool,
) -> Result<Recovery, FolderError> {
    let id = membership.server;
    let first_snapshot = SnapshotMeta::default();
    let options = StoreOptions {
        server: id,
        first_snapshot,
        cache_bytes: CACHE_BYTES,
        accept_loss,
        segment_bytes: SEGMENT_BYTES,
    };
    let (store, recovered) = held.open(&options)?;
    let survivor = Survivor::of_log(recovered)?;
    let known = survivor.state.server(id).map(|row| (**row).clone());
    let known = known.or_else(|| membership.servers.iter().find(|server| server.id == id).cloned());
    let (true, Some(server)) = (survivor.mark.index.0 > 0, known) else {
        return Err(FolderError::nothing(folder, "its server has no state of its cluster yet"));
    };
    let others = survivor.state.servers().filter(|row| row.id != id);
    let recovery = Recovery {
        index: survivor.mark.index,
        unsure: survivor.mark.index.0.saturating_sub(survivor.hard_state.commit.0),
        cluster_id: membership.cluster_id.clone(),
        removed: others.map(|row| (**row).clone()).collect(),
        server,
    };
    survivor.write(store, &recovery)?;
    Ok(recovery)
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, cluster_id, index, unsure, removed } = self;
        write!(
            f,
            "server {} ({}) is the only voter of the cluster {cluster_id} now. Its log up to index {index} counts \
             as committed, including {unsure} entries not known to be committed; entries that only the others held are lost.",
            server.id, server.node
        )?;
        for other in removed {
            write!(
                f,
                " Server {} ({} at {}) was removed: NEVER start it again before its data folder is emptied.",
                other.id, other.node, other.address
            )?;
        }
        Ok(())
    }
}

/// The survivor's state on disk, with its whole log applied.
struct Survivor {
    hard_state: HardState,
    mark: SnapshotMeta,
    state: State,
}

impl Survivor {
    fn of_log(recovered: Recovered) -> Result<Self, FolderError> {
        let Recovered { hard_state, snapshot: mut mark, entries, mut state, .. } = recovered;
        let mut changes = Vec::new();
        // The whole log counts, committed or not: it may include entries that only the others knew
        // to be committed, and these cannot be distinguished.
        for entry in entries.iter().filter(|entry| entry.index > mark.index) {
            if let Some(proposal) = proposal(entry)? {
                state.apply(entry.index, entry.term, &proposal, &mut changes);
                changes.clear();
            }
        }
        if let Some(last) = entries.last().filter(|last| last.index > mark.index) {
            (mark.index, mark.term) = (last.index, last.term);
        }
        Ok(Self { hard_state, mark, state })
    }

    /// Writes the checkpoint of a cluster of one, and an empty log behind it. May be repeated after
    /// a crash: until the log is empty it leads to the checkpoint.
    fn write(mut self, store: Store, recovery: &Recovery) -> Result<(), FolderError> {
        let id = recovery.server.id;
        // Only the rows are removed: an id without a row is never admitted again.
        for other in &recovery.removed {
            self.state.load(Change::Server(other.id, None));
        }
        // Above all that the lost servers, or the original of a copy, may have granted.
        self.state.load(Change::Fence(Fence(self.state.fence().0 + FENCE_JUMP)));
        let base = self.state.index_base() + INDEX_JUMP;
        self.state.load(Change::IndexBase(base));
        // A client may know the index of a lost change: it must not wait for the next change after
        // it.
        self.state.raise_indexes(LogIndex(self.mark.index.0 + base));
        // Not through the log, which would need the lost votes.
        let mark = SnapshotMeta { membership: Membership::of_voters(&[id]), ..self.mark };
        let mut rows = DirtyRows::default();
        rows.record(Change::Cleared);
        rows.extend(self.state.rows());
        // Above every term of this log, so that no entry of the new cluster is confused with an old
        // one.
        let term = self.hard_state.term.max(mark.term).next();
        let hard_state = HardState { term, vote: ServerId(0), commit: mark.index };
        let (sender, events) = mpsc::sync_channel(16);
        let store = store.start(move |event| {
            // After an error the receiver is gone.
            let _ = sender.send(event);
        });
        let store = store.map_err(FolderError::Thread)?;
        // The checkpoint first, then the reset, as for another server's snapshot.
        store.install(mark.clone(), rows);
        store.write([LogWrite {
            number: 1,
            reset: Some(mark),
            entries: Vec::new(),
            hard_state: Some(hard_state),
        }])?;
        until_written(store, &events)
    }
}

fn until_written(store: StoreHandle, events: &mpsc::Receiver<StoreEvent>) -> Result<(), FolderError> {
    let (mut has_checkpoint, mut has_log) = (false, false);
    while !(has_checkpoint && has_log) {
        match events.recv() {
            Ok(StoreEvent::Checkpointed(_)) => has_checkpoint = true,
            Ok(StoreEvent::Persisted(_)) => has_log = true,
            Ok(StoreEvent::Health(StoreHealth::Failing(reason))) => return Err(FolderError::Disk(reason)),
            Ok(StoreEvent::Health(StoreHealth::Good) | StoreEvent::Summed(..)) => {}
            Err(_) => return Err(FolderError::Disk("the store has ended".into())),
        }
    }
    store.close();
    Ok(())
}

fn proposal(entry: &LogEntry) -> Result<Option<Proposal>, FolderError> {
    // A membership change lists the previous voters: only this server is left of them.
    if entry.kind != EntryKind::Normal || entry.data.is_empty() {
        return Ok(None);
    }
    let proposal = format::decode(&entry.data);
    proposal.map(Some).map_err(|error| FolderError::Entry { index: entry.index, reason: error.to_string() })
}
