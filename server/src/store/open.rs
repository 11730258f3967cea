//! Opening the pair of files: creation, verification, and recovery of the state from log and
//! checkpoint.
//!
//! **Invariant:** nothing is written to either file before both are known to be ours, whole, and of
//! one pair.
//!
//! A new pair is created under other names and then renamed, the checkpoint first. A crash on the
//! way therefore leaves either nothing under the real names, or a checkpoint and its complete log,
//! which only has to be renamed. A log of a build before segments is converted once it is trusted.

use super::checkpoint::CheckpointStore;
use super::disk::Disk;
use super::error::StoreError;
use super::file::{FileIdentity, Kind, RedbFile, io_error};
use super::log::{self, FormerLog, LoadedLog, LogHead, LogIdentity, LogStore};
use super::names::{FORMER_LOG, LOG, NEW_LOG, NEW_STATE, REPORTED, STATE};
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
    /// The smallest size of the log's segments in bytes; they grow to 16 times that under load.
    pub segment_bytes: u64,
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
    let pair = Pair::load(&disk, options)?;
    // Before the first write: a rejected log keeps every byte.
    if let Some((reported, path)) = pair.lost.clone().filter(|_| !options.accept_loss) {
        return Err(StoreError::Lost { path, found: pair.log.head().commit_number, reported });
    }
    // From here on both are trusted.
    pair.checkpoints.file().release()?;
    let Pair { log, mut entries, checkpoints, mark, state, reset, lost, .. } = pair;
    let mut log = log.convert(&disk, options)?;
    log.release()?;
    if let Some((reported, _)) = lost {
        let found = log.head().commit_number;
        tracing::warn!(
            found,
            reported,
            "acknowledged commits of the log are lost; continuing without them as requested"
        );
        log.accept_loss(reported)?;
    }
    // Only a trusted log may report its position.
    log.record_commits(ReportedFile::new(Arc::clone(&disk), log.identity().file.pair));
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
    let exists =
        |name: &str| disk.exists(name).map_err(io_error(&disk.path(name), "cannot check for the file"));
    let has_log = exists(&LogIdentity::name(LOG))?;
    let log = if has_log { Some(LOG) } else { exists(FORMER_LOG)?.then_some(FORMER_LOG) };
    match (log, exists(STATE)?) {
        (Some(_), true) => Ok(()),
        (None, false) => create(&**disk, options),
        // The checkpoint is renamed first, so a crash in between leaves this and the log under its
        // draft name.
        (None, true) => finish_creation(disk, options),
        // No crash of ours leaves this; and the log alone does not suffice, since it was compacted
        // behind the checkpoint.
        (Some(log), false) => Err(StoreError::Missing { missing: disk.path(STATE), present: disk.path(log) }),
    }
}

/// Reads the state with which a server would start; `None` if there is no store. Nothing is
/// written.
pub(super) fn inspect(disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<Option<Inspected>, StoreError> {
    if !has_store(&**disk)? {
        return Ok(None);
    }
    let Pair { log, checkpoints, mut entries, mark, state, reset, lost } = Pair::load(disk, options)?;
    let formats = Formats { log: log.format()?, state: checkpoints.file().format()? };
    let mut head = log.head();
    let lost_commits = lost.map_or(0, |(reported, _)| reported - head.commit_number);
    if reset {
        head = head.restarted_behind((mark.index, mark.term));
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
    /// The format of the log.
    pub log: u32,
    /// The format of `state.redb`.
    pub state: u32,
}

/// Log and checkpoint as found: ours, whole and of one pair. Nothing was written to them yet.
struct Pair {
    log: FoundLog,
    checkpoints: CheckpointStore,
    entries: Vec<LogEntry>,
    mark: SnapshotMeta,
    state: State,
    /// `true` if the log does not lead to the checkpoint and must restart behind it.
    reset: bool,
    lost: Loss,
}

/// The newest commit that was reported as durable, if the log ends before it, and the file in which
/// it is missing.
type Loss = Option<(u64, PathBuf)>;

/// A log as found.
enum FoundLog {
    Segments(Box<LogStore>),
    /// Of a build before segments.
    Former(Box<FormerLog>),
}

impl Pair {
    fn load(disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<Self, StoreError> {
        let (log, entries, mut lost) = FoundLog::load(disk, options)?;
        let missing = || StoreError::Missing { missing: disk.path(STATE), present: log.path() };
        let checkpoints =
            RedbFile::open(Arc::clone(disk), STATE, options.cache_bytes)?.ok_or_else(missing)?;
        let pair = check_pair(
            [
                (log.path(), log.identity()?, Kind::Log),
                (checkpoints.path(), checkpoints.identity()?, Kind::State),
            ],
            options.server,
        )?;
        let reported =
            reported::read(&**disk, pair).map_err(io_error(&disk.path(REPORTED), "cannot read the file"))?;
        let (checkpoints, mark, state) = CheckpointStore::load(checkpoints)?;
        if reported > log.head().commit_number.max(lost.as_ref().map_or(0, |(reported, _)| *reported)) {
            lost = Some((reported, log.path()));
        }
        let reset = check_fit(log.head(), &entries, &mark, (log.path(), checkpoints.file().path()))?;
        Ok(Self { log, checkpoints, entries, mark, state, reset, lost })
    }
}

impl FoundLog {
    fn load(disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<(Self, Vec<LogEntry>, Loss), StoreError> {
        let former = FormerLog::load(disk, options.cache_bytes);
        let Some(LoadedLog { log, entries, lost }) = LogStore::load(disk, options.segment_bytes)? else {
            return former?
                .map(Self::former)
                .ok_or_else(|| StoreError::Missing { missing: disk.path(LOG), present: disk.path(STATE) });
        };
        // A complete log decides. What is left of the former one matters only if an older build
        // continued it.
        let former = former.inspect_err(|error| tracing::warn!(%error, "the former log is not used"));
        let former = former.ok().flatten().filter(|former| former.is_newer_than(log.identity()));
        match (former, log.identity().former) {
            (None, _) => Ok((Self::Segments(Box::new(log)), entries, lost)),
            (Some(former), Some(conversion)) if conversion.end == log.head().commit_number => {
                Ok(Self::former(former))
            }
            (Some(former), _) => Err(former
                .file
                .damaged("an older build continued it after its conversion, and log/ has later commits too")),
        }
    }

    fn former(former: FormerLog) -> (Self, Vec<LogEntry>, Loss) {
        let entries = former.entries.clone();
        (Self::Former(Box::new(former)), entries, None)
    }

    fn head(&self) -> LogHead {
        match self {
            Self::Segments(log) => log.head(),
            Self::Former(former) => former.head,
        }
    }

    fn identity(&self) -> Result<FileIdentity, StoreError> {
        match self {
            Self::Segments(log) => Ok(log.identity().file.clone()),
            Self::Former(former) => former.file.identity(),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Segments(log) => log.path(),
            Self::Former(former) => former.file.path(),
        }
    }

    fn format(&self) -> Result<u32, StoreError> {
        match self {
            Self::Segments(_) => Ok(log::LOG_FORMAT),
            Self::Former(former) => former.file.format(),
        }
    }

    /// Returns the log for writing.
    fn convert(self, disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<LogStore, StoreError> {
        match self {
            Self::Segments(log) => Ok(*log),
            Self::Former(former) => {
                former.convert(&**disk, options.segment_bytes)?;
                let missing = || StoreError::Missing { missing: disk.path(LOG), present: disk.path(STATE) };
                Ok(LogStore::load(disk, options.segment_bytes)?.ok_or_else(missing)?.log)
            }
        }
    }
}

/// Removes a former log that was converted: the server's record names the new one.
pub(super) fn remove_former_log(disk: &dyn Disk) -> Result<(), StoreError> {
    match LogIdentity::read(disk, LOG)? {
        Some(LogIdentity { former: Some(_), .. }) => {}
        _ => return Ok(()),
    }
    let removed = disk.remove(FORMER_LOG);
    removed.map_err(io_error(&disk.path(FORMER_LOG), "cannot remove the file"))
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
    log::write_new(disk, identity(Kind::Log, pair), (head, Vec::new()), None, options.segment_bytes)?;
    // Both are complete before either is renamed.
    sync(disk)?;
    rename(disk, NEW_STATE, STATE)?;
    log::finish_new(disk)?;
    tracing::info!(folder = %disk.path("").display(), "created a new store");
    Ok(())
}

/// Renames the log after a crash between the two renames.
fn finish_creation(disk: &Arc<dyn Disk>, options: &StoreOptions) -> Result<(), StoreError> {
    let missing = || StoreError::Missing { missing: disk.path(LOG), present: disk.path(STATE) };
    let log = LogIdentity::read(&**disk, NEW_LOG)?.ok_or_else(missing)?;
    let checkpoints = RedbFile::open(Arc::clone(disk), STATE, options.cache_bytes)?.ok_or_else(missing)?;
    // A draft of another attempt is no log of this checkpoint, and an unfinished conversion has
    // lost its log.
    if log.file.pair != checkpoints.identity()?.pair || log.former.is_some() {
        return Err(missing());
    }
    // Closed before the rename: the next step opens it, and the lock admits one.
    drop(checkpoints);
    log::finish_new(&**disk)
}

fn rename(disk: &dyn Disk, from: &str, to: &str) -> Result<(), StoreError> {
    disk.rename(from, to).map_err(io_error(&disk.path(from), "cannot rename the file"))?;
    // A name is durable only with its folder.
    sync(disk)
}

fn sync(disk: &dyn Disk) -> Result<(), StoreError> {
    disk.sync("").map_err(io_error(&disk.path(""), "cannot sync the folder"))
}

/// Verifies that log and checkpoint match their names, each other, and this server.
fn check_pair(found: [(PathBuf, FileIdentity, Kind); 2], server: ServerId) -> Result<u128, StoreError> {
    for (path, identity, kind) in &found {
        if identity.kind != *kind {
            let reason = format!("by its name it should be the {kind:?}, but it is the {:?}", identity.kind);
            return Err(StoreError::Foreign { path: path.clone(), reason: reason.to_lowercase() });
        }
    }
    let [(log, log_identity, _), (checkpoints, state_identity, _)] = &found;
    // Two of different stores may both be valid, but form no state together.
    if log_identity.pair != state_identity.pair {
        return Err(StoreError::Mismatched { log: log.clone(), checkpoints: checkpoints.clone() });
    }
    let pair = log_identity.pair;
    // Another server's votes and acknowledgements do not count for this one.
    match found.into_iter().find(|(_, identity, _)| identity.server != server) {
        Some((path, identity, _)) => {
            Err(StoreError::OtherServer { path, found: identity.server, expected: server })
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

/// Returns `true` if log or checkpoint exists.
pub(super) fn has_store(disk: &dyn Disk) -> Result<bool, StoreError> {
    for name in [&LogIdentity::name(LOG), FORMER_LOG, STATE] {
        if disk.exists(name).map_err(io_error(&disk.path(name), "cannot check for the file"))? {
            return Ok(true);
        }
    }
    Ok(false)
}
