//! Commands under their supervisor, as real processes: ends, signals, deadlines, and the processes
//! that remain when one of ours is killed.
//!
//! The tests run one after the other: a guard reaps all children of its process.

use lockmesh_cli::command::lock::child::{Child, CommandInput, HeldTerms, Program, Signals, Standby};
use lockmesh_cli::command::supervise::channel::HoldToEnd;
use lockmesh_cli::supervision::{End, GRACE, Input, OnJeopardy};
use lockmesh_client::Clock;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};

/// The interval between looks at a process.
const POLL: Duration = Duration::from_millis(20);

/// The longest that a loaded machine may take.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// A command, and its circumstances.
type Started = (Vec<OsString>, Program);

fn shell(text: &str) -> Started {
    shell_with(CommandInput::Null, text)
}

fn shell_with(stdin: CommandInput, text: &str) -> Started {
    let environment = vec![("LOCKMESH_FENCE".into(), "7".into())];
    (["/bin/sh", "-c", text].map(OsString::from).into(), Program { stdin, environment, hold: None })
}

/// The same under a hold that ends after this time. Its agent does not exist.
fn held(text: &str, remaining: Duration) -> Started {
    let hold = HeldTerms {
        deadline: Clock::default().now() + remaining,
        lock_delay: GRACE * 2,
        covers_descendants: true,
        on_jeopardy: OnJeopardy::Ignore,
        end: HoldToEnd { address: "127.0.0.1:1".into(), ..HoldToEnd::default() },
    };
    let (words, program) = shell(text);
    (words, Program { hold: Some(hold), ..program })
}

fn stand_by(words: Vec<OsString>) -> Standby {
    let file = Path::new(env!("CARGO_BIN_EXE_lockmesh"));
    Standby::of(file, words).expect("the supervisor starts")
}

fn start((words, program): Started) -> Child {
    stand_by(words).start(&program).expect("the supervisor runs")
}

async fn end_of(child: &mut Child) -> End {
    let outcome = timeout(TIMEOUT, child.ended()).await.expect("it ends");
    outcome.end.expect("it was started")
}

#[tokio::test]
async fn signal_interrupts_wait_for_answer() {
    let _alone = alone().await;
    let mut signals = Signals::intercept().expect("they can be taken");
    assert_eq!(signals.unless_ended(async { 7 }).await, Some(7));
    kill_process(rustix::process::getpid(), Signal::INT).expect("it can be sent");
    let answer = signals.unless_ended(std::future::pending::<()>());
    assert_eq!(timeout(TIMEOUT, answer).await.expect("the signal arrives"), None);
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
        let line = timeout(TIMEOUT, self.lines.next_line()).await.expect("nothing was written");
        line.expect("readable").expect("the pipe is held open")
    }

    async fn pid(&mut self) -> Pid {
        Pid::from_raw(self.line().await.parse().expect("a process id")).expect("not zero")
    }
}

#[tokio::test]
async fn exit_code_and_signal_reported() {
    let _alone = alone().await;
    for (text, end, code) in
        [("exit 0", End::Code(0), 0), ("exit 3", End::Code(3), 3), ("kill -9 $$", End::Killed(9), 137)]
    {
        let mut child = start(shell(text));
        let ended = end_of(&mut child).await;
        assert_eq!((ended, ended.shell_code()), (end, code), "{text}");
        assert_eq!(end_of(&mut child).await, end, "and again");
    }
}

#[tokio::test]
async fn supervisor_killed_before_start_replaced() {
    let _alone = alone().await;
    let (words, program) = shell("exit 3");
    let standby = stand_by(words);
    kill_process(standby.pid(), Signal::KILL).expect("it waits");
    waitid(WaitId::Pid(standby.pid()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("our child");
    let mut child = standby.start(&program).expect("another supervisor runs");
    assert_eq!(end_of(&mut child).await, End::Code(3));
}

#[tokio::test]
async fn supervisor_ends_without_start() {
    let _alone = alone().await;
    let standby = stand_by(shell("exit 3").0);
    let pid = standby.pid();
    drop(standby);
    let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).expect("our child");
    assert_eq!(status.and_then(|status| status.exit_status()), Some(0));
}

#[tokio::test]
async fn missing_program_is_an_error() {
    let _alone = alone().await;
    let mut child = start((vec!["/no/such/program".into()], shell("").1));
    let error = child.ended().await.end.expect_err("it is missing");
    assert_eq!(io::Error::from_raw_os_error(error).kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn command_gets_environment_without_stdin() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let mut child = start(shell(&format!("echo \"$LOCKMESH_FENCE,$(cat)\" > {}", pipe.path)));
    let (end, line) = tokio::join!(end_of(&mut child), pipe.line());
    assert_eq!((end, line.as_str()), (End::Code(0), "7,"));
}

/// Waits for a line while the guard works.
async fn line(child: &mut Child, pipe: &mut Pipe) -> String {
    tokio::select! {
        line = pipe.line() => line,
        outcome = child.ended() => panic!("it ended: {outcome:?}"),
    }
}

#[tokio::test]
async fn forwarded_signal_reaches_whole_group() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let inner =
        format!("trap \"echo inner > {path}; exit\" USR1; echo ready > {path}; while :; do sleep 0.02; done");
    let text = format!("trap 'echo outer > {path}' USR1; sh -c '{inner}' & wait; wait; wait");
    let mut child = start(shell(&text));
    assert_eq!(line(&mut child, &mut pipe).await, "ready");
    child.handle(Input::Forward(Signal::USR1.as_raw()));
    let (_, mut heard) = tokio::join!(child.ended(), async { [pipe.line().await, pipe.line().await] });
    heard.sort();
    assert_eq!(heard, ["inner", "outer"]);
}

#[tokio::test]
async fn stopped_command_is_asked_first() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let text =
        format!("trap 'echo bye > {path}; exit 4' TERM; echo ready > {path}; while :; do sleep 0.02; done");
    let mut child = start(shell(&text));
    assert_eq!(line(&mut child, &mut pipe).await, "ready");
    child.handle(Input::Stop(Signal::TERM.as_raw()));
    let (end, bye) = tokio::join!(end_of(&mut child), pipe.line());
    assert_eq!((end, bye.as_str()), (End::Code(4), "bye"));
}

#[tokio::test]
async fn suspended_command_can_be_ended() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let mut child = start(shell(&format!("echo ready > {}; kill -STOP $$; exit 0", pipe.path)));
    assert_eq!(line(&mut child, &mut pipe).await, "ready");
    child.handle(Input::Stop(Signal::TERM.as_raw()));
    assert_eq!(end_of(&mut child).await, End::Killed(15));
}

#[tokio::test]
async fn open_file_is_standard_input() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let text = format!("cat > {}", pipe.path);
    let mut child = start(shell_with(CommandInput::Other(reader.into()), &text));
    writer.write_all(b"hello\n").expect("it is read");
    assert_eq!(line(&mut child, &mut pipe).await, "hello");
    drop(writer);
    assert_eq!(end_of(&mut child).await, End::Code(0), "no other process keeps the pipe open");
}

#[tokio::test]
async fn command_inherits_no_socket() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let mut child = start(shell(&format!("ls -l /proc/self/fd | grep -c socket: > {}", pipe.path)));
    let (_, sockets) = tokio::join!(child.ended(), pipe.line());
    assert_eq!(sockets, "0");
}

/// A script that ignores SIGTERM, and prints the ids of its process, of a child in its group, and
/// of one in a session of its own.
fn deaf_family(path: &str) -> String {
    let deaf = format!("trap \"\" TERM; echo $$ > {path}; while :; do sleep 0.02; done");
    format!("trap '' TERM; echo $$ > {path}; sh -c '{deaf}' & setsid sh -c '{deaf}' & wait; wait")
}

#[tokio::test]
async fn command_ends_after_its_guard() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let text = format!("trap 'echo bye > {path}; exit' TERM; echo $$ > {path}; while :; do sleep 0.02; done");
    let child = start(shell(&text));
    let pid = pipe.pid().await;
    // What remains of a process that is killed: the kernel closes its end of the socket.
    drop(child);
    assert_eq!(pipe.line().await, "bye", "it is asked to end first");
    until_gone(pid).await;
}

#[tokio::test]
async fn frozen_guard_command_ends_at_deadline() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let remaining = Duration::from_secs(3);
    let mut child = start(held(&deaf_family(&pipe.path), remaining));
    // Nothing polls the guard from here on.
    for pid in [pipe.pid().await, pipe.pid().await, pipe.pid().await] {
        until_gone(pid).await;
    }
    let outcome = child.ended().await;
    assert!(outcome.loss.is_some(), "{outcome:?}");
    child.reaped().await;
}

#[tokio::test]
async fn frozen_supervisor_command_ends_at_deadline() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let text = format!("echo $PPID > {}; {}", pipe.path, deaf_family(&pipe.path));
    let mut child = start(held(&text, Duration::from_secs(3)));
    let supervisor = pipe.pid().await;
    kill_process(supervisor, Signal::STOP).expect("it is ours");
    let family = [pipe.pid().await, pipe.pid().await, pipe.pid().await];
    assert_eq!(end_of(&mut child).await, End::Killed(9));
    for pid in family {
        until_gone(pid).await;
    }
    assert!(!is_running(supervisor), "it could not report the end of its tree");
}

#[tokio::test]
async fn killed_supervisor_ends_command() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let text =
        format!("setsid sh -c 'echo $$ > {path}; sleep 1000' & echo $PPID > {path}; wait", path = pipe.path);
    let mut child = start(shell(&text));
    let (one, other) = (pipe.pid().await, pipe.pid().await);
    let is_supervisor = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        name.trim_end() == "lock-supervisor"
    };
    let (supervisor, remaining) = if is_supervisor(&one) { (one, other) } else { (other, one) };
    kill_process(supervisor, Signal::KILL).expect("it is ours");
    // By the kernel, or by the guard.
    assert!(matches!(end_of(&mut child).await, End::Killed(9 | 15)));
    until_gone(remaining).await;
}

#[tokio::test]
async fn guard_exit_wakes_stopped_supervisor() {
    let _alone = alone().await;
    // The kernel tells the supervisor when the thread that started it ends.
    let guard = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut pipe = Pipe::new();
            let text = format!("echo $PPID > {path}; echo $$ > {path}; sleep 1000", path = pipe.path);
            let child = start(shell(&text));
            let (supervisor, command) = (pipe.pid().await, pipe.pid().await);
            kill_process(supervisor, Signal::STOP).expect("it is ours");
            drop(child);
            command
        })
    });
    until_gone(guard.join().expect("no panic")).await;
}

#[tokio::test]
async fn supervisor_ignores_termination_signals() {
    let _alone = alone().await;
    let mut pipe = Pipe::new();
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let text = format!("echo $PPID > {}; read line; exit 3", pipe.path);
    let mut child = start(shell_with(CommandInput::Other(reader.into()), &text));
    let supervisor = pipe.pid().await;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        kill_process(supervisor, signal).expect("it is ours");
    }
    let received = async {
        while has_pending_signals(supervisor) {
            sleep(POLL).await;
        }
    };
    timeout(TIMEOUT, received).await.expect("it receives signals");
    assert!(is_running(supervisor));
    writer.write_all(b"go\n").expect("it is read");
    assert_eq!(end_of(&mut child).await, End::Code(3));
}

async fn until_gone(pid: Pid) {
    let gone = async {
        while is_running(pid) {
            sleep(POLL).await;
        }
    };
    timeout(TIMEOUT, gone).await.unwrap_or_else(|_| panic!("{pid} runs on"));
}

/// Returns `true` if a process is there and no zombie.
fn is_running(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Returns `true` if a process has still to act on a signal; one that has ended has not.
fn has_pending_signals(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
    is_running(pid) && pending.into_iter().any(|signals| signals.trim().bytes().any(|digit| digit != b'0'))
}
