//! `lockmesh supervise` (hidden): starts a program for another process of ours, and ends the
//! program's process group when that process dies.
//! ```text
//!  lockmesh lock ──▶ lock-supervisor ──▶ program
//!       └──socket──▶ (standard input)
//! ```
//! | on the socket | from | is |
//! |---|---|---|
//! | one byte, with a file or without | parent | start; the file is the program's standard input |
//! | kind and number, five bytes | supervisor | the program's process id, or the error of its start |
//! | end of file | parent | the parent is dead: SIGTERM to the group, SIGKILL after the grace |
//! The program is not reaped here: when it ends, the supervisor exits, and the program becomes a
//! child of the parent, which is the child subreaper and reads its exit status. Until then its
//! process id cannot be reused. Signals that ask a process to end are ignored here: the parent
//! decides about the program.

use super::error::CliError;
use super::lock::child::Signals;
use super::lock::{duration, held};
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, test_kill_process, test_kill_process_group, wait, waitid,
};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

/// The subcommand.
pub(super) const COMMAND: &str = "supervise";

/// The name by which process listings show a supervisor.
pub(super) const ARGV0: &str = "lock-supervisor";

/// The same, as the kernel keeps it: 15 bytes at most.
const NAME: &std::ffi::CStr = c"lock-supervisor";

/// The interval between checks of an ending group.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The length of a report.
const REPORT: usize = 5;
const STARTED: u8 = b'S';
const FAILED: u8 = b'F';

/// Run a command for another process of ours, and end it when that process dies
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process group that the command joins, instead of a new one
    #[arg(long, value_name = "ID")]
    group: Option<i32>,
    /// Time from SIGTERM to SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    grace: Duration,
    /// The command
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command.
/// # Errors
/// Standard input is not the socket of a parent. Nothing was run.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    // Only for people who look for it.
    let _ = rustix::thread::set_name(NAME);
    // From here on no signal ends this process before its program.
    let _signals = Signals::intercept()?;
    let mut changes = signal(SignalKind::child())?;
    let foreign = |error: io::Error| {
        CliError::usage(format!(
            "standard input is no socket of a parent process ({error}): `lockmesh lock` and its relatives start \
             this command, people do not"
        ))
    };
    let channel = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(input) = receive_input(&channel).map_err(foreign)? else { return Ok(ExitCode::SUCCESS) };
    let program = match args.start(input) {
        Ok(program) => program,
        Err(error) => {
            // A parent that is gone needs no answer.
            let _ = (&channel).write_all(&report(FAILED, error.raw_os_error().unwrap_or_default()));
            return Ok(ExitCode::FAILURE);
        }
    };
    let _ = (&channel).write_all(&report(STARTED, program.pid.as_raw_nonzero().get()));
    channel.set_nonblocking(true)?;
    let mut channel = UnixStream::from_std(channel)?;
    while !program.has_ended() {
        tokio::select! {
            _ = changes.recv() => {}
            // The parent sends nothing else: the next read is the end of the file.
            _ = channel.read_u8() => {
                held::report("the parent process is dead: ending the command");
                program.end(args.grace).await;
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn start(&self, input: Option<OwnedFd>) -> io::Result<Supervised> {
        let (name, arguments) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.process_group(self.group.unwrap_or(0));
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Supervised { pid, has_group: self.group.is_none() })
    }
}

/// The program.
#[derive(Clone, Copy, Debug)]
struct Supervised {
    pid: Pid,
    /// `true` if it leads its own process group.
    has_group: bool,
}

impl Supervised {
    /// `true` if it has ended; the parent reaps it.
    fn has_ended(self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Ends its group: SIGTERM, and SIGKILL after the grace.
    async fn end(self, grace: Duration) {
        let deadline = Instant::now() + grace;
        // The parent did so; without it, orphans of the group might not be reaped by any process.
        let _ = set_child_subreaper(Some(getpid()));
        self.signal(Signal::TERM);
        // A stopped process receives it only when it continues.
        self.signal(Signal::CONT);
        while self.is_any_left() && Instant::now() < deadline {
            sleep(GROUP_CHECK_INTERVAL).await;
        }
        if self.is_any_left() {
            self.signal(Signal::KILL);
        }
    }

    fn is_any_left(self) -> bool {
        if !self.has_group {
            return !self.has_ended() && test_kill_process(self.pid).is_ok();
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        test_kill_process_group(self.pid).is_ok()
    }

    fn signal(self, signal: Signal) {
        // A process that has ended is not reaped here unless it led a group, and a group's number
        // is not reused while it has members.
        let _ = match self.has_group {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }
}

/// Sends a supervisor the program's standard input, which starts it.
///
/// # Errors
/// It was not sent.
pub(super) fn send_input(channel: &StdUnixStream, input: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    if !input.as_slice().is_empty() && !files.push(SendAncillaryMessage::ScmRights(input.as_slice())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(channel, &[IoSlice::new(&[0])], &mut files, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The program's standard input, or none; nothing if the parent is dead already.
fn receive_input(channel: &StdUnixStream) -> io::Result<Option<Option<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let input = files.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(Some(input))
}

fn report(kind: u8, number: i32) -> [u8; REPORT] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, a, b, c, d]
}

/// The supervisor's report of the start; `None` until it is complete.
pub(super) fn read_report(bytes: &[u8]) -> Option<io::Result<Pid>> {
    let (kind, number) = bytes.get(..REPORT)?.split_first()?;
    let number = i32::from_le_bytes(number.try_into().ok()?);
    Some(match *kind {
        STARTED => Pid::from_raw(number).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::from_raw_os_error(number)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_report_is_read_once_it_is_whole() {
        let bytes = report(STARTED, 70_000);
        assert!(read_report(&bytes[..REPORT - 1]).is_none());
        let started = read_report(&bytes).expect("it is whole").expect("it started");
        assert_eq!(started.as_raw_nonzero().get(), 70_000);
        let failed = read_report(&report(FAILED, 2)).expect("it is whole");
        assert_eq!(failed.expect_err("it failed").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_open_file_travels_with_the_start() {
        let (parent, supervisor) = StdUnixStream::pair().expect("a pair of sockets");
        let (reader, mut writer) = io::pipe().expect("a pipe");
        send_input(&parent, Some(reader.as_fd())).expect("there is room");
        send_input(&parent, None).expect("there is room");
        let received = receive_input(&supervisor).expect("it arrives").expect("the parent lives");
        drop(reader);
        writer.write_all(b"hello").expect("its other end is open");
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(received.expect("a file")).read_to_string(&mut text).expect("readable");
        assert_eq!(text, "hello");
        assert!(receive_input(&supervisor).expect("it arrives").expect("the parent lives").is_none());
        drop(parent);
        assert!(receive_input(&supervisor).expect("the end arrives").is_none());
    }
}
