//! A client that makes backups of the cluster, and now and then restores one.
//!
//! A backup arrives in parts from one reader on one server, and restarts if that reader is gone. A
//! restore is a sequence of commands, of which only the last changes what others see. If the
//! outcome of one command is unknown, the client starts again.

use super::client::Wish;
use super::invariant::Fact;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, RestoreStep};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{BackupPart, Request, Response};

/// One in this many wake-ups starts a backup.
const BACKS_UP_ONE_IN: u64 = 10;
/// One in this many backups is restored.
const RESTORES_ONE_IN: u64 = 6;

/// The present activity.
#[derive(Debug, Default)]
enum Work {
    /// Idle.
    #[default]
    Rests,
    /// Reads a backup: `true` if any server may serve it, and the received parts.
    Reads(bool, Vec<BackupPart>),
    /// Restores a backup: its number, and the number of finished steps.
    Restores(u64, u32),
}

/// The state of the client.
#[derive(Debug, Default)]
pub struct Archivist {
    work: Work,
    /// The rows of the newest backup, in parts.
    backup: Vec<Vec<Change>>,
    served: bool,
}

impl Archivist {
    /// Returns `true` if it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served && matches!(self.work, Work::Rests)
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage) -> Option<Wish> {
        if matches!(self.work, Work::Rests) {
            self.begin(stage);
        }
        match &self.work {
            Work::Rests => None,
            Work::Reads(stale, parts) => Some(Self::part(stage, *stale, parts)),
            Work::Restores(id, done) => Some(self.step(stage, *id, *done)),
        }
    }

    fn begin(&mut self, stage: &mut Stage) {
        if self.served || !(stage.calm || stage.draw.once_in(BACKS_UP_ONE_IN)) {
            return;
        }
        let restores = !stage.calm && !self.backup.is_empty() && stage.draw.once_in(RESTORES_ONE_IN);
        self.work = match restores {
            true => Work::Restores(stage.draw.bits(), 0),
            false => Work::Reads(stage.draw.once_in(3), Vec::new()),
        };
    }

    fn part(stage: &Stage, stale: bool, parts: &[BackupPart]) -> Wish {
        let (backup, number) = (parts.last().map(|part| part.backup), parts.len() as u32);
        let request = Request::BackupPart { backup, number, stale };
        Wish::new(stage.now, request)
    }

    fn step(&self, stage: &Stage, id: u64, done: u32) -> Wish {
        let parts = self.backup.len() as u32;
        let step = match done.checked_sub(1) {
            None => RestoreStep::Begin { id },
            Some(number) if number < parts => {
                RestoreStep::Part { id, number, rows: self.backup[number as usize].clone() }
            }
            Some(_) => RestoreStep::Commit { id, parts },
        };
        Wish::new(stage.now, Request::Propose(None, Command::Restore(step)))
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &mut Stage, judge: &mut Judge, response: Response) {
        self.work = match (std::mem::take(&mut self.work), response) {
            (Work::Reads(stale, parts), Response::BackupPart(part)) => {
                self.part_heard(stage, judge, stale, (parts, part))
            }
            (Work::Reads(..), _) => {
                stage.hit(Mark::BackupInterrupted);
                Work::Rests
            }
            (Work::Restores(id, done), Response::Applied(Applied { reply: Reply::Done, .. })) => {
                let is_over = done as usize > self.backup.len();
                if is_over { Work::Rests } else { Work::Restores(id, done + 1) }
            }
            _ => Work::Rests,
        };
    }

    fn part_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        stale: bool,
        (mut parts, part): (Vec<BackupPart>, BackupPart),
    ) -> Work {
        // Each process numbers its own readers, so another backup may have the same number.
        let of = |part: &BackupPart| (part.backup, part.index, part.term);
        if parts.first().is_some_and(|first| of(first) != of(&part)) {
            stage.hit(Mark::BackupInterrupted);
            return Work::Rests;
        }
        // A repeated part is the reply to an earlier request.
        if part.number as usize == parts.len() {
            parts.push(part);
        }
        if !parts.last().is_some_and(|part| part.last) {
            return Work::Reads(stale, parts);
        }
        stage.hit(Mark::BackedUp);
        self.served |= stage.calm;
        judge.see(stage, &Fact::BackedUp { parts: &parts });
        self.backup = parts.into_iter().map(|part| part.rows).collect();
        Work::Rests
    }

    /// The outcome of a request is unknown: start again.
    pub fn gave_up(&mut self, stage: &mut Stage) {
        if let Work::Reads(_, parts) = std::mem::take(&mut self.work)
            && !parts.is_empty()
        {
            stage.hit(Mark::BackupInterrupted);
        }
    }
}
