//! A disk that hangs: every sync of the writing threads is slow. `strace` delays those calls, and
//! the process is not affected otherwise.

use crate::dialect::let_pass;
use crate::fleet::shell;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The thread of a server that writes the log.
pub const LOG_WRITER: &str = "log writer";
/// The thread of a server that writes checkpoints of the state.
pub const CHECKPOINT_WRITER: &str = "checkpoint writer";
/// The maximum time for `strace` to attach to a thread.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two polls.
const GLANCE: Duration = Duration::from_millis(5);

/// A disk that hangs for one process, until [`Self::end`].
pub struct Hang {
    strace: Child,
}

impl Hang {
    /// Delays each sync of these threads of a process by `delay`. Returns when `strace` is attached
    /// to all of them.
    pub fn start(process: u32, threads: &[&str], delay: Duration) -> Self {
        let threads: Vec<String> = threads.iter().map(|name| thread_named(process, name)).collect();
        let inject = format!("inject=fdatasync,fsync:delay_enter={}", delay.as_micros());
        let mut strace = Command::new("strace");
        strace.args(["-q", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", &inject]);
        strace.args(threads.iter().flat_map(|thread| ["-p", thread]));
        let strace = strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut hang = Self { strace: strace.expect("strace can be started") };
        let begun = Instant::now();
        while !threads.iter().all(|thread| is_traced(process, thread)) {
            hang.assert_running();
            assert!(begun.elapsed() < TIMEOUT, "strace did not attach to the threads {threads:?}");
            let_pass(GLANCE);
        }
        hang
    }

    /// Ends the delays.
    pub fn end(mut self) {
        self.assert_running();
        assert!(shell(&format!("kill -INT {}", self.strace.id())), "strace cannot be ended");
        self.strace.wait().expect("strace can be waited for");
    }

    fn assert_running(&mut self) {
        let ended = self.strace.try_wait().expect("it can be asked");
        assert!(ended.is_none(), "strace could not delay the threads: {ended:?}");
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        // After `end` the process is already gone.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Returns the number of a thread of a process.
fn thread_named(process: u32, name: &str) -> String {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let is_it =
        |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == shown(name));
    let found = threads.flatten().find(|thread| is_it(&thread.path()));
    let found = found.unwrap_or_else(|| panic!("process {process} has no thread {name:?}"));
    found.file_name().to_str().expect("a number").to_owned()
}

/// Returns a thread's name as the kernel stores it.
fn shown(name: &str) -> &str {
    &name[..name.len().min(15)]
}

fn is_traced(process: u32, thread: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn threads_found_by_truncated_name() {
        let names = [LOG_WRITER, CHECKPOINT_WRITER];
        assert_eq!(names.map(shown), ["log writer", "checkpoint writ"]);
        let barrier = Arc::new(Barrier::new(2));
        let (name, met) = (CHECKPOINT_WRITER.to_owned(), Arc::clone(&barrier));
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            met.wait();
            met.wait();
        });
        barrier.wait();
        let number = thread_named(std::process::id(), CHECKPOINT_WRITER);
        assert!(!is_traced(std::process::id(), &number));
        barrier.wait();
        thread.expect("a thread can be started").join().expect("it does not panic");
    }
}
