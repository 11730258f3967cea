//! `lockmesh supervise` (hidden): the supervisor, the parent process of a command.
//!
//! ```text
//!  lockmesh lock ──socket──▶ lock-supervisor ──socket──▶ start-command = command ──▶ descendants
//! ```
//!
//! Its decisions are in [`Supervision`]; this module carries them out. It is a child subreaper
//! since before the start, so it reaps all descendants of the command. If it is stopped when its
//! guard dies, the kernel continues it: its parent-death signal is SIGCONT. Signals that ask a
//! process to end are ignored here: the guard decides about the command.
//!
//! | module | contents |
//! |---|---|
//! | [`channel`] | the sockets and their packets |
//! | [`start`] | the process that becomes the command |
//! | [`tree`] | finds and signals the processes of the command |

pub mod channel;
pub mod start;
pub mod tree;

use super::error::CliError;
use super::lock::child::Signals;
use super::lock::held;
use crate::supervision::message::Message;
use crate::supervision::{End, Input, Output, Report, Role, Supervision};
use channel::{Channel, HoldToEnd, Start};
use lockmesh_client::holder::Moment;
use lockmesh_client::{Address, Client, Clock, Lock, Semaphore, Timer};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, wait,
};
use start::Waiting;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use tokio::signal::unix::{self, SignalKind};
use tokio::task::JoinHandle;

/// The subcommand.
pub(super) const COMMAND: &str = "supervise";

/// The name by which process listings show a supervisor.
pub(super) const ARGV0: &str = "lock-supervisor";

/// The same, as the kernel keeps it: 15 bytes at most.
const NAME: &std::ffi::CStr = c"lock-supervisor";

/// Run a command for another process of ours, and end it when that process dies
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The command
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// Standard input is not the socket of a parent. Nothing was run.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    // Only for people who look for it.
    let _ = rustix::thread::set_name(NAME);
    // From here on no signal ends this process before its command.
    let _signals = Signals::intercept()?;
    // If this process is stopped when its guard dies, it continues. A kernel that refuses this
    // leaves it to the deadline.
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let foreign = |error: io::Error| {
        CliError::usage(format!(
            "standard input is no socket of a parent process ({error}): `lockmesh lock` and its relatives start \
             this command, people do not"
        ))
    };
    // It begins while the lock is waited for, as this process did.
    let waiting = Waiting::new(&args.command);
    let Some((start, input)) = channel::receive_start::<Start>(&socket).map_err(foreign)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let again = || Waiting::new(&args.command);
    let start_command = || {
        let input = input.as_ref().map(AsFd::as_fd);
        // It may have been killed while it waited.
        waiting.and_then(|waiting| waiting.start(&start, input)).or_else(|_| again()?.start(&start, input))
    };
    let supervisor = Supervisor::start(&start, socket, start_command)?;
    // The writer of a pipe learns that the command has ended.
    drop(input);
    supervisor.run().await;
    Ok(ExitCode::SUCCESS)
}

/// A supervisor at work.
struct Supervisor {
    supervision: Supervision,
    clock: Clock,
    timer: Timer,
    guard: Channel,
    guard_is_gone: bool,
    /// The process that becomes the command, until it has.
    starting: Option<Channel>,
    pid: Option<Pid>,
    /// `true` if the command leads its own process group.
    has_group: bool,
    changes: unix::Signal,
    hold: Option<HoldToEnd>,
    giving_back: Option<JoinHandle<()>>,
    is_finished: bool,
}

impl Supervisor {
    /// Starts the command, unless its deadline is too near.
    fn start(
        start: &Start,
        socket: OwnedFd,
        start_command: impl FnOnce() -> io::Result<(Pid, OwnedFd)>,
    ) -> io::Result<Self> {
        let mut this = Self {
            supervision: Supervision::new(Role::Supervisor, start.terms()),
            clock: Clock::default(),
            timer: Timer::new(Clock::default()),
            guard: Channel::new(socket)?,
            guard_is_gone: false,
            starting: None,
            pid: None,
            has_group: start.group.is_none(),
            changes: unix::signal(SignalKind::child())?,
            hold: start.hold.clone(),
            giving_back: None,
            is_finished: false,
        };
        if !this.supervision.may_start(this.clock.now()) {
            this.handle(Input::NotStarted(rustix::io::Errno::TIMEDOUT.raw_os_error()));
            return Ok(this);
        }
        match start_command() {
            Ok((pid, socket)) => (this.pid, this.starting) = (Some(pid), Some(Channel::new(socket)?)),
            Err(error) => this.handle(Input::NotStarted(error.raw_os_error().unwrap_or_default())),
        }
        Ok(this)
    }

    async fn run(mut self) {
        while !self.is_finished {
            let tick = async {
                match self.supervision.wakes_at() {
                    Some(at) => self.timer.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                biased;
                // A kill that is due waits for no other event.
                () = tick => Some(Input::Tick),
                started = received(&mut self.starting) => self.started(started),
                message = self.guard.receive(), if !self.guard_is_gone => {
                    self.guard_is_gone = message.is_none();
                    Some(message.map_or(Input::PeerGone, Input::Message))
                }
                _ = self.changes.recv() => None,
                () = done(&mut self.giving_back) => Some(Input::GaveBack),
            };
            input.into_iter().for_each(|input| self.handle(input));
            // Its end is processed after its start.
            if self.starting.is_none() {
                self.reap();
            }
            // The readers of the outputs do not wait for a hold that is given back.
            if self.guard_is_gone && self.giving_back.is_some() {
                detach_outputs();
            }
        }
    }

    /// Returns the outcome of the start: the socket is closed once the command runs.
    fn started(&mut self, message: Option<Message>) -> Option<Input> {
        self.starting = None;
        Some(match message {
            Some(Message::NotStarted(error)) => Input::NotStarted(error),
            _ => Input::Started(self.pid?.as_raw_pid()),
        })
    }

    fn reap(&mut self) {
        loop {
            // One SIGCHLD may stand for several processes.
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.pid => {
                    if let Some(end) = end_of(status) {
                        self.handle(Input::Exited(end));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                // No child is left, so no descendant is: an orphan would be a child.
                Err(_) => return self.handle(Input::TreeGone { guard_runs: !tree::is_stopped(getppid()) }),
            }
        }
    }

    fn handle(&mut self, input: Input) {
        for output in self.supervision.handle(self.clock.now(), input) {
            match output {
                Output::Send(message) => self.guard.send(message),
                Output::Signal(signal) => self.signal(signal),
                Output::SignalTree(signal) => {
                    Signal::from_named_raw(signal)
                        .into_iter()
                        .for_each(|signal| tree::signal(getpid(), signal));
                }
                Output::KillTree => tree::kill(getpid()),
                Output::GiveBack(overdue_at) => self.give_back(overdue_at),
                Output::Report(Report::PeerGone(_)) => {
                    held::report("the parent process is dead: ending the command");
                }
                Output::Finished(_) => self.is_finished = true,
                // The guard reports everything else.
                Output::Report(_) | Output::KillSupervisor | Output::SuspendSelf => {}
            }
        }
    }

    /// Sends a signal to the command's group. Its process is not reaped yet, so the number is its
    /// own.
    fn signal(&self, signal: i32) {
        let (Some(pid), Some(signal)) = (self.pid, Signal::from_named_raw(signal)) else { return };
        let _ = match self.has_group {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
    }

    /// Gives the hold back for a guard that cannot, until the agent and the quorum have answered.
    fn give_back(&mut self, overdue_at: Moment) {
        let hold = self.hold.take();
        self.giving_back = Some(tokio::spawn(async move {
            let Some(hold) = hold else { return };
            // The hold ends with its session in any case.
            let _ = hold.end(overdue_at).await;
        }));
    }
}

impl HoldToEnd {
    /// Releases the hold, and ends its session.
    async fn end(self, overdue_at: Moment) -> Result<bool, CliError> {
        let address: Address = self.address.parse()?;
        let client = match self.token {
            Some(token) => Client::with_token(address, &token)?,
            None => Client::new(address),
        };
        Ok(match self.slots {
            Some(slots) => {
                Semaphore::new(&client, self.names.concat(), slots as usize)
                    .give_back(&self.session, overdue_at)
                    .await?
            }
            None => {
                let lock = Lock::many(&client, self.names).value(self.value).flags(self.flags);
                lock.give_back(&self.session, overdue_at).await?
            }
        })
    }
}

/// Returns the end of a process that has ended.
pub(super) fn end_of(status: WaitStatus) -> Option<End> {
    let code = status.exit_status().map(|code| End::Code(u8::try_from(code).unwrap_or(u8::MAX)));
    code.or_else(|| status.terminating_signal().map(End::Killed))
}

fn detach_outputs() {
    let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") else { return };
    // The outputs stay as they are if this fails.
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

async fn received(channel: &mut Option<Channel>) -> Option<Message> {
    match channel {
        Some(channel) => channel.receive().await,
        None => std::future::pending().await,
    }
}

async fn done(task: &mut Option<JoinHandle<()>>) {
    match task {
        Some(running) => {
            // A panic ends it too.
            let _ = running.await;
            *task = None;
        }
        None => std::future::pending().await,
    }
}
