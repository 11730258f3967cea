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

use clap::Parser;
use lockmesh_tests::hosts::sandbox;
use lockmesh_tests::options::{between, exit_code, print};
use lockmesh_tests::{binary, upgrade};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The number of servers.
const SERVERS: usize = 3;

#[derive(Parser)]
struct Options {
    #[arg(long, value_parser = sandbox::program)]
    old: PathBuf,
    #[arg(long, value_parser = sandbox::program)]
    new: Option<PathBuf>,
    #[arg(long, default_value_t = 1, value_parser = between::<1, 1000, u64>)]
    rounds: u64,
    #[arg(long)]
    json: bool,
    /// Set in a process whose default program is the older build.
    #[arg(long, hide = true)]
    inside: bool,
}

fn main() -> ExitCode {
    exit_code(Options::parse().run())
}

impl Options {
    /// Runs the upgrade; returns `true` if all expectations held.
    fn run(&self) -> Result<bool, String> {
        let old = &self.old;
        let new = self.new.clone().unwrap_or_else(|| binary::lockmesh().to_owned());
        if !self.inside {
            // In the new process the older build is the default program.
            let me = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
            let mut inside = Command::new(me);
            inside.args(std::env::args_os().skip(1)).args(["--inside", "--new"]).arg(new);
            let status = inside.env("LOCKMESH_BIN", old).status();
            return Ok(status
                .map_err(|error| format!("cannot start this program again: {error}"))?
                .success());
        }
        let mut is_clean = true;
        for _ in 0..self.rounds {
            let folder = tempfile::Builder::new().prefix("lockmesh-upgrade-").tempdir();
            let folder = folder.map_err(|error| format!("cannot make a temporary folder: {error}"))?;
            let disks = (1..=SERVERS).map(|server| folder.path().join(format!("disk-{server}")));
            let disks: Vec<PathBuf> = disks.collect();
            for disk in &disks {
                fs::create_dir(disk).map_err(|error| format!("cannot make {}: {error}", disk.display()))?;
            }
            let report = upgrade::run(&disks, old, &new);
            print(&report, self.json);
            is_clean &= report.broken.is_empty();
        }
        Ok(is_clean)
    }
}
