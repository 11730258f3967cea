//! The process that runs while something is held: started, signalled and waited for, as a group.
//!
//! Orphans of the group are adopted and reaped; as process 1 of a container, all orphans are. Never
//! waits for a process that somebody else in this program started.

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, set_child_subreaper,
    test_kill_process_group, wait, waitpgid, waitpid,
};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep};
use tracing::debug;

/// How often a dying group is looked at: its last members need not be ours to wait for.
const GROUP_POLL: Duration = Duration::from_millis(20);

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Whether to give it our standard input.
    pub pass_stdin: bool,
    /// What to add to its environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Program {
    /// Words for a shell: joined by spaces and given to `$SHELL`, or to `/bin/sh`.
    pub fn in_shell(words: &[OsString]) -> Vec<OsString> {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), words.join(&OsString::from(" "))]
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this code.
    Code(u8),
    /// This signal killed it.
    Killed(i32),
}

impl End {
    /// What a shell makes of it.
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

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    /// Whether it leads a process group of its own.
    has_group: bool,
    /// Told by the kernel that some child changed.
    changes: unix::Signal,
    end: Option<End>,
}

impl Child {
    /// Starts a program in a process group of its own.
    ///
    /// With a terminal as standard input and that passed on, it stays in our group: another one may
    /// not read from it.
    ///
    /// # Errors
    /// The program cannot be started. Nothing was run.
    pub fn start(program: &Program) -> io::Result<Self> {
        // Before the start, so that no end is missed.
        let changes = unix::signal(SignalKind::child())?;
        // Without this the group would seem to live on in dead orphans that nobody reaps.
        set_child_subreaper(Some(getpid()))?;
        let has_group = !(program.pass_stdin && io::stdin().is_terminal());
        let (name, arguments) = program.words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).envs(program.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(if program.pass_stdin { Stdio::inherit() } else { Stdio::null() });
        if has_group {
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Self { pid, has_group, changes, end: None })
    }

    /// Sends a signal to all of its group. A group that is gone already needs none.
    pub fn signal(&self, signal: Signal) {
        let sent = if self.has_group {
            kill_process_group(self.pid, signal)
        } else {
            kill_process(self.pid, signal)
        };
        if let Err(error) = sent {
            debug!(pid = %self.pid, ?signal, %error, "the signal did not arrive");
        }
    }

    /// Waits for the process's end. May be cancelled and called again.
    pub async fn ended(&mut self) -> End {
        loop {
            self.reap();
            if let Some(end) = self.end {
                return end;
            }
            self.changes.recv().await;
        }
    }

    /// Ends the whole group: asks first, and after `grace` does not ask any more.
    pub async fn stop(&mut self, grace: Duration) -> End {
        let deadline = Instant::now() + grace;
        self.signal(Signal::TERM);
        // A stopped process hears of it only when it goes on.
        self.signal(Signal::CONT);
        while self.is_anybody_left() && Instant::now() < deadline {
            sleep(GROUP_POLL).await;
            self.reap();
        }
        if self.is_anybody_left() {
            self.signal(Signal::KILL);
        }
        self.ended().await
    }

    /// Ends the whole group at once, without asking.
    pub async fn kill(&mut self) -> End {
        self.signal(Signal::KILL);
        self.ended().await
    }

    fn is_anybody_left(&self) -> bool {
        self.end.is_none() || (self.has_group && test_kill_process_group(self.pid).is_ok())
    }

    /// Takes note of who has ended. Orphans of the group are ours since we adopt them; process 1 is
    /// given all others too. Anybody else's children are left to who waits for them.
    fn reap(&mut self) {
        let none = WaitOptions::NOHANG;
        while let Ok(Some((pid, status))) = match (getpid().is_init(), self.has_group) {
            (true, _) => wait(none),
            (false, true) => waitpgid(self.pid, none),
            (false, false) if self.end.is_none() => waitpid(Some(self.pid), none),
            // It was reaped: by now its number may be another process's.
            (false, false) => return,
        } {
            if pid == self.pid {
                self.end = self.end.or(End::of(status));
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
    ///
    /// # Errors
    /// The system refuses to hand a signal over. Nothing must be held yet: a signal would end this
    /// process and leave the program without it.
    pub fn take() -> io::Result<Self> {
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
}

/// Stops this process until somebody lets it go on.
pub fn stop_ourselves() {
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        debug!(%error, "this process cannot be stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::unix::pipe;

    fn shell(text: &str) -> Program {
        let words = ["/bin/sh", "-c", text].map(OsString::from).into();
        Program { words, pass_stdin: false, environment: vec![("LOCKMESH_FENCE", "7".into())] }
    }

    /// A named pipe that the child writes lines into, so that tests wait for facts and not for
    /// time.
    struct Pipe {
        _folder: tempfile::TempDir,
        path: String,
        lines: tokio::io::Lines<BufReader<pipe::Receiver>>,
    }

    impl Pipe {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("pipe");
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
                .expect("a pipe in a fresh folder");
            let receiver = pipe::OpenOptions::new().read_write(true).open_receiver(&path).expect("it opens");
            let lines = BufReader::new(receiver).lines();
            Self { _folder: folder, path: path.to_str().expect("text").to_owned(), lines }
        }

        async fn line(&mut self) -> String {
            self.lines.next_line().await.expect("readable").expect("the pipe is held open")
        }
    }

    #[tokio::test]
    async fn its_end_is_told() {
        for (text, end, code) in
            [("exit 0", End::Code(0), 0), ("exit 3", End::Code(3), 3), ("kill -9 $$", End::Killed(9), 137)]
        {
            let mut child = Child::start(&shell(text)).expect("it starts");
            let ended = child.ended().await;
            assert_eq!((ended, ended.shell_code()), (end, code), "{text}");
            assert_eq!(child.ended().await, end, "and told again");
        }
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_error() {
        let program = Program { words: vec!["/no/such/program".into()], ..shell("") };
        assert_eq!(Child::start(&program).expect_err("not there").kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn the_environment_reaches_it_and_standard_input_does_not() {
        let mut pipe = Pipe::new();
        let text = format!("echo \"$LOCKMESH_FENCE,$(cat)\" > {}", pipe.path);
        let mut child = Child::start(&shell(&text)).expect("it starts");
        assert_eq!(pipe.line().await, "7,");
        assert_eq!(child.ended().await, End::Code(0));
    }

    #[tokio::test]
    async fn signals_reach_the_whole_group() {
        let mut pipe = Pipe::new();
        let path = &pipe.path;
        let inner = format!(
            "trap \"echo inner > {path}; exit\" USR1; echo ready > {path}; while :; do sleep 0.02; done"
        );
        let text = format!("trap 'echo outer > {path}' USR1; sh -c '{inner}' & wait; wait; wait");
        let mut child = Child::start(&shell(&text)).expect("it starts");
        assert_eq!(pipe.line().await, "ready");
        child.signal(Signal::USR1);
        let mut heard = [pipe.line().await, pipe.line().await];
        heard.sort();
        assert_eq!(heard, ["inner", "outer"]);
        child.stop(Duration::from_secs(60)).await;
    }

    #[tokio::test]
    async fn a_stop_is_asked_for_first() {
        let mut pipe = Pipe::new();
        let path = &pipe.path;
        let text = format!(
            "trap 'echo bye > {path}; exit 4' TERM; echo ready > {path}; while :; do sleep 0.02; done"
        );
        let mut child = Child::start(&shell(&text)).expect("it starts");
        assert_eq!(pipe.line().await, "ready");
        assert_eq!(child.stop(Duration::from_secs(600)).await, End::Code(4));
        assert_eq!(pipe.line().await, "bye");
    }

    #[tokio::test]
    async fn who_does_not_listen_is_killed_with_all_of_its_group() {
        let mut pipe = Pipe::new();
        let path = &pipe.path;
        let deaf = format!("trap \"\" TERM; echo $$ > {path}; while :; do sleep 0.02; done");
        // The child itself obeys; what it started does not.
        let text = format!("sh -c '{deaf}' & wait");
        let mut child = Child::start(&shell(&text)).expect("it starts");
        let deaf: i32 = pipe.line().await.parse().expect("a process id");
        let deaf = Pid::from_raw(deaf).expect("not zero");
        assert_eq!(child.stop(Duration::from_millis(200)).await, End::Killed(15));
        while is_running(deaf) {
            sleep(GROUP_POLL).await;
        }
    }

    #[tokio::test]
    async fn a_stopped_process_can_be_ended_too() {
        let mut child = Child::start(&shell("kill -STOP $$; exit 0")).expect("it starts");
        assert_eq!(child.stop(Duration::from_secs(600)).await, End::Killed(15));
    }

    #[tokio::test]
    async fn a_kill_asks_nobody() {
        let mut pipe = Pipe::new();
        let text = format!("trap '' TERM; echo ready > {}; while :; do sleep 0.02; done", pipe.path);
        let mut child = Child::start(&shell(&text)).expect("it starts");
        assert_eq!(pipe.line().await, "ready");
        assert_eq!(child.kill().await, End::Killed(9));
    }

    /// Whether a process is there and no zombie.
    fn is_running(pid: Pid) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    #[test]
    fn a_shell_is_given_one_line() {
        let words = Program::in_shell(&["echo".into(), "a b".into(), "$X".into()]);
        assert_eq!(words[1..], [OsString::from("-c"), OsString::from("echo a b $X")]);
    }
}
