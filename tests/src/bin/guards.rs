//! Kills, stops, cuts off and blocks the parts of `lockmesh lock` while its command runs, and
//! compares the moments at which its processes ran with those of the next holder's command on
//! another host: `guards [--rounds N] [--jobs N] [--fault NAME]… [--limit MS] [--binary PATH]`;
//! `guards --list` lists the faults.
//!
//! Windows (`fast`, `default`), lock-delays (0 and 2 s) and commands (`slow`, `stubborn`,
//! `forking`) alternate; `--window NAME`, `--lock-delay SECONDS` and `--command NAME` fix them, the
//! last also to `plain`.
//!
//! The table has minimum, median and maximum of two times: from the fault to the next command's
//! first moment, and from the former command's last moment to it. `--limit` bounds the second, by
//! default to 50 ms, where `!` stands: there the supervisor lives and releases the lock.
//!
//! Needs root. Everything runs in sandboxes that leave nothing behind. If an expectation is broken,
//! the logs stay in `target/hosts/`. Exits with 1 in that case, and with 2 if nothing could be run.

use clap::Parser;
use lockmesh_tests::binary;
use lockmesh_tests::guards::Run;
use lockmesh_tests::guards::command::{BEAT, Kind, beat};
use lockmesh_tests::guards::fault::{self, Fault};
use lockmesh_tests::guards::holder::{LAUNCH, launch};
use lockmesh_tests::guards::round::Fixed;
use lockmesh_tests::hosts::expectation::Window;
use lockmesh_tests::hosts::jobs::{self, Part};
use lockmesh_tests::hosts::sandbox;
use lockmesh_tests::options::{between, exit_code, named};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The default number of rounds per fault.
const ROUNDS: usize = 10;
/// The approximate length of a round.
const ROUND: Duration = Duration::from_secs(15);
/// The default maximum time from the end of a command to the next one's start, if the supervisor
/// lives, in milliseconds.
const LIMIT_MS: u64 = 50;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = ROUNDS, value_parser = between::<1, 1000, usize>)]
    rounds: usize,
    #[arg(long, default_value_t = 1, value_parser = between::<1, 32, usize>)]
    jobs: usize,
    #[arg(long = "fault", value_parser = |word: &str| named(word, fault::ALL.iter().copied(), |fault| fault.name))]
    faults: Vec<Fault>,
    #[arg(long, value_parser = |word: &str| named(word, Window::ALL, |window| window.name()))]
    window: Option<Window>,
    /// In seconds.
    #[arg(long, value_parser = between::<0, 60, u64>)]
    lock_delay: Option<u64>,
    #[arg(long, value_parser = |word: &str| named(word, Kind::ALL, |kind| kind.name()))]
    command: Option<Kind>,
    /// In milliseconds.
    #[arg(long, default_value_t = LIMIT_MS, value_parser = between::<0, 60_000, u64>)]
    limit: u64,
    #[arg(long, value_parser = sandbox::program)]
    binary: Option<PathBuf>,
    #[arg(long, hide = true)]
    inside: bool,
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some(BEAT) => beat(Path::new(&words[1]), &words[2]),
        Some(LAUNCH) => launch(&words[1..]),
        _ => return Options::parse().run().unwrap_or_else(|error| exit_code(Err(error))),
    }
    ExitCode::SUCCESS
}

impl Options {
    fn faults(&self) -> &[Fault] {
        if self.faults.is_empty() { &fault::ALL[..] } else { &self.faults }
    }

    fn run(&self) -> Result<ExitCode, String> {
        if self.list {
            fault::ALL.iter().for_each(|fault| println!("{}", fault.name));
            return Ok(ExitCode::SUCCESS);
        }
        if self.inside {
            return Ok(self.run_inside());
        }
        // Built before the sandbox, which has no network.
        let program = self.binary.clone().unwrap_or_else(|| binary::lockmesh().to_path_buf());
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let rounds = u32::try_from(self.rounds).expect("there are few");
        let part =
            |fault: &Fault| Part { option: "--fault", value: fault.name.into(), length: ROUND * rounds };
        let parts = self.faults().iter().map(part).collect();
        let environment = [("LOCKMESH_BIN", program.into_os_string())];
        jobs::run(parts, self.jobs, &jobs::shared(&arguments), &environment)
    }

    fn run_inside(&self) -> ExitCode {
        let folder = sandbox::prepare();
        let logs = folder.join("logs");
        fs::create_dir(&logs).expect("the folder can be written to");
        let (kind, window) = (self.command, self.window);
        let fixed = Fixed { kind, window, lock_delay: self.lock_delay.map(Duration::from_secs) };
        let (faults, rounds, limit) = (self.faults(), self.rounds, Duration::from_millis(self.limit));
        let report = Run { faults, rounds, fixed, limit, keep: &logs }.run(&folder);
        print!("{report}");
        if report.broken().is_empty() {
            return ExitCode::SUCCESS;
        }
        eprintln!("the logs of this run are in {}", sandbox::keep(&logs).display());
        ExitCode::FAILURE
    }
}
