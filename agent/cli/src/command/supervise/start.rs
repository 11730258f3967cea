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
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The subcommand.
pub(in crate::command) const COMMAND: &str = "start-command";

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
    /// Additions to the environment.
    environment: Vec<(String, String)>,
}

/// Starts the process that becomes the command, from the calling thread. Its end of the returned
/// socket is closed when the command runs; before that, an error of the start is sent.
///
/// # Errors
/// It was not started.
pub(super) fn spawn(words: &[OsString], start: &Start, input: Option<OwnedFd>) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = pair()?;
    let packet = CommandStart { supervisor: getpid().as_raw_pid(), environment: start.environment.clone() };
    send_start(&ours, &packet, input.as_ref().map(AsFd::as_fd))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).arg("--").args(words).stdin(Stdio::from(theirs));
    command.process_group(start.group.unwrap_or(0));
    Ok((Pid::from_child(&command.spawn()?), ours))
}

/// Becomes the command. Returns only if that fails, after the supervisor was told.
///
/// # Errors
/// Standard input is not the socket of a supervisor.
pub fn run(args: &Args) -> Result<ExitCode, CliError> {
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
    let error = become_command(&args.command, start.environment, input);
    let message = Message::NotStarted(error.raw_os_error().unwrap_or_default());
    send(&socket, &message.encode(), SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    Ok(ExitCode::FAILURE)
}

/// Returns the error if it cannot be executed.
fn become_command(
    words: &[OsString],
    environment: Vec<(String, String)>,
    input: Option<OwnedFd>,
) -> io::Error {
    let Some((name, arguments)) = words.split_first() else { return io::ErrorKind::InvalidInput.into() };
    let input = input.map_or_else(|| File::open("/dev/null").map(OwnedFd::from), Ok);
    match input {
        Ok(input) => Command::new(name).args(arguments).envs(environment).stdin(input).exec(),
        Err(error) => error,
    }
}
