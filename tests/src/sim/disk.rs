//! A server's disk: the log and the checkpoint as they would be found after a power cut, and the
//! writes under way.
//!
//! The real store's own queue decides on the order of writes and on retries. This module decides
//! only on latency, refused writes, and the state that a power cut leaves. Most seeds use no other
//! store; the rest write with the real one: see [`Medium`].

use super::durable::Durable;
use super::fault_injection::FaultInjection;
use super::marks::Mark;
use super::medium::Medium;
use super::stage::{Event, Stage};
use lockmesh_core::durability::write_queue::{self, LogCommit, StoreWriter, WriteQueue};
use lockmesh_core::fault_injection::Rule;
use lockmesh_core::raft::log::{HardState, LogWrite, Recovered, SnapshotMeta};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use lockmesh_server::store::{Backup, DirtyRows, StoreEvent, StoreHealth};
use std::time::Duration;

/// Interval at which writes under way are checked while the disk hangs.
const HANG_INTERVAL: Duration = Duration::from_millis(500);

/// A write that the disk has finished or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A commit of the log.
    Log,
    /// A commit of the checkpoint.
    Checkpoint,
    /// The note that the server was removed.
    Removal,
}

/// A checkpoint under way.
pub type Checkpoint = write_queue::Checkpoint<DirtyRows>;

/// The disk with the writes that are under way.
#[derive(Debug)]
pub struct Disk {
    server: ServerId,
    /// State that survives a power cut.
    pub durable: Durable,
    medium: Medium,
    /// `true` if the disk notes that the server was removed from the quorum.
    pub removed: bool,
    queue: WriteQueue<DirtyRows>,
    /// The commit of the log that is under way.
    writing: Option<LogCommit>,
    /// The checkpoint that is being written.
    checkpointing: Option<Checkpoint>,
    /// Writes are very slow until then.
    stalled_until: Time,
    /// Writes are refused until then.
    refuses_until: Time,
    /// The disk hangs from the first time to the second: no write makes progress, even one under
    /// way.
    hangs: (Time, Time),
}

impl Disk {
    /// Returns a new store that starts with a checkpoint.
    pub fn new(stage: &Stage, server: ServerId, mark: SnapshotMeta) -> Self {
        let medium = Medium::new(stage, server, &mark);
        Self::holding(server, Durable::new(mark), medium)
    }

    fn holding(server: ServerId, durable: Durable, medium: Medium) -> Self {
        Self {
            server,
            queue: WriteQueue::new(durable.hard_state.commit, durable.mark.index),
            durable,
            medium,
            removed: false,
            writing: None,
            checkpointing: None,
            stalled_until: Time(0),
            refuses_until: Time(0),
            hangs: (Time(0), Time(0)),
        }
    }

    /// Starts reading the checkpoint.
    ///
    /// # Errors
    /// The real store's message if it cannot be read.
    pub fn backup(&self) -> Result<Backup, String> {
        self.medium.backup(&self.durable)
    }

    /// Queues a write of the log.
    pub fn write(&mut self, write: LogWrite) {
        self.queue.push(write);
    }

    /// Queues a checkpoint, to be written as soon as that is allowed.
    pub fn hand_over(&mut self, checkpoint: Checkpoint) {
        self.queue.hand_over(checkpoint);
    }

    /// Compacts the log up to an index, or up to the durable checkpoint if that is less.
    pub fn compact(&mut self, up_to: LogIndex) {
        self.queue.compact(up_to);
    }

    /// Makes writes very slow until a time.
    pub fn stall(&mut self, until: Time) {
        self.stalled_until = until;
    }

    /// Refuses writes until a time.
    pub fn refuse(&mut self, until: Time) {
        self.refuses_until = until;
    }

    /// Hangs until a time.
    pub fn hang(&mut self, now: Time, until: Time) {
        self.hangs = (now, until);
    }

    /// Ends a hang.
    pub fn end_hang(&mut self, now: Time) {
        self.hangs.1 = self.hangs.1.min(now);
    }

    /// Returns the start of the present hang, if any.
    pub fn hangs_since(&self, now: Time) -> Option<Time> {
        let (since, until) = self.hangs;
        (now < until).then_some(since)
    }

    /// Returns `true` if the disk hung at some time after `then`.
    pub fn has_hung_since(&self, then: Time) -> bool {
        then < self.hangs.1
    }

    /// Returns `true` if writes are refused, very slow or hanging now.
    pub fn is_troubled(&self, now: Time) -> bool {
        now < self.hangs.1.max(self.stalled_until).max(self.refuses_until)
    }

    /// Starts every write that can start.
    pub fn go_on(&mut self, stage: &mut Stage, life: u64) {
        if let Some(rule) = stage.fault_injection.rule() {
            self.queue.break_rule(rule);
        }
        self.begin_checkpoint(stage, life);
        if self.writing.is_some() {
            return;
        }
        let ready = self.queue.ready_writes();
        let most = if ready > 1 && stage.draw.once_in(4) {
            stage.draw.within(1, ready as u64)
        } else {
            ready as u64
        };
        let can_compact = self.medium.can_compact(&self.durable, self.queue.compact_to());
        self.writing = self.queue.begin_commit(most as usize, can_compact);
        if self.writing.is_some() {
            let wait = self.latency(stage, stage.plan.disk.commit);
            stage.after(wait, Event::Disk(self.server, life, DiskEvent::Log));
        }
    }

    fn begin_checkpoint(&mut self, stage: &mut Stage, life: u64) {
        if self.checkpointing.is_some() {
            return;
        }
        let waited = self.queue.checkpoint_waits();
        self.checkpointing = self.queue.begin_checkpoint();
        if !waited && self.queue.checkpoint_waits() {
            stage.hit(Mark::CheckpointWaited);
        }
        if self.checkpointing.is_some() {
            let wait = self.latency(stage, stage.plan.disk.checkpoint);
            stage.after(wait, Event::Disk(self.server, life, DiskEvent::Checkpoint));
        }
    }

    fn latency(&self, stage: &mut Stage, usual: (Duration, Duration)) -> Duration {
        stage.draw.duration(usual.0, usual.1).max(self.stalled_until.since(stage.now))
    }

    /// Finishes a commit, successful or refused, and returns the reports for the driver.
    pub fn done(&mut self, stage: &mut Stage, life: u64, event: DiskEvent) -> Vec<StoreEvent> {
        let mut told = Vec::new();
        if stage.now < self.hangs.1 {
            // Checked repeatedly, because the calm ends a hang early.
            let wait = self.hangs.1.since(stage.now).min(HANG_INTERVAL);
            stage.after(wait, Event::Disk(self.server, life, event));
            return told;
        }
        let writer = match event {
            DiskEvent::Log => StoreWriter::Log,
            DiskEvent::Checkpoint => StoreWriter::Checkpoint,
            DiskEvent::Removal => {
                self.removed |= stage.now >= self.refuses_until;
                return told;
            }
        };
        if let Err(reason) = self.attempt(stage, writer) {
            stage.hit(Mark::DiskRefused);
            let (backoff, is_news) = self.queue.refused(writer, reason);
            stage.after(backoff, Event::Disk(self.server, life, event));
            told.extend(is_news.then_some(health(true)));
            return told;
        }
        if self.queue.accepted(writer) {
            told.push(health(self.queue.failure().is_some()));
        }
        match writer {
            StoreWriter::Log => told.extend(self.log_done(stage).map(StoreEvent::Persisted)),
            StoreWriter::Checkpoint => {
                let checkpoint = self.checkpointing.take().expect("a checkpoint was under way");
                let (mark, is_exact) = (checkpoint.mark.clone(), checkpoint.is_exact);
                self.durable.checkpoint(checkpoint);
                self.queue.checkpointed();
                let index = mark.index;
                told.push(StoreEvent::Checkpointed(mark));
                told.extend(is_exact.then(|| StoreEvent::Summed(index, self.medium.checksum(&self.durable))));
            }
        }
        self.go_on(stage, life);
        told
    }

    /// Performs the write that is under way.
    fn attempt(&mut self, stage: &mut Stage, writer: StoreWriter) -> Result<(), String> {
        let refuses = stage.now < self.refuses_until;
        match writer {
            StoreWriter::Log => {
                let commit = self.writing.as_ref().expect("a commit was under way");
                self.medium.commit(stage, commit, refuses)
            }
            StoreWriter::Checkpoint => {
                let checkpoint = self.checkpointing.as_mut().expect("a checkpoint was under way");
                self.medium.checkpoint(stage, checkpoint, refuses)
            }
        }
    }

    fn log_done(&mut self, stage: &mut Stage) -> Option<u64> {
        let commit = self.writing.take().expect("a commit was under way");
        commit.writes.into_iter().for_each(|write| self.durable.write(write));
        let hard_state = &mut self.durable.hard_state;
        hard_state.commit = hard_state.commit.max(commit.least_commit);
        let before = self.durable.base.0;
        self.medium.compact(stage, &mut self.durable, self.queue.compact_to());
        if self.durable.base.0 > before {
            stage.hit(Mark::LogCompacted);
        }
        self.queue.committed(self.durable.hard_state.commit)
    }

    /// Cuts the power: a write under way is lost, or was just made durable.
    pub fn crash(&mut self, stage: &mut Stage) {
        let refuses = stage.now < self.refuses_until;
        let (writing, checkpointing) = (self.writing.take(), self.checkpointing.take());
        if self.medium.is_model() {
            self.keep_some_writes(stage, writing, refuses);
            self.keep_checkpoint_or_not(stage, checkpointing.filter(|_| !refuses));
        } else {
            self.durable = self.medium.lose_power(stage, &self.durable, (writing, checkpointing), refuses);
        }
        if stage.fault_injection == FaultInjection::ForgetVote {
            self.durable.hard_state.vote = ServerId(0);
        }
        self.queue = WriteQueue::new(self.durable.hard_state.commit, self.durable.mark.index);
    }

    fn keep_some_writes(&mut self, stage: &mut Stage, writing: Option<LogCommit>, refuses: bool) {
        let begun = writing.map(|commit| commit.writes).unwrap_or_default();
        let mut queue: Vec<LogWrite> = begun.into_iter().chain(self.queue.clone().into_waiting()).collect();
        let queued = queue.len();
        let resets =
            |write: &LogWrite| write.reset.as_ref().is_some_and(|mark| mark.index > self.durable.mark.index);
        let possible = queue.iter().position(resets).unwrap_or(queued);
        let kept = if refuses { 0 } else { stage.draw.within(0, possible as u64) as usize };
        if kept < queued {
            stage.hit(Mark::CrashLostWrites);
            if kept > 0 {
                stage.hit(Mark::CrashTore);
            }
        }
        for write in queue.drain(..kept) {
            self.durable.write(write);
        }
    }

    fn keep_checkpoint_or_not(&mut self, stage: &mut Stage, checkpointing: Option<Checkpoint>) {
        let Some(checkpoint) = checkpointing else { return };
        stage.hit(Mark::CrashDuringCheckpoint);
        if stage.draw.once_in(2) {
            stage.hit(Mark::CrashKeptCheckpoint);
            self.durable.checkpoint(checkpoint);
        }
    }

    /// Returns the disk as it would be found if the power failed now.
    pub fn copy(&self, stage: &mut Stage) -> Self {
        let mut copy = Self {
            queue: self.queue.clone(),
            removed: self.removed,
            writing: self.writing.clone(),
            checkpointing: self.checkpointing.clone(),
            refuses_until: self.refuses_until,
            ..Self::holding(self.server, self.durable.clone(), self.medium.copy())
        };
        copy.crash(stage);
        copy
    }

    /// Notes that the server was removed: separate from other writes, and only once.
    pub fn note_removal(&mut self, stage: &mut Stage, life: u64) {
        let wait = self.latency(stage, stage.plan.disk.commit);
        stage.after(wait, Event::Disk(self.server, life, DiskEvent::Removal));
    }

    /// Returns the state that a starting process finds.
    ///
    /// # Errors
    /// A message if no process can start from the contents of the disk. The disk is unchanged and
    /// the server cannot start.
    pub fn open(&mut self, stage: &mut Stage) -> Result<Recovered, String> {
        if self.medium.is_model() {
            self.fit_log_to_checkpoint(stage)?;
        } else {
            self.medium.found()?;
        }
        self.queue = WriteQueue::new(self.durable.hard_state.commit, self.durable.mark.index);
        Ok(self.durable.recovered())
    }

    /// Restarts a log behind its checkpoint if it does not lead up to it.
    fn fit_log_to_checkpoint(&mut self, stage: &mut Stage) -> Result<(), String> {
        let (fault_injection, durable) = (stage.fault_injection, &mut self.durable);
        let mark = durable.mark.clone();
        if mark.index < durable.base.0 {
            return Err(format!(
                "the log begins at {} and the checkpoint ends at {}",
                durable.base.0, mark.index
            ));
        }
        if durable.term(mark.index) != Some(mark.term) && fault_injection != FaultInjection::KeepLogThatParts
        {
            stage.hit(Mark::CrashBetweenCheckpointAndReset);
            let HardState { term, vote, .. } = durable.hard_state;
            let vote = if term < mark.term { ServerId(0) } else { vote };
            durable.hard_state = HardState { term: term.max(mark.term), vote, commit: mark.index };
            durable.entries.clear();
            durable.base = (mark.index, mark.term);
        } else if fault_injection != FaultInjection::Core(Rule::CheckpointsWaitForTheirCommit) {
            durable.hard_state.commit = durable.hard_state.commit.max(mark.index);
        }
        Ok(())
    }
}

fn health(is_failing: bool) -> StoreEvent {
    StoreEvent::Health(if is_failing { StoreHealth::Failing("it is full".into()) } else { StoreHealth::Good })
}
