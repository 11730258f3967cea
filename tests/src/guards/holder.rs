//! A `lockmesh lock` with its supervisor and its command, which a fault strikes. It is started as a
//! shell starts a job: in a session with a process group for the job.

use super::command::{BEAT, ourselves, recorded};
use super::fault::{Output, Target};
use crate::fleet::freeze;
use crate::hosts::members::Hosts;
use crate::member::text;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::tcsetpgrp;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// The option that makes this program the shell of a job; it is followed by the job's words.
pub const LAUNCH: &str = "--launch";

/// The name of supervisors in process listings.
const SUPERVISOR: &str = "lock-supervisor";

/// Runs a job as a shell does, and waits for its end. A terminal at standard input becomes the
/// session's, with the job in the foreground.
pub fn launch(words: &[String]) {
    setsid().expect("a started process leads no group");
    let has_terminal = ioctl_tiocsctty(io::stdin()).is_ok();
    let mut job = Command::new(&words[0]).args(&words[1..]).process_group(0).spawn().expect("the job starts");
    if has_terminal {
        tcsetpgrp(io::stdin(), Pid::from_child(&job)).expect("the job is in this session");
    }
    job.wait().expect("the job is a child of this process");
}

/// A `lockmesh lock` that holds its lock.
pub struct Holder {
    lock: Pid,
    supervisor: Pid,
    shell: Child,
    ends: Ends,
    records: PathBuf,
    /// The outputs, unless they are a terminal's or full.
    log: PathBuf,
}

/// The other ends of its outputs.
enum Ends {
    Files,
    Pipe { _unread: PipeReader, writer: PipeWriter },
    Terminal(File),
}

impl Holder {
    /// Starts a command line on a host, and waits until its command runs.
    pub fn start(
        hosts: &Hosts,
        host: &str,
        words: &[String],
        output: Output,
        records: &Path,
        log: &Path,
    ) -> Self {
        let mut shell = Command::new("ip");
        shell.args(hosts.network.on(host)).arg(ourselves()).arg(LAUNCH).args(words);
        let ends = connect(&mut shell, output, log).expect("pipes, terminals and files can be opened");
        let shell = shell.spawn().expect("ip can be started");
        let records = records.to_owned();
        let lock = hosts.wait_for("the lock process", || children(Pid::from_child(&shell)).first().copied());
        hosts.wait_for("a holder", || recorded(&records));
        let supervisor = hosts.wait_for("its supervisor", || {
            children(lock).into_iter().find(|child| name(*child).as_deref() == Some(SUPERVISOR))
        });
        Self { lock, supervisor, shell, ends, records, log: log.to_owned() }
    }

    fn pid(&self, hosts: &Hosts, host: &str, target: Target) -> Pid {
        match target {
            Target::Lock => self.lock,
            Target::Supervisor => self.supervisor,
            Target::Agent => {
                let number = i32::try_from(hosts.number(host)).expect("a process number");
                Pid::from_raw(number).expect("a process number is positive")
            }
        }
    }

    /// Sends SIGKILL to a process of its host.
    pub fn kill(&self, hosts: &Hosts, host: &str, target: Target) {
        kill_process(self.pid(hosts, host, target), Signal::KILL).expect("it runs");
    }

    /// Stops a process of its host, and waits until all of its threads have stopped.
    pub fn stop(&self, hosts: &Hosts, host: &str, target: Target) {
        freeze(&self.pid(hosts, host, target).to_string());
    }

    /// Fills the pipe at one of its outputs.
    pub fn fill(&self) {
        let Ends::Pipe { writer, .. } = &self.ends else { panic!("its outputs are no pipe") };
        // Opened again: the flag must not concern the holder.
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut again = File::options().write(true).custom_flags(flags).open(path).expect("it is open");
        while again.write(b".").is_ok() {}
    }

    /// Types a character at its terminal.
    pub fn type_character(&self, character: u8) {
        let Ends::Terminal(terminal) = &self.ends else { panic!("it has no terminal") };
        (&*terminal).write_all(&[character]).expect("the terminal is open");
    }

    /// Returns the processes of its command.
    pub fn command(&self) -> Vec<Pid> {
        let records = text(&self.records);
        let is_ours = |pid: &Pid| {
            // Empty for a process that has ended but was not waited for.
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').skip(1).take(2).eq([BEAT, &records])
        };
        let all = fs::read_dir("/proc").expect("it is mounted").flatten();
        let all = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        all.filter(is_ours).collect()
    }

    /// Ends everything that is left, also if it is stopped. Returns the number of the command's
    /// processes that were left.
    pub fn end(mut self) -> usize {
        let survivors = self.command();
        [self.lock, self.supervisor].into_iter().for_each(kill);
        // Forking commands start processes meanwhile.
        loop {
            let left = self.command();
            if left.is_empty() {
                break;
            }
            left.into_iter().for_each(kill);
        }
        drop(self.ends);
        self.shell.wait().expect("it is a child of this process");
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        assert!(!said.contains(" panicked at "), "lockmesh lock panicked:\n{said}");
        survivors.len()
    }
}

/// Sends SIGKILL to a process that may have ended already.
fn kill(pid: Pid) {
    let _ = kill_process(pid, Signal::KILL);
}

/// Connects the outputs of a command to this log, a pipe or a terminal. Returns their other ends.
fn connect(shell: &mut Command, output: Output, log: &Path) -> io::Result<Ends> {
    let file = File::create(log)?;
    shell.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    match output {
        Output::Files => Ok(Ends::Files),
        Output::StdoutPipe | Output::StderrPipe => {
            let (unread, writer) = io::pipe()?;
            let end = writer.try_clone()?;
            let _ = if output == Output::StdoutPipe { shell.stdout(end) } else { shell.stderr(end) };
            Ok(Ends::Pipe { _unread: unread, writer })
        }
        Output::Terminal => {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let terminal = openpt(flags)?;
            unlockpt(&terminal)?;
            let end = ioctl_tiocgptpeer(&terminal, flags)?;
            shell.stdin(end.try_clone()?).stdout(end.try_clone()?).stderr(end);
            let terminal = File::from(terminal);
            let mut reader = terminal.try_clone()?;
            // Ends with an error when no process has the terminal any more.
            thread::spawn(move || drop(copy(&mut reader, file)));
            Ok(Ends::Terminal(terminal))
        }
    }
}

fn copy(reader: &mut File, mut log: File) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let length = reader.read(&mut bytes)?;
        log.write_all(&bytes[..length])?;
    }
}

/// Returns the children of a process, of all of its threads.
fn children(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let all = Vec::from_iter(lists).concat();
    all.split_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect()
}

fn name(pid: Pid) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}
