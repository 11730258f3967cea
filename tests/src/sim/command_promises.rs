//! The guarantees for a command under a lock (I10 and I11 of the design).
//!
//! - **I10.** At every moment after the deadline and [`LATENESS`] at which the guard or the
//!   supervisor has run for [`LATENESS`], every process of the command was sent SIGKILL.
//! - **I11.** A hold whose command has ended is released: the release is requested within
//!   [`RELEASE_LIMIT`] while the supervisor runs, or [`LOSS_FAREWELL_TIMEOUT`] later if the guard
//!   has killed the command and stands still since. It takes effect within that time when agent and
//!   quorum have had no fault for long, and nothing was lost between them for that time and
//!   [`NOTICE_TIMEOUT`]. It is not requested while a process of the command is alive, unless the
//!   deadline has passed or another client took the lock away.
//! - No command is killed before its newest deadline without a reason: a loss, a request, the death
//!   of its guard or supervisor.
//! - No process that was not sent SIGKILL is alive while another session holds the lock. The
//!   exceptions are a lock that another client took away, until the guard has learned of it, and a
//!   time at which neither guard nor supervisor could run.
//!
//! A hold that does not cover its command's descendants ends with the command's own process.

use super::connections::NOTICE_TIMEOUT;
use super::guard::holder_of;
use super::held::place_of;
use super::marks::Mark;
use super::supervised::Job;
use super::world::World;
use lockmesh_cli::supervision::LOSS_FAREWELL_TIMEOUT;
use lockmesh_client::Loss;
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The time that a kill may be late.
pub(super) const LATENESS: Duration = Duration::from_millis(50);

/// The time within which a hold is released after its command.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// The time without a fault after which agent and quorum answer.
const RECOVERY: Duration = Duration::from_secs(25);

/// Returns the longest time from the news of a loss to SIGKILL: a lock that was deleted may be
/// another session's at once, and one whose session was ended after the lock-delay.
pub(super) fn longest_grace(loss: &Loss, lock_delay: Duration) -> Duration {
    match loss {
        Loss::Closed | Loss::Unwatched(_) => Duration::from_secs(5),
        Loss::Ended(_) | Loss::SessionGone => lock_delay / 2,
        _ => Duration::ZERO,
    }
}

impl Job {
    /// Returns `true` if nothing that the hold covers runs without having been sent SIGKILL.
    fn is_harmless(&self) -> bool {
        let is_uncovered = !self.terms.covers_descendants && self.main_end().is_some();
        is_uncovered || self.tree.unkilled() == 0
    }

    /// Returns `true` if the guard or the supervisor has run for a while.
    fn has_run(&self, now: Time) -> bool {
        let mut both = [&self.guard, &self.supervisor].into_iter();
        both.any(|actor| actor.has_run(now).is_some_and(|time| time >= LATENESS))
    }

    /// Returns a description of a violation of I10.
    fn outlives_deadline(&self, now: Time) -> Option<String> {
        let is_overdue = self.moment(now) >= self.deadline + LATENESS;
        if self.is_harmless() || !is_overdue || !self.has_run(now) {
            return None;
        }
        let late = self.moment(now).since(self.deadline);
        let count = self.tree.unkilled();
        Some(format!("{count} processes under {} run {late:?} after its deadline", self.key))
    }

    /// Returns a description of a process that the loss of the lock has not ended in time.
    fn outlives_loss(&self, now: Time) -> Option<String> {
        let (learned, grace) = self.record.learned_loss?;
        let due = learned + grace + LATENESS;
        let is_alone = self.guard.has_run(now).is_none_or(|time| time < LATENESS);
        if self.is_harmless() || now < due || is_alone {
            return None;
        }
        let late = now.since(learned);
        Some(format!("a process under {} runs {late:?} after the news of its loss", self.key))
    }

    /// Notes a kill before the deadline. There must be a reason, except for a process that has not
    /// run long enough to know the present deadline.
    pub(super) fn note_early_kill(&mut self, now: Time) {
        let knows = |time: Option<Duration>| time.is_some_and(|time| time >= LATENESS);
        let is_known = knows(self.guard.has_run(now))
            && knows(self.supervisor.has_run(now))
            && now.since(self.record.renewed) >= LATENESS;
        if is_known && !self.record.has_reason {
            let left = self.deadline.since(self.moment(now));
            self.record.killed_early =
                Some(format!("a command under {} is killed {left:?} before its deadline", self.key));
        }
    }

    /// Returns `true` if the hold must not be released yet, unless another client took it away.
    pub(super) fn is_needed(&self, now: Time) -> bool {
        let is_uncovered = !self.terms.covers_descendants && self.main_end().is_some();
        let is_past = self.moment(now) >= self.deadline || self.record.learned_loss.is_some();
        self.tree.is_alive() && !is_uncovered && !is_past
    }

    /// Returns a description of a hold that no process releases although its command has ended.
    fn is_left(&self, now: Time, is_held: bool) -> Option<String> {
        if !is_held || self.record.revoked_at.is_some() {
            return None;
        }
        if self.record.ended_early {
            return Some(format!("{} is released while its command is alive", self.key));
        }
        if self.record.has_exited && !self.record.end_requested {
            return Some(format!("the supervisor exited, but {} is still held", self.key));
        }
        let gone_for = now.since(self.record.gone_since?);
        // A guard that has killed the command does not wait for a supervisor that stands still.
        let killed =
            self.record.guard_killed.and_then(|at| Some(now.since(at).min(self.guard.has_run(now)?)));
        // A supervisor leaves the reason of the loss to a guard that has killed the command.
        let farewell =
            if self.record.guard_killed.is_some() { LOSS_FAREWELL_TIMEOUT } else { Duration::ZERO };
        let is_late =
            |runs_for: Option<Duration>, limit| runs_for.is_some_and(|time| gone_for.min(time) > limit);
        let is_late =
            is_late(self.supervisor.has_run(now), farewell + RELEASE_LIMIT) || is_late(killed, RELEASE_LIMIT);
        (is_late && !self.record.end_requested)
            .then(|| format!("{} is not released, although its command ended {gone_for:?} ago", self.key))
    }
}

impl World {
    /// Checks all commands.
    pub(super) fn judge_commands(&mut self) {
        let now = self.stage.now;
        let (mut broken, mut overlaps) = (None, Vec::new());
        for (place, agent) in self.agents.iter().enumerate() {
            let guards = agent.guards.iter().enumerate();
            let jobs =
                guards.flat_map(|(guard, of)| of.jobs().map(move |(number, job)| (guard, number, job)));
            for (guard, number, job) in jobs {
                let holder = holder_of(&self.judge, &job.key).map(|(session, _)| session);
                let is_held = holder == Some(job.session);
                let wrong = job.record.killed_early.clone();
                let wrong = wrong.or_else(|| job.outlives_deadline(now)).or_else(|| job.outlives_loss(now));
                let wrong = wrong.or_else(|| job.is_left(now, is_held));
                let wrong = wrong.or_else(|| self.is_released_too_late(job, is_held));
                broken = broken.or(wrong);
                let is_anothers = holder.is_some_and(|holder| holder != job.session);
                if !is_anothers || job.is_harmless() {
                    continue;
                }
                if job.record.revoked_at.is_some() && !job.knew_in_time(now) {
                    continue;
                }
                if job.has_run(now) {
                    let what = format!("{holder:?} holds {}, and a command of {} runs", job.key, job.session);
                    broken = broken.or(Some(what));
                } else if !job.record.overlap_counted {
                    overlaps.push((place, guard, number));
                }
            }
        }
        for (place, guard, number) in overlaps {
            self.stage.hit(Mark::CommandOutlivedLock);
            self.agents[place].guards.count_overlap(guard, number);
        }
        if let Some(what) = broken {
            self.judge.object("commands", what);
        }
    }

    /// Returns a description of a hold that is still there although agent and quorum answer.
    fn is_released_too_late(&self, job: &Job, is_held: bool) -> Option<String> {
        let now = self.stage.now;
        let session = self.judge.history.state().session(job.session)?;
        let agent = place_of(&session.spec.node)?;
        let recovered = self.held.last_fault(agent) + RECOVERY;
        let since = job.record.gone_since?.max(job.supervisor.runs_since).max(recovered);
        let runs = job.supervisor.has_run(now).is_some();
        let is_kept = is_held && job.record.revoked_at.is_none();
        // A lost handshake keeps an agent from the leader until it is noticed.
        let recently = Time(0) + now.since(Time(0) + RELEASE_LIMIT + NOTICE_TIMEOUT);
        let is_late = is_kept && runs && now > since + RELEASE_LIMIT && !self.was_disturbed(agent, recently);
        is_late.then(|| format!("{} is still held {:?} after its command", job.key, now.since(since)))
    }
}

impl Job {
    /// Returns `true` if a guard whose lock was taken away learned of it so early that its command
    /// must be dead by now.
    fn knew_in_time(&self, now: Time) -> bool {
        let (Some(revoked), Some((learned, grace))) = (self.record.revoked_at, self.record.learned_loss)
        else {
            return false;
        };
        let is_early = learned.since(revoked) + LATENESS < self.terms.lock_delay / 2;
        is_early && now > learned + grace + LATENESS
    }

    /// Notes that another client took the lock away.
    pub(super) fn revoked(&mut self, now: Time, session: Option<&SessionId>, key: Option<&Key>) {
        let is_mine =
            session.is_none_or(|session| *session == self.session) && key.is_none_or(|key| *key == self.key);
        if is_mine {
            self.record.revoked_at.get_or_insert(now);
        }
    }
}
