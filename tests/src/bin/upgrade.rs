//! Upgrades three servers and three agents of an older build to a newer one, one after another and
//! under load: `upgrade --old PATH [--new PATH] [--rounds N] [--json]`. By default the newer build
//! is made from the sources.
//!
//! The older build must exist, for example that of the commit a8f45583, the last one whose agents
//! know no services:
//!
//! ```text
//! git worktree add /tmp/older a8f45583
//! cargo build --manifest-path /tmp/older/Cargo.toml --target-dir /tmp/older-target --bin lockmesh
//! cargo run -p lockmesh-tests --bin upgrade -- --old /tmp/older-target/debug/lockmesh
//! ```
//!
//! Exits with 1 if an expectation is broken, and with 2 if nothing could be run.

use lockmesh_tests::{binary, upgrade};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The option that marks a process whose default program is the older build.
const INSIDE: &str = "--inside";
/// The number of servers.
const SERVERS: usize = 3;

#[derive(Default)]
struct Options {
    old: Option<PathBuf>,
    new: Option<PathBuf>,
    rounds: Option<u64>,
    json: bool,
    is_inside: bool,
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| options.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("upgrade: {error}");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--old" => options.old = Some(program(&value()?)?),
                "--new" => options.new = Some(program(&value()?)?),
                "--rounds" => {
                    let value = value()?;
                    let rounds = value.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
                    let wrong = || format!("--rounds {value}: expected a number from 1 to 1000");
                    options.rounds = Some(rounds.ok_or_else(wrong)?);
                }
                "--json" => options.json = true,
                INSIDE => options.is_inside = true,
                other => {
                    return Err(format!(
                        "unknown option {other}; see the first lines of tests/src/bin/upgrade.rs"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Runs the upgrade; returns `true` if all expectations held.
    fn run(&self) -> Result<bool, String> {
        let old = self.old.as_ref().ok_or("specify the program of the older build with --old")?;
        let new = self.new.clone().unwrap_or_else(|| binary::lockmesh().to_owned());
        if !self.is_inside {
            // In the new process the older build is the default program.
            let me = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
            let mut inside = Command::new(me);
            inside.args(std::env::args_os().skip(1)).arg(INSIDE).arg("--new").arg(new);
            let status = inside.env("LOCKMESH_BIN", old).status();
            return Ok(status
                .map_err(|error| format!("cannot start this program again: {error}"))?
                .success());
        }
        let mut is_clean = true;
        for _ in 0..self.rounds.unwrap_or(1) {
            let folder = tempfile::Builder::new().prefix("lockmesh-upgrade-").tempdir();
            let folder = folder.map_err(|error| format!("cannot make a temporary folder: {error}"))?;
            let disks = (1..=SERVERS).map(|server| folder.path().join(format!("disk-{server}")));
            let disks: Vec<PathBuf> = disks.collect();
            for disk in &disks {
                fs::create_dir(disk).map_err(|error| format!("cannot make {}: {error}", disk.display()))?;
            }
            let report = upgrade::run(&disks, old, &new);
            match self.json {
                true => println!("{}", serde_json::to_string(&report).expect("a report is JSON")),
                false => print!("{report}"),
            }
            is_clean &= report.broken.is_empty();
        }
        Ok(is_clean)
    }
}

/// Returns the absolute path of an existing program.
fn program(word: &str) -> Result<PathBuf, String> {
    Path::new(word).canonicalize().map_err(|error| format!("cannot find the program {word}: {error}"))
}
