//! Opening the pair of files: making it, checking it, and bringing log and image together.
//!
//! **Invariant:** nothing is written to either file before both are known to be ours, whole, and of one pair.
//!
//! A new pair is made under other names and then renamed, the image first. So a crash on the way leaves either
//! nothing under the real names, or an image and beside it its log, which has only its name still to get.

use super::disk::Disk;
use super::error::StoreError;
use super::file::{Identity, Kind, RedbFile, io_error};
use super::image::ImageStore;
use super::log::{Head, LogStore};
use super::told::{self, TOLD, ToldFile};
use super::{Store, StoreOptions};
use lockmesh_core::State;
use lockmesh_core::raft::log::{HardState, ImageMark, LogEntry, Recovered};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

/// The log's file.
pub(super) const LOG: &str = "log.redb";
/// The image's file.
pub(super) const IMAGE: &str = "state.redb";
/// The log while it is made.
pub(super) const NEW_LOG: &str = "log.redb.new";
/// The image while it is made.
pub(super) const NEW_IMAGE: &str = "state.redb.new";

/// Opens the pair in a place that nobody else uses, or makes it where there is none.
pub(super) fn open(disk: Arc<dyn Disk>, options: &StoreOptions) -> Result<(Store, Recovered), StoreError> {
    let exists = |name| disk.exists(name).map_err(io_error(&disk.path(name), "cannot look for the file"));
    match (exists(LOG)?, exists(IMAGE)?) {
        (true, true) => {}
        (false, false) => create(&*disk, options)?,
        (false, true) => finish_creation(&disk, options.cache_bytes)?,
        (true, false) => {
            return Err(StoreError::Missing { missing: disk.path(IMAGE), present: disk.path(LOG) });
        }
    }
    let Pair { mut log, image, mut entries, mark, state, reset, pair, lost } =
        Pair::load(&disk, options.server, options.cache_bytes)?;
    if let Some(told) = lost.filter(|_| !options.accept_loss) {
        return Err(StoreError::Lost { path: log.file().path(), found: log.head().commit_number, told });
    }
    // From here on both are trusted.
    log.file().release()?;
    image.file().release()?;
    if let Some(told) = lost {
        let found = log.head().commit_number;
        tracing::warn!(
            found,
            told,
            "acknowledged commits of the log are gone: going on without them, as told"
        );
        log.accept_loss(told)?;
    }
    log.tell(ToldFile::new(Arc::clone(&disk), pair));
    if reset {
        tracing::warn!(index = %mark.index, "the log does not lead to the image: it begins anew behind it");
        log.reset((mark.index, mark.term))?;
        entries.clear();
    } else {
        log.commit(&[], mark.index)?;
    }
    let Head { hard_state, base, .. } = log.head();
    tracing::info!(
        folder = %disk.path("").display(), image = %mark.index, log_from = %base.0.next(),
        entries = entries.len(), term = %hard_state.term, commit = %hard_state.commit, "opened the store"
    );
    let own = image.own()?;
    let recovered = Recovered { hard_state, image: mark, entries, base, state, own };
    Ok((Store { log, image, durable_image: recovered.image.index }, recovered))
}

/// Reads what a server would begin with; none where there is no store. Nothing is written.
pub(super) fn inspect(
    disk: &Arc<dyn Disk>,
    server: ServerId,
    cache_bytes: usize,
) -> Result<Option<Inspected>, StoreError> {
    if !has_store(&**disk)? {
        return Ok(None);
    }
    let Pair { log, image, mut entries, mark, state, reset, lost, .. } =
        Pair::load(disk, server, cache_bytes)?;
    let formats = Formats { log: log.file().format()?, state: image.file().format()? };
    let lost_commits = lost.map_or(0, |told| told - log.head().commit_number);
    let mut head = log.head();
    if reset {
        head = head.begun_anew((mark.index, mark.term));
        entries.clear();
    }
    let hard_state = HardState { commit: head.hard_state.commit.max(mark.index), ..head.hard_state };
    let own = image.own()?;
    let recovered = Recovered { hard_state, image: mark, entries, base: head.base, state, own };
    Ok(Some(Inspected { recovered, formats, lost_commits }))
}

/// What a store holds that nobody works with.
#[derive(Debug)]
pub struct Inspected {
    /// What a server would begin with.
    pub recovered: Recovered,
    /// The formats of the two files.
    pub formats: Formats,
    /// How many of the newest commits that were told as durable are gone.
    pub lost_commits: u64,
}

/// The formats of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Of `log.redb`.
    pub log: u32,
    /// Of `state.redb`.
    pub state: u32,
}

/// The two files as they were found: ours, whole and of one pair. Nothing was written to them yet.
struct Pair {
    log: LogStore,
    image: ImageStore,
    entries: Vec<LogEntry>,
    mark: ImageMark,
    state: State,
    /// Whether the log does not lead to the image, so that it must begin anew behind it.
    reset: bool,
    /// The number that the two have in common.
    pair: u128,
    /// The newest commit that was told as durable, where the log ends before it.
    lost: Option<u64>,
}

impl Pair {
    fn load(disk: &Arc<dyn Disk>, server: ServerId, cache_bytes: usize) -> Result<Self, StoreError> {
        let log = open_file(disk, LOG, IMAGE, cache_bytes)?;
        let image = open_file(disk, IMAGE, LOG, cache_bytes)?;
        let pair = check_pair(&log, &image, server)?;
        let told = told::read(&**disk, pair).map_err(io_error(&disk.path(TOLD), "cannot read the file"))?;
        let (image, mark, state) = ImageStore::load(image)?;
        let (log, entries) = LogStore::load(log)?;
        let reset = check_fit(log.head(), &entries, &mark, (log.file().path(), image.file().path()))?;
        let lost = Some(told).filter(|told| log.head().commit_number < *told);
        Ok(Self { log, image, entries, mark, state, reset, pair, lost })
    }
}

/// Makes a new pair.
fn create(disk: &dyn Disk, options: &StoreOptions) -> Result<(), StoreError> {
    let mark = &options.first_image;
    let identity = |kind, pair| Identity { kind, pair, server: options.server };
    let pair = random();
    RedbFile::create(disk, NEW_IMAGE, &identity(Kind::Image, pair), |writing| {
        ImageStore::fill(writing, mark)
    })?;
    let hard_state = HardState { term: mark.term, vote: ServerId(0), commit: mark.index };
    let head = Head { hard_state, base: (mark.index, mark.term), commit_number: 1 };
    RedbFile::create(disk, NEW_LOG, &identity(Kind::Log, pair), |writing| LogStore::fill(writing, &head))?;
    sync(disk)?;
    rename(disk, NEW_IMAGE, IMAGE)?;
    rename(disk, NEW_LOG, LOG)?;
    tracing::info!(folder = %disk.path("").display(), "made a new store");
    Ok(())
}

/// Gives the log its name, where a crash came between the two renames.
fn finish_creation(disk: &Arc<dyn Disk>, cache_bytes: usize) -> Result<(), StoreError> {
    let missing = || StoreError::Missing { missing: disk.path(LOG), present: disk.path(IMAGE) };
    let log = RedbFile::open(Arc::clone(disk), NEW_LOG, cache_bytes)?.ok_or_else(missing)?;
    let image = open_file(disk, IMAGE, NEW_LOG, cache_bytes)?;
    let (log_identity, image_identity) = (log.identity()?, image.identity()?);
    if log_identity.kind != Kind::Log || log_identity.pair != image_identity.pair {
        return Err(missing());
    }
    drop((log, image));
    rename(&**disk, NEW_LOG, LOG)
}

fn rename(disk: &dyn Disk, from: &str, to: &str) -> Result<(), StoreError> {
    disk.rename(from, to).map_err(io_error(&disk.path(from), "cannot rename the file"))?;
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

/// Both files are what their names say, belong together, and to this server.
fn check_pair(log: &RedbFile, image: &RedbFile, server: ServerId) -> Result<u128, StoreError> {
    let (log_identity, image_identity) = (log.identity()?, image.identity()?);
    for (file, identity, kind) in [(log, &log_identity, Kind::Log), (image, &image_identity, Kind::Image)] {
        if identity.kind != kind {
            let reason = format!("by its name it should be the {kind:?}, but it is the {:?}", identity.kind);
            return Err(StoreError::Foreign { path: file.path(), reason: reason.to_lowercase() });
        }
    }
    let pair = log_identity.pair;
    if pair != image_identity.pair {
        return Err(StoreError::Mismatched { log: log.path(), image: image.path() });
    }
    match [(log, log_identity), (image, image_identity)].into_iter().find(|(_, id)| id.server != server) {
        Some((file, id)) => {
            Err(StoreError::OtherServer { path: file.path(), found: id.server, expected: server })
        }
        None => Ok(pair),
    }
}

/// Whether the log must begin anew behind the image, since it does not lead to it. Refuses a log that begins only
/// behind it.
fn check_fit(
    head: Head,
    entries: &[LogEntry],
    mark: &ImageMark,
    (log, image): (PathBuf, PathBuf),
) -> Result<bool, StoreError> {
    let (base, base_term) = head.base;
    if mark.index < base {
        return Err(StoreError::gap(log, image, mark, head.base));
    }
    Ok(term_at(entries, (base, base_term), mark.index) != Some(mark.term))
}

/// The term of an entry that lies at or behind the base.
fn term_at(entries: &[LogEntry], base: (LogIndex, Term), index: LogIndex) -> Option<Term> {
    match index.0.checked_sub(base.0.0)? {
        0 => Some(base.1),
        distance => entries.get(usize::try_from(distance - 1).ok()?).map(|entry| entry.term),
    }
}

/// A number that no other pair has: the standard library seeds its hashers from the system.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    half() << 64 | half()
}

/// Whether either file is there.
pub(super) fn has_store(disk: &dyn Disk) -> Result<bool, StoreError> {
    for name in [LOG, IMAGE] {
        if disk.exists(name).map_err(io_error(&disk.path(name), "cannot look for the file"))? {
            return Ok(true);
        }
    }
    Ok(false)
}
