//! A client that keeps backups of the cluster, and now and then restores one.
//!
//! A backup comes in parts from one reader of one server, and is begun anew where that is gone. A
//! restore is one command after another, of which only the last changes what others see; whoever
//! does not know what became of one begins again.

use super::client::Wish;
use super::invariant::Fact;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, RestoreStep};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{BackupPart, Request, Response};

/// A client's thought is worth a backup once in so many times.
const BACKS_UP_ONE_IN: u64 = 10;
/// A backup is restored once in so many times.
const RESTORES_ONE_IN: u64 = 6;

/// What it does.
#[derive(Debug, Default)]
enum Work {
    /// Nothing.
    #[default]
    Rests,
    /// It reads a backup: whether any server may serve it, and the parts that came.
    Reads(bool, Vec<BackupPart>),
    /// It restores a backup under a number: how many steps are done.
    Restores(u64, u32),
}

/// What it knows.
#[derive(Debug, Default)]
pub struct Archivist {
    work: Work,
    /// The rows of the newest backup, in parts.
    backup: Vec<Vec<Change>>,
    served: bool,
}

impl Archivist {
    /// Whether it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served && matches!(self.work, Work::Rests)
    }

    /// What it wants now.
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

    /// A wish was answered.
    pub fn heard(&mut self, stage: &mut Stage, judge: &mut Judge, response: Response) {
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
        // Servers count their readers each process for itself, so another backup may have the same
        // number.
        let of = |part: &BackupPart| (part.backup, part.index, part.term);
        if parts.first().is_some_and(|first| of(first) != of(&part)) {
            stage.hit(Mark::BackupInterrupted);
            return Work::Rests;
        }
        // What repeats an earlier part answers an earlier question.
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

    /// It does not know what became of a wish: it begins anew.
    pub fn gave_up(&mut self, stage: &mut Stage) {
        if let Work::Reads(_, parts) = std::mem::take(&mut self.work)
            && !parts.is_empty()
        {
            stage.hit(Mark::BackupInterrupted);
        }
    }
}
