//! Hangs the disk of a leader under 50 renewed sessions and a writer: `stall [--rounds N]
//! [--seconds N] [--json]`, by default for 30 s. Needs `strace`.
//!
//! `stall --load SECONDS [--json]` instead runs full load by `lockmesh bench` on a healthy disk and
//! prints the durations of its syncs: no leader may step down.
//!
//! Data are in `target/stall/`, on a real disk. Exits with 1 if an expectation is broken, and with
//! 2 if nothing could be run.

use clap::Parser;
use lockmesh_tests::options::{between, exit_code, print};
use lockmesh_tests::stall::{hang, load};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tempfile::TempDir;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 1, value_parser = between::<1, 86_400, u64>)]
    rounds: u64,
    #[arg(long, default_value_t = 30, value_parser = between::<1, 86_400, u64>)]
    seconds: u64,
    #[arg(long, value_parser = between::<1, 86_400, u64>)]
    load: Option<u64>,
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit_code(Options::parse().run())
}

impl Options {
    /// Runs everything; returns `true` if all expectations held.
    fn run(&self) -> Result<bool, String> {
        if let Some(seconds) = self.load {
            let report = load::run(folder()?.path(), Duration::from_secs(seconds));
            print(&report, self.json);
            return Ok(report.is_clean());
        }
        let strace = Command::new("strace").arg("-V").output();
        strace.map_err(|error| format!("cannot start strace ({error}): install the package strace"))?;
        let mut is_clean = true;
        for _ in 0..self.rounds {
            let hung = hang(folder()?.path(), Duration::from_secs(self.seconds));
            print(&hung, self.json);
            is_clean &= hung.broken.is_empty();
        }
        Ok(is_clean)
    }
}

/// Creates an empty folder on the disk of the sources; dropping it removes the folder.
fn folder() -> Result<TempDir, String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/stall");
    let made = fs::create_dir_all(&home)
        .and_then(|()| tempfile::Builder::new().prefix("run-").tempdir_in(home.canonicalize()?));
    made.map_err(|error| format!("cannot make a folder in target/stall: {error}"))
}
