//! A program that holds locks with the client library: the real [`Holder`], driven as the library's
//! own driver drives it, with the clock of its host.
//!
//! It acquires a lock, holds it for a while, and releases it. At times it changes its mind, or its
//! process is paused or dies. Its requests are local calls of its agent: [`super::guard_calls`].
//! Its beliefs are checked after every entry of the log and after every event that it receives.

use super::clock::Clock;
use super::draw::Draw;
use super::guard_calls::{self, Kind};
use super::guard_command::{self, SUPERVISORS};
use super::guard_promises::Promises;
use super::guards::RECOGNITION_BOUND;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::{Event, Stage};
use super::supervised::{CommandEvent, Job};
use bytes::Bytes;
use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
use lockmesh_client::holder::{
    Acquisition, Event as Told, Goal, HoldId, Holder, HolderRequest, Input, LockGoal, Moment, Notice, Outbox,
    Request, Response, SessionUse, WaitLimit,
};
use lockmesh_client::shape::session::SessionEvent;
use lockmesh_client::{Error, HealthWindow, Loss, Read, SessionOptions};
use lockmesh_core::state::State;
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Prefix of the guards' locks. No session without a TTL ever holds one, since only its owner could
/// end it.
pub(super) const PREFIX: &str = "guard/";

/// An event of a guard.
#[derive(Clone, Debug)]
pub enum GuardEvent {
    /// The program continues.
    Think,
    /// A timer of a holder, by its number.
    Wake(u64),
    /// The reply to a holder's request; `None` if the connection broke.
    Hears(u64, HolderRequest, Option<Box<Result<Answered, Unavailable>>>),
    /// The time is over in which it recognizes a grant whose reply was lost in silence.
    Recognizes(u64, HolderRequest),
    /// A holder's request timed out.
    Tired(u64, HolderRequest),
    /// The process is paused.
    Stop,
    /// The process resumes.
    Resume,
    /// The process dies, and comes back.
    Kill,
    /// An operator on this host takes a lock away from a guard.
    Revoke,
    /// The agent's report on the guard's session.
    IsTold(u64, HolderRequest, Box<Result<SessionEvent, Unavailable>>),
    /// The host is suspended for this time.
    HostStops(Duration),
    /// The host dies, and comes back after this time with a new clock.
    HostDies(Clock, Duration),
    /// An event of a command, by its number.
    Command(u64, CommandEvent),
}

/// An action of a guard at its agent.
#[derive(Clone, Debug)]
pub enum Act {
    /// A call for a holder's request.
    Call(u64, HolderRequest, LocalCall),
    /// A holder's poll for the state of its session.
    Follow(u64, HolderRequest, SessionId, Read),
    /// Cancels a request.
    Cancel(u64, HolderRequest),
    /// Cancels all requests of holders up to this one: a request of the next process may arrive
    /// first.
    CancelAll(u64),
    /// A call whose reply is ignored.
    Forget(LocalCall),
}

/// A holder and its pending requests.
#[derive(Debug)]
pub(super) struct Seat {
    holder: Holder,
    /// The kind and the send time of each request.
    pub(super) under_way: BTreeMap<HolderRequest, (Kind, Time)>,
    wakes_at: Option<Time>,
}

impl Seat {
    pub(super) fn new(holder: Holder) -> Self {
        Self { holder, under_way: BTreeMap::new(), wakes_at: None }
    }
}

/// The activity of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// Waits for its session, or for the end of one.
    Waiting,
    Acquiring(HoldId, Key),
    /// Holds a lock until a moment of its own clock.
    Holding(HoldId, Key, Moment),
    Releasing(HoldId, Key),
}

/// The lock that a guard believes it holds.
#[derive(Clone, Debug)]
pub struct Belief {
    /// The session.
    pub session: SessionId,
    /// The lock.
    pub key: Key,
    /// `true` if another client's act took it away; the guard learns of that later.
    pub was_revoked: bool,
}

/// A program that holds locks.
#[derive(Debug)]
pub struct Guard {
    pub(super) agent: usize,
    pub(super) number: usize,
    pub(super) clock: Clock,
    draw: Draw,
    session_use: SessionUse,
    pub(super) seats: BTreeMap<u64, Seat>,
    last_seat: u64,
    last_hold: u64,
    /// The present holder, if any.
    pub(super) seat: Option<u64>,
    pub(super) doing: Doing,
    /// The lock-delay of the newest session.
    pub(super) lock_delay: Duration,
    /// `true` if it runs a command under each hold.
    pub(super) runs_commands: bool,
    /// The random source of its commands, so that they change no other draw.
    pub(super) job_draw: Draw,
    /// The commands of all its processes.
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) last_job: u64,
    /// The command of the present process.
    pub(super) job: Option<u64>,
    /// A dropped hold's holder and command, until the holder has nothing left to do.
    pub(super) settling: Option<(u64, u64)>,
    /// The length of the next suspension by a terminal.
    pub(super) suspension: Duration,
    /// While the process has stopped itself: its command.
    pub(super) suspended: Option<u64>,
    /// `true` if its process has died since the last look.
    died: bool,
    /// While the process is paused: the events that it will find.
    pub(super) missed: Option<Vec<GuardEvent>>,
    /// The end of the pause.
    stands_until: Time,
    /// Set while the process is paused and its host is not.
    pub(super) stands_alone: bool,
    /// `true` if another client must take the lock away, and the guard notice that, before it is
    /// content.
    pub(super) awaits_loss: bool,
    pub(super) promises: Promises,
    /// The request whose reply was a grant and was lost in silence; then the last time at which
    /// another request failed, so that it may take longer to recognize the grant.
    silent_grant: Option<(u64, HolderRequest)>,
    failed_since: Option<Time>,
    /// Sessions that it stopped believing in because no renewal was acknowledged in time.
    silenced: BTreeSet<SessionId>,
    /// Sessions whose end was asked for while their renewals were acknowledged.
    closed: BTreeSet<SessionId>,
    /// `true` if it waits until unknown holds of its sessions are released.
    is_patient: bool,
    /// `true` if a backup was restored: its session may hold a lock that it released.
    restored: bool,
    pub(super) served: bool,
}

impl Guard {
    /// Returns the guards of one agent, and starts them all.
    pub fn all(stage: &mut Stage, agent: usize, clock: Clock) -> Vec<Self> {
        let plan = stage.plan.guards.clone();
        let guards: Vec<Self> =
            (0..plan.per_agent).map(|number| Self::draw(stage, (agent, number), clock)).collect();
        guards.iter().for_each(|guard| guard.begin(stage));
        guards
    }

    fn draw(stage: &mut Stage, (agent, number): (usize, usize), clock: Clock) -> Self {
        let mut draw = Draw::new(stage.draw.bits());
        let session_use = if draw.once_in(3) { SessionUse::Shared } else { SessionUse::OneHold };
        let is_patient = draw.once_in(2);
        let mut job_draw = Draw::new(!draw.clone().bits());
        Self {
            agent,
            number,
            clock,
            draw,
            session_use,
            lock_delay: Duration::ZERO,
            runs_commands: session_use == SessionUse::OneHold && !job_draw.once_in(8),
            job_draw,
            jobs: BTreeMap::new(),
            last_job: 0,
            job: None,
            settling: None,
            suspension: Duration::ZERO,
            suspended: None,
            died: false,
            promises: Promises::default(),
            silent_grant: None,
            failed_since: None,
            silenced: BTreeSet::new(),
            closed: BTreeSet::new(),
            is_patient,
            seats: BTreeMap::new(),
            last_seat: 0,
            last_hold: 0,
            seat: None,
            doing: Doing::Nothing,
            missed: None,
            stands_until: Time(0),
            stands_alone: false,
            awaits_loss: false,
            restored: false,
            served: false,
        }
    }

    fn begin(&self, stage: &mut Stage) {
        self.later(stage, Duration::ZERO, GuardEvent::Think);
        let plan = stage.plan.guards.clone();
        for (mean, event) in
            [(plan.stop, GuardEvent::Stop), (plan.kill, GuardEvent::Kill), (plan.revoke, GuardEvent::Revoke)]
        {
            if let Some(mean) = mean {
                let wait = stage.around(mean);
                self.later(stage, wait, event);
            }
        }
    }

    fn later(&self, stage: &mut Stage, wait: Duration, event: GuardEvent) {
        stage.after(wait, Event::Guard(self.agent, self.number, event));
    }

    /// Changes the rate of its host's clock.
    pub fn set_clock(&mut self, stage: &mut Stage, clock: Clock) {
        self.clock = clock;
        self.jobs.values_mut().for_each(|job| job.set_clock(stage, clock));
    }

    /// Returns `true` if its process has died since the last call.
    pub(super) fn has_died(&mut self) -> bool {
        std::mem::take(&mut self.died)
    }

    /// Returns `true` if it holds a lock, or did at its last check.
    pub fn is_holding(&self) -> bool {
        matches!(self.doing, Doing::Holding(..))
    }

    /// Returns `true` if it holds a lock under this session, or did at its last check.
    pub fn held_by(&self, session: &SessionId) -> bool {
        self.is_holding() && self.is_own(session)
    }

    /// Returns the reading of its host's clock.
    pub(super) fn moment(&self, now: Time) -> Moment {
        Moment::default() + self.clock.at(now).since(Time(0))
    }

    /// Returns the present holder, if any.
    pub(super) fn holder(&self) -> Option<&Holder> {
        Some(&self.seats.get(&self.seat?)?.holder)
    }

    /// Returns its belief at a time.
    pub fn belief(&self, now: Time) -> Option<Belief> {
        let (Doing::Holding(id, key, _) | Doing::Releasing(id, key)) = &self.doing else { return None };
        let holder = self.holder()?;
        let session = guard_calls::id_of(holder.session()?);
        let was_revoked = self.promises.taken_at(*id, &session).is_some() || self.was_given_back(&session);
        holder.is_held(*id, self.moment(now)).then(|| Belief { session, key: key.clone(), was_revoked })
    }

    /// Notes a grant whose reply this guard does not receive.
    pub fn was_granted_in_silence(&mut self, holder: u64, request: HolderRequest) {
        (self.silent_grant, self.failed_since) = (Some((holder, request)), None);
    }

    /// Notes that a request failed, or that its reply was lost.
    pub fn request_failed(&mut self, now: Time) {
        self.failed_since = Some(now);
    }

    /// Returns the last time at which a request failed since a grant to this session went silent.
    pub(super) fn failed_since_silence(&self, session: &SessionId) -> Option<Time> {
        self.failed_since.filter(|_| self.silent_grant.is_some() && self.owns(session))
    }

    /// Checks that it no longer waits for the reply to this request, unless its process was paused
    /// or another client took the lock away.
    fn recognizes(&mut self, now: Time, judge: &Judge, grant: (u64, HolderRequest)) {
        let (holder, request) = grant;
        let waits = self.seats.get(&holder).is_some_and(|seat| seat.under_way.contains_key(&request));
        let was_paused = now < self.stands_until + RECOGNITION_BOUND;
        let is_last = self.silent_grant == Some(grant) && self.failed_since.is_none();
        if waits && !was_paused && is_last && self.left(now, judge).is_some() {
            self.promises.broken.push("still waits for a lock that it was granted 5 s ago".into());
        }
    }

    /// Returns `true` if it was served since the storm ended.
    pub fn is_served(&self) -> bool {
        self.served
    }

    /// Returns the reason why it is not content, if any: it was not served since the storm ended,
    /// or its session holds a lock that it does not know of.
    pub fn discontent(&self, now: Time, judge: &Judge) -> Option<String> {
        let name = format!("guard {} of agent {}", self.number, self.agent);
        if !self.served || self.missed.is_some() || self.doing != Doing::Nothing {
            return Some(format!("{name} is {:?}, served: {}", self.doing, self.served));
        }
        let left = self.left(now, judge)?;
        Some(format!("{name} holds {left} without knowing of it"))
    }

    /// Returns a lock that its sessions hold without its knowledge.
    fn left(&self, now: Time, judge: &Judge) -> Option<Key> {
        let (_, Rows::Locks(locks)) = judge.history.state().query(&Query::Locks(PREFIX.into())) else {
            return None;
        };
        let sessions = self.seats.values().filter_map(|seat| seat.holder.session());
        let own: Vec<SessionId> = sessions.map(guard_calls::id_of).collect();
        let left = locks.into_iter().find(|lock| {
            lock.session.as_ref().is_some_and(|session| own.contains(&session.spec.id))
                && self.belief(now).is_none()
        });
        left.map(|lock| lock.key)
    }

    /// Processes an event, and returns the resulting actions at its agent.
    pub fn happens(&mut self, stage: &mut Stage, judge: &mut Judge, event: GuardEvent) -> Vec<Act> {
        let mut acts = Vec::new();
        if let GuardEvent::Wake(seat)
        | GuardEvent::Hears(seat, ..)
        | GuardEvent::Tired(seat, _)
        | GuardEvent::IsTold(seat, ..) = event
            && seat >= SUPERVISORS
        {
            match self.supervisor_waits(stage.now, seat) {
                Some(wait) => self.later(stage, wait, event),
                None => self.step(stage, judge, event, &mut acts),
            }
            return acts;
        }
        match (event, &mut self.missed) {
            (GuardEvent::Command(number, event), _) => {
                self.command_happens(stage, number, event, &mut acts);
            }
            (GuardEvent::Stop, None) if !stage.calm => self.stop(stage),
            (GuardEvent::Stop, _) => {}
            (GuardEvent::Resume, _) => self.resume(stage, judge, &mut acts),
            (GuardEvent::Kill, _) => self.kill(stage, &mut acts),
            (GuardEvent::HostStops(length), _) => {
                self.stands_alone = false;
                self.stand_still(stage, length);
                let until = stage.now + length;
                self.jobs.values_mut().for_each(|job| job.freeze(stage, until));
            }
            (GuardEvent::HostDies(clock, downtime), _) => {
                self.die(stage, &mut acts);
                self.died = false;
                self.jobs.clear();
                self.seats.clear();
                acts.push(Act::CancelAll(u64::MAX));
                self.clock = clock;
                self.stand_still(stage, downtime);
            }
            (GuardEvent::Recognizes(..), Some(_)) => {}
            (GuardEvent::Recognizes(holder, request), None) => {
                self.recognizes(stage.now, judge, (holder, request));
            }
            (GuardEvent::Revoke, _) => self.revoke(stage, judge, &mut acts),
            (event, Some(missed)) => missed.push(event),
            (event, None) => self.step(stage, judge, event, &mut acts),
        }
        for broken in self.promises.broken.drain(..) {
            judge.object("guards", format!("guard {} of agent {}: {broken}", self.number, self.agent));
        }
        acts
    }

    /// Notes its belief in the granted lock.
    fn look(&mut self, now: Time) {
        if let Doing::Holding(id, ..) = self.doing {
            let is_believed = self.belief(now).is_some();
            self.promises.looked(now, id, is_believed);
        }
    }

    fn stop(&mut self, stage: &mut Stage) {
        stage.hit(Mark::GuardStopped);
        let plan = stage.plan.guards.clone();
        let length = stage.draw.duration(Duration::from_millis(10), plan.stop_length);
        self.stands_alone = true;
        self.stand_still(stage, length);
        let next = plan.stop.unwrap_or_default();
        let wait = length + stage.around(next);
        self.later(stage, wait, GuardEvent::Stop);
    }

    pub(super) fn stand_still(&mut self, stage: &mut Stage, length: Duration) {
        self.missed.get_or_insert_default();
        self.jobs.values_mut().for_each(Job::guard_stops);
        self.stands_until = self.stands_until.max(stage.now + length);
        self.later(stage, length, GuardEvent::Resume);
    }

    /// Timers and replies are processed in any order.
    fn resume(&mut self, stage: &mut Stage, judge: &mut Judge, acts: &mut Vec<Act>) {
        if stage.now < self.stands_until {
            return;
        }
        let Some(mut missed) = self.missed.take() else { return };
        self.stands_alone = false;
        if self.draw.once_in(2) {
            missed.reverse();
        }
        if let (Doing::Holding(..), None) = (&self.doing, self.belief(stage.now)) {
            stage.hit(Mark::GuardOverslept);
        }
        self.commands_continue(stage, acts);
        for event in missed {
            self.step(stage, judge, event, acts);
        }
    }

    fn kill(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        if stage.calm {
            return;
        }
        stage.hit(Mark::GuardKilled);
        self.die(stage, acts);
        let mean = stage.plan.guards.kill.unwrap_or_default();
        let wait = stage.around(mean);
        self.later(stage, wait, GuardEvent::Kill);
    }

    /// A pending wake-up continues to be used.
    pub(super) fn die(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        acts.push(Act::CancelAll(self.last_seat));
        self.seats.retain(|number, _| *number >= SUPERVISORS);
        (self.seat, self.doing, self.died) = (None, Doing::Nothing, true);
        (self.job, self.settling, self.suspended) = (None, None, None);
        self.jobs.values_mut().for_each(|job| job.guard_dies(stage));
    }

    fn step(&mut self, stage: &mut Stage, judge: &mut Judge, event: GuardEvent, acts: &mut Vec<Act>) {
        self.look(stage.now);
        match event {
            GuardEvent::Think => {
                self.think(stage, judge, acts);
                let wait = stage.plan.clients.think;
                let wait = stage.around(wait);
                self.later(stage, wait, GuardEvent::Think);
            }
            GuardEvent::Wake(seat) => {
                let is_due = |seat: &&mut Seat| seat.wakes_at.is_some_and(|at| at <= stage.now);
                if let Some(woken) = self.seats.get_mut(&seat).filter(is_due) {
                    woken.wakes_at = None;
                    self.handle_input(stage, seat, Input::Tick, acts);
                }
            }
            GuardEvent::Hears(seat, number, answer) => {
                let Some((kind, sent)) = self.answered(seat, number) else { return };
                let result = match answer {
                    Some(answer) => guard_calls::response(kind, *answer),
                    None => Err(guard_calls::unanswered()),
                };
                self.note_look((kind, sent), &result);
                self.handle_input(stage, seat, Input::Answered(number, result), acts);
            }
            GuardEvent::IsTold(seat, number, told) => {
                if self.answered(seat, number).is_none() {
                    return;
                }
                let result = guard_calls::node_lease(*told, self.moment(stage.now));
                self.handle_input(stage, seat, Input::Answered(number, result), acts);
            }
            GuardEvent::Tired(seat, number) => {
                if self.answered(seat, number).is_none() {
                    return;
                }
                acts.push(Act::Cancel(seat, number));
                self.handle_input(stage, seat, Input::Answered(number, Err(guard_calls::unanswered())), acts);
            }
            GuardEvent::Stop | GuardEvent::Resume | GuardEvent::Kill | GuardEvent::Revoke => {}
            GuardEvent::Recognizes(..) => {}
            GuardEvent::HostStops(_) | GuardEvent::HostDies(..) | GuardEvent::Command(..) => {}
        }
        self.look(stage.now);
    }

    /// Notes that a read of its lock or its session informed it.
    fn note_look(&mut self, (kind, sent): (Kind, Time), result: &Result<Response, Error>) {
        if !matches!(self.doing, Doing::Holding(..)) {
            return;
        }
        match result {
            Ok(Response::Entries(entries, index)) if kind == Kind::Look => {
                let session = self.holder().and_then(Holder::session).map(str::to_owned);
                self.promises.saw(sent, session.as_deref(), entries, *index);
            }
            Ok(Response::Found(false)) => self.promises.saw_no_session(),
            _ => {}
        }
    }

    /// Returns a finished request.
    fn answered(&mut self, seat: u64, number: HolderRequest) -> Option<(Kind, Time)> {
        self.seats.get_mut(&seat)?.under_way.remove(&number)
    }

    fn think(&mut self, stage: &mut Stage, judge: &Judge, acts: &mut Vec<Act>) {
        match self.doing.clone() {
            Doing::Nothing if stage.calm && self.served && !self.restored => {}
            // A hold that a restore brought back does not end on its own.
            Doing::Nothing if self.is_patient && !self.restored && self.left(stage.now, judge).is_some() => {}
            Doing::Nothing => self.want(stage, acts),
            Doing::Acquiring(id, _) if !stage.calm && self.draw.once_in(16) => {
                stage.hit(Mark::GuardWentAway);
                self.leave_hold(stage, Input::Drop(id), acts);
            }
            Doing::Holding(id, key, until) => self.hold(stage, judge, (id, key, until), acts),
            Doing::Waiting | Doing::Acquiring(..) | Doing::Releasing(..) => {}
        }
    }

    fn want(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        let Some(seat) = self.seat else {
            self.restored = false;
            if stage.calm && self.served {
                return;
            }
            self.last_seat += 1;
            let holder = Holder::new(self.options(stage), self.session_use, self.draw.bits());
            self.seats.insert(self.last_seat, Seat::new(holder));
            self.seat = Some(self.last_seat);
            return match self.session_use {
                SessionUse::Shared => {
                    self.doing = Doing::Waiting;
                    self.handle_input(stage, self.last_seat, Input::Keep, acts);
                }
                SessionUse::OneHold => self.acquire(stage, self.last_seat, acts),
            };
        };
        if self.seats[&seat].holder.session_loss().is_some() {
            return self.abandon(stage, acts);
        }
        if std::mem::take(&mut self.restored) || (!stage.calm && self.draw.once_in(8)) {
            self.doing = Doing::Waiting;
            return self.handle_input(stage, seat, Input::Close, acts);
        }
        self.acquire(stage, seat, acts);
    }

    fn options(&mut self, stage: &Stage) -> SessionOptions {
        let plan = &stage.plan.clients;
        let ttl = self.draw.duration(plan.ttl / 2, plan.ttl);
        // With a longer TTL the session ends by the node's silence.
        let longest = if stage.plan.reach.is_alone() { 60 } else { 12 };
        let longer = self.draw.duration(Duration::from_secs(longest / 2), Duration::from_secs(longest));
        let is_steady = stage.plan.guards.is_steady || stage.plan.reach.is_alone();
        let is_longer = is_steady || self.draw.once_in(2);
        let ttl = if is_longer { longer } else { ttl };
        let windows = [None, Some(HealthWindow::Fast), Some(HealthWindow::Default), Some(HealthWindow::Safe)];
        let health_window = *self.draw.pick(&windows);
        let delays = self.draw.once_in(3);
        let lock_delay =
            if delays { self.draw.duration(plan.lock_delay / 4, plan.lock_delay) } else { Duration::ZERO };
        self.lock_delay = lock_delay;
        let delete_keys = self.draw.once_in(4);
        SessionOptions::named(guard_calls::SESSION_NAME)
            .ttl(ttl)
            .lock_delay(lock_delay)
            .delete_keys(delete_keys)
            .health_window(health_window)
    }

    fn acquire(&mut self, stage: &mut Stage, seat: u64, acts: &mut Vec<Act>) {
        self.last_hold += 1;
        self.silent_grant = None;
        let id = HoldId(self.last_hold);
        let key = lock_key(stage);
        let limit = self.draw.duration(Duration::from_millis(50), stage.plan.clients.timeout);
        let wait_limit = match self.draw.below(4) {
            0 => WaitLimit::Once,
            1 => WaitLimit::Endless,
            _ => WaitLimit::Until(self.moment(stage.now) + limit),
        };
        if wait_limit == WaitLimit::Once {
            self.promises.tries_once(id);
        }
        // Clients of this simulation write every value only once; a guard may write the same value
        // again.
        let goal = Goal::Lock(LockGoal {
            key: key.as_str().to_owned(),
            value: Bytes::new(),
            flags: 0,
            is_shared: false,
        });
        self.doing = Doing::Acquiring(id, key);
        self.handle_input(
            stage,
            seat,
            Input::Acquire(id, Acquisition { goal, wait_limit, watch_retries: None }),
            acts,
        );
    }

    /// Continues to hold a lock until the planned time is over or the lock is lost.
    fn hold(
        &mut self,
        stage: &mut Stage,
        judge: &Judge,
        (id, key, until): (HoldId, Key, Moment),
        acts: &mut Vec<Act>,
    ) {
        let Some(seat) = self.seat else { return };
        let is_lost = self.seats[&seat].holder.loss(id).is_some();
        let runs_command = self.runs_command(id);
        if is_lost {
            // Its command is ended first.
            if runs_command {
                return;
            }
            self.served |= stage.calm;
            self.awaits_loss = false;
            return self.release(stage, seat, (id, key), acts);
        }
        if self.awaits_loss {
            // The operator deletes the key until that takes effect.
            if let (Some(belief), Some((session, index))) = (self.belief(stage.now), holder_of(judge, &key))
                && belief.session == session
            {
                acts.push(Act::Forget(LocalCall::Propose(Command::Kv(KvCommand::DeleteCas(key, index)))));
            }
            return;
        }
        if self.moment(stage.now) >= until {
            if runs_command {
                return self.stop_command(stage, id, acts);
            }
            self.served |= stage.calm;
            self.release(stage, seat, (id, key), acts);
        }
    }

    fn release(&mut self, stage: &mut Stage, seat: u64, (id, key): (HoldId, Key), acts: &mut Vec<Act>) {
        if self.draw.once_in(3) {
            return self.leave_hold(stage, Input::Drop(id), acts);
        }
        self.doing = Doing::Releasing(id, key);
        self.handle_input(stage, seat, Input::Release(id), acts);
    }

    /// Leaves the release to the holder, by this input.
    pub(super) fn leave_hold(&mut self, stage: &mut Stage, input: Input, acts: &mut Vec<Act>) {
        self.doing = Doing::Nothing;
        let Some(seat) = self.seat else { return };
        self.handle_input(stage, seat, input, acts);
        self.hold_is_over(stage, acts);
    }

    /// A session for one hold requires another holder for the next hold.
    fn hold_is_over(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        self.doing = Doing::Nothing;
        if self.session_use == SessionUse::OneHold {
            self.abandon(stage, acts);
        }
    }

    fn abandon(&mut self, stage: &mut Stage, acts: &mut Vec<Act>) {
        self.doing = Doing::Nothing;
        if let Some(seat) = self.seat.take() {
            self.handle_input(stage, seat, Input::Abandon, acts);
        }
    }

    /// Takes a lock away from any guard that holds it, as an operator.
    fn revoke(&mut self, stage: &mut Stage, judge: &Judge, acts: &mut Vec<Act>) {
        let Some(mean) = stage.plan.guards.revoke.filter(|_| !stage.calm) else { return };
        let wait = stage.around(mean);
        self.later(stage, wait, GuardEvent::Revoke);
        let key = lock_key(stage);
        let Some((session, index)) = holder_of(judge, &key) else { return };
        if !guard_calls::is_of_a_guard(judge, &session) {
            return;
        }
        let command = match self.draw.once_in(2) {
            true => Command::Kv(KvCommand::DeleteCas(key, index)),
            false => {
                stage.revoked.insert(session);
                Command::DestroySession(session)
            }
        };
        acts.push(Act::Forget(LocalCall::Propose(command)));
    }

    /// Notes that another client took one or all locks from a session, or that a restore replaced
    /// everything: holds under it may be believed in until the guard learns of that.
    pub fn revoked(
        &mut self,
        stage: &mut Stage,
        index: LogIndex,
        (session, key): (Option<&SessionId>, Option<&Key>),
    ) {
        self.restored |= session.is_none();
        self.jobs.values_mut().for_each(|job| job.revoked(stage.now, session, key));
        let (Doing::Acquiring(id, own) | Doing::Holding(id, own, _)) = &self.doing else { return };
        let is_mine = session.is_none_or(|session| self.is_own(session)) && key.is_none_or(|key| key == own);
        if let (true, Some(of)) = (is_mine, self.holder().and_then(Holder::session)) {
            stage.hit(Mark::GuardRevoked);
            let (id, of) = (*id, guard_calls::id_of(of));
            self.promises.took(id, of, index, stage.now);
        }
    }

    /// Notes that a session released a lock.
    pub fn gave_back(&mut self, key: &Key, session: &SessionId) {
        if let Doing::Releasing(id, own) = &self.doing
            && own == key
            && self.is_own(session)
            && !self.was_given_back(session)
        {
            self.promises.gave_back(*id);
        }
    }

    /// Notes that the end of a session is asked for.
    pub(super) fn closed(&mut self, session: SessionId) {
        if !self.was_silenced(&session) {
            self.closed.insert(session);
        }
    }

    /// Returns `true` if the end of this session was asked for before a silence.
    pub(super) fn was_closed(&self, session: &SessionId) -> bool {
        self.closed.contains(session)
    }

    /// `true` if it stopped believing in this session because no renewal was acknowledged in time.
    pub(super) fn was_silenced(&self, session: &SessionId) -> bool {
        self.silenced.contains(session)
    }

    /// `true` if its process is paused and its host is not.
    pub(super) fn stands_alone(&self) -> bool {
        self.stands_alone
    }

    /// `true` if its host is suspended or down.
    pub(super) fn is_suspended(&self) -> bool {
        self.missed.is_some() && !self.stands_alone
    }

    /// `true` if one of its holders has this session.
    pub(super) fn owns(&self, session: &SessionId) -> bool {
        let text = session.to_string();
        self.seats.values().any(|seat| seat.holder.session() == Some(text.as_str()))
    }

    /// `true` if it has this session and has not left its end to the agent.
    pub(super) fn still_has(&self, session: &SessionId) -> bool {
        self.owns(session) && !self.was_silenced(session)
    }

    fn is_own(&self, session: &SessionId) -> bool {
        self.holder().and_then(Holder::session) == Some(session.to_string().as_str())
    }

    /// Passes an input to a holder, and carries out its output.
    pub(super) fn handle_input(&mut self, stage: &mut Stage, number: u64, input: Input, acts: &mut Vec<Act>) {
        let moment = self.moment(stage.now);
        let Some(seat) = self.seats.get_mut(&number) else { return };
        let mut outbox = Outbox::default();
        let session = seat.holder.session().map(guard_calls::id_of);
        seat.holder.handle(moment, input, &mut outbox);
        note_silence(&mut self.silenced, session, &outbox);
        let Outbox { cancelled, requests, events, notices } = outbox;
        for request in cancelled {
            if seat.under_way.remove(&request).is_some() {
                acts.push(Act::Cancel(number, request));
            }
        }
        let mut ends = Vec::new();
        for (request, what) in requests {
            seat.under_way.insert(request, (guard_calls::kind(&what), stage.now));
            ends.extend(guard_command::ended_by(&what));
            let limit = guard_calls::limit(&what);
            let node = self.agent;
            acts.push(match what {
                Request::NodeLease(session, read) => {
                    Act::Follow(number, request, guard_calls::id_of(&session), read)
                }
                what => Act::Call(number, request, guard_calls::local_call(&mut self.draw, node, what)),
            });
            stage.after(limit, Event::Guard(self.agent, self.number, GuardEvent::Tired(number, request)));
        }
        ends.iter().for_each(|session| self.note_end(stage.now, session));
        notices.iter().for_each(|notice| note(stage, notice));
        self.plan_to_wake(stage, number);
        for event in events {
            if self.seat == Some(number) {
                self.handle_event(stage, event, acts);
            } else if let (true, Told::Released(..)) = (number >= SUPERVISORS, event) {
                self.given_back(stage, number, acts);
            }
        }
        if self.seat == Some(number) {
            self.inform_command(stage, acts);
        }
        if self.seats.get(&number).is_some_and(|seat| seat.holder.is_done()) {
            self.seats.remove(&number);
            self.settled(stage, number, acts);
        }
    }

    fn plan_to_wake(&mut self, stage: &mut Stage, number: u64) {
        let Some(seat) = self.seats.get_mut(&number) else { return };
        let Some(at) = seat.holder.wakes_at() else { return };
        // The simulation counts in microseconds, the holder in a finer unit.
        let shown = Time(0) + at.since(Moment::default()) + Duration::from_micros(1);
        let at = self.clock.when(shown, stage.now).max(stage.now);
        if seat.wakes_at.is_none_or(|known| at < known) {
            seat.wakes_at = Some(at);
            stage.at(at, Event::Guard(self.agent, self.number, GuardEvent::Wake(number)));
        }
    }

    fn handle_event(&mut self, stage: &mut Stage, event: Told, acts: &mut Vec<Act>) {
        match event {
            Told::Kept(Ok(_)) => self.doing = Doing::Nothing,
            Told::Kept(Err(_)) | Told::Closed(_) => self.abandon(stage, acts),
            Told::Acquired(id, Ok(Some(grant))) => {
                let Doing::Acquiring(wanted, key) = self.doing.clone() else { return };
                if wanted != id {
                    return;
                }
                stage.hit(Mark::GuardHolds);
                if self.silent_grant.take().is_some_and(|(holder, _)| self.seat == Some(holder)) {
                    stage.hit(Mark::GrantRecognized);
                }
                if !grant.session.is_empty() {
                    let is_alone = stage.plan.reach.is_alone() && !stage.calm;
                    let longest = stage.plan.clients.ttl * if is_alone { 20 } else { 3 };
                    let time = self.draw.duration(Duration::ZERO, longest);
                    self.awaits_loss = stage.calm && self.draw.once_in(2);
                    let locked = key.clone();
                    self.doing = Doing::Holding(id, key, self.moment(stage.now) + time);
                    let is_believed = self.belief(stage.now).is_some();
                    self.promises.granted(id, is_believed);
                    self.start_command(stage, id, &locked);
                }
            }
            Told::Acquired(id, result) => {
                // What it was granted in silence it releases from now on.
                self.request_failed(stage.now);
                if matches!(&self.doing, Doing::Acquiring(wanted, _) if *wanted == id) {
                    if matches!(result, Err(Error::SessionLost(_))) {
                        return self.abandon(stage, acts);
                    }
                    if let (Err(error), SessionUse::OneHold) = (&result, self.session_use) {
                        self.promises.failed(id, error);
                    }
                    self.hold_is_over(stage, acts);
                }
            }
            Told::Released(id, result) => {
                if matches!(self.doing, Doing::Releasing(..)) {
                    self.promises.released(id, &result);
                    self.command_released(stage, result.is_ok(), acts);
                    self.hold_is_over(stage, acts);
                }
            }
            Told::Lost(_, loss) => {
                if loss == Loss::Deadline {
                    stage.hit(Mark::GuardDeadline);
                }
            }
            Told::SessionLost(_) => {}
        }
    }
}

fn note(stage: &mut Stage, notice: &Notice) {
    match notice {
        Notice::Suspended(..) => stage.hit(Mark::GuardSuspended),
        Notice::Resumed(..) => stage.hit(Mark::GuardResumed),
        _ => {}
    }
}

/// Notes that a holder stopped believing in its session because no renewal was acknowledged in
/// time, or that it believes in it again.
fn note_silence(silenced: &mut BTreeSet<SessionId>, session: Option<SessionId>, outbox: &Outbox) {
    for notice in &outbox.notices {
        match notice {
            Notice::Suspended(id, _) => _ = silenced.insert(guard_calls::id_of(id)),
            Notice::Resumed(id, _) => _ = silenced.remove(&guard_calls::id_of(id)),
            _ => {}
        }
    }
    let is_silence = |event: &Told| matches!(event, Told::SessionLost(Loss::Deadline | Loss::NodeDeadline));
    if outbox.events.iter().any(is_silence) {
        silenced.extend(session);
    }
}

/// Returns one of the guards' lock keys.
fn lock_key(stage: &mut Stage) -> Key {
    Key::from(format!("{PREFIX}{}", stage.draw.below(stage.plan.guards.locks)))
}

/// Returns the session that holds a lock, and its modify index, in the furthest state of any
/// server.
pub fn holder_of(judge: &Judge, key: &Key) -> Option<(SessionId, LogIndex)> {
    holder_in(judge.history.state(), key)
}

/// Returns the session that holds a lock in a state, and its modify index.
pub fn holder_in(state: &State, key: &Key) -> Option<(SessionId, LogIndex)> {
    let (_, Rows::Entries(entries)) = state.query(&Query::Entry(key.clone())) else { return None };
    let entry = entries.first()?;
    Some((entry.lock.session?, entry.modify_index))
}
