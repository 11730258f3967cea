//! Opening the pair of files: creation, verification, and recovery of the state from log and
//! checkpoint.
//!
//! **Invariant:** nothing is written to either file before both are known to be ours, whole, and of
//! one pair.
//!
//! A new pair is created under other names and then renamed, the checkpoint first. A crash on the
//! way therefore leaves either nothing under the real names, or a checkpoint and its complete log,
//! which only has to be renamed.

use super::checkpoint::CheckpointStore;
use super::disk::Disk;
use super::error::StoreError;
use super::file::{FileIdentity, Kind, RedbFile, io_error};
use super::log::{LogHead, LogStore};
use super::names::{LOG, NEW_LOG, NEW_STATE, REPORTED, STATE};
use super::reported::{self, ReportedFile};
use lockmesh_core::State;
use lockmesh_core::raft::log::{HardState, LogEntry, Recovered, SnapshotMeta};
use lockmesh_net::random;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::path::PathBuf;
use std::sync::Arc;

/// The inputs of opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The server of the store; files of another server are rejected.
    pub server: ServerId,
    /// The first snapshot of a new store: index 1, term 1 and the first membership if a cluster is
    /// founded, all zero if a server joins one. The log then begins behind it, and it counts as
    /// committed.
    pub first_snapshot: SnapshotMeta,
    /// The cache of each file in bytes.
    pub cache_bytes: usize,
    /// `true` to accept a log that has lost commits which were reported as durable.
    pub accept_loss: bool,
}

/// Both files, open and verified.
#[derive(Debug)]
pub struct Store {
    pub(super) log: LogStore,
    pub(super) checkpoints: CheckpointStore,
    pub(super) durable_checkpoint: LogIndex,
}

/// Opens the pair in a place that no other process uses, or creates it if it is missing.
pub(super) fn open(disk: Arc<dyn Disk>, options: &StoreOptions) -> Result<(Store, Recovered), StoreError> {
    create_if_missing(&disk, options)?;
    let Pair { mut log, checkpoints, mut entries, mark, state, reset, pair, lost } =
        Pair::load(&disk, options.server, options.cache_bytes)?;
    // Before the first write: a rejected log keeps every byte.
    if let Some(told) = lost.filter(|_| !options.accept_loss) {
        return Err(StoreError::Lost { path: log.file().path(), found: log.head().commit_number, told });
    }
    // From here on both are trusted.
    log.file().release()?;
    checkpoints.file().release()?;
    if let Some(told) = lost {
        let found = log.head().commit_number;
        tracing::warn!(
            found,
            told,
            "acknowledged commits of the log are lost; continuing without them as requested"
        );
        log.accept_loss(told)?;
    }
    // Only a trusted log may report its position.
    log.record_commits(ReportedFile::new(Arc::clone(&disk), pair));
    // Left by a crash between the checkpoint of another server's snapshot and the reset of the log
    // that follows it.
    if reset {
        tracing::warn!(
            index = mark.index.0,
            "the log does not lead to the checkpoint; restarting it behind the checkpoint"
        );
        log.reset((mark.index, mark.term))?;
        entries.clear();
    } else {
        // Usually changes nothing, since a checkpoint waits for its commit index. The engine relies
        // on it, so it is enforced.
        log.commit(&[], mark.index)?;
    }
    let LogHead { hard_state, base, .. } = log.head();
    tracing::info!(
        folder = %disk.path("").display(), checkpoint = mark.index.0, log_from = base.0.next().0,
        entries = entries.len(), term = hard_state.term.0, commit = hard_state.commit.0, "opened the store"
    );
    let own = checkpoints.own()?;
    let recovered = Recovered { hard_state, snapshot: mark, entries, base, state, own };
    Ok((Store { log, checkpoints, durable_checkpoint: recovered.snapshot.index }, recovered))
}

/// Creates the pair if it is missing, or finishes its creation.
fn create_if_missing(disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<(), StoreError> {
    let exists = |name| disk.exists(name).map_err(io_error(&disk.path(name), "cannot check for the file"));
    match (exists(LOG)?, exists(STATE)?) {
        (true, true) => Ok(()),
        (false, false) => create(&**disk, options),
        // The checkpoint is renamed first, so a crash in between leaves this and the log under its
        // draft name.
        (false, true) => finish_creation(disk, options.cache_bytes),
        // No crash of ours leaves this; and the log alone does not suffice, since it was compacted
        // behind the checkpoint.
        (true, false) => Err(StoreError::Missing { missing: disk.path(STATE), present: disk.path(LOG) }),
    }
}

/// Reads the state with which a server would start; `None` if there is no store. Nothing is
/// written.
pub(super) fn inspect(
    disk: &Arc<dyn Disk>,
    server: ServerId,
    cache_bytes: usize,
) -> Result<Option<Inspected>, StoreError> {
    if !has_store(&**disk)? {
        return Ok(None);
    }
    let Pair { log, checkpoints, mut entries, mark, state, reset, lost, .. } =
        Pair::load(disk, server, cache_bytes)?;
    let formats = Formats { log: log.file().format()?, state: checkpoints.file().format()? };
    let lost_commits = lost.map_or(0, |told| told - log.head().commit_number);
    let mut head = log.head();
    if reset {
        head = head.begun_anew((mark.index, mark.term));
        entries.clear();
    }
    let hard_state = HardState { commit: head.hard_state.commit.max(mark.index), ..head.hard_state };
    let own = checkpoints.own()?;
    let recovered = Recovered { hard_state, snapshot: mark, entries, base: head.base, state, own };
    Ok(Some(Inspected { recovered, formats, lost_commits }))
}

/// The contents of a store that is not in use.
#[derive(Debug)]
pub struct Inspected {
    /// The state with which a server would start.
    pub recovered: Recovered,
    /// The formats of the two files.
    pub formats: Formats,
    /// The number of lost commits that were reported as durable.
    pub lost_commits: u64,
}

/// The formats of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// The format of `log.redb`.
    pub log: u32,
    /// The format of `state.redb`.
    pub state: u32,
}

/// The two files as found: ours, whole and of one pair. Nothing was written to them yet.
struct Pair {
    log: LogStore,
    checkpoints: CheckpointStore,
    entries: Vec<LogEntry>,
    mark: SnapshotMeta,
    state: State,
    /// `true` if the log does not lead to the checkpoint and must restart behind it.
    reset: bool,
    /// The number that the two have in common.
    pair: u128,
    /// The newest commit that was reported as durable, if the log ends before it.
    lost: Option<u64>,
}

impl Pair {
    fn load(disk: &Arc<dyn Disk>, server: ServerId, cache_bytes: usize) -> Result<Self, StoreError> {
        let log = open_file(disk, LOG, STATE, cache_bytes)?;
        let checkpoints = open_file(disk, STATE, LOG, cache_bytes)?;
        let pair = check_pair(&log, &checkpoints, server)?;
        let told =
            reported::read(&**disk, pair).map_err(io_error(&disk.path(REPORTED), "cannot read the file"))?;
        let (checkpoints, mark, state) = CheckpointStore::load(checkpoints)?;
        let (log, entries) = LogStore::load(log)?;
        let reset = check_fit(log.head(), &entries, &mark, (log.file().path(), checkpoints.file().path()))?;
        let lost = Some(told).filter(|told| log.head().commit_number < *told);
        Ok(Self { log, checkpoints, entries, mark, state, reset, pair, lost })
    }
}

/// Creates a new pair.
fn create(disk: &dyn Disk, options: &StoreOptions) -> Result<(), StoreError> {
    let mark = &options.first_snapshot;
    let identity = |kind, pair| FileIdentity { kind, pair, server: options.server };
    // A random number, unique to this pair.
    let pair =
        random::bytes().map_err(io_error(&disk.path(""), "cannot draw a random number for the new store"))?;
    let pair = u128::from_le_bytes(pair);
    RedbFile::create(disk, NEW_STATE, &identity(Kind::State, pair), |writing| {
        CheckpointStore::fill(writing, mark)
    })?;
    // The snapshot counts as committed: every founder begins with the same.
    let hard_state = HardState { term: mark.term, vote: ServerId(0), commit: mark.index };
    let head = LogHead { hard_state, base: (mark.index, mark.term), commit_number: 1 };
    RedbFile::create(disk, NEW_LOG, &identity(Kind::Log, pair), |writing| LogStore::fill(writing, &head))?;
    // Both files are complete before either is renamed.
    sync(disk)?;
    rename(disk, NEW_STATE, STATE)?;
    rename(disk, NEW_LOG, LOG)?;
    tracing::info!(folder = %disk.path("").display(), "created a new store");
    Ok(())
}

/// Renames the log after a crash between the two renames.
fn finish_creation(disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<(), StoreError> {
    let missing = || StoreError::Missing { missing: disk.path(LOG), present: disk.path(STATE) };
    let log = RedbFile::open(Arc::clone(disk), NEW_LOG, cache_bytes)?.ok_or_else(missing)?;
    let checkpoints = open_file(disk, STATE, NEW_LOG, cache_bytes)?;
    let (log_identity, state_identity) = (log.identity()?, checkpoints.identity()?);
    // A draft of another attempt is no log of this checkpoint.
    if log_identity.kind != Kind::Log || log_identity.pair != state_identity.pair {
        return Err(missing());
    }
    // Closed before the rename: the next step opens it under its own name, and the lock admits one.
    drop((log, checkpoints));
    rename(&**disk, NEW_LOG, LOG)
}

fn rename(disk: &dyn Disk, from: &str, to: &str) -> Result<(), StoreError> {
    disk.rename(from, to).map_err(io_error(&disk.path(from), "cannot rename the file"))?;
    // A name is durable only with its folder.
    sync(disk)
}

fn sync(disk: &dyn Disk) -> Result<(), StoreError> {
    disk.sync().map_err(io_error(&disk.path(""), "cannot sync the folder"))
}

fn open_file(
    disk: &Arc<dyn Disk>,
    name: &'static str,
    other: &'static str,
    cache_bytes: usize,
) -> Result<RedbFile, StoreError> {
    let missing = || StoreError::Missing { missing: disk.path(name), present: disk.path(other) };
    RedbFile::open(Arc::clone(disk), name, cache_bytes)?.ok_or_else(missing)
}

/// Verifies that both files match their names, each other, and this server.
fn check_pair(log: &RedbFile, checkpoints: &RedbFile, server: ServerId) -> Result<u128, StoreError> {
    let (log_identity, state_identity) = (log.identity()?, checkpoints.identity()?);
    for (file, identity, kind) in
        [(log, &log_identity, Kind::Log), (checkpoints, &state_identity, Kind::State)]
    {
        if identity.kind != kind {
            let reason = format!("by its name it should be the {kind:?}, but it is the {:?}", identity.kind);
            return Err(StoreError::Foreign { path: file.path(), reason: reason.to_lowercase() });
        }
    }
    let pair = log_identity.pair;
    // Two files of different stores may both be valid, but form no state together.
    if pair != state_identity.pair {
        return Err(StoreError::Mismatched { log: log.path(), checkpoints: checkpoints.path() });
    }
    // Another server's votes and acknowledgements do not count for this one.
    match [(log, log_identity), (checkpoints, state_identity)].into_iter().find(|(_, id)| id.server != server)
    {
        Some((file, id)) => {
            Err(StoreError::OtherServer { path: file.path(), found: id.server, expected: server })
        }
        None => Ok(pair),
    }
}

/// Returns `true` if the log does not lead to the checkpoint and must restart behind it. Rejects a
/// log that begins only behind it.
fn check_fit(
    head: LogHead,
    entries: &[LogEntry],
    mark: &SnapshotMeta,
    (log, checkpoints): (PathBuf, PathBuf),
) -> Result<bool, StoreError> {
    let (base, base_term) = head.base;
    // Entries between the two are lost: the rest forms no state.
    if mark.index < base {
        return Err(StoreError::gap(log, checkpoints, mark, head.base));
    }
    // The same index in the same term is the same entry, with all before it (paper, 5.3): then the
    // log leads there.
    Ok(term_at(entries, (base, base_term), mark.index) != Some(mark.term))
}

/// Returns the term of an entry at or behind the base.
fn term_at(entries: &[LogEntry], base: (LogIndex, Term), index: LogIndex) -> Option<Term> {
    match index.0.checked_sub(base.0.0)? {
        0 => Some(base.1),
        distance => entries.get(usize::try_from(distance - 1).ok()?).map(|entry| entry.term),
    }
}

/// Returns `true` if either file exists.
pub(super) fn has_store(disk: &dyn Disk) -> Result<bool, StoreError> {
    for name in [LOG, STATE] {
        if disk.exists(name).map_err(io_error(&disk.path(name), "cannot check for the file"))? {
            return Ok(true);
        }
    }
    Ok(false)
}
