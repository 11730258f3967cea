//! `lockmesh start-command` (hidden): becomes the command, after it has asked the kernel to kill it
//! when its supervisor dies.
//!
//! The parent-death signal (`PR_SET_PDEATHSIG`) must be set between fork and exec, which safe code
//! cannot do in the supervisor. The kernel sends it when the *thread* that started this process
//! ends, so the supervisor starts it from its main thread. It holds for the command's own process,
//! not for its children, and a set-user-id program clears it.

use super::channel::{Start, pair, receive_start, send_start};
use crate::command::error::CliError;
use crate::supervision::message::Message;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setpgid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The subcommand.
pub(in crate::command) const COMMAND: &str = "start-command";

/// The name by which process listings show it.
const ARGV0: &str = "lock-command";

/// Become a command that ends with its supervisor
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The command
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// The first packet for the process that becomes the command.
#[derive(Serialize, Deserialize)]
struct CommandStart {
    /// The supervisor's process id.
    supervisor: i32,
    /// See [`Start`].
    group: Option<i32>,
    environment: Vec<(String, String)>,
}

/// A process that waits to become the command. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    pid: Pid,
    socket: OwnedFd,
}

impl Waiting {
    /// Starts the process, from the calling thread.
    ///
    /// # Errors
    /// It was not started.
    pub(super) fn new(words: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(ARGV0).arg(COMMAND).arg("--").args(words);
        command.stdin(Stdio::from(theirs)).process_group(0);
        Ok(Self { pid: Pid::from_child(&command.spawn()?), socket: ours })
    }

    /// Lets the process become the command. The returned end of its socket is closed when the
    /// command runs; before that, an error of the start is sent.
    ///
    /// # Errors
    /// It is dead.
    pub(super) fn start(self, start: &Start, input: Option<BorrowedFd<'_>>) -> io::Result<(Pid, OwnedFd)> {
        let (group, environment) = (start.group, start.environment.clone());
        let packet = CommandStart { supervisor: getpid().as_raw_pid(), group, environment };
        send_start(&self.socket, &packet, input)?;
        Ok((self.pid, self.socket))
    }
}

/// Becomes the command. Returns only if that fails, after the supervisor was told.
///
/// # Errors
/// Standard input is not the socket of a supervisor.
pub fn run(args: &Args) -> Result<ExitCode, CliError> {
    // Only for people who look for it.
    let _ = rustix::thread::set_name(c"lock-command");
    // Standard input becomes the command's, and exec must close the socket.
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(io::Error::from)?;
    let foreign = |error: io::Error| {
        CliError::usage(format!(
            "standard input is no socket of a supervisor ({error}): only it starts this command"
        ))
    };
    let Some((start, input)) = receive_start::<CommandStart>(&socket).map_err(foreign)? else {
        return Ok(ExitCode::FAILURE);
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // It may have died before.
    if getppid().map(Pid::as_raw_pid) != Some(start.supervisor) {
        return Ok(ExitCode::FAILURE);
    }
    let error = become_command(&args.command, start, input);
    let message = Message::NotStarted(error.raw_os_error().unwrap_or_default());
    send(&socket, &message.encode(), SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    Ok(ExitCode::FAILURE)
}

/// Returns the error if it cannot be executed.
fn become_command(words: &[OsString], start: CommandStart, input: Option<OwnedFd>) -> io::Error {
    let Some((name, arguments)) = words.split_first() else { return io::ErrorKind::InvalidInput.into() };
    let group = start.group.map_or(Ok(()), |group| setpgid(None, Pid::from_raw(group)));
    let input = input.map_or_else(|| File::open("/dev/null").map(OwnedFd::from), Ok);
    match group.map_err(io::Error::from).and(input) {
        Ok(input) => Command::new(name).args(arguments).envs(start.environment).stdin(input).exec(),
        Err(error) => error,
    }
}
