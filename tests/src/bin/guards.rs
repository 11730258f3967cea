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

use lockmesh_tests::binary;
use lockmesh_tests::guards::Run;
use lockmesh_tests::guards::command::{BEAT, Kind, beat};
use lockmesh_tests::guards::fault::{self, Fault};
use lockmesh_tests::guards::holder::{LAUNCH, launch};
use lockmesh_tests::guards::round::Fixed;
use lockmesh_tests::hosts::expectation::Window;
use lockmesh_tests::hosts::jobs::{self, Part};
use lockmesh_tests::hosts::sandbox;
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
/// lives.
const LIMIT: Duration = Duration::from_millis(50);

struct Options {
    rounds: usize,
    jobs: usize,
    faults: Vec<Fault>,
    fixed: Fixed,
    limit: Duration,
    binary: Option<PathBuf>,
    is_inside: bool,
    is_list: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some(BEAT) => beat(Path::new(&words[1]), &words[2]),
        Some(LAUNCH) => launch(&words[1..]),
        _ => {
            return Options::parse(words.into_iter()).and_then(|options| options.run()).unwrap_or_else(
                |error| {
                    eprintln!("guards: {error}");
                    ExitCode::from(2)
                },
            );
        }
    }
    ExitCode::SUCCESS
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: ROUNDS,
            jobs: 1,
            faults: Vec::new(),
            fixed: Fixed::default(),
            limit: LIMIT,
            binary: None,
            is_inside: false,
            is_list: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let mut number = |most: u16| {
                let value = value()?;
                let number = value.parse().ok().filter(|number: &u16| *number <= most);
                number.ok_or_else(|| format!("{word} {value}: expected a number up to {most}"))
            };
            match word.as_str() {
                "--rounds" => options.rounds = number(1000)?.max(1).into(),
                "--jobs" => options.jobs = number(32)?.max(1).into(),
                "--limit" => options.limit = Duration::from_millis(number(60_000)?.into()),
                "--lock-delay" => {
                    options.fixed.lock_delay = Some(Duration::from_secs(number(60)?.into()));
                }
                "--fault" => options.faults.push(named(&word, &value()?, fault::ALL, |fault| fault.name)?),
                "--window" => {
                    options.fixed.window = Some(named(&word, &value()?, Window::ALL, |w| w.name())?);
                }
                "--command" => {
                    options.fixed.kind = Some(named(&word, &value()?, Kind::ALL, |kind| kind.name())?);
                }
                "--binary" => options.binary = Some(sandbox::program(&value()?)?),
                "--list" => options.is_list = true,
                sandbox::INSIDE => options.is_inside = true,
                other => {
                    return Err(format!(
                        "unknown option {other}; see the first lines of tests/src/bin/guards.rs"
                    ));
                }
            }
        }
        if options.faults.is_empty() {
            options.faults = fault::ALL.to_vec();
        }
        Ok(options)
    }

    fn run(&self) -> Result<ExitCode, String> {
        if self.is_list {
            fault::ALL.iter().for_each(|fault| println!("{}", fault.name));
            return Ok(ExitCode::SUCCESS);
        }
        if self.is_inside {
            return Ok(self.run_inside());
        }
        // Built before the sandbox, which has no network.
        let program = self.binary.clone().unwrap_or_else(|| binary::lockmesh().to_path_buf());
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let rounds = u32::try_from(self.rounds).expect("there are few");
        let part =
            |fault: &Fault| Part { option: "--fault", value: fault.name.into(), length: ROUND * rounds };
        let parts = self.faults.iter().map(part).collect();
        let environment = [("LOCKMESH_BIN", program.into_os_string())];
        jobs::run(parts, self.jobs, &jobs::shared(&arguments), &environment)
    }

    fn run_inside(&self) -> ExitCode {
        let folder = sandbox::prepare();
        let logs = folder.join("logs");
        fs::create_dir(&logs).expect("the folder can be written to");
        let (faults, rounds, fixed, limit) = (&*self.faults, self.rounds, self.fixed, self.limit);
        let report = Run { faults, rounds, fixed, limit, keep: &logs }.run(&folder);
        print!("{report}");
        if report.broken().is_empty() {
            return ExitCode::SUCCESS;
        }
        eprintln!("the logs of this run are in {}", sandbox::keep(&logs).display());
        ExitCode::FAILURE
    }
}

/// Returns the value with this name.
fn named<T: Copy>(
    option: &str,
    word: &str,
    values: impl IntoIterator<Item = T>,
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let values: Vec<T> = values.into_iter().collect();
    let found = values.iter().copied().find(|value| name(*value) == word);
    let names: Vec<&str> = values.into_iter().map(name).collect();
    found.ok_or_else(|| format!("{option} {word}: expected one of {}", names.join(", ")))
}
