//! A command under a lock: the decisions of its guard and of its supervisor, as one pure watchdog.
//!
//! ```text
//!  lockmesh lock (guard) ◀──socket──▶ lock-supervisor ──▶ command ──▶ its descendants
//!    renews the session                 reaps all of them
//! ```
//!
//! Both processes drive a [`Supervision`], and so does the simulator. It knows the deadline of the
//! hold, the state of the command, and whether the other process is alive. It decides about
//! signals, kills, messages, and the end of the hold.
//!
//! | event | guard | supervisor |
//! |---|---|---|
//! | [`KILL_LEAD`] before the deadline | kills the command's tree | kills the command's tree |
//! | the lock is lost | SIGTERM through the supervisor, kill after [`grace_after`] | the same, by message |
//! | the other process died | ends the command, and reaps it | ends the command, then gives the hold back |
//! | no process of the command is left | releases the hold | gives it back, unless the guard does so within [`FAREWELL_TIMEOUT`] |
//! | its supervisor does not react to a kill | kills the supervisor, and reaps the command itself | |
//!
//! **Invariants.**
//! - I10: when the deadline has passed by 50 ms, and either process has run for 50 ms, every
//!   process of the command's tree has been sent SIGKILL.
//! - I11: a hold is given back before its deadline only if its command is proved to have ended: the
//!   reaping process, a child subreaper since before the start, has no child left. It is then given
//!   back by the guard, or by the supervisor if the guard is dead or stands still.
//!
//! The newest deadline replaces all earlier ones, and a supervisor never renews anything. Nothing
//! here uses a clock, signals, processes or sockets.

pub mod message;
#[cfg(test)]
mod tests;

use lockmesh_client::holder::Moment;
use lockmesh_client::{GuardState, LockAfterLoss, Loss};
use message::Message;
use std::time::Duration;

/// The time before the deadline at which the command is killed.
pub const KILL_LEAD: Duration = Duration::from_millis(50);

/// The longest time from SIGTERM to SIGKILL: much less than the usual lock-delay.
pub const GRACE: Duration = Duration::from_secs(5);

/// The time for which a supervisor leaves the end of the hold to its guard.
pub const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);

/// The same if the guard has killed the command: longer than it waits for the agent then.
pub const LOSS_FAREWELL_TIMEOUT: Duration = Duration::from_secs(3);

/// The time for which a guard waits for its supervisor's reaction to a kill.
const KILL_TIMEOUT: Duration = Duration::from_millis(100);

/// The interval between kills of a tree that may have forked meanwhile, at first and at most.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_KILL_INTERVAL: Duration = Duration::from_secs(1);

/// The time after the command's exit at which its remaining descendants are reported.
const REMAINDER_REPORT_DELAY: Duration = Duration::from_secs(1);

/// The process that uses a [`Supervision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `lockmesh lock`, which renews the session of the hold.
    Guard(OnJeopardy),
    /// The parent process of the command.
    Supervisor,
}

/// The reaction to a late renewal, after which the lock may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnJeopardy {
    /// None.
    Ignore,
    /// The command is sent SIGTERM.
    Terminate,
}

/// The properties of a command's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The first deadline; `None` for a command without a hold.
    pub deadline: Option<Moment>,
    /// Set if the hold lasts until all descendants of the command have ended; otherwise until the
    /// command itself has ended.
    pub covers_descendants: bool,
    /// The lock-delay of the hold's session.
    pub lock_delay: Duration,
}

/// The number of a signal.
pub type SignalNumber = i32;

/// SIGKILL.
const KILL: SignalNumber = 9;
/// SIGTERM.
const TERM: SignalNumber = 15;
/// SIGCONT.
const CONT: SignalNumber = 18;
/// SIGSTOP.
const STOP: SignalNumber = 19;
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM.
pub const END_SIGNALS: [SignalNumber; 4] = [1, 2, 3, TERM];

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this code.
    Code(u8),
    /// This signal killed it.
    Killed(SignalNumber),
}

/// An event for a guard or a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Guard: the state of the hold.
    Hold(GuardState),
    /// A message of the other process.
    Message(Message),
    /// The other process died: its end of the socket is closed.
    PeerGone,
    /// Supervisor: the command runs, with this process id.
    Started(i32),
    /// Supervisor: the command was not started, for this error number.
    NotStarted(i32),
    /// The command's own process was reaped.
    Exited(End),
    /// No child of this process is left. Supervisor: `guard_runs` is `false` if its guard is
    /// stopped.
    TreeGone {
        /// See above.
        guard_runs: bool,
    },
    /// Guard: pass this signal on to the command.
    Forward(SignalNumber),
    /// Guard: stop the command and this process, as a terminal asks.
    Suspend,
    /// Guard: this process continues after [`Output::SuspendSelf`].
    Continued,
    /// Guard: end the command with this signal, and with SIGKILL after [`GRACE`].
    Stop(SignalNumber),
    /// Guard: the hold has ended, or was released.
    HoldEnded,
    /// Supervisor: the hold was given back, or has ended.
    GaveBack,
    /// The time of [`Supervision::wakes_at`] has come.
    Tick,
}

/// An action of a guard or a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this to the other process, without waiting. A newer deadline replaces an unsent one.
    Send(Message),
    /// Send this signal to the command's process group.
    Signal(SignalNumber),
    /// Send this signal, and SIGCONT, to all processes of the command's tree.
    SignalTree(SignalNumber),
    /// Send SIGKILL to all processes of the command's tree.
    KillTree,
    /// Guard: send SIGKILL to the supervisor.
    KillSupervisor,
    /// Guard: stop this process until it is continued.
    SuspendSelf,
    /// Supervisor: release the hold, then end its session. From this time on the reason is that no
    /// renewal was acknowledged.
    GiveBack(Moment),
    /// Print a message.
    Report(Report),
    /// The command has ended; a guard ends the hold next, a supervisor exits.
    Finished(Outcome),
}

/// A message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The lock is lost, and the command is asked to end.
    Ending(Loss),
    /// The lock may pass on, and the command is killed; the reason, if it is known yet.
    Killing(Option<Loss>),
    /// A renewal is late, and the command was sent SIGTERM.
    Jeopardy,
    /// The other process died, and the command is ended.
    PeerGone(Role),
    /// The command has exited, but processes that it started run on.
    Remainder,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The end of the command's own process, or the error number of its start.
    pub end: Result<End, i32>,
    /// The loss of the lock that ended the command.
    pub loss: Option<Loss>,
    /// Guard: set if a signal that was passed on asked the command to end after the loss, or killed
    /// it.
    pub is_interrupted: bool,
}

/// The state of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandState {
    Starting,
    Running,
    /// Its own process has ended.
    Exited(End),
    /// All processes of its tree have ended.
    Gone(End),
}

/// The end of a command that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// It was sent a signal, and is killed at this time.
    Asked(Moment),
    /// It was sent SIGKILL; the time of the next kill, and the interval before it.
    Killed(Moment, Duration),
}

/// One side's view of a command under a lock: the guard's or the supervisor's.
#[derive(Debug)]
pub struct Supervision {
    role: Role,
    terms: Terms,
    command: CommandState,
    ending: Ending,
    peer_is_gone: bool,
    /// The latest known state of the hold.
    hold: Option<GuardState>,
    loss: Option<Loss>,
    /// Set if the command was killed because of the deadline, before the reason is known.
    is_overdue: bool,
    /// Supervisor: the latest deadline, although the guard may have killed the command before it.
    renewed_until: Option<Moment>,
    /// Guard: the time by which the supervisor has to react to a kill.
    reaction_until: Option<Moment>,
    /// The time at which the descendants that run on are reported.
    remainder_at: Option<Moment>,
    /// Supervisor: set if the guard has killed the command.
    guard_kills: bool,
    /// Supervisor: the time at which it gives the hold back itself.
    farewell_at: Option<Moment>,
    gives_back: bool,
    start_error: Option<i32>,
    /// Guard: the last signal that asked the command to end; `true` if the hold was lost by then.
    end_signal: Option<(SignalNumber, bool)>,
    is_finished: bool,
    outputs: Vec<Output>,
}

/// Returns the time from SIGTERM to SIGKILL after a loss. It is zero if the lock may already have
/// been granted to another session. A session that was ended leaves its lock-delay: half of it is
/// left for the time until the news arrived.
pub fn grace_after(loss: &Loss, lock_delay: Duration) -> Duration {
    match loss.lock_after() {
        LockAfterLoss::Free => Duration::ZERO,
        LockAfterLoss::Delayed => GRACE.min(lock_delay / 2),
        LockAfterLoss::Held => GRACE,
    }
}

impl Supervision {
    /// Creates the supervision of a command that is being started.
    pub fn new(role: Role, terms: Terms) -> Self {
        Self {
            role,
            terms,
            command: CommandState::Starting,
            ending: Ending::No,
            peer_is_gone: false,
            hold: None,
            loss: None,
            is_overdue: false,
            renewed_until: terms.deadline,
            reaction_until: None,
            remainder_at: None,
            guard_kills: false,
            farewell_at: None,
            gives_back: false,
            start_error: None,
            end_signal: None,
            is_finished: false,
            outputs: Vec::new(),
        }
    }

    /// Returns `true` if a command may be started now: its deadline is far enough away.
    pub fn may_start(&self, now: Moment) -> bool {
        self.terms.deadline.is_none_or(|deadline| now + KILL_LEAD < deadline)
    }

    /// Returns the time when [`Input::Tick`] is due, unless another input comes first.
    pub fn wakes_at(&self) -> Option<Moment> {
        if self.is_finished {
            return None;
        }
        let kills_at = self.kills_at().filter(|_| !self.is_over());
        let times = [kills_at, self.reaction_until, self.remainder_at, self.farewell_at, self.explained_at()];
        times.into_iter().flatten().min()
    }

    /// Processes one input, and returns the actions in their order.
    pub fn handle(&mut self, now: Moment, input: Input) -> Vec<Output> {
        if self.is_finished {
            if input == Input::HoldEnded {
                self.send(Message::HoldEnded);
            }
            return std::mem::take(&mut self.outputs);
        }
        // A command that has ended leaves no duty, even if this process was stopped meanwhile.
        let is_end = matches!(input, Input::Message(Message::Exited(_) | Message::TreeGone));
        // Otherwise a duty that is due comes before everything that arrived meanwhile.
        if !is_end {
            self.tick(now);
        }
        self.apply(now, input);
        // The input may have moved a deadline into the past.
        if !is_end {
            self.tick(now);
        }
        self.finish_if_over(now);
        std::mem::take(&mut self.outputs)
    }

    fn apply(&mut self, now: Moment, input: Input) {
        match input {
            Input::Hold(state) => self.hold_changed(now, state),
            Input::Message(message) => self.received(now, message),
            Input::PeerGone => self.lost_peer(now),
            Input::Started(pid) => {
                self.command = CommandState::Running;
                self.send(Message::Started(pid));
            }
            Input::NotStarted(error) => {
                self.start_error = Some(error);
                self.command = CommandState::Gone(End::Killed(KILL));
                self.send(Message::NotStarted(error));
                self.wait_for_farewell(now, true);
            }
            Input::Exited(end) => self.exited(now, end),
            Input::TreeGone { guard_runs } => self.tree_gone(now, guard_runs),
            Input::Forward(signal) => {
                if END_SIGNALS.contains(&signal) {
                    self.end_signal = Some((signal, self.loss.is_some() || self.is_overdue));
                }
                self.forward(signal);
            }
            Input::Suspend => {
                self.forward(STOP);
                self.outputs.push(Output::SuspendSelf);
            }
            Input::Continued if self.ending == Ending::No => self.forward(CONT),
            Input::Stop(signal) => self.stop(now, signal, GRACE),
            Input::GaveBack => self.finish(),
            Input::Continued | Input::HoldEnded | Input::Tick => {}
        }
    }

    /// Performs what is due.
    fn tick(&mut self, now: Moment) {
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        if !self.is_over() && is_due(self.kills_at()) {
            self.kill(now);
        }
        if is_due(self.reaction_until) {
            self.reaction_until = None;
            self.outputs.push(Output::KillSupervisor);
        }
        if is_due(self.remainder_at) {
            self.remainder_at = None;
            self.outputs.push(Output::Report(Report::Remainder));
        }
        if is_due(self.farewell_at) {
            self.give_back();
        }
    }

    /// Returns the time of the next kill.
    fn kills_at(&self) -> Option<Moment> {
        let by_deadline = self.terms.deadline.map(|deadline| deadline - KILL_LEAD);
        match self.ending {
            Ending::No => by_deadline,
            Ending::Asked(at) => Some(by_deadline.map_or(at, |deadline| deadline.min(at))),
            Ending::Killed(again_at, _) => Some(again_at),
        }
    }

    fn kill(&mut self, now: Moment) {
        self.outputs.push(Output::KillTree);
        if let Ending::Killed(_, interval) = self.ending {
            // A process in uninterruptible sleep may take long to end.
            let interval = (interval * 2).min(MAX_KILL_INTERVAL);
            self.ending = Ending::Killed(now + interval, interval);
            return;
        }
        self.ending = Ending::Killed(now + KILL_INTERVAL, KILL_INTERVAL);
        self.is_overdue = self.terms.deadline.is_some_and(|deadline| now + KILL_LEAD >= deadline);
        if self.is_guard() {
            self.send(Message::Deadline(now));
            self.reaction_until = Some(now + KILL_TIMEOUT).filter(|_| !self.peer_is_gone);
        } else {
            self.send(Message::Killed);
        }
        self.remainder_at = None;
        if self.is_overdue || self.loss.is_some() {
            self.outputs.push(Output::Report(Report::Killing(self.loss.clone())));
        }
    }

    /// Asks all processes of the command to end, and kills them after the grace.
    fn stop(&mut self, now: Moment, signal: SignalNumber, grace: Duration) {
        if self.ending != Ending::No || self.is_over() {
            return;
        }
        let at = now + grace;
        self.ending = Ending::Asked(at);
        match self.is_guard() && !self.peer_is_gone {
            true => self.send(Message::Stop(signal, at)),
            false => self.outputs.push(Output::SignalTree(signal)),
        }
    }

    /// Passes a signal on to the command. A command that has exited leaves no group that could be
    /// relied on, and nothing of it is left in the end.
    fn forward(&mut self, signal: SignalNumber) {
        match self.command {
            _ if self.is_guard() && !self.peer_is_gone => self.send(Message::Signal(signal)),
            CommandState::Exited(_) => self.outputs.push(Output::SignalTree(signal)),
            CommandState::Gone(_) => {}
            CommandState::Starting | CommandState::Running => self.outputs.push(Output::Signal(signal)),
        }
    }

    fn hold_changed(&mut self, now: Moment, state: GuardState) {
        let was_late = matches!(self.hold, Some(GuardState::Jeopardy { .. }));
        self.hold = Some(state.clone());
        match state {
            GuardState::Safe { deadline } => self.extend(deadline),
            GuardState::Jeopardy { deadline } => {
                self.extend(deadline);
                if !was_late && self.role == Role::Guard(OnJeopardy::Terminate) && self.ending == Ending::No {
                    self.outputs.push(Output::Report(Report::Jeopardy));
                    self.forward(TERM);
                    // A stopped process receives it only when it continues.
                    self.forward(CONT);
                }
            }
            GuardState::Suspended => self.lose(now, Loss::NodeDeadline),
            GuardState::Lost(loss) => self.lose(now, loss),
        }
    }

    fn extend(&mut self, deadline: Moment) {
        // A lock that was lost, or whose command was killed, is not believed in any more.
        let is_lost = self.loss.is_some() || matches!(self.ending, Ending::Killed(..));
        if self.terms.deadline != Some(deadline) && !is_lost {
            self.terms.deadline = Some(deadline);
            self.send(Message::Deadline(deadline));
        }
    }

    fn lose(&mut self, now: Moment, loss: Loss) {
        if self.loss.is_some() || self.is_over() {
            return;
        }
        self.loss = Some(loss.clone());
        let grace = grace_after(&loss, self.terms.lock_delay);
        match self.ending {
            Ending::Killed(..) => {}
            _ if grace.is_zero() => self.kill(now),
            Ending::No => {
                self.stop(now, TERM, grace);
                self.outputs.push(Output::Report(Report::Ending(loss)));
            }
            // It was asked before; the earlier time counts.
            Ending::Asked(at) => {
                let at = at.min(now + grace);
                self.ending = Ending::Asked(at);
                let deadline = at + KILL_LEAD;
                let deadline = self.terms.deadline.map_or(deadline, |known| known.min(deadline));
                self.send(Message::Deadline(deadline));
            }
        }
    }

    fn received(&mut self, now: Moment, message: Message) {
        match message {
            Message::Deadline(deadline) => {
                // Renewals that were read late have passed too, but each is later than the one
                // before.
                let is_kill = deadline <= now && self.terms.deadline.is_none_or(|known| deadline < known);
                self.guard_kills |= is_kill;
                self.renewed_until = self.renewed_until.max(Some(deadline));
                self.terms.deadline = Some(deadline);
            }
            Message::Signal(signal) => self.forward(signal),
            Message::Stop(signal, at) => self.stop(now, signal, at.since(now)),
            Message::HoldEnded => self.finish(),
            Message::Started(_) => self.command = CommandState::Running,
            Message::Exited(end) => self.exited(now, end),
            Message::TreeGone => self.tree_gone(now, true),
            Message::Killed => self.reaction_until = None,
            Message::NotStarted(error) => {
                self.start_error = Some(error);
                self.tree_gone(now, true);
            }
        }
    }

    fn lost_peer(&mut self, now: Moment) {
        if std::mem::replace(&mut self.peer_is_gone, true) {
            return;
        }
        self.reaction_until = None;
        if self.is_over() {
            // A guard has all that it needs; a hold without a guard is left to its supervisor.
            if !self.is_guard() {
                self.give_back();
            }
            return;
        }
        if let Ending::Killed(..) = self.ending {
            // Its processes have another parent process now.
            return self.kill(now);
        }
        self.outputs.push(Output::Report(Report::PeerGone(self.role)));
        // The dead process may have asked the command to end, or not.
        let at = match self.ending {
            Ending::Asked(at) => at.since(now),
            _ => GRACE,
        };
        self.ending = Ending::No;
        self.stop(now, TERM, at);
    }

    fn exited(&mut self, now: Moment, end: End) {
        if matches!(self.command, CommandState::Exited(_) | CommandState::Gone(_)) {
            return;
        }
        self.command = CommandState::Exited(end);
        self.send(Message::Exited(end));
        if self.is_over() {
            self.wait_for_farewell(now, true);
        } else if self.is_guard() && self.ending == Ending::No {
            self.remainder_at = Some(now + REMAINDER_REPORT_DELAY);
        }
    }

    fn tree_gone(&mut self, now: Moment, guard_runs: bool) {
        let end = match self.command {
            CommandState::Gone(_) => return,
            CommandState::Exited(end) => end,
            // Its end was reaped by a process that died before it could report it.
            CommandState::Starting | CommandState::Running => End::Killed(KILL),
        };
        self.command = CommandState::Gone(end);
        (self.remainder_at, self.reaction_until) = (None, None);
        self.send(Message::TreeGone);
        self.wait_for_farewell(now, guard_runs);
    }

    /// Leaves the end of the hold to the guard for a while, if there is one.
    fn wait_for_farewell(&mut self, now: Moment, guard_runs: bool) {
        if self.is_guard() || self.gives_back {
            return;
        }
        if self.peer_is_gone || !guard_runs {
            return self.give_back();
        }
        // A guard that runs names the reason of a loss when it ends the session.
        let timeout = if self.guard_kills { LOSS_FAREWELL_TIMEOUT } else { FAREWELL_TIMEOUT };
        self.farewell_at = Some(now + timeout);
    }

    fn give_back(&mut self) {
        self.farewell_at = None;
        let Some(renewed_until) = self.renewed_until else { return self.finish() };
        if !std::mem::replace(&mut self.gives_back, true) {
            self.outputs.push(Output::GiveBack(renewed_until - KILL_LEAD));
        }
    }

    /// Returns `true` if nothing is left that the hold covers.
    fn is_over(&self) -> bool {
        match self.command {
            CommandState::Gone(_) => true,
            CommandState::Exited(_) => !self.terms.covers_descendants && self.ending == Ending::No,
            CommandState::Starting | CommandState::Running => false,
        }
    }

    /// Returns the time by which a guard that killed its command knows the reason: the deadline.
    fn explained_at(&self) -> Option<Moment> {
        let is_unexplained = self.is_guard() && self.is_over() && self.is_overdue && self.loss.is_none();
        self.terms.deadline.filter(|_| is_unexplained)
    }

    /// Finishes a guard whose command has ended.
    fn finish_if_over(&mut self, now: Moment) {
        if !self.is_guard() || !self.is_over() {
            return;
        }
        match self.explained_at() {
            Some(at) if now < at => {}
            Some(_) => {
                self.loss = Some(Loss::NodeDeadline);
                self.finish();
            }
            None => self.finish(),
        }
    }

    fn finish(&mut self) {
        let end = match self.command {
            CommandState::Exited(end) | CommandState::Gone(end) => end,
            CommandState::Starting | CommandState::Running => End::Killed(KILL),
        };
        self.is_finished = true;
        self.outputs.push(Output::Finished(Outcome {
            end: self.start_error.map_or(Ok(end), Err),
            loss: self.loss.clone(),
            is_interrupted: self
                .end_signal
                .is_some_and(|(signal, was_lost)| was_lost || end == End::Killed(signal)),
        }));
    }

    fn is_guard(&self) -> bool {
        matches!(self.role, Role::Guard(_))
    }

    fn send(&mut self, message: Message) {
        if !self.peer_is_gone && message.is_from(self.role) {
            self.outputs.push(Output::Send(message));
        }
    }
}

impl End {
    /// Returns the exit code that a shell gives for it.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Killed(signal) => write!(f, "signal {signal}"),
        }
    }
}
