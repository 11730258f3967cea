//! A command under a lock: its guard and its supervisor, each with the real [`Supervision`], the
//! socket between them, and the faults of both.
//!
//! A process that stands still reads nothing, and finds everything when it continues. A message
//! takes up to some milliseconds; the last one is followed by the end of the stream if its sender
//! has died. Reports are never waited for, whatever the state of the outputs.

use super::clock::Clock;
use super::command::{Root, TERM, Tree, TreeEvent};
use super::command_promises::{LATENESS, RELEASE_LIMIT};
use super::draw::Draw;
use super::guard::GuardEvent;
use super::marks::Mark;
use super::stage::{Event, Stage};
use lockmesh_cli::supervision::message::Message;
use lockmesh_cli::supervision::{
    End, Input, LOSS_FAREWELL_TIMEOUT, Outcome, Output, Role, SignalNumber, Supervision, Terms,
};
use lockmesh_client::GuardState;
use lockmesh_client::holder::{HoldId, Moment};
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The maximum delay of messages, timers, and the kernel's notices.
const DELAY: Duration = Duration::from_millis(2);

/// The time between a moment at which an invariant must hold and the check.
const CHECK_DELAY: Duration = Duration::from_millis(1);

/// One of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `lockmesh lock`.
    Guard,
    /// Its supervisor.
    Supervisor,
}

/// A fault of both processes, or a user's act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The supervisor is killed.
    KillSupervisor,
    /// The supervisor is stopped for this time.
    StopSupervisor(Duration),
    /// The guard is killed.
    KillGuard,
    /// The guard is stopped for this time.
    StopGuard(Duration),
    /// The terminal suspends the guard and its command for this time.
    Suspend(Duration),
    /// The guard receives this signal, and forwards it.
    Forward(SignalNumber),
}

/// An event of a command, its guard or its supervisor.
#[derive(Clone, Debug)]
pub enum CommandEvent {
    /// The command's processes change.
    Tree(TreeEvent),
    /// The supervisor's program begins.
    Begins,
    /// A timer, a message, or a notice that a child has ended.
    Wakes(Side),
    /// A fault, or a user's act.
    Strike(Strike),
    /// The stopped supervisor continues.
    Continues,
    /// The guard's SIGKILL reaches the supervisor.
    KilledByGuard,
    /// The guard's process exits after its hold has ended.
    GuardExits,
    /// The invariants are checked.
    Look,
}

/// A consequence for the program that holds the lock, or for the supervisor's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The guard stops itself.
    Suspend,
    /// The command has ended: the guard ends the hold.
    Finished(Outcome),
    /// The supervisor gives the hold back.
    GiveBack(Moment),
    /// The supervisor's process has ended.
    SupervisorEnds,
}

/// One of the two processes.
#[derive(Debug)]
pub(super) struct Actor {
    supervision: Supervision,
    pub(super) is_dead: bool,
    pub(super) is_stopped: bool,
    /// The time since which it has been running.
    pub(super) runs_since: Time,
    /// Messages, and `PeerGone` as the last one, with their arrival times.
    inbox: VecDeque<(Time, Input)>,
    wakes_at: Option<Time>,
    /// `true` if it knows that no process of the command is left.
    knows_gone: bool,
}

impl Actor {
    fn new(role: Role, terms: Terms, now: Time) -> Self {
        Self {
            supervision: Supervision::new(role, terms),
            is_dead: false,
            is_stopped: false,
            runs_since: now,
            inbox: VecDeque::new(),
            wakes_at: None,
            knows_gone: false,
        }
    }

    /// Returns the time for which it has been running.
    pub(super) fn has_run(&self, now: Time) -> Option<Duration> {
        (!self.is_dead && !self.is_stopped).then(|| now.since(self.runs_since))
    }
}

/// A command under a lock.
#[derive(Debug)]
pub struct Job {
    /// The agent, the guard's number there, its own number.
    place: (usize, usize, u64),
    pub(super) clock: Clock,
    draw: Draw,
    pub(super) hold: HoldId,
    pub(super) session: SessionId,
    pub(super) key: Key,
    pub(super) terms: Terms,
    /// The deadline that the guard's client library has reported last.
    pub(super) deadline: Moment,
    pub(super) guard: Actor,
    pub(super) supervisor: Actor,
    pub(super) tree: Tree,
    pub(super) root: Root,
    has_begun: bool,
    /// The outcome of the start, until the supervisor has read it.
    start: Option<Result<(), i32>>,
    start_is_read: bool,
    is_reaped: bool,
    guard_knows_pid: bool,
    guard_knows_supervisor_gone: bool,
    /// While its host is suspended: the end of that.
    frozen_until: Time,
    last_state: Option<GuardState>,
    /// `true` if process listings show that the guard is stopped.
    stop_is_shown: bool,
    /// What the invariants need to know.
    pub(super) record: Record,
    effects: Vec<Effect>,
}

/// The history of a command, for its invariants.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The time since which no process is left.
    pub(super) gone_since: Option<Time>,
    /// The time at which another client took the lock away.
    pub(super) revoked_at: Option<Time>,
    /// The time at which the guard learned of a loss, and the longest time from then to SIGKILL.
    pub(super) learned_loss: Option<(Time, Duration)>,
    /// `true` if a release of the hold, or the end of its session, was requested.
    pub(super) end_requested: bool,
    /// `true` if the supervisor gives the hold back, or has given it back.
    pub(super) is_given_back: bool,
    /// `true` if an overlap that nothing could prevent was counted.
    pub(super) overlap_counted: bool,
    /// The time at which the guard first killed the command.
    pub(super) guard_killed: Option<Time>,
    /// The time of the last renewal.
    pub(super) renewed: Time,
    /// `true` if there was a reason to end the command before its deadline.
    pub(super) has_reason: bool,
    /// A kill without a reason.
    pub(super) killed_early: Option<String>,
    /// `true` if the supervisor exited by itself.
    pub(super) has_exited: bool,
    /// `true` if a release was requested while a process that the hold covers was alive.
    pub(super) ended_early: bool,
}

impl Job {
    /// Starts the supervisor of a command.
    pub fn start(
        stage: &mut Stage,
        place: (usize, usize, u64),
        clock: Clock,
        (mut draw, is_endless): (Draw, bool),
        (hold, session, key): (HoldId, SessionId, Key),
        (role, terms): (Role, Terms),
    ) -> Self {
        let now = stage.now;
        let tree = Tree::new(Draw::new(draw.bits()), is_endless);
        let mut this = Self {
            place,
            clock,
            hold,
            session,
            key,
            terms,
            deadline: terms.deadline.unwrap_or_default(),
            guard: Actor::new(role, terms, now),
            supervisor: Actor::new(Role::Supervisor, terms, now),
            tree,
            root: Root::Supervisor,
            has_begun: false,
            start: None,
            start_is_read: false,
            is_reaped: false,
            guard_knows_pid: false,
            guard_knows_supervisor_gone: false,
            frozen_until: Time(0),
            last_state: None,
            stop_is_shown: false,
            record: Record::default(),
            effects: Vec::new(),
            draw,
        };
        let wait = this.start_time();
        this.after(stage, wait, CommandEvent::Begins);
        this.plan_to_wake(stage, Side::Guard);
        this.look_at_deadline(stage);
        this.draw_faults(stage);
        this
    }

    /// Returns the time that a start needs: milliseconds, or longer than most deadlines.
    fn start_time(&mut self) -> Duration {
        match self.draw.below(16) {
            0 => self.draw.duration(Duration::ZERO, 12 * SECOND),
            1 | 2 => self.draw.duration(Duration::ZERO, SECOND),
            _ => self.draw.duration(Duration::ZERO, 20 * MS),
        }
    }

    fn draw_faults(&mut self, stage: &mut Stage) {
        let chance = if stage.plan.guards.is_steady { 8 } else { 2 };
        if stage.calm || !self.draw.once_in(chance) {
            return;
        }
        let length = self.draw.duration(10 * MS, 12 * SECOND);
        let (kill_guard, stop_guard) = (Strike::KillGuard, Strike::StopGuard(length));
        let (kill, stop) = (Strike::KillSupervisor, Strike::StopSupervisor(length));
        let user = [Strike::Suspend(length), Strike::Forward(TERM), Strike::Forward(10)];
        let strikes: &[Strike] = match self.draw.below(10) {
            0 | 1 => &[kill],
            2 => &[stop],
            3 => &[stop, stop_guard],
            4 => &[kill, stop_guard],
            5 => &[stop, kill_guard],
            6 => &[kill, kill_guard],
            7 => &[kill_guard],
            8 => &[Strike::Suspend(length), kill_guard],
            _ => &user[self.draw.below(3) as usize..][..1],
        };
        let first = self.draw.duration(Duration::ZERO, 6 * SECOND);
        for strike in strikes.iter().copied() {
            let wait = match self.draw.below(3) {
                0 => first,
                1 => first + self.draw.duration(Duration::ZERO, 10 * MS),
                _ => self.draw.duration(Duration::ZERO, 8 * SECOND),
            };
            self.after(stage, wait, CommandEvent::Strike(strike));
        }
    }

    fn after(&self, stage: &mut Stage, wait: Duration, event: CommandEvent) {
        let (agent, guard, job) = self.place;
        stage.after(wait, Event::Guard(agent, guard, GuardEvent::Command(job, event)));
    }

    pub(super) fn moment(&self, now: Time) -> Moment {
        Moment::default() + self.clock.at(now).since(Time(0))
    }

    /// Schedules a check of the invariants for the time after the deadline.
    fn look_at_deadline(&self, stage: &mut Stage) {
        let late = LATENESS + CHECK_DELAY;
        let shown = Time(0) + self.deadline.since(Moment::default()) + late;
        let at = self.clock.when(shown, stage.now);
        self.after(stage, at.since(stage.now), CommandEvent::Look);
    }

    fn look_soon(&self, stage: &mut Stage) {
        self.after(stage, LATENESS + CHECK_DELAY, CommandEvent::Look);
    }

    /// Processes an event, and returns the consequences.
    pub fn happens(&mut self, stage: &mut Stage, event: CommandEvent) -> Vec<Effect> {
        if stage.now < self.frozen_until && !matches!(event, CommandEvent::Look) {
            self.after(stage, self.frozen_until.since(stage.now), event);
            return Vec::new();
        }
        match event {
            CommandEvent::Tree(event) => self.tree_changes(stage, &event),
            CommandEvent::Begins => self.begins(stage),
            CommandEvent::Wakes(side) => self.advance(stage, side),
            CommandEvent::Strike(Strike::KillSupervisor) => {
                stage.hit(Mark::SupervisorKilled);
                self.supervisor_dies(stage, false);
            }
            CommandEvent::KilledByGuard => self.supervisor_dies(stage, false),
            CommandEvent::Strike(Strike::StopSupervisor(length)) => self.stop_supervisor(stage, length),
            CommandEvent::Strike(Strike::Suspend(_)) => self.handle(stage, Side::Guard, Input::Suspend),
            CommandEvent::Strike(Strike::Forward(signal)) => {
                self.handle(stage, Side::Guard, Input::Forward(signal));
            }
            CommandEvent::Continues => self.supervisor_continues(stage),
            CommandEvent::GuardExits => self.guard_dies(stage),
            // The guard's process does the rest.
            CommandEvent::Strike(Strike::KillGuard | Strike::StopGuard(_)) | CommandEvent::Look => {}
        }
        self.end_turn(stage)
    }

    /// Passes an input to the guard's supervision, and returns the consequences.
    pub fn guard_input(&mut self, stage: &mut Stage, input: Input) -> Vec<Effect> {
        if !self.guard.is_dead {
            self.handle(stage, Side::Guard, input);
        }
        self.end_turn(stage)
    }

    /// The supervisor has given the hold back.
    pub fn gave_back(&mut self, stage: &mut Stage) -> Vec<Effect> {
        stage.hit(Mark::GivenBackBySupervisor);
        self.handle(stage, Side::Supervisor, Input::GaveBack);
        self.end_turn(stage)
    }

    /// Passes the state of the hold to the guard's supervision, if it is news.
    pub fn hold_state(&mut self, stage: &mut Stage, state: GuardState) -> Vec<Effect> {
        if self.guard.is_dead || self.last_state.as_ref() == Some(&state) {
            return Vec::new();
        }
        self.last_state = Some(state.clone());
        match &state {
            GuardState::Safe { deadline } | GuardState::Jeopardy { deadline } => {
                if self.deadline != *deadline && self.record.learned_loss.is_none() {
                    self.deadline = *deadline;
                    self.record.renewed = stage.now;
                    self.look_at_deadline(stage);
                }
            }
            GuardState::Suspended => {}
            GuardState::Lost(loss) => {
                let grace = super::command_promises::longest_grace(loss, self.terms.lock_delay);
                self.record.learned_loss.get_or_insert((stage.now, grace));
                self.look_soon(stage);
            }
        }
        self.guard_input(stage, Input::Hold(state))
    }

    fn end_turn(&mut self, stage: &mut Stage) -> Vec<Effect> {
        for (wait, event) in std::mem::take(&mut self.tree.agenda) {
            self.after(stage, wait, CommandEvent::Tree(event));
        }
        let was_decided = (self.has_begun && self.start_is_known()) || self.supervisor.is_dead;
        if self.record.gone_since.is_none() && was_decided && !self.tree.is_alive() {
            self.record.gone_since = Some(stage.now);
            for farewell in [Duration::ZERO, LOSS_FAREWELL_TIMEOUT] {
                self.after(stage, farewell + RELEASE_LIMIT + CHECK_DELAY, CommandEvent::Look);
            }
        }
        std::mem::take(&mut self.effects)
    }

    fn start_is_known(&self) -> bool {
        self.start.is_some() || self.start_is_read
    }

    fn tree_changes(&mut self, stage: &mut Stage, event: &TreeEvent) {
        if matches!(event, TreeEvent::Execs) && self.tree.is_alive() && self.draw.once_in(50) {
            self.tree.fails_to_start();
            self.start = Some(Err(2));
            return self.notice_soon(stage);
        }
        let has_ended = self.tree.happens(event);
        if self.tree.is_executed() && !self.start_is_known() {
            stage.hit(Mark::CommandStarted);
            self.start = Some(Ok(()));
        }
        if has_ended {
            if !self.start_is_known() {
                // Its end of the socket is closed, as after a start.
                self.start = Some(Ok(()));
            }
            let is_left = self.tree.main_end().is_some() && self.tree.is_alive();
            if is_left && matches!(event, TreeEvent::Ends(..)) {
                stage.hit(Mark::CommandLeftProcesses);
            }
        }
        if has_ended || matches!(event, TreeEvent::Execs) {
            self.notice_soon(stage);
        }
    }

    /// The reaping process is notified of a child's end, or of the start.
    fn notice_soon(&mut self, stage: &mut Stage) {
        let side = match self.root {
            Root::Supervisor => Side::Supervisor,
            Root::Guard => Side::Guard,
            Root::Init => return,
        };
        let wait = self.draw.duration(Duration::ZERO, DELAY);
        self.after(stage, wait, CommandEvent::Wakes(side));
    }

    /// The supervisor's program begins: it starts the command if there is time for it.
    fn begins(&mut self, stage: &mut Stage) {
        if self.supervisor.is_dead {
            return;
        }
        if self.supervisor.is_stopped {
            return self.after(stage, 50 * MS, CommandEvent::Begins);
        }
        self.has_begun = true;
        if self.supervisor.supervision.may_start(self.moment(stage.now)) {
            let needs = self.start_time();
            self.tree.start(needs);
            self.plan_to_wake(stage, Side::Supervisor);
        } else {
            stage.hit(Mark::CommandNotStarted);
            self.start_is_read = true;
            self.handle(stage, Side::Supervisor, Input::NotStarted(110));
        }
        self.advance(stage, Side::Supervisor);
    }

    fn actor(&mut self, side: Side) -> &mut Actor {
        match side {
            Side::Guard => &mut self.guard,
            Side::Supervisor => &mut self.supervisor,
        }
    }

    /// Lets a process do everything that it can do now.
    fn advance(&mut self, stage: &mut Stage, side: Side) {
        let is_ready = side == Side::Guard || self.has_begun;
        loop {
            let now = stage.now;
            let actor = self.actor(side);
            if actor.is_dead || actor.is_stopped || !is_ready {
                return;
            }
            let has_message = actor.inbox.front().is_some_and(|(at, _)| *at <= now);
            let input = if side == Side::Guard && has_message {
                actor.inbox.pop_front().map(|(_, input)| input)
            } else if actor.wakes_at.is_some_and(|at| at <= now) {
                actor.wakes_at = None;
                Some(Input::Tick)
            } else if let Some(started) = self.started(side) {
                Some(started)
            } else if has_message {
                self.actor(side).inbox.pop_front().map(|(_, input)| input)
            } else {
                self.reaped(side)
            };
            let Some(input) = input else { return };
            self.handle(stage, side, input);
        }
    }

    /// Returns the outcome of the start, which the supervisor has not read yet.
    fn started(&mut self, side: Side) -> Option<Input> {
        if side == Side::Guard {
            return None;
        }
        let start = self.start.take()?;
        self.start_is_read = true;
        Some(start.map_or_else(Input::NotStarted, |()| Input::Started(1)))
    }

    /// Returns the end of a child that was not known yet.
    fn reaped(&mut self, side: Side) -> Option<Input> {
        let reaps = match side {
            Side::Supervisor => self.root == Root::Supervisor && self.start_is_read,
            Side::Guard => self.root == Root::Guard && self.guard_knows_supervisor_gone,
        };
        if !reaps {
            return None;
        }
        let knows_pid = side == Side::Supervisor || self.guard_knows_pid;
        if let Some(end) = self.tree.main_end().filter(|_| !self.is_reaped) {
            self.is_reaped = true;
            if knows_pid {
                return Some(Input::Exited(end));
            }
        }
        let is_gone = !self.tree.is_alive();
        let was_known = std::mem::replace(&mut self.actor(side).knows_gone, is_gone);
        let guard_runs = self.guard.is_dead || !self.guard.is_stopped || !self.stop_is_shown;
        (is_gone && !was_known).then_some(Input::TreeGone { guard_runs })
    }

    /// Notes a reason to end the command before its deadline.
    fn note_reason(&mut self, input: &Input) {
        self.record.has_reason |= match input {
            Input::Hold(state) => !state.is_held(),
            Input::PeerGone | Input::Stop(_) => true,
            _ => false,
        };
    }

    /// Passes an input to a process's supervision, and carries out what follows.
    fn handle(&mut self, stage: &mut Stage, side: Side, input: Input) {
        if side == Side::Guard {
            self.guard_knows_pid |= matches!(input, Input::Message(Message::Started(_)));
            self.guard_knows_supervisor_gone |= input == Input::PeerGone;
        }
        self.note_reason(&input);
        let moment = self.moment(stage.now);
        for output in self.actor(side).supervision.handle(moment, input) {
            self.carry_out(stage, side, output);
        }
        self.plan_to_wake(stage, side);
    }

    fn carry_out(&mut self, stage: &mut Stage, side: Side, output: Output) {
        match output {
            Output::Send(message) => self.send(stage, side, Input::Message(message)),
            Output::Signal(signal) if !self.is_reaped => self.tree.signal_group(signal),
            Output::SignalTree(signal) if self.reaches_tree(side) => self.tree.signal_all(signal),
            Output::KillTree => self.kill_tree(stage, side),
            Output::KillSupervisor => {
                stage.hit(Mark::SupervisorStoodStill);
                let wait = self.draw.duration(Duration::ZERO, DELAY);
                self.after(stage, wait, CommandEvent::KilledByGuard);
            }
            Output::SuspendSelf => self.effects.push(Effect::Suspend),
            Output::GiveBack(overdue_at) => self.effects.push(Effect::GiveBack(overdue_at)),
            Output::Finished(outcome) if side == Side::Guard => {
                self.effects.push(Effect::Finished(outcome));
            }
            Output::Finished(_) => self.supervisor_dies(stage, true),
            // A report never blocks.
            Output::Report(_) | Output::Signal(_) | Output::SignalTree(_) => {}
        }
    }

    /// Returns `true` if this process finds the command's processes below the process that it
    /// takes for their root.
    fn reaches_tree(&self, side: Side) -> bool {
        match self.root {
            Root::Supervisor => side == Side::Supervisor || !self.guard_knows_supervisor_gone,
            Root::Guard => side == Side::Guard && self.guard_knows_supervisor_gone,
            Root::Init => false,
        }
    }

    fn kill_tree(&mut self, stage: &mut Stage, side: Side) {
        if side == Side::Guard {
            self.record.guard_killed.get_or_insert(stage.now);
        }
        if !self.reaches_tree(side) || self.tree.unkilled() == 0 {
            return;
        }
        let is_due = self.moment(stage.now) + 60 * MS >= self.deadline;
        if !is_due {
            self.note_early_kill(stage.now);
        }
        if is_due {
            stage.hit(Mark::KilledAtDeadline);
            match side {
                Side::Guard if self.supervisor.is_stopped => stage.hit(Mark::KilledByGuardAlone),
                Side::Supervisor if self.guard.is_stopped => stage.hit(Mark::KilledBesideStoppedGuard),
                Side::Supervisor if self.guard.is_dead => stage.hit(Mark::KilledAfterDeadGuard),
                Side::Guard | Side::Supervisor => {}
            }
        }
        stage.log(|| format!("the {side:?} of {} kills its command under {}", self.session, self.key));
        let (dodged, own_groups) = (self.tree.dodged, self.tree.own_groups);
        self.tree.kill_all();
        if self.tree.dodged > dodged {
            stage.hit(Mark::ForkedDuringKill);
        }
        if own_groups > 0 {
            stage.hit(Mark::KilledOwnGroup);
        }
    }

    /// Sends a message, or the end of the stream, to the other process.
    fn send(&mut self, stage: &mut Stage, from: Side, input: Input) {
        let to = if from == Side::Guard { Side::Supervisor } else { Side::Guard };
        let wait = self.draw.duration(Duration::ZERO, DELAY);
        let at = stage.now + wait;
        let actor = self.actor(to);
        let at = actor.inbox.back().map_or(at, |(last, _)| at.max(*last));
        actor.inbox.push_back((at, input));
        self.after(stage, at.since(stage.now), CommandEvent::Wakes(to));
    }

    fn plan_to_wake(&mut self, stage: &mut Stage, side: Side) {
        let Some(at) = self.actor(side).supervision.wakes_at() else { return };
        // The simulation counts in microseconds.
        let shown = Time(0) + at.since(Moment::default()) + Duration::from_micros(1);
        let at = self.clock.when(shown, stage.now).max(stage.now);
        let actor = self.actor(side);
        if actor.wakes_at == Some(at) {
            return;
        }
        actor.wakes_at = Some(at);
        let lateness = self.draw.duration(Duration::ZERO, DELAY);
        self.after(stage, at.since(stage.now) + lateness, CommandEvent::Wakes(side));
    }

    fn stop_supervisor(&mut self, stage: &mut Stage, length: Duration) {
        if self.supervisor.is_dead {
            return;
        }
        let both = self.guard.is_stopped && !self.guard.is_dead;
        stage.hit(if both { Mark::BothStopped } else { Mark::SupervisorStopped });
        self.supervisor.is_stopped = true;
        self.after(stage, length, CommandEvent::Continues);
    }

    fn supervisor_continues(&mut self, stage: &mut Stage) {
        if !std::mem::replace(&mut self.supervisor.is_stopped, false) {
            return;
        }
        self.supervisor.runs_since = stage.now;
        self.look_soon(stage);
        self.advance(stage, Side::Supervisor);
    }

    /// Ends the supervisor. The kernel kills the command's own process, and the guard reaps the
    /// others.
    fn supervisor_dies(&mut self, stage: &mut Stage, exits: bool) {
        if std::mem::replace(&mut self.supervisor.is_dead, true) {
            return;
        }
        if !exits && self.guard.is_dead && self.tree.is_alive() {
            stage.hit(Mark::BothKilled);
        }
        self.root = if self.guard.is_dead { Root::Init } else { Root::Guard };
        self.tree.lose_parent();
        if !self.guard.is_dead {
            self.send(stage, Side::Supervisor, Input::PeerGone);
        }
        self.record.has_exited = exits;
        self.effects.push(Effect::SupervisorEnds);
    }

    /// Ends the guard. The kernel continues a stopped supervisor.
    pub fn guard_dies(&mut self, stage: &mut Stage) {
        if std::mem::replace(&mut self.guard.is_dead, true) {
            return;
        }
        if self.root == Root::Guard {
            self.root = Root::Init;
            return;
        }
        if !self.supervisor.is_dead {
            self.send(stage, Side::Guard, Input::PeerGone);
            if self.supervisor.is_stopped {
                stage.hit(Mark::SupervisorContinued);
                self.after(stage, Duration::ZERO, CommandEvent::Continues);
            }
        }
    }

    /// The guard's process stands still.
    pub fn guard_stops(&mut self) {
        self.guard.is_stopped = true;
        self.stop_is_shown = self.draw.once_in(2);
    }

    /// The guard's process continues, after it had stopped itself if `suspended` is set.
    pub fn guard_continues(&mut self, stage: &mut Stage, suspended: bool) -> Vec<Effect> {
        if self.guard.is_dead {
            return Vec::new();
        }
        self.guard.is_stopped = false;
        self.guard.runs_since = stage.now;
        self.look_soon(stage);
        if suspended {
            stage.hit(Mark::CommandContinued);
            self.handle(stage, Side::Guard, Input::Continued);
        }
        self.advance(stage, Side::Guard);
        self.end_turn(stage)
    }

    /// Changes the rate of its host's clock.
    pub fn set_clock(&mut self, stage: &mut Stage, clock: Clock) {
        self.clock = clock;
        self.look_at_deadline(stage);
        [Side::Guard, Side::Supervisor].into_iter().for_each(|side| self.plan_to_wake(stage, side));
    }

    /// Returns the time for which its host is still suspended.
    pub(super) fn frozen_for(&self, now: Time) -> Option<Duration> {
        (now < self.frozen_until).then(|| self.frozen_until.since(now))
    }

    /// Notes a request that ends the hold.
    pub(super) fn end_requested(&mut self, now: Time) {
        self.record.end_requested = true;
        self.record.ended_early |= self.is_needed(now);
    }

    /// The host is suspended until this time.
    pub fn freeze(&mut self, stage: &mut Stage, until: Time) {
        self.frozen_until = self.frozen_until.max(until);
        self.supervisor.runs_since = self.supervisor.runs_since.max(self.frozen_until);
        self.after(stage, self.frozen_until.since(stage.now) + 60 * MS, CommandEvent::Look);
    }

    /// Returns `true` if nothing of it is left, and nothing is left to check.
    pub fn is_over(&self, now: Time) -> bool {
        // A guard that stands still still believes in its hold.
        let guard_is_done = self.guard.is_dead || !self.guard.is_stopped;
        let is_settled = self.record.gone_since.is_none_or(|since| now.since(since) > 2 * SECOND);
        let is_running = self.tree.is_alive() || !self.supervisor.is_dead;
        guard_is_done && is_settled && !is_running
    }

    /// Returns the end of the command's own process, once it has ended.
    pub fn main_end(&self) -> Option<End> {
        self.tree.main_end()
    }
}
