//! The commands that a guard runs under its holds, as `lockmesh lock` does: the guard passes the
//! state of the hold on, and ends the hold after the command.
//!
//! A command and its supervisor outlive the guard's process. The supervisor's client has a holder
//! of its own, which gives the hold of the dead guard back.

use super::guard::{Act, Doing, Guard, GuardEvent, Seat};
use super::guard_calls;
use super::marks::Mark;
use super::stage::{Event, Stage};
use super::supervised::{CommandEvent, Effect, Job, Strike};
use bytes::Bytes;
use lockmesh_cli::supervision::{Input as Told, OnJeopardy, Outcome, Role, Terms};
use lockmesh_client::holder::{Goal, HoldId, Holder, Input, LockGoal, Moment, Request, SessionUse};
use lockmesh_client::{GuardState, SessionOptions};
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The number of the first supervisor's holder; those of guards are below.
pub(super) const SUPERVISORS: u64 = 1 << 32;

/// The time for which a guard waits for the end of a lost hold before it exits.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which a stopped supervisor's events are tried again.
const RETRY: Duration = Duration::from_millis(20);

/// SIGTERM.
const TERM: i32 = super::command::TERM;

impl Guard {
    /// Iterates over its commands, with their numbers.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (u64, &Job)> {
        self.jobs.iter().map(|(number, job)| (*number, job))
    }

    /// Notes that an overlap of a command was counted.
    pub(super) fn count_overlap(&mut self, number: u64) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.record.overlap_counted = true;
        }
    }

    /// Starts a command under a granted hold.
    pub(super) fn start_command(&mut self, stage: &mut Stage, hold: HoldId, key: &Key) {
        if !self.runs_commands || !stage.plan.guards.has_commands {
            return;
        }
        let moment = self.moment(stage.now);
        let Some(holder) = self.holder() else { return };
        let Some(session) = holder.session().map(guard_calls::id_of) else { return };
        let (GuardState::Safe { deadline } | GuardState::Jeopardy { deadline }) = holder.state(hold, moment)
        else {
            return;
        };
        let draw = &mut self.job_draw;
        let covers_descendants = !draw.once_in(5);
        let on_jeopardy = if draw.once_in(4) { OnJeopardy::Terminate } else { OnJeopardy::Ignore };
        let terms = Terms { deadline: Some(deadline), covers_descendants, lock_delay: self.lock_delay };
        self.last_job += 1;
        let place = (self.agent, self.number, self.last_job);
        let draw = super::draw::Draw::new(draw.bits());
        let what = (hold, session, key.clone());
        let how = (Role::Guard(on_jeopardy), terms);
        let mut job = Job::start(stage, place, self.clock, (draw, self.awaits_loss), what, how);
        // Taken away before the guard learned of the grant.
        job.record.revoked_at = self.promises.taken_at(hold, &session);
        self.jobs.insert(self.last_job, job);
        self.job = Some(self.last_job);
    }

    /// Returns the command under this hold, if there is one.
    fn command_under(&mut self, hold: HoldId) -> Option<(u64, &mut Job)> {
        let number = self.job?;
        let job = self.jobs.get_mut(&number).filter(|job| job.hold == hold)?;
        Some((number, job))
    }

    /// Returns `true` if a command runs under this hold.
    pub(super) fn runs_command(&mut self, hold: HoldId) -> bool {
        self.command_under(hold).is_some()
    }

    /// Ends the command under a hold.
    pub(super) fn stop_command(&mut self, stage: &mut Stage, hold: HoldId, acts: &mut Vec<Act>) {
        if let Some((number, job)) = self.command_under(hold) {
            let effects = job.guard_input(stage, Told::Stop(TERM));
            self.apply(stage, number, effects, acts);
        }
    }

    /// Passes the state of the hold to the command's guard.
    pub(super) fn inform_command(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        let Doing::Holding(hold, ..) = self.doing else { return };
        let moment = self.moment(stage.now);
        let Some(state) = self.holder().map(|holder| holder.state(hold, moment)) else { return };
        if let Some((number, job)) = self.command_under(hold) {
            let effects = job.hold_state(stage, state);
            self.apply(stage, number, effects, acts);
        }
    }

    /// Processes an event of a command, its guard or its supervisor.
    pub(super) fn command_happens(
        &mut self,
        stage: &mut Stage,
        number: u64,
        event: CommandEvent,
        acts: &mut Vec<Act>,
    ) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if let CommandEvent::Strike(strike) = &event {
            let is_of_guard = !matches!(strike, Strike::KillSupervisor | Strike::StopSupervisor(_));
            if stage.calm || (is_of_guard && (self.job != Some(number) || self.missed.is_some())) {
                return;
            }
            match *strike {
                Strike::KillGuard => {
                    stage.hit(Mark::GuardKilled);
                    return self.die(stage, acts);
                }
                Strike::StopGuard(length) => return self.stop_alone(stage, length),
                Strike::Suspend(length) => self.suspension = length,
                _ => {}
            }
        }
        let effects = job.happens(stage, event);
        self.apply(stage, number, effects, acts);
        if self.job != Some(number) && self.jobs.get(&number).is_some_and(|job| job.is_over(stage.now)) {
            self.jobs.remove(&number);
        }
    }

    /// Stops the process, while its host runs.
    pub(super) fn stop_alone(&mut self, stage: &mut Stage, length: Duration) {
        stage.hit(Mark::GuardStopped);
        self.stands_alone |= self.missed.is_none();
        self.stand_still(stage, length);
    }

    /// The guard's process continues: so do its commands.
    pub(super) fn commands_continue(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        let suspended = self.suspended.take();
        for number in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let effects = job.guard_continues(stage, suspended == Some(number));
            self.apply(stage, number, effects, acts);
        }
    }

    /// Carries out the consequences of a turn.
    fn apply(&mut self, stage: &mut Stage, number: u64, effects: Vec<Effect>, acts: &mut Vec<Act>) {
        for effect in effects {
            match effect {
                Effect::Suspend => {
                    self.suspended = Some(number);
                    self.stop_alone(stage, self.suspension);
                }
                Effect::Finished(outcome) => self.command_finished(stage, number, &outcome, acts),
                Effect::GiveBack(overdue_at) => self.give_back(stage, (number, overdue_at), acts),
                Effect::SupervisorEnds => self.supervisor_ended(number, acts),
            }
        }
    }

    /// The command has ended: the guard ends the hold, as `lockmesh lock` does.
    fn command_finished(&mut self, stage: &mut Stage, number: u64, outcome: &Outcome, acts: &mut Vec<Act>) {
        let (Doing::Holding(id, key, _), Some(seat)) = (self.doing.clone(), self.seat) else { return };
        if self.command_under(id).is_none_or(|(under, _)| under != number) {
            return;
        }
        self.served |= stage.calm;
        self.awaits_loss = false;
        if outcome.loss.is_none() {
            self.doing = Doing::Releasing(id, key);
            return self.handle_input(stage, seat, Input::Release(id), acts);
        }
        self.job = None;
        self.settling = Some((seat, number));
        let exits = GuardEvent::Command(number, CommandEvent::GuardExits);
        stage.after(RELEASE_TIMEOUT, Event::Guard(self.agent, self.number, exits));
        self.leave_hold(stage, Input::GiveUp(id), acts);
    }

    /// The hold of a command was released, or could not be.
    pub(super) fn command_released(&mut self, stage: &mut Stage, is_acknowledged: bool, acts: &mut Vec<Act>) {
        let Some(number) = self.job.take() else { return };
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if is_acknowledged {
            let effects = job.guard_input(stage, Told::HoldEnded);
            self.apply(stage, number, effects, acts);
        } else {
            job.guard_dies(stage);
        }
    }

    /// A holder has nothing left to do.
    pub(super) fn settled(&mut self, stage: &mut Stage, seat: u64, acts: &mut Vec<Act>) {
        let Some((_, number)) = self.settling.take_if(|(of, _)| *of == seat) else { return };
        if let Some(job) = self.jobs.get_mut(&number) {
            let effects = job.guard_input(stage, Told::HoldEnded);
            self.apply(stage, number, effects, acts);
        }
    }

    /// A supervisor's client gives the hold back.
    fn give_back(&mut self, stage: &mut Stage, (number, overdue_at): (u64, Moment), acts: &mut Vec<Act>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.record.is_given_back = true;
        stage.log(|| format!("the supervisor gives {} of {} back", job.key, job.session));
        let (hold, session) = (job.hold, job.session.to_string());
        let goal =
            LockGoal { key: job.key.as_str().to_owned(), value: Bytes::new(), flags: 0, is_shared: false };
        let seat = SUPERVISORS + number;
        let options = SessionOptions::named(guard_calls::SESSION_NAME);
        self.seats.insert(seat, Seat::new(Holder::new(options, SessionUse::OneHold, self.job_draw.bits())));
        self.handle_input(stage, seat, Input::GiveBack(hold, Goal::Lock(goal), (session, overdue_at)), acts);
    }

    /// Returns `true` if a supervisor gives the hold of this session back. Its guard learns of that
    /// later, but its command has ended.
    pub(super) fn was_given_back(&self, session: &SessionId) -> bool {
        self.jobs.values().any(|job| job.session == *session && job.record.is_given_back)
    }

    /// A supervisor's client has given the hold back.
    pub(super) fn given_back(&mut self, stage: &mut Stage, seat: u64, acts: &mut Vec<Act>) {
        let number = seat - SUPERVISORS;
        self.handle_input(stage, seat, Input::Abandon, acts);
        if let Some(job) = self.jobs.get_mut(&number) {
            let effects = job.gave_back(stage);
            self.apply(stage, number, effects, acts);
        }
    }

    fn supervisor_ended(&mut self, number: u64, acts: &mut Vec<Act>) {
        let seat = SUPERVISORS + number;
        let Some(Seat { under_way, .. }) = self.seats.remove(&seat) else { return };
        acts.extend(under_way.into_keys().map(|request| Act::Cancel(seat, request)));
    }

    /// Returns the time after which a supervisor can process an event of its client: it is stopped,
    /// or its host is suspended.
    pub(super) fn supervisor_waits(&self, now: Time, seat: u64) -> Option<Duration> {
        let job = self.jobs.get(&(seat - SUPERVISORS))?;
        let frozen = job.frozen_for(now);
        frozen.or_else(|| job.supervisor.is_stopped.then_some(RETRY))
    }

    /// Notes a request that ends the holds of a session.
    pub(super) fn note_end(&mut self, now: Time, session: &SessionId) {
        for job in self.jobs.values_mut().filter(|job| job.session == *session) {
            job.end_requested(now);
        }
    }
}

/// Returns the session whose holds a request ends, if it ends any.
pub(super) fn ended_by(request: &Request) -> Option<SessionId> {
    match request {
        Request::Release(_, session) | Request::EndSession(session, _) => Some(guard_calls::id_of(session)),
        _ => None,
    }
}
