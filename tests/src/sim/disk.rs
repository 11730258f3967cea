//! A server's disk: the log and the image as they would be found after a power cut, and what is on its way there.
//!
//! What is written when, and what of it is tried again, the real store's own queue decides; here is only how long it takes,
//! what the disk refuses, and what a power cut leaves.

use super::corruption::without_stray_row;
use super::marks::Mark;
use super::sabotage::Sabotage;
use super::stage::{Event, Stage};
use lockmesh_core::State;
use lockmesh_core::checksum::Checksum;
use lockmesh_core::raft::log::{HardState, ImageMark, LogEntry, LogWrite, Recovered};
use lockmesh_core::sabotage::Rule;
use lockmesh_core::setback::{LogPosition, PeerMemory};
use lockmesh_core::write_queue::{self, LogCommit, WriteQueue, Writer};
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::time::Time;
use lockmesh_server::store::testing::backup_of;
use lockmesh_server::store::{Backup, DirtyRows};
use std::collections::VecDeque;
use std::time::Duration;

/// Something that the disk has done, or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// The commit of the log.
    Log,
    /// The commit of the image.
    Image,
    /// The note that the server was removed.
    Removal,
}

/// What the store tells the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Every write up to this number is durable.
    Persisted(u64),
    /// The image of this mark is durable.
    Image(ImageMark),
    /// The image of exactly this index is durable, and this is its checksum.
    Summed(LogIndex, Checksum),
    /// The disk refuses, or takes writes again.
    Failing(bool),
}

/// What is there after a power cut.
#[derive(Clone, Debug)]
pub struct Durable {
    /// The entry before the log's first.
    pub base: (LogIndex, Term),
    /// The log.
    pub entries: VecDeque<LogEntry>,
    /// The hard state.
    pub hard_state: HardState,
    /// What the image stands for.
    pub mark: ImageMark,
    /// The image.
    pub state: State,
    /// How far other servers had come when it was made.
    pub peers: PeerMemory,
}

/// A checkpoint on its way.
pub type Checkpoint = write_queue::Checkpoint<DirtyRows>;

/// The disk with what is on its way to it.
#[derive(Clone, Debug)]
pub struct Disk {
    server: ServerId,
    /// What is there after a power cut.
    pub durable: Durable,
    /// Whether it says that the server was removed from the quorum.
    pub removed: bool,
    queue: WriteQueue<DirtyRows>,
    /// The commit of the log that is under way.
    writing: Option<LogCommit>,
    /// The checkpoint that is being written.
    imaging: Option<Checkpoint>,
    /// It takes very long until then.
    stalled_until: Time,
    /// It refuses until then.
    refuses_until: Time,
}

impl Durable {
    /// The term of an entry that is on disk, or that the image stands for.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        match index.0.checked_sub(self.base.0.0)? {
            0 => Some(self.base.1),
            distance => self.entries.get(distance as usize - 1).map(|entry| entry.term),
        }
    }

    /// The last index in the log.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.entries.len() as u64)
    }

    /// Whether an entry would survive a power cut.
    pub fn holds(&self, index: LogIndex, term: Term) -> bool {
        index <= self.mark.index || self.term(index) == Some(term)
    }

    fn write(&mut self, write: LogWrite) {
        if let Some(mark) = write.reset {
            self.base = (mark.index, mark.term);
            self.hard_state.commit = self.hard_state.commit.max(mark.index);
            self.entries.clear();
        }
        if let Some(first) = write.entries.first() {
            assert!(first.index > self.base.0, "an entry would replace what was cut off the log");
            assert!(first.index <= self.last_index().next(), "entries must follow the log without a gap");
            self.entries.truncate((first.index.0 - self.base.0.0 - 1) as usize);
        }
        self.entries.extend(write.entries);
        if let Some(hard_state) = write.hard_state {
            let commit = hard_state.commit.max(self.hard_state.commit);
            self.hard_state = HardState { commit, ..hard_state };
        }
    }

    fn cut(&mut self, up_to: LogIndex) {
        while self.base.0 < up_to {
            let Some(gone) = self.entries.pop_front() else { return };
            self.base = (gone.index, gone.term);
        }
    }

    fn image(&mut self, checkpoint: Checkpoint) {
        if let Some(peers) = checkpoint.rows.peers() {
            self.peers.clone_from(peers);
        }
        checkpoint.rows.into_changes().into_iter().for_each(|change| self.state.load(change));
        self.mark = checkpoint.mark;
    }
}

impl Disk {
    /// Begins to read the image.
    pub fn backup(&self) -> Result<Backup, String> {
        Ok(backup_of(self.durable.mark.clone(), &without_stray_row(self.durable.state.clone())))
    }

    /// A new store that begins with an image.
    pub fn new(server: ServerId, mark: ImageMark) -> Self {
        let hard_state = HardState { term: mark.term, vote: ServerId(0), commit: mark.index };
        let base = (mark.index, mark.term);
        let (entries, state, peers) = (VecDeque::new(), State::default(), PeerMemory::default());
        Self::holding(server, Durable { base, entries, hard_state, mark, state, peers })
    }

    fn holding(server: ServerId, durable: Durable) -> Self {
        Self {
            server,
            queue: WriteQueue::new(durable.hard_state.commit, durable.mark.index),
            durable,
            removed: false,
            writing: None,
            imaging: None,
            stalled_until: Time(0),
            refuses_until: Time(0),
        }
    }

    /// Queues a write of the log.
    pub fn write(&mut self, write: LogWrite) {
        self.queue.push(write);
    }

    /// Makes a checkpoint, as soon as it may be made.
    pub fn hand_over(&mut self, checkpoint: Checkpoint) {
        self.queue.hand_over(checkpoint);
    }

    /// Whether no image waits to be made or is being made.
    pub fn image_is_idle(&self) -> bool {
        self.queue.is_checkpoint_idle()
    }

    /// Lets the log go up to an index, or up to the durable image if that is less.
    pub fn cut(&mut self, up_to: LogIndex) {
        self.queue.compact(up_to);
    }

    /// From now on it takes very long, until then.
    pub fn stall(&mut self, until: Time) {
        self.stalled_until = until;
    }

    /// From now on it refuses, until then.
    pub fn refuse(&mut self, until: Time) {
        self.refuses_until = until;
    }

    /// Begins whatever can be begun.
    pub fn go_on(&mut self, stage: &mut Stage, life: u64) {
        if let Some(rule) = stage.sabotage.rule() {
            self.queue.break_rule(rule);
        }
        self.begin_image(stage, life);
        if self.writing.is_some() {
            return;
        }
        let ready = self.queue.ready_writes();
        let most = if ready > 1 && stage.draw.once_in(4) {
            stage.draw.within(1, ready as u64)
        } else {
            ready as u64
        };
        let can_compact = self.queue.compact_to() > self.durable.base.0 && !self.durable.entries.is_empty();
        self.writing = self.queue.begin_commit(most as usize, can_compact);
        if self.writing.is_some() {
            let wait = self.latency(stage, stage.plan.disk.commit);
            stage.after(wait, Event::Disk(self.server, life, DiskEvent::Log));
        }
    }

    fn begin_image(&mut self, stage: &mut Stage, life: u64) {
        if self.imaging.is_some() {
            return;
        }
        let waited = self.queue.checkpoint_waits();
        self.imaging = self.queue.begin_checkpoint();
        if !waited && self.queue.checkpoint_waits() {
            stage.hit(Mark::CheckpointWaited);
        }
        if self.imaging.is_some() {
            let wait = self.latency(stage, stage.plan.disk.image);
            stage.after(wait, Event::Disk(self.server, life, DiskEvent::Image));
        }
    }

    fn latency(&self, stage: &mut Stage, usual: (Duration, Duration)) -> Duration {
        stage.draw.duration(usual.0, usual.1).max(self.stalled_until.since(stage.now))
    }

    /// A commit is done, or refused; what the driver is told.
    pub fn done(&mut self, stage: &mut Stage, life: u64, event: DiskEvent) -> Vec<Told> {
        let mut told = Vec::new();
        let writer = match event {
            DiskEvent::Log => Writer::Log,
            DiskEvent::Image => Writer::Checkpoint,
            DiskEvent::Removal => {
                self.removed |= stage.now >= self.refuses_until;
                return told;
            }
        };
        if stage.now < self.refuses_until {
            stage.hit(Mark::DiskRefused);
            let (backoff, is_news) = self.queue.refused(writer, "it is full".into());
            stage.after(backoff, Event::Disk(self.server, life, event));
            told.extend(is_news.then_some(Told::Failing(true)));
            return told;
        }
        if self.queue.accepted(writer) {
            told.push(Told::Failing(self.queue.failure().is_some()));
        }
        match event {
            DiskEvent::Log => told.extend(self.log_done(stage).map(Told::Persisted)),
            DiskEvent::Image => {
                let checkpoint = self.imaging.take().expect("an image was under way");
                let (mark, is_exact) = (checkpoint.mark.clone(), checkpoint.is_exact);
                self.durable.image(checkpoint);
                self.queue.checkpointed();
                let index = mark.index;
                told.push(Told::Image(mark));
                told.extend(is_exact.then(|| Told::Summed(index, Checksum::of(self.durable.state.rows()))));
            }
            DiskEvent::Removal => {}
        }
        self.go_on(stage, life);
        told
    }

    fn log_done(&mut self, stage: &mut Stage) -> Option<u64> {
        let commit = self.writing.take().expect("a commit was under way");
        commit.writes.into_iter().for_each(|write| self.durable.write(write));
        let hard_state = &mut self.durable.hard_state;
        hard_state.commit = hard_state.commit.max(commit.least_commit);
        let compact_to = self.queue.compact_to();
        if compact_to > self.durable.base.0 {
            let before = self.durable.base.0;
            // Entries lie in rows, and a row is cut off whole or not at all.
            let spared = if stage.draw.once_in(2) { stage.draw.below(4) } else { 0 };
            self.durable.cut(LogIndex(compact_to.0.saturating_sub(spared)));
            if self.durable.base.0 > before {
                stage.hit(Mark::LogCut);
            }
        }
        self.queue.committed(self.durable.hard_state.commit)
    }

    /// The power fails: what is on its way is lost, or was just durable.
    pub fn crash(&mut self, stage: &mut Stage) {
        let begun = self.writing.take().map(|commit| commit.writes).unwrap_or_default();
        let mut queue: Vec<LogWrite> = begun.into_iter().chain(self.queue.clone().into_waiting()).collect();
        let queued = queue.len();
        let resets =
            |write: &LogWrite| write.reset.as_ref().is_some_and(|mark| mark.index > self.durable.mark.index);
        let possible = queue.iter().position(resets).unwrap_or(queued);
        let refuses = stage.now < self.refuses_until;
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
        if let Some(checkpoint) = self.imaging.take().filter(|_| !refuses) {
            stage.hit(Mark::CrashDuringCheckpoint);
            if stage.draw.once_in(2) {
                stage.hit(Mark::CrashKeptCheckpoint);
                self.durable.image(checkpoint);
            }
        }
        if stage.sabotage == Sabotage::ForgetVote {
            self.durable.hard_state.vote = ServerId(0);
        }
        let (stalled, refused, removed) = (self.stalled_until, self.refuses_until, self.removed);
        *self = Self::holding(self.server, self.durable.clone());
        (self.stalled_until, self.refuses_until, self.removed) = (stalled, refused, removed);
    }

    /// The disk as it would be found if the power failed now.
    pub fn copy(&self, stage: &mut Stage) -> Self {
        let mut copy = self.clone();
        copy.crash(stage);
        copy
    }

    /// How far a server has come that starts on it.
    pub fn position(&self) -> LogPosition {
        let last_index = self.durable.last_index().max(self.durable.mark.index);
        LogPosition { term: self.durable.hard_state.term, last_index }
    }

    /// Notes that the server was removed: beside all else, and only once.
    pub fn note_removal(&mut self, stage: &mut Stage, life: u64) {
        let wait = self.latency(stage, stage.plan.disk.commit);
        stage.after(wait, Event::Disk(self.server, life, DiskEvent::Removal));
    }

    /// What a process finds when it starts.
    pub fn open(&mut self, stage: &mut Stage) -> Result<Recovered, String> {
        let sabotage = stage.sabotage;
        let durable = &mut self.durable;
        let mark = durable.mark.clone();
        if mark.index < durable.base.0 {
            return Err(format!("the log begins at {} and the image ends at {}", durable.base.0, mark.index));
        }
        if durable.term(mark.index) != Some(mark.term) && sabotage != Sabotage::KeepLogThatParts {
            stage.hit(Mark::CrashBetweenImageAndReset);
            let HardState { term, vote, .. } = durable.hard_state;
            let vote = if term < mark.term { ServerId(0) } else { vote };
            durable.hard_state = HardState { term: term.max(mark.term), vote, commit: mark.index };
            durable.entries.clear();
            durable.base = (mark.index, mark.term);
        } else if sabotage != Sabotage::Core(Rule::CheckpointsWaitForTheirCommit) {
            durable.hard_state.commit = durable.hard_state.commit.max(mark.index);
        }
        self.queue = WriteQueue::new(durable.hard_state.commit, mark.index);
        Ok(Recovered {
            hard_state: durable.hard_state,
            image: mark,
            entries: durable.entries.iter().cloned().collect(),
            base: durable.base,
            state: durable.state.clone(),
            peers: durable.peers.clone(),
        })
    }
}
