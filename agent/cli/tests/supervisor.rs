//! Programs under their supervisor: ends, signals, and what is left when a process of ours is
//! killed.

use lockmesh_cli::command::lock::child::{Child, End, Input, Program, Signals};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};

/// How often a process is looked for.
const POLL: Duration = Duration::from_millis(20);

/// The longest that a loaded machine may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A grace that no test waits for.
const LONG: Duration = Duration::from_secs(600);

fn shell(text: &str) -> Program {
    let words = ["/bin/sh", "-c", text].map(OsString::from).into();
    Program { words, stdin: Input::Null, environment: vec![("LOCKMESH_FENCE", "7".into())], grace: LONG }
}

fn spawn(program: &Program) -> io::Result<Child> {
    Child::start_under(Path::new(env!("CARGO_BIN_EXE_lockmesh")), program)
}

async fn start(text: &str) -> Child {
    started(&shell(text)).await
}

async fn started(program: &Program) -> Child {
    let mut child = spawn(program).expect("the supervisor starts");
    child.started().await.expect("it starts");
    child
}

#[tokio::test]
async fn a_signal_cuts_a_wait_for_an_answer_short() {
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
}

#[tokio::test]
async fn its_end_is_told() {
    for (text, end, code) in
        [("exit 0", End::Code(0), 0), ("exit 3", End::Code(3), 3), ("kill -9 $$", End::Killed(9), 137)]
    {
        let mut child = start(text).await;
        let ended = child.ended().await;
        assert_eq!((ended, ended.shell_code()), (end, code), "{text}");
        assert_eq!(child.ended().await, end, "and told again");
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error() {
    let program = Program { words: vec!["/no/such/program".into()], ..shell("") };
    let mut child = spawn(&program).expect("the supervisor starts");
    assert_eq!(child.started().await.expect_err("not there").kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn the_environment_reaches_it_and_standard_input_does_not() {
    let mut pipe = Pipe::new();
    let text = format!("echo \"$LOCKMESH_FENCE,$(cat)\" > {}", pipe.path);
    let mut child = start(&text).await;
    assert_eq!(pipe.line().await, "7,");
    assert_eq!(child.ended().await, End::Code(0));
}

#[tokio::test]
async fn signals_reach_the_whole_group() {
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let inner =
        format!("trap \"echo inner > {path}; exit\" USR1; echo ready > {path}; while :; do sleep 0.02; done");
    let text = format!("trap 'echo outer > {path}' USR1; sh -c '{inner}' & wait; wait; wait");
    let mut child = start(&text).await;
    assert_eq!(pipe.line().await, "ready");
    child.signal(Signal::USR1);
    let mut heard = [pipe.line().await, pipe.line().await];
    heard.sort();
    assert_eq!(heard, ["inner", "outer"]);
    child.stop(LONG).await;
}

#[tokio::test]
async fn a_stop_is_asked_for_first() {
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let text =
        format!("trap 'echo bye > {path}; exit 4' TERM; echo ready > {path}; while :; do sleep 0.02; done");
    let mut child = start(&text).await;
    assert_eq!(pipe.line().await, "ready");
    assert_eq!(child.stop(LONG).await, End::Code(4));
    assert_eq!(pipe.line().await, "bye");
}

#[tokio::test]
async fn who_does_not_listen_is_killed_with_all_of_its_group() {
    let mut pipe = Pipe::new();
    let path = &pipe.path;
    let deaf = format!("trap \"\" TERM; echo $$ > {path}; while :; do sleep 0.02; done");
    // The child itself obeys; what it started does not.
    let text = format!("sh -c '{deaf}' & wait");
    let mut child = start(&text).await;
    let deaf: i32 = pipe.line().await.parse().expect("a process id");
    let deaf = Pid::from_raw(deaf).expect("not zero");
    assert_eq!(child.stop(Duration::from_millis(200)).await, End::Killed(15));
    until_gone(deaf).await;
}

#[tokio::test]
async fn a_stopped_process_can_be_ended_too() {
    let mut child = start("kill -STOP $$; exit 0").await;
    assert_eq!(child.stop(LONG).await, End::Killed(15));
}

#[tokio::test]
async fn a_kill_asks_nobody() {
    let mut pipe = Pipe::new();
    let text = format!("trap '' TERM; echo ready > {}; while :; do sleep 0.02; done", pipe.path);
    let mut child = start(&text).await;
    assert_eq!(pipe.line().await, "ready");
    assert_eq!(child.kill().await, End::Killed(9));
}

#[tokio::test]
async fn another_file_is_its_standard_input() {
    let mut pipe = Pipe::new();
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let text = format!("cat > {}", pipe.path);
    let mut child = started(&Program { stdin: Input::Other(reader.into()), ..shell(&text) }).await;
    writer.write_all(b"hello\n").expect("it is read");
    assert_eq!(pipe.line().await, "hello");
    drop(writer);
    assert_eq!(child.ended().await, End::Code(0), "no other process keeps the pipe open");
}

#[tokio::test]
async fn the_way_to_the_supervisor_is_not_inherited() {
    let mut pipe = Pipe::new();
    let text = format!("ls -l /proc/self/fd | grep -c socket: > {}", pipe.path);
    let mut child = start(&text).await;
    assert_eq!(pipe.line().await, "0");
    child.ended().await;
}

/// A program whose child ignores SIGTERM, and their process ids.
async fn deaf_family(pipe: &mut Pipe, grace: Duration) -> (Child, [Pid; 2]) {
    let path = &pipe.path;
    let deaf = format!("trap \"\" TERM; echo $$ > {path}; while :; do sleep 0.02; done");
    let text = format!("sh -c '{deaf}' & trap 'echo bye > {path}; exit' TERM; echo $$ > {path}; wait; wait");
    let child = started(&Program { grace, ..shell(&text) }).await;
    let mut pids = [0, 0];
    for pid in &mut pids {
        *pid = pipe.line().await.parse().expect("a process id");
    }
    (child, pids.map(|pid| Pid::from_raw(pid).expect("not zero")))
}

#[tokio::test]
async fn it_ends_when_its_starter_is_gone() {
    let mut pipe = Pipe::new();
    let (child, family) = deaf_family(&mut pipe, Duration::from_millis(200)).await;
    // What remains of a process that is killed: the kernel closes its end of the socket.
    drop(child);
    assert_eq!(pipe.line().await, "bye", "it is asked to end first");
    for pid in family {
        until_gone(pid).await;
    }
}

#[tokio::test]
async fn it_ends_when_its_supervisor_is_killed() {
    let mut pipe = Pipe::new();
    let text = format!("echo $PPID > {}; while :; do sleep 0.02; done", pipe.path);
    let mut child = start(&text).await;
    let supervisor = Pid::from_raw(pipe.line().await.parse().expect("a process id")).expect("not zero");
    let name = std::fs::read_to_string(format!("/proc/{supervisor}/comm")).expect("it runs");
    assert_eq!(name.trim_end(), "lock-supervisor");
    kill_process(supervisor, Signal::KILL).expect("it is ours");
    let ended = timeout(TIMEOUT, child.ended()).await.expect("it runs on");
    assert_eq!(ended, End::Killed(15));
}

#[tokio::test]
async fn a_supervisor_outlives_what_ends_other_processes() {
    let mut pipe = Pipe::new();
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let text = format!("echo $PPID > {}; read line; exit 3", pipe.path);
    let mut child = started(&Program { stdin: Input::Other(reader.into()), ..shell(&text) }).await;
    let supervisor = Pid::from_raw(pipe.line().await.parse().expect("a process id")).expect("not zero");
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
    assert_eq!(child.ended().await, End::Code(3));
}

async fn until_gone(pid: Pid) {
    let gone = async {
        while is_running(pid) {
            sleep(POLL).await;
        }
    };
    timeout(TIMEOUT, gone).await.unwrap_or_else(|_| panic!("{pid} runs on"));
}

/// Whether a process is there and no zombie.
fn is_running(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Whether a process has still to act on a signal; one that has ended has not.
fn has_pending_signals(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
    is_running(pid) && pending.into_iter().any(|signals| signals.trim().bytes().any(|digit| digit != b'0'))
}
