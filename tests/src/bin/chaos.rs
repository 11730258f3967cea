//! Rounds of faults on three real servers under a recorded load: `chaos [--rounds N] [--seconds N]
//! [--seed N] [--clients N] [--faults NAME,…] [--json] [--disks DIR]`. `chaos --check FILE` checks
//! a saved history.
//!
//! Each round starts a new cluster and injects every fault once, held for `--seconds`. It mounts
//! three small disks and therefore needs root, or a kernel with user namespaces; `--disks` names a
//! folder with mounted disks instead. It also needs `strace`. A round's output is in
//! `target/chaos/`. Fails if a promise was broken.

use lockmesh_tests::chaos::faults::{self, Fault};
use lockmesh_tests::chaos::{BOUNDS, CLIENTS, MOST_CLIENTS, Round, fresh_folder};
use lockmesh_tests::history::{History, check_within};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

struct Options {
    rounds: u64,
    seconds: u64,
    seed: u64,
    clients: usize,
    faults: Vec<Fault>,
    json: bool,
    disks: Option<PathBuf>,
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
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
        let (faults, clients) = (&options.faults, options.clients);
        let report = Round { disks: &disks, faults, length, clients, seed, keep: &keep }.run();
        match options.json {
            true => println!("{}", serde_json::to_string(&report).expect("a report is JSON")),
            false => println!("{report}"),
        }
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

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Self {
        let faults = faults::ALL.to_vec();
        let mut options = Self {
            rounds: 1,
            seconds: 5,
            seed: 1,
            clients: CLIENTS,
            faults,
            json: false,
            disks: None,
            check: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            match word.as_str() {
                "--rounds" => options.rounds = value().parse().expect("--rounds is a number"),
                "--seconds" => options.seconds = value().parse().expect("--seconds is a number"),
                "--seed" => options.seed = value().parse().expect("--seed is a number"),
                "--json" => options.json = true,
                "--check" => options.check = Some(PathBuf::from(value())),
                "--clients" => {
                    options.clients = value().parse().expect("--clients is a number");
                    assert!(
                        (7..=MOST_CLIENTS).contains(&options.clients),
                        "--clients is 7 to {MOST_CLIENTS}"
                    );
                }
                "--disks" => options.disks = Some(PathBuf::from(value())),
                "--faults" => {
                    let wanted = value();
                    let wanted: Vec<&str> = wanted.split(',').map(str::trim).collect();
                    options.faults.retain(|fault| wanted.contains(&fault.name.replace(',', "").as_str()));
                    assert_eq!(options.faults.len(), wanted.len(), "the faults are: {}", names());
                }
                other => panic!("unknown option {other}; see the first lines of tests/src/bin/chaos.rs"),
            }
        }
        options
    }
}

fn names() -> String {
    faults::ALL.map(|fault| fault.name.replace(',', "")).join(", ")
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
