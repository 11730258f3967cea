//! Scripts: programs that the agent runs without a shell, each in a process group of its own.
//!
//! A run ends when all processes that hold the script's output have closed it and the script has
//! exited. At the timeout, the whole group is killed, including descendants that outlived the
//! script. A descendant that leaves the group, as daemons do, is not killed.
//!
//! **Invariant:** a group is killed only before its leader has been reaped, so that its number
//! cannot belong to another group.

use super::output::{Tail, io_text};
use super::{KILL_GRACE, Limits, blocking, critical};
use lockmesh_agent_core::registry::Outcome;
use lockmesh_protocol::duration;
use lockmesh_protocol::record::CheckStatus;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout, timeout_at};

/// The size in bytes of the buffer for reading output: the capacity of a pipe.
const READ_SIZE: usize = 64 << 10;

/// The interval at which killed descendants are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(10);

/// A running script.
struct Script {
    group: Group,
    child: Child,
    output: pipe::Receiver,
}

/// A process group, killed when it is dropped.
struct Group(Option<Pid>);

/// Runs a script.
pub(super) async fn execute(args: &[String], limits: &Limits) -> Outcome {
    let Some((program, args)) = args.split_first() else { return critical("exec: no command".into()) };
    let (name, args) = (program.clone(), args.to_vec());
    // The exec may wait for a disk or for a file server.
    let spawned = blocking(move || Script::spawn(&name, &args));
    let mut script = match timeout_at(limits.deadline, spawned).await {
        Ok(Some(Ok(script))) => script,
        Ok(Some(Err(error))) => return critical(start_error(program, &error)),
        Ok(None) => return critical(format!("fork/exec {program}: invalid argument")),
        Err(_) => return critical(timed_out(limits, "")),
    };
    let mut tail = Tail::new(limits.max_output_bytes);
    match timeout_at(limits.deadline, script.finish(&mut tail)).await {
        Ok(Ok(exit)) => Outcome { status: status(exit), output: captured(&tail) },
        Ok(Err(error)) => critical(format!("wait: {}", io_text(&error))),
        Err(_) => {
            // A process that even this cannot end is reaped later.
            let _ = timeout(KILL_GRACE, script.kill()).await;
            critical(timed_out(limits, &captured(&tail)))
        }
    }
}

impl Script {
    fn spawn(program: &str, args: &[String]) -> io::Result<Self> {
        // One pipe for both streams, so that their order is kept.
        let (reader, writer) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(reader.into())?;
        let child = Command::new(program)
            .args(args)
            // A script that reads its input must not take the agent's.
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { group: Group(pid), child, output })
    }

    /// Reads the output to its end, and awaits the exit of the leader.
    async fn finish(&mut self, tail: &mut Tail) -> io::Result<ExitStatus> {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let size = self.output.read(&mut buffer).await?;
            if size == 0 {
                break;
            }
            tail.push(&buffer[..size]);
        }
        let exit = self.child.wait().await?;
        // The leader is reaped: from here on the number may be another group's.
        self.group.0 = None;
        Ok(exit)
    }

    /// Kills the group and reaps its processes.
    async fn kill(&mut self) {
        let group = self.group.0;
        self.group.kill();
        let _ = self.child.wait().await;
        // Only an agent that adopts orphans, such as the first process of a container, has to reap
        // descendants.
        while let Some(group) = group
            && let Ok(reaped) = waitpgid(group, WaitOptions::NOHANG)
        {
            if reaped.is_none() {
                sleep(REAP_INTERVAL).await;
            }
        }
    }
}

impl Group {
    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // Fails only if the group is empty.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn status(exit: ExitStatus) -> CheckStatus {
    match exit.code() {
        Some(0) => CheckStatus::Passing,
        Some(1) => CheckStatus::Warning,
        _ => CheckStatus::Critical,
    }
}

fn captured(tail: &Tail) -> String {
    let (kept, total) = tail.sizes();
    let text = tail.text();
    if total > kept as u64 { format!("Captured {kept} of {total} bytes\n...\n{text}") } else { text }
}

fn timed_out(limits: &Limits, output: &str) -> String {
    let separator = if output.is_empty() { "" } else { "\n\n" };
    format!("Timed out ({}) running check{separator}{output}", duration::format(limits.timeout))
}

fn start_error(program: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound && !program.contains('/') {
        return format!("exec: {program:?}: executable file not found in $PATH");
    }
    format!("fork/exec {program}: {}", io_text(error))
}

#[cfg(test)]
mod tests {
    use super::super::passing;
    use super::super::tests::limits;
    use super::*;
    use rustix::io::Errno;
    use rustix::process::{getpid, set_child_subreaper, test_kill_process_group};
    use std::path::Path;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    const LONG: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    /// Runs a script of the shell.
    async fn shell(script: &str, timeout: Duration) -> Outcome {
        let limits = limits(timeout);
        let outcome = execute(&["/bin/sh".into(), "-c".into(), script.into()], &limits).await;
        assert!(Instant::now() < limits.deadline + KILL_GRACE, "the timeout ends a run");
        outcome
    }

    /// Returns the text behind a marker in a script's output: its group.
    fn group(output: &str) -> Pid {
        let line = output.lines().find_map(|line| line.strip_prefix("group "));
        let number = line.and_then(|number| number.parse().ok()).expect("the script printed it");
        Pid::from_raw(number).expect("a group has a number")
    }

    /// Makes this process the parent of orphans, as the first process of a container is.
    fn adopt_orphans() {
        set_child_subreaper(Some(getpid())).expect("a process may adopt its descendants");
    }

    /// Reaps orphans of a group, and returns `true` if a process is left in it.
    fn exists(group: Pid) -> bool {
        let _ = waitpgid(group, WaitOptions::NOHANG);
        test_kill_process_group(group).is_ok()
    }

    /// Waits until no process is left in a group.
    async fn ended(group: Pid) {
        let is_empty = async {
            while exists(group) {
                sleep(REAP_INTERVAL).await;
            }
        };
        timeout(LONG, is_empty).await.expect("a killed group ends");
    }

    /// Contract: 95.
    #[tokio::test]
    async fn exit_code_sets_status() {
        for (script, status) in [
            ("echo a; exit 0", CheckStatus::Passing),
            ("echo a; exit 1", CheckStatus::Warning),
            ("echo a; exit 2", CheckStatus::Critical),
            ("echo a; kill -9 $$", CheckStatus::Critical),
        ] {
            assert_eq!(shell(script, LONG).await, Outcome { status, output: "a\n".into() }, "{script}");
        }
    }

    #[tokio::test]
    async fn both_streams_captured_stdin_empty() {
        let outcome = shell("echo a; echo b >&2; cat; echo c; echo d >&2", LONG).await;
        assert_eq!(outcome, passing("a\nb\nc\nd\n".into()));
        let path = std::env::var("PATH").expect("tests have a path");
        assert_eq!(shell(r#"printf %s "$PATH""#, LONG).await, passing(path));
        let arguments = ["printf", "%s|", "a b", "$HOME", ""].map(String::from);
        assert_eq!(execute(&arguments, &limits(LONG)).await, passing("a b|$HOME||".into()));
    }

    /// Contract: 95.
    #[tokio::test]
    async fn output_keeps_last_bytes() {
        let script = "printf 'abcd'; head -c 6000 /dev/zero | tr '\\0' x";
        let tail = "x".repeat(4096);
        let output = format!("Captured 4096 of 6004 bytes\n...\n{tail}");
        assert_eq!(shell(script, LONG).await, passing(output));
        let outcome = shell("yes", SECOND).await;
        let start = "Timed out (1s) running check\n\nCaptured 4096 of ";
        assert!(outcome.output.starts_with(start), "{outcome:?}");
        assert!(outcome.output.len() < start.len() + 4096 + 30, "{outcome:?}");
    }

    #[tokio::test]
    async fn unstartable_script_is_critical() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("plain");
        std::fs::write(&file, "").expect("it can be written");
        let file = file.display().to_string();
        for (program, error) in [
            ("/nope/nope", "fork/exec /nope/nope: no such file or directory".to_owned()),
            ("nope-nope", r#"exec: "nope-nope": executable file not found in $PATH"#.to_owned()),
            ("a\0b", "fork/exec a\0b: nul byte found in provided data".to_owned()),
            (&file, format!("fork/exec {file}: permission denied")),
        ] {
            assert_eq!(execute(&[program.into()], &limits(LONG)).await, critical(error));
        }
        assert_eq!(execute(&[], &limits(LONG)).await, critical("exec: no command".into()));
    }

    /// Contract: 95.
    #[tokio::test]
    async fn timeout_kills_process_group() {
        adopt_orphans();
        let mut runs = JoinSet::new();
        for script in [
            "trap '' TERM INT HUP; while :; do read x </dev/zero; done",
            "sleep 1000",
            "sleep 1000 & sleep 1000 & wait",
            // The leader exits, and its child holds the output.
            "sleep 1000 & exit 0",
            // The output is closed, and the leader does not exit.
            "exec >/dev/null 2>&1; sleep 1000",
        ] {
            runs.spawn(async move {
                let outcome = shell(&format!("echo group $$; {script}"), SECOND).await;
                let group = group(&outcome.output);
                let output = format!("Timed out (1s) running check\n\ngroup {}\n", group.as_raw_nonzero());
                assert_eq!(outcome, critical(output), "{script}");
                assert_eq!(test_kill_process_group(group), Err(Errno::SRCH), "{script}: all are reaped");
            });
        }
        let silent = shell("sleep 1000", SECOND).await;
        assert_eq!(silent, critical("Timed out (1s) running check".into()));
        runs.join_all().await;
    }

    #[tokio::test]
    async fn dropped_run_leaves_no_process() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        adopt_orphans();
        let file = folder.path().join("group");
        let script = format!("echo group $$ > {0}.new; mv {0}.new {0}; sleep 1000", file.display());
        let begun = async {
            while !Path::exists(&file) {
                sleep(REAP_INTERVAL).await;
            }
        };
        tokio::select! {
            outcome = shell(&script, LONG) => panic!("it ended: {outcome:?}"),
            () = begun => {}
        }
        ended(group(&std::fs::read_to_string(&file).expect("it is there"))).await;
    }

    #[tokio::test]
    async fn runs_leave_no_descriptors() {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        for _ in 0..3 {
            shell("echo a", LONG).await;
        }
        let before = open();
        for _ in 0..50 {
            shell("sleep 0 & echo a", LONG).await;
        }
        // Other tests of this process open files meanwhile, but not one for each run.
        assert!(open() < before + 40, "descriptors leak");
    }
}
