//! Lets the disk of a leader hang under 50 sessions that are renewed and a writer: `stall [--rounds
//! N] [--seconds N] [--json]`, 30 s long unless told otherwise. Needs `strace`.
//!
//! `stall --load SECONDS [--json]` loads a cluster fully with `lockmesh bench` instead, on a disk
//! that does not hang, and shows how long its syncs took: no leader may step down.
//!
//! Data lie in `target/stall/`, on a real disk. Fails with 1 if an expectation is broken, and with
//! 2 if nothing could be run.

use lockmesh_tests::stall::{hang, load};
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tempfile::TempDir;

/// How long a disk hangs, unless told otherwise.
const SECONDS: u64 = 30;

struct Options {
    rounds: u64,
    seconds: u64,
    load: Option<u64>,
    json: bool,
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| options.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stall: {error}");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { rounds: 1, seconds: SECONDS, load: None, json: false };
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
                let number = value.parse().ok().filter(|number| (1..=86_400).contains(number));
                number.ok_or_else(|| format!("{word} {value}: say a number from 1 to 86400"))
            };
            match word.as_str() {
                "--rounds" => options.rounds = value()?,
                "--seconds" => options.seconds = value()?,
                "--load" => options.load = Some(value()?),
                "--json" => options.json = true,
                other => {
                    return Err(format!(
                        "unknown option {other}; see the first lines of tests/src/bin/stall.rs"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Runs it; whether everything was as expected.
    fn run(&self) -> Result<bool, String> {
        if let Some(seconds) = self.load {
            let report = load::run(folder()?.path(), Duration::from_secs(seconds));
            self.print(&report);
            return Ok(report.is_clean());
        }
        let strace = Command::new("strace").arg("-V").output();
        strace.map_err(|error| format!("cannot start strace ({error}): install the package strace"))?;
        let mut is_clean = true;
        for _ in 0..self.rounds {
            let hung = hang(folder()?.path(), Duration::from_secs(self.seconds));
            self.print(&hung);
            is_clean &= hung.broken.is_empty();
        }
        Ok(is_clean)
    }

    fn print(&self, report: &(impl Serialize + Display)) {
        match self.json {
            true => println!("{}", serde_json::to_string(report).expect("a report is JSON")),
            false => print!("{report}"),
        }
    }
}

/// An empty folder on the disk of the sources, which goes away with the run.
fn folder() -> Result<TempDir, String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/stall");
    let made = fs::create_dir_all(&home)
        .and_then(|()| tempfile::Builder::new().prefix("run-").tempdir_in(home.canonicalize()?));
    made.map_err(|error| format!("cannot make a folder in target/stall: {error}"))
}
