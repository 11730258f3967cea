//! The medium of a server's disk. For most seeds it is a model in which a write is kept completely
//! or not at all. For the others it is the real store over a disk that loses sectors, syncs and
//! space.
//!
//! The real store is driven in virtual time without its threads. **Invariant:** everything that it
//! reported as durable is there after a power cut. This is compared with the model at every power
//! cut.

use super::disk::Checkpoint;
use super::durable::Durable;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_core::durability::checksum::Checksum;
use lockmesh_core::durability::write_queue::LogCommit;
use lockmesh_core::raft::log::{LogWrite, SnapshotMeta};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_server::store::testing::{Failure, FaultyDisk, ManualStore, Survival, backup_of};
use lockmesh_server::store::{Backup, StoreError, StoreOptions};

/// Memory for the cache of each file of the real store.
const CACHE_BYTES: usize = 1 << 20;
/// The smallest size of the log's segments: small, so that they change often.
const SEGMENT_BYTES: u64 = 64 << 10;
/// Approximate number of disk operations in a commit of the log, and in a checkpoint.
const OPERATIONS: (u64, u64) = (4, 24);

/// See the [module](self).
#[derive(Debug)]
pub enum Medium {
    /// A write is kept completely or not at all.
    Model,
    /// The real store.
    Store(Box<RealStore>),
}

/// The real store on a disk of its own.
#[derive(Debug)]
pub struct RealStore {
    disk: FaultyDisk,
    options: StoreOptions,
    /// The store, or the reason why it cannot be opened.
    store: Result<ManualStore, String>,
    /// The checksum of the newest checkpoint.
    checksum: Checksum,
}

impl Medium {
    /// Returns the medium of a new server's disk.
    pub fn new(stage: &Stage, server: ServerId, mark: &SnapshotMeta) -> Self {
        if !stage.plan.disk.is_real {
            return Self::Model;
        }
        let options = StoreOptions {
            server,
            first_snapshot: mark.clone(),
            cache_bytes: CACHE_BYTES,
            accept_loss: false,
            segment_bytes: SEGMENT_BYTES,
        };
        let mut store = RealStore::switched_off(FaultyDisk::default(), options);
        store.switch_on();
        Self::Store(Box::new(store))
    }

    /// Returns `true` for the model.
    pub fn is_model(&self) -> bool {
        matches!(self, Self::Model)
    }

    /// Returns `true` if a commit could compact the log up to an index.
    pub fn can_compact(&mut self, model: &Durable, up_to: LogIndex) -> bool {
        match self {
            Self::Model => up_to > model.base.0 && !model.entries.is_empty(),
            Self::Store(real) => real.store.as_mut().is_ok_and(|store| store.compact(up_to)),
        }
    }

    /// Makes a commit of the log durable.
    ///
    /// # Errors
    /// A message if the disk or the store refuses. The commit was not reported as durable; after a
    /// power cut it is found completely or not at all.
    pub fn commit(&mut self, stage: &mut Stage, commit: &LogCommit, refuses: bool) -> Result<(), String> {
        self.write(stage, refuses, |store| store.commit(commit))
    }

    /// Makes a checkpoint durable.
    ///
    /// # Errors
    /// As [`Medium::commit`].
    pub fn checkpoint(
        &mut self,
        stage: &mut Stage,
        checkpoint: &mut Checkpoint,
        refuses: bool,
    ) -> Result<(), String> {
        let mut checksum = Checksum::default();
        let written = self.write(stage, refuses, |store| {
            checksum = store.checkpoint(&checkpoint.mark, &mut checkpoint.rows)?;
            Ok(())
        });
        if let Self::Store(real) = self {
            real.checksum = checksum;
        }
        written
    }

    /// Returns the checksum of the checkpoint that was just made, which the model holds too.
    pub fn checksum(&self, model: &Durable) -> Checksum {
        match self {
            Self::Model => Checksum::of(model.state.rows()),
            Self::Store(real) => real.checksum,
        }
    }

    fn write(
        &mut self,
        stage: &mut Stage,
        refuses: bool,
        write: impl FnOnce(&mut ManualStore) -> Result<(), StoreError>,
    ) -> Result<(), String> {
        match self {
            Self::Model if refuses => Err("it is full".into()),
            Self::Model => Ok(()),
            Self::Store(real) => {
                let always = (0, u64::MAX);
                let failure = refuses.then(|| match stage.draw.once_in(2) {
                    true => Failure::Full(always.0, always.1),
                    false => Failure::LostSync(always.0, always.1),
                });
                let done = real.write(failure, write);
                if done.is_err() {
                    stage.hit(Mark::StoreRefused);
                }
                done
            }
        }
    }

    /// Compacts the model's log after a commit, up to an index at most.
    pub fn compact(&self, stage: &mut Stage, model: &mut Durable, up_to: LogIndex) {
        match self {
            // A commit compacts as far as its writer has been told.
            Self::Model if up_to > model.base.0 => {
                let spared = if stage.draw.once_in(2) { stage.draw.below(4) } else { 0 };
                model.compact(LogIndex(up_to.0.saturating_sub(spared)));
            }
            Self::Model => {}
            Self::Store(real) => {
                let (base, _) = real.store.as_ref().map(ManualStore::base).unwrap_or_default();
                model.compact(base);
            }
        }
    }

    /// Starts reading the durable checkpoint.
    ///
    /// # Errors
    /// A message if the real store is not open or cannot be read. Never for the model.
    pub fn backup(&self, model: &Durable) -> Result<Backup, String> {
        match self {
            Self::Model => Ok(backup_of(model.mark.clone(), &model.state)),
            Self::Store(real) => {
                let store = real.store.as_ref().map_err(Clone::clone)?;
                store.backup().map_err(|error| error.to_string())
            }
        }
    }

    /// Returns a copy of the disk, to be inspected after a power cut.
    pub fn copy(&self) -> Self {
        match self {
            Self::Model => Self::Model,
            Self::Store(real) => {
                let copy = RealStore::switched_off(real.disk.clone(), real.options.clone());
                Self::Store(Box::new(copy))
            }
        }
    }

    /// Cuts the power during these writes and restores it; returns what is found then.
    pub fn lose_power(
        &mut self,
        stage: &mut Stage,
        model: &Durable,
        (writing, checkpointing): (Option<LogCommit>, Option<Checkpoint>),
        refuses: bool,
    ) -> Durable {
        let Self::Store(real) = self else { return model.clone() };
        let begun: Vec<LogWrite> = writing.iter().flat_map(|commit| commit.writes.clone()).collect();
        if !refuses {
            real.write_until_power_fails(stage, writing, checkpointing);
        }
        let survival = match stage.draw.below(4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Torn(stage.draw.bits()),
        };
        real.disk = real.disk.after_power_cut(survival);
        let Some(found) = real.switch_on() else { return model.clone() };
        if let Some(lost) = model.lost_in(&found, &begun) {
            real.store = Err(lost);
        }
        found
    }

    /// Returns an error if the store was damaged.
    ///
    /// # Errors
    /// The reason why the real store cannot be opened, or its loss. Never for the model.
    pub fn found(&self) -> Result<(), String> {
        match self {
            Self::Model => Ok(()),
            Self::Store(real) => real.store.as_ref().map(|_| ()).map_err(Clone::clone),
        }
    }
}

impl RealStore {
    fn switched_off(disk: FaultyDisk, options: StoreOptions) -> Self {
        Self { disk, options, store: Err("switched off".into()), checksum: Checksum::default() }
    }

    /// Opens the store, and returns its contents; `None` if it cannot be opened.
    fn switch_on(&mut self) -> Option<Durable> {
        // The previous instance is closed first, as at the end of its process.
        self.store = Err("switched off".into());
        match ManualStore::open(&self.disk, &self.options) {
            Ok((store, recovered)) => {
                self.store = Ok(store);
                Some(Durable::from(&recovered))
            }
            Err(error) => {
                self.store = Err(error.to_string());
                None
            }
        }
    }

    fn write(
        &mut self,
        failure: Option<Failure>,
        write: impl FnOnce(&mut ManualStore) -> Result<(), StoreError>,
    ) -> Result<(), String> {
        let store = self.store.as_mut().map_err(|reason| reason.clone())?;
        self.disk.fail(failure);
        let done = write(store).map_err(|error| error.to_string());
        self.disk.fail(None);
        done
    }

    /// Performs the pending writes as far as they get.
    fn write_until_power_fails(
        &mut self,
        stage: &mut Stage,
        writing: Option<LogCommit>,
        checkpointing: Option<Checkpoint>,
    ) {
        let mut last_gasp = |operations| {
            let at = stage.draw.below(operations * 2);
            (at < operations).then_some(Failure::PowerCut(at))
        };
        let (of_log, of_checkpoint) = (last_gasp(OPERATIONS.0), last_gasp(OPERATIONS.1));
        let mut torn = false;
        if let Some(commit) = writing {
            torn |= self.write(of_log, |store| store.commit(&commit)).is_err();
        }
        if let Some(mut checkpoint) = checkpointing.filter(|_| !torn) {
            torn |= self
                .write(of_checkpoint, |store| {
                    store.checkpoint(&checkpoint.mark, &mut checkpoint.rows).map(|_| ())
                })
                .is_err();
        }
        if torn {
            stage.hit(Mark::StoreTorn);
        }
    }
}
