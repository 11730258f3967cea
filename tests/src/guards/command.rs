//! The command under the lock: a process or a tree of processes. Each process records the first and
//! the last moment at which it ran, every millisecond, so a record ends with its process.

use crate::dialect::let_pass;
use crate::hosts::belief::{Belief, BootTime};
use crate::member::text;
use rustix::process::setsid;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The option that makes this program a command: it is followed by the folder of the records and
/// the kind.
pub const BEAT: &str = "--beat";

/// The interval between two stamps.
const INTERVAL: Duration = Duration::from_millis(1);
/// The same for each process of a chain.
const CHAIN_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between two lines of output.
const OUTPUT_INTERVAL: Duration = Duration::from_millis(10);
/// The time for which a slow command runs after SIGTERM.
const SLOW: Duration = Duration::from_secs(4);
/// The number of processes that a forking command keeps alive, apart from itself.
const CHAINS: u32 = 8;
/// The life of each of them; it then starts its successor and exits.
const LINK: Duration = Duration::from_millis(250);
/// The kind of a process in such a chain, before its number.
const LINK_PREFIX: &str = "link-";
/// The shell text that runs a program which ignores SIGTERM, and whose children do.
const IGNORE_TERM: &str = "trap '' TERM; exec \"$@\"";

/// The behavior of a command that is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ends immediately on SIGTERM.
    Plain,
    /// Needs 4 s to end.
    Slow,
    /// Ignores SIGTERM.
    Stubborn,
    /// Ignores SIGTERM and starts processes all the time, also while it is killed. Each is an
    /// orphan as soon as its successor runs, and every second one leads a session of its own.
    Forking,
}

impl Kind {
    /// All kinds, those that alternate first.
    pub const ALL: [Self; 4] = [Self::Slow, Self::Stubborn, Self::Forking, Self::Plain];

    /// Returns the kind's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Slow => "slow",
            Self::Stubborn => "stubborn",
            Self::Forking => "forking",
        }
    }

    /// Returns the command line that records in this folder.
    pub fn words(self, folder: &Path) -> Vec<String> {
        let shell = match self {
            Self::Plain | Self::Slow => &[][..],
            Self::Stubborn | Self::Forking => &["sh", "-c", IGNORE_TERM, "sh"],
        };
        let shell = shell.iter().map(|word| (*word).to_owned());
        shell.chain([text(&ourselves()), BEAT.into(), text(folder), self.name().into()]).collect()
    }
}

/// Returns the path of this program.
pub fn ourselves() -> PathBuf {
    std::env::current_exe().expect("a running program has a path")
}

/// Runs the command, which records in this folder.
pub fn beat(folder: &Path, kind: &str) {
    let record = Record::create(folder);
    if let Some(number) = kind.strip_prefix(LINK_PREFIX) {
        let number = number.parse().expect("a link has a number");
        return link(&record, folder, number);
    }
    thread::spawn(print_lines);
    if kind == Kind::Slow.name() {
        return end_slowly(&record);
    }
    let chains = if kind == Kind::Forking.name() { CHAINS } else { 0 };
    // Their ends are not waited for: each only starts its successor.
    let _links = Vec::from_iter((0..chains).map(|number| start_link(folder, number)));
    loop {
        record.stamp();
        let_pass(INTERVAL);
    }
}

/// Prints lines until standard output is gone. A full output stops this thread alone.
fn print_lines() {
    while writeln!(io::stdout(), "the command runs").is_ok() {
        let_pass(OUTPUT_INTERVAL);
    }
}

/// Stamps until 4 s after the first SIGTERM.
#[tokio::main(flavor = "current_thread")]
async fn end_slowly(record: &Record) {
    let mut terminate = signal(SignalKind::terminate()).expect("the signal can be intercepted");
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut end = None;
    while end.is_none_or(|end| Instant::now() < end) {
        record.stamp();
        tokio::select! {
            _ = terminate.recv(), if end.is_none() => end = Some(Instant::now() + SLOW),
            _ = ticks.tick() => {}
        }
    }
}

/// One process of a chain.
fn link(record: &Record, folder: &Path, number: u32) {
    if number % 2 == 1 {
        setsid().expect("a started process leads no group");
    }
    let end = Instant::now() + LINK;
    while Instant::now() < end {
        record.stamp();
        let_pass(CHAIN_INTERVAL);
    }
    drop(start_link(folder, number + 1));
}

fn start_link(folder: &Path, number: u32) -> Child {
    let link = Command::new(ourselves()).arg(BEAT).arg(folder).arg(format!("{LINK_PREFIX}{number}")).spawn();
    link.expect("a process can be started")
}

/// The record of one process: two moments in nanoseconds.
struct Record(File);

impl Record {
    fn create(folder: &Path) -> Self {
        let now = BootTime::now().0;
        let path = folder.join(format!("{}-{now}", std::process::id()));
        let file = File::create_new(path).expect("the name is new and the folder exists");
        file.write_all_at(&[now.to_le_bytes(), now.to_le_bytes()].concat(), 0)
            .expect("a record can be written");
        Self(file)
    }

    fn stamp(&self) {
        self.0.write_all_at(&BootTime::now().0.to_le_bytes(), 8).expect("a record can be written");
    }

    fn read(path: &Path) -> Option<Belief> {
        let (first, last) =
            fs::read(path).ok()?.split_first_chunk().map(|(first, last)| (*first, last.to_vec()))?;
        let moment = |bytes| BootTime(u64::from_le_bytes(bytes));
        Some(Belief { first: moment(first), last: moment(last.try_into().ok()?) })
    }
}

/// Returns the first and the last moment at which any process of a command ran; `None` if none did
/// so far.
pub fn recorded(folder: &Path) -> Option<Belief> {
    let records = fs::read_dir(folder).expect("the folder was made").flatten();
    let runs = records.filter_map(|record| Record::read(&record.path()));
    runs.reduce(|one, other| Belief { first: one.first.min(other.first), last: one.last.max(other.last) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_moments_span_all_processes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(recorded(folder.path()), None);
        fs::write(folder.path().join("half"), [0; 12]).expect("it can be written to");
        assert_eq!(recorded(folder.path()), None, "a record that is being created");
        let before = BootTime::now();
        let first = Record::create(folder.path());
        let second = Record::create(folder.path());
        let between = BootTime::now();
        second.stamp();
        first.stamp();
        let span = recorded(folder.path()).expect("two records");
        assert!(before <= span.first && span.first < between && between <= span.last, "{span:?}");
    }
}
