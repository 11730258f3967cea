//! Rounds of faults on three real servers under a recorded load: `chaos [--rounds N] [--seconds N]
//! [--seed N] [--clients N] [--faults NAME,…] [--json] [--disks DIR]`. `chaos --check FILE` checks
//! a saved history.
//!
//! Each round starts a new cluster and injects every fault once, held for `--seconds`. It mounts
//! three small disks and therefore needs root, or a kernel with user namespaces; `--disks` names a
//! folder with mounted disks instead. It also needs `strace`. A round's output is in
//! `target/chaos/`. Fails if a promise was broken.

use clap::Parser;
use lockmesh_tests::chaos::faults::{self, Fault};
use lockmesh_tests::chaos::{BOUNDS, CLIENTS, MOST_CLIENTS, Round, fresh_folder};
use lockmesh_tests::history::{History, check_within};
use lockmesh_tests::options::{between, print};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = CLIENTS, value_parser = between::<7, { MOST_CLIENTS as u64 }, usize>)]
    clients: usize,
    #[arg(long, value_delimiter = ',', value_parser = fault)]
    faults: Vec<Fault>,
    #[arg(long)]
    json: bool,
    #[arg(long)]
    disks: Option<PathBuf>,
    #[arg(long)]
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(file) = &options.check {
        return check_again(file);
    }
    let Some(disks) = &options.disks else { return on_small_disks() };
    let mut is_clean = true;
    for round in 0..options.rounds {
        let seed = options.seed + round;
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/chaos");
        let keep = fresh_folder(home.join(format!("seed-{seed}")));
        let disks: Vec<PathBuf> =
            (1..=3).map(|number| fresh_folder(disks.join(format!("{number}/data")))).collect();
        let length = Duration::from_secs(options.seconds);
        let faults = if options.faults.is_empty() { &faults::ALL[..] } else { &options.faults };
        let clients = options.clients;
        let report = Round { disks: &disks, faults, length, clients, seed, keep: &keep }.run();
        print(&report, options.json);
        if !report.is_clean() {
            eprintln!("history and logs of this round are in {}", keep.display());
            is_clean = false;
        }
    }
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_again(file: &Path) -> ExitCode {
    let file = BufReader::new(File::open(file).expect("the history can be opened"));
    let history = History::read(file).expect("a history that was kept can be read");
    let verdict = check_within(&history, &BOUNDS);
    println!("{}", serde_json::to_string_pretty(&verdict).expect("a verdict is JSON"));
    if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the fault with this name, which is written without commas.
fn fault(word: &str) -> Result<Fault, String> {
    let plain = |fault: &Fault| fault.name.replace(',', "");
    let found = faults::ALL.into_iter().find(|fault| plain(fault) == word.trim());
    found.ok_or_else(|| format!("the faults are: {}", faults::ALL.each_ref().map(plain).join(", ")))
}

/// Runs this program again with three small disks, mounted for it alone.
fn on_small_disks() -> ExitCode {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/small_disks.sh");
    let program = std::env::current_exe().expect("a running program has a path");
    let mut again = Command::new(script);
    again.arg("3").arg(program).args(std::env::args().skip(1)).arg("--disks");
    let status = again.status().expect("the script can be run");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
