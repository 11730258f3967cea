//! Runs `lockmesh` with any arguments as a separate process, reads its output, signals it and ends
//! it.
//!
//! The process cannot outlive its test. A small parent shell waits for the end of its standard
//! input, which the kernel closes in every case when the test ends, and then kills the process.

use crate::binary;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The maximum time for an event that must happen; generous, for loaded machines.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a program in the background, prints its process number, reports its exit code, and kills
/// it once standard input ends. The process that becomes the program prints the number itself:
/// another process could print it after the program's first line.
const WATCHDOG: &str = r#"exec 3<&0; exec 2>&1; sh -c 'echo "$$"; exec "$@"' sh "$@" </dev/null 3<&- & child=$!
(cat <&3 >/dev/null; kill -9 "$child") >/dev/null & exec 3<&-; wait "$child"; echo "ended with $?""#;

/// A started program. Killed when dropped; a program that panicked fails its test then.
pub struct Process {
    name: String,
    watchdog: Child,
    number: u32,
    heard: Arc<Heard>,
    listener: Option<JoinHandle<()>>,
}

/// The lines that the program has printed, on both of its outputs.
#[derive(Default)]
struct Heard {
    lines: Mutex<(Vec<String>, bool)>,
    news: Condvar,
}

impl Process {
    /// Starts `lockmesh` with these arguments.
    pub fn lockmesh(arguments: &[&str]) -> Self {
        Self::start(binary::lockmesh(), arguments)
    }

    /// Starts a program with these arguments.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "sh"]).arg(program).args(arguments);
        watchdog.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut watchdog = watchdog.spawn().expect("sh can be started");
        let mut output = BufReader::new(watchdog.stdout.take().expect("standard output is piped"));
        let mut number = String::new();
        output.read_line(&mut number).expect("the watchdog prints the process number");
        let heard = Arc::<Heard>::default();
        let hearing = Arc::clone(&heard);
        let listener = thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| hearing.push(line));
            hearing.end();
        });
        Self {
            name: format!("{} {}", program.display(), arguments.join(" ")),
            watchdog,
            number: number.trim().parse().expect("the watchdog prints a number"),
            heard,
            listener: Some(listener),
        }
    }

    /// Returns the process number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits for a line that contains this text, printed at any time since the start, and returns
    /// it.
    #[track_caller]
    pub fn says(&self, text: &str) -> String {
        self.heard
            .wait_for(|line| line.contains(text))
            .unwrap_or_else(|| panic!("{} did not print {text:?}, but:\n{}", self.name, self.heard.text()))
    }

    /// Returns all output so far.
    pub fn said(&self) -> String {
        self.heard.text()
    }

    /// Sends a signal, by its name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.number)]).status();
        assert!(sent.expect("sh can be started").success(), "{} is gone", self.name);
    }

    /// Waits until the process exits on its own or due to an earlier signal. Returns its exit code
    /// in the shell's convention.
    #[track_caller]
    pub fn ends(&self) -> i32 {
        let line = self.says("ended with ");
        let code = line.rsplit(' ').next().and_then(|code| code.parse().ok());
        code.expect("the watchdog prints a number")
    }

    /// Kills the process with `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        drop(self.watchdog.stdin.take());
        let gone: std::io::Result<ExitStatus> = self.watchdog.wait();
        gone.expect("the watchdog can be waited for");
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener does not panic");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.heard.text());
        }
        self.kill();
        let said = self.heard.text();
        let panicked = said.lines().any(|line| line.starts_with("thread '") && line.contains("panicked at"));
        assert!(!panicked || thread::panicking(), "{} panicked:\n{said}", self.name);
    }
}

impl Heard {
    fn push(&self, line: String) {
        self.lines.lock().expect("the mutex is not poisoned").0.push(line);
        self.news.notify_all();
    }

    fn end(&self) {
        self.lines.lock().expect("the mutex is not poisoned").1 = true;
        self.news.notify_all();
    }

    fn wait_for(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let lines = self.lines.lock().expect("the mutex is not poisoned");
        let missing =
            |(lines, ended): &mut (Vec<String>, bool)| !*ended && !lines.iter().any(|line| wanted(line));
        let (lines, _) =
            self.news.wait_timeout_while(lines, TIMEOUT, missing).expect("the mutex is not poisoned");
        lines.0.iter().find(|line| wanted(line)).cloned()
    }

    fn text(&self) -> String {
        self.lines.lock().expect("the mutex is not poisoned").0.join("\n")
    }
}

/// Runs `lockmesh` to completion. Returns exit code, standard output and standard error.
pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let done = Command::new(binary::lockmesh()).args(arguments).stdin(Stdio::null()).output();
    let done = done.expect("lockmesh can be started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is printed is UTF-8");
    (done.status.code().unwrap_or(-1), text(done.stdout), text(done.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_precedes_program_output() {
        for _ in 0..50 {
            let process = Process::start(Path::new("/bin/sh"), &["-c", "echo early $$"]);
            process.says(&format!("early {}", process.number()));
            assert_eq!(process.ends(), 0);
        }
    }

    #[test]
    #[should_panic(expected = "panicked:")]
    fn program_panic_fails_test() {
        let panic = "echo \"thread 'main' panicked at src/main.rs:1:1:\"";
        Process::start(Path::new("/bin/sh"), &["-c", panic]).ends();
    }
}
