//! The command that runs while something is held: started under a supervisor, signalled and waited
//! for.
//!
//! The supervisor (see [`supervise`](crate::command::supervise)) starts the command and reaps it.
//! It is started while the lock is waited for, so that the command begins sooner after the grant.
//! The decisions of both are in [`Supervision`]; [`Child`] carries out those of the guard. This
//! process is a child subreaper too: if the supervisor is killed, all processes of the command
//! become its children. Then it ends and reaps them itself. It has no other children, and reaps
//! all.

use super::held::report;
use crate::command::supervise::channel::{self, Channel, HoldToEnd, Start};
use crate::command::supervise::{self, ARGV0, COMMAND, tree};
use crate::supervision::message::Message;
use crate::supervision::{
    END_SIGNALS, Input, OnJeopardy, Outcome, Output, Report, Role, SignalNumber, Supervision,
};
use lockmesh_client::{Clock, Timer, holder::Moment};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};
use tracing::debug;

/// This program's file, also after an upgrade has replaced it.
const OURSELVES: &str = "/proc/self/exe";

/// The circumstances of a command.
#[derive(Debug)]
pub struct Program {
    /// Its standard input.
    pub stdin: CommandInput,
    /// Additions to its environment.
    pub environment: Vec<(String, String)>,
    /// The hold under which it runs, if any.
    pub hold: Option<HeldTerms>,
}

/// The hold of a command.
#[derive(Debug)]
pub struct HeldTerms {
    /// Its first deadline.
    pub deadline: Moment,
    /// The lock-delay of its session.
    pub lock_delay: Duration,
    /// Set if it lasts until all descendants of the command have ended.
    pub covers_descendants: bool,
    /// The reaction to a late renewal.
    pub on_jeopardy: OnJeopardy,
    /// The way to end it.
    pub end: HoldToEnd,
}

/// The standard input of a command.
#[derive(Debug)]
pub enum CommandInput {
    /// None.
    Null,
    /// Standard input of this process.
    Ours,
    /// Another open file.
    Other(OwnedFd),
}

impl Program {
    /// Words for a shell: joined by spaces and given to `$SHELL`, or to `/bin/sh`.
    pub fn in_shell(words: &[OsString]) -> Vec<OsString> {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), words.join(&OsString::from(" "))]
    }

    /// With a terminal as standard input and that passed on, it stays in our group: another one may
    /// not read from it.
    fn has_group(&self) -> bool {
        !(matches!(self.stdin, CommandInput::Ours)
            && io::stdin().is_terminal()
            && tree::own_group().is_some())
    }

    fn start(&self) -> Start {
        let group = tree::own_group().filter(|_| !self.has_group()).map(Pid::as_raw_pid);
        let environment = self.environment.clone();
        let Some(hold) = &self.hold else { return Start { group, environment, ..Start::default() } };
        Start {
            deadline: Some(hold.deadline.as_nanos()),
            covers_descendants: hold.covers_descendants,
            lock_delay: u64::try_from(hold.lock_delay.as_millis()).unwrap_or(u64::MAX),
            group,
            environment,
            hold: Some(hold.end.clone()),
        }
    }
}

/// A supervisor that waits for the start of its command. It ends when this value is dropped.
#[derive(Debug)]
pub struct Standby {
    file: PathBuf,
    /// The program and its arguments.
    pub words: Vec<OsString>,
    pid: Pid,
    channel: Channel,
    /// See [`Child`].
    changes: unix::Signal,
}

impl Standby {
    /// Starts a supervisor for a command: a program and its arguments. Call it on the main thread:
    /// when the thread ends, the supervisor takes this process for dead.
    ///
    /// # Errors
    /// The supervisor cannot be started.
    pub fn new(words: Vec<OsString>) -> io::Result<Self> {
        Self::of(Path::new(OURSELVES), words)
    }

    /// The same, with another file of this program.
    ///
    /// # Errors
    /// The supervisor cannot be started.
    pub fn of(file: &Path, words: Vec<OsString>) -> io::Result<Self> {
        // Before the start, so that no end is missed.
        let changes = unix::signal(SignalKind::child())?;
        set_child_subreaper(Some(getpid()))?;
        let (ours, theirs) = channel::pair()?;
        let channel = Channel::new(ours)?;
        let mut command = Command::new(file);
        // No signal that is sent to processes by the name of `lockmesh` ends both.
        command.arg0(ARGV0).arg(COMMAND).arg("--").args(&words);
        // A group of its own, so that keys pressed at the terminal do not reach it.
        command.stdin(Stdio::from(theirs)).process_group(0);
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Self { file: file.into(), words, pid, channel, changes })
    }

    /// Returns the supervisor's process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Starts the command in a process group of its own, or in ours if it shall read our terminal.
    ///
    /// # Errors
    /// Nothing was run.
    pub fn start(mut self, program: &Program) -> io::Result<Child> {
        let start = program.start();
        let stdin = io::stdin();
        let input = match &program.stdin {
            CommandInput::Null => None,
            CommandInput::Ours => Some(stdin.as_fd()),
            CommandInput::Other(file) => Some(file.as_fd()),
        };
        if let Err(error) = self.channel.send_start(&start, input) {
            // It was killed while it waited.
            debug!(%error, "starting another supervisor");
            self = Self::of(&self.file, self.words)?;
            self.channel.send_start(&start, input)?;
        }
        let on_jeopardy = program.hold.as_ref().map_or(OnJeopardy::Ignore, |hold| hold.on_jeopardy);
        Ok(Child {
            supervision: Supervision::new(Role::Guard(on_jeopardy), start.terms()),
            clock: Clock::default(),
            timer: Timer::new(Clock::default()),
            supervisor: Some(self.pid),
            channel: self.channel,
            supervisor_is_gone: false,
            pid: None,
            has_group: program.has_group(),
            changes: self.changes,
            outcome: None,
        })
    }
}

/// A command under its supervisor, as its guard sees it.
#[derive(Debug)]
pub struct Child {
    supervision: Supervision,
    clock: Clock,
    timer: Timer,
    /// The supervisor, until it is reaped.
    supervisor: Option<Pid>,
    channel: Channel,
    supervisor_is_gone: bool,
    /// Known once the supervisor has started it.
    pid: Option<Pid>,
    /// `true` if it leads its own process group.
    has_group: bool,
    /// Set by the kernel's notice that a child of this process changed.
    changes: unix::Signal,
    outcome: Option<Outcome>,
}

impl Child {
    /// Waits for the outcome. May be cancelled and called again.
    pub async fn ended(&mut self) -> Outcome {
        loop {
            if let Some(outcome) = &self.outcome {
                return outcome.clone();
            }
            self.advance().await;
        }
    }

    /// Waits until the supervisor is reaped, after the outcome. Without it, its hold is released by
    /// now, or is left to the supervisor.
    pub async fn reaped(mut self) {
        self.handle(Input::HoldEnded);
        while self.supervisor.is_some() {
            self.changes.recv().await;
            self.reap();
        }
    }

    /// Waits for the next event, and processes it.
    async fn advance(&mut self) {
        let wakes_at = self.supervision.wakes_at();
        let tick = async {
            match wakes_at {
                Some(at) => self.timer.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // The command may have ended before what is due.
            message = self.channel.receive(), if !self.supervisor_is_gone => match message {
                Some(message) => self.received(message),
                None => {
                    self.supervisor_is_gone = true;
                    self.handle(Input::PeerGone);
                    // The SIGCHLD of its end may have come first, and no other follows.
                    self.reap();
                }
            },
            () = tick => self.handle(Input::Tick),
            _ = self.changes.recv() => self.reap(),
        }
    }

    fn received(&mut self, message: Message) {
        if let Message::Started(pid) = message {
            self.pid = Pid::from_raw(pid);
        }
        self.handle(Input::Message(message));
    }

    /// Reaps the supervisor; once it is gone, also the processes of the command. Orphans of earlier
    /// commands are reaped too.
    fn reap(&mut self) {
        loop {
            // One SIGCHLD may stand for several processes.
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, _))) if Some(pid) == self.supervisor => self.supervisor = None,
                Ok(Some((pid, status))) if Some(pid) == self.pid => {
                    supervise::end_of(status).into_iter().for_each(|end| self.handle(Input::Exited(end)));
                }
                Ok(Some(_)) => {}
                Err(_) if self.supervisor_is_gone => {
                    return self.handle(Input::TreeGone { guard_runs: true });
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Processes an input, and carries out what follows.
    pub fn handle(&mut self, input: Input) {
        for output in self.supervision.handle(self.clock.now(), input) {
            match output {
                Output::Send(message) => self.channel.send(message),
                Output::Signal(signal) => self.signal(signal),
                Output::SignalTree(signal) => {
                    Signal::from_named_raw(signal)
                        .into_iter()
                        .for_each(|signal| tree::signal(self.root(), signal));
                }
                Output::KillTree => tree::kill(self.root()),
                Output::KillSupervisor => {
                    let _ = self.supervisor.map(|pid| kill_process(pid, Signal::KILL));
                }
                Output::SuspendSelf => {
                    stop_ourselves();
                    // This process continues, perhaps much later.
                    self.handle(Input::Continued);
                }
                Output::Report(message) => report(&text_of(&message)),
                Output::Finished(outcome) => self.outcome = Some(outcome),
                // Only a supervisor does this: a guard releases its hold itself.
                Output::GiveBack(_) => {}
            }
        }
    }

    /// The process whose descendants are the command's processes.
    fn root(&self) -> Pid {
        self.supervisor.filter(|_| !self.supervisor_is_gone).unwrap_or_else(getpid)
    }

    /// Sends a signal to the command without a supervisor. Its process is not reaped yet, so the
    /// number is its own.
    fn signal(&self, signal: SignalNumber) {
        let (Some(pid), Some(signal)) = (self.pid, Signal::from_named_raw(signal)) else { return };
        let sent = if self.has_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        if let Err(error) = sent {
            debug!(%pid, ?signal, %error, "signal not delivered");
        }
    }
}

fn text_of(message: &Report) -> String {
    match message {
        Report::Ending(loss) => format!("lock lost: {loss}; ending the command"),
        Report::Killing(None) => "lock not renewed before its deadline; killing the command".into(),
        Report::Killing(Some(loss)) => {
            format!("lock ownership can no longer be guaranteed ({loss}); killing the command")
        }
        Report::Jeopardy => {
            "a renewal is late and the lock may be lost soon; sending SIGTERM to the command".into()
        }
        Report::PeerGone(_) => "the supervisor was killed; ending the command".into(),
        Report::Remainder => {
            "the command has exited, but processes that it started run on: the lock is held until \
                              they end (see --release-on-exit)"
                .into()
        }
    }
}

/// The signals that are passed on, and the one that stops us at a terminal.
#[derive(Debug)]
pub struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    terminate: unix::Signal,
    user1: unix::Signal,
    user2: unix::Signal,
    stop: unix::Signal,
}

impl Signals {
    /// Takes the signals over from their defaults.
    /// # Errors
    /// The system refuses to hand a signal over. Nothing must be held yet: a signal would end this
    /// process and leave the program without it.
    pub fn intercept() -> io::Result<Self> {
        Ok(Self {
            hangup: unix::signal(SignalKind::hangup())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            quit: unix::signal(SignalKind::quit())?,
            terminate: unix::signal(SignalKind::terminate())?,
            user1: unix::signal(SignalKind::user_defined1())?,
            user2: unix::signal(SignalKind::user_defined2())?,
            stop: unix::signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?,
        })
    }

    /// The next signal. May be cancelled and called again.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.user1.recv() => Signal::USR1,
            _ = self.user2.recv() => Signal::USR2,
            _ = self.stop.recv() => Signal::TSTP,
        }
    }

    /// The next signal that asks us to end.
    pub async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if END_SIGNALS.contains(&signal.as_raw()) {
                return signal;
            }
        }
    }

    /// The output of `future`; `None` if a signal asks us to end before that.
    pub async fn unless_ended<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            output = future => Some(output),
            _ = self.end() => None,
        }
    }
}

/// Stops this process until it receives SIGCONT.
pub fn stop_ourselves() {
    // Not SIGTSTP, which this process intercepts.
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        debug!(%error, "this process cannot be stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_joined_into_line() {
        let words = Program::in_shell(&["echo".into(), "a b".into(), "$X".into()]);
        assert_eq!(words[1..], [OsString::from("-c"), OsString::from("echo a b $X")]);
    }
}
