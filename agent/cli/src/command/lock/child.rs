//! The process that runs while something is held: started, signalled and waited for, as a group.
//! A supervisor starts it (see [`supervise`](crate::command::supervise)) and ends its group if this
//! process dies, `kill -9` included. The supervisor neither reaps the program nor passes signals
//! on: this process is the child subreaper, so the program becomes its child when the supervisor
//! exits, and signals go to the group directly. A supervisor that is killed takes the program
//! along.
//! Orphans of the group are adopted and reaped; as process 1 of a container, all orphans are. Never
//! waits for a process that other code in this program started.

use crate::command::supervise::{self, ARGV0, COMMAND};
use lockmesh_protocol::duration;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, kill_process_group,
    set_child_subreaper, test_kill_process_group, wait, waitpgid, waitpid,
};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep};
use tracing::debug;

/// The interval between checks of an ending group, whose last members need not be children of this
/// process.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time between SIGTERM and SIGKILL: much less than the usual lock-delay, during which the lock
/// is granted to no other session.
pub const GRACE: Duration = Duration::from_secs(5);

/// This program's file, also after an upgrade has replaced it.
const OURSELVES: &str = "/proc/self/exe";

/// A program to run.
#[derive(Debug)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Its standard input.
    pub stdin: Input,
    /// Additions to its environment.
    pub environment: Vec<(&'static str, String)>,
    /// The time from SIGTERM to SIGKILL if this process dies.
    pub grace: Duration,
}

/// The standard input of a program.
#[derive(Debug)]
pub enum Input {
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
        !(matches!(self.stdin, Input::Ours) && io::stdin().is_terminal())
    }
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this code.
    Code(u8),
    /// This signal killed it.
    Killed(i32),
}

impl End {
    /// The exit code that a shell gives for it.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }

    fn of(status: WaitStatus) -> Option<Self> {
        let code = status.exit_status().map(|code| Self::Code(u8::try_from(code).unwrap_or(u8::MAX)));
        code.or_else(|| status.terminating_signal().map(Self::Killed))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Killed(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A program under its supervisor.
#[derive(Debug)]
pub struct Child {
    /// Known once the supervisor has started it.
    pid: Option<Pid>,
    /// `true` if it leads its own process group.
    has_group: bool,
    supervisor: Supervisor,
    /// Set by the kernel's notice that a child of this process changed.
    changes: unix::Signal,
    end: Option<End>,
    /// The time of the SIGKILL after SIGTERM.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Supervisor {
    pid: Pid,
    /// Held open as long as the program shall run. The supervisor reports the start on it.
    channel: UnixStream,
    report: Vec<u8>,
    is_gone: bool,
}

impl Child {
    /// Starts a program in a process group of its own, or in ours if it shall read our terminal.
    /// [`Self::started`] waits for it.
    /// # Errors
    /// The supervisor cannot be started. Nothing was run.
    pub fn start(program: &Program) -> io::Result<Self> {
        Self::start_under(Path::new(OURSELVES), program)
    }

    /// The same, with another file of this program as the supervisor.
    /// # Errors
    /// As [`Self::start`].
    pub fn start_under(supervisor: &Path, program: &Program) -> io::Result<Self> {
        // Before the start, so that no end is missed.
        let changes = unix::signal(SignalKind::child())?;
        // The program becomes a child of this process when its supervisor exits. Orphans of the
        // group do as well: otherwise it would seem to live on in dead processes that are not
        // reaped.
        set_child_subreaper(Some(getpid()))?;
        let (has_group, supervisor) = (program.has_group(), Supervisor::start(supervisor, program)?);
        Ok(Self { pid: None, has_group, supervisor, changes, end: None, deadline: None })
    }

    /// Waits until the program runs. May be cancelled and called again.
    /// # Errors
    /// The program cannot be started. Nothing was run.
    pub async fn started(&mut self) -> io::Result<()> {
        if self.pid.is_some() {
            return Ok(());
        }
        match self.supervisor.reported().await {
            Ok(pid) => self.pid = Some(pid),
            Err(error) => {
                self.supervisor_ended().await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reaps a supervisor that has nothing to supervise.
    async fn supervisor_ended(&mut self) {
        loop {
            self.reap();
            if self.supervisor.is_gone {
                return;
            }
            self.changes.recv().await;
        }
    }

    /// Sends a signal to all of its group. A group that is gone already needs none.
    pub fn signal(&self, signal: Signal) {
        // Its number may be another process's by now, unless a group still has it.
        let Some(pid) = self.pid.filter(|_| self.has_group || self.end.is_none()) else { return };
        let sent = if self.has_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        if let Err(error) = sent {
            debug!(%pid, ?signal, %error, "signal not delivered");
        }
    }

    /// Waits for the process's end. May be cancelled and called again.
    pub async fn ended(&mut self) -> End {
        loop {
            self.reap();
            match self.end {
                Some(end) if self.supervisor.is_gone => return end,
                // Nothing would end it any more if this process died now.
                None if self.supervisor.is_gone => return self.stop(GRACE).await,
                _ => self.changes.recv().await,
            };
        }
    }

    /// Ends the whole group: SIGTERM, and SIGKILL after `grace`.
    pub async fn stop(&mut self, grace: Duration) -> End {
        self.stop_by(Signal::TERM, grace).await
    }

    /// Ends the whole group: this signal, and SIGKILL after `grace`. May be cancelled and called
    /// again, and the grace then counts from the first call.
    pub async fn stop_by(&mut self, signal: Signal, grace: Duration) -> End {
        if self.started().await.is_err() {
            return End::Killed(Signal::KILL.as_raw());
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + grace);
        self.reap();
        self.signal(signal);
        // A stopped process receives it only when it continues.
        self.signal(Signal::CONT);
        while self.is_any_left() && Instant::now() < deadline {
            sleep(GROUP_CHECK_INTERVAL).await;
            self.reap();
        }
        if self.is_any_left() {
            self.signal(Signal::KILL);
            // The other members of the group end a moment later, unless the system is stuck.
            let deadline = Instant::now() + GRACE;
            while self.is_any_left() && Instant::now() < deadline {
                sleep(GROUP_CHECK_INTERVAL).await;
                self.reap();
            }
        }
        self.reaped().await
    }

    /// Ends the whole group at once by SIGKILL.
    pub async fn kill(&mut self) -> End {
        if self.started().await.is_err() {
            return End::Killed(Signal::KILL.as_raw());
        }
        self.signal(Signal::KILL);
        self.reaped().await
    }

    async fn reaped(&mut self) -> End {
        loop {
            self.reap();
            match self.end {
                Some(end) if self.supervisor.is_gone => return end,
                _ => self.changes.recv().await,
            };
        }
    }

    fn is_any_left(&self) -> bool {
        let group = self.pid.filter(|_| self.has_group);
        self.end.is_none() || group.is_some_and(|group| test_kill_process_group(group).is_ok())
    }

    /// Records which processes have ended. Orphans of the group are adopted by this process;
    /// process 1 is given all others too. All other children are left to the code that waits for
    /// them.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = self.next_ended() {
            if Some(pid) == self.pid {
                self.end = self.end.or(End::of(status));
            } else if pid == self.supervisor.pid {
                self.supervisor.is_gone = true;
            }
        }
    }

    fn next_ended(&self) -> rustix::io::Result<Option<(Pid, WaitStatus)>> {
        let none = WaitOptions::NOHANG;
        if getpid().is_init() {
            return wait(none);
        }
        // First, for the program is a child of this process from before the supervisor has ended.
        if !self.supervisor.is_gone
            && let Some(ended) = waitpid(Some(self.supervisor.pid), none)?
        {
            return Ok(Some(ended));
        }
        match self.pid {
            Some(group) if self.has_group => waitpgid(group, none),
            Some(pid) if self.end.is_none() => waitpid(Some(pid), none),
            // It was reaped: by now its number may be another process's.
            _ => Ok(None),
        }
    }
}

impl Supervisor {
    fn start(file: &Path, program: &Program) -> io::Result<Self> {
        // Both ends are closed on exec, so that no other child of this process keeps one open.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let mut command = Command::new(file);
        // No signal that is sent to processes by the name of `lockmesh` ends both.
        command.arg0(ARGV0).arg(COMMAND);
        command.arg("--grace").arg(duration::format(program.grace));
        if !program.has_group() {
            command.arg("--group").arg(getpgrp().to_string());
        }
        command.arg("--").args(&program.words);
        command.envs(program.environment.iter().map(|(name, value)| (name, value)));
        // A group of its own, so that keys pressed at the terminal do not reach it.
        command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let stdin = io::stdin();
        supervise::send_input(
            &ours,
            match &program.stdin {
                Input::Null => None,
                Input::Ours => Some(stdin.as_fd()),
                Input::Other(file) => Some(file.as_fd()),
            },
        )?;
        let pid = Pid::from_child(&command.spawn()?);
        ours.set_nonblocking(true)?;
        Ok(Self { pid, channel: UnixStream::from_std(ours)?, report: Vec::new(), is_gone: false })
    }

    /// The program's number, once it runs.
    async fn reported(&mut self) -> io::Result<Pid> {
        loop {
            if let Some(report) = supervise::read_report(&self.report) {
                return report;
            }
            self.channel.readable().await?;
            let mut bytes = [0; 16];
            match self.channel.try_read(&mut bytes) {
                Ok(0) => return Err(io::Error::other("its supervisor ended before it was started")),
                Ok(length) => self.report.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
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
            if matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) {
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
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        debug!(%error, "this process cannot be stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_given_one_line() {
        let words = Program::in_shell(&["echo".into(), "a b".into(), "$X".into()]);
        assert_eq!(words[1..], [OsString::from("-c"), OsString::from("echo a b $X")]);
    }
}
