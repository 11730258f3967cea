//! Hangs the disk of a leader under 50 renewed sessions and a writer: `stall [--rounds N]
//! [--seconds N] [--json]`, by default for 30 s. Needs `strace`.
//!
//! `stall --load SECONDS [--json]` instead runs full load by `lockmesh bench` on a healthy disk and
//! prints the durations of its syncs: no leader may step down.
//!
//! Data are in `target/stall/`, on a real disk. Exits with 1 if an expectation is broken, and with
//! 2 if nothing could be run.

use lockmesh_tests::stall::{hang, load};
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tempfile::TempDir;

/// The default duration of a hang in seconds.
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
                number.ok_or_else(|| format!("{word} {value}: expected a number from 1 to 86400"))
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

    /// Runs everything; returns `true` if all expectations held.
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

/// Creates an empty folder on the disk of the sources; dropping it removes the folder.
fn folder() -> Result<TempDir, String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/stall");
    let made = fs::create_dir_all(&home)
        .and_then(|()| tempfile::Builder::new().prefix("run-").tempdir_in(home.canonicalize()?));
    made.map_err(|error| format!("cannot make a folder in target/stall: {error}"))
}
