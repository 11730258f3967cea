//! The command line.

use crate::cluster::Tools;
use crate::contest::System;
use crate::work::Work;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare Lockmesh, etcd and ZooKeeper under the same work on this machine, three nodes each, all
/// with fsync on
///
/// Without a command: closed loops in interleaved rounds, then the leaders are killed. Progress
/// goes to stderr, figures to stdout. `tests/bench/compare/setup` fetches etcd and ZooKeeper;
/// `cargo build --release` builds Lockmesh.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "lockmesh-compare", version)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Take about 4 minutes instead of 12: two rounds of one second, no stale reads, three kills
    #[arg(long)]
    quick: bool,
    /// Only these services
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<System>,
    /// Only this work
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    work: Vec<Work>,
    /// Concurrent clients, one measurement per number [default: 1,16,64,256; hand-off 2,64]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: Vec<u32>,
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Duration of each measurement in each round
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Number of times each leader is killed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    kills: Option<u32>,
    /// Connect the clients of etcd and ZooKeeper to all nodes in turn instead of to the leader
    #[arg(long)]
    pub(crate) spread: bool,
    /// Number of etcd clients that share a connection, as within one process
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    sharing: u32,
    /// Number of Lockmesh servers: 3, or 1 to measure the cost of replication
    #[arg(long, value_name = "N", global = true, default_value_t = 3, value_parser = servers)]
    servers: u32,
    /// The `lockmesh` binary [default: beside this program]
    #[arg(long, value_name = "FILE", global = true)]
    lockmesh: Option<PathBuf>,
    /// Folder into which the setup has unpacked etcd and ZooKeeper [default: target/compare]
    #[arg(long, value_name = "DIR", global = true)]
    tools: Option<PathBuf>,
    /// Parent of the temporary folder with all data; must be on a disk
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// Keep the temporary folder, with all logs
    #[arg(long, global = true)]
    pub(crate) keep: bool,
}

/// Other measurements.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// Measure Lockmesh alone, with very large numbers of sessions and locks
    Large(LargeArgs),
    /// Measure Lockmesh alone: the latency of other clients during large listings and deletes
    Bystanders(BystandersArgs),
}

/// The sizes of the large measurement.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LargeArgs {
    /// Number of sessions, each of which holds one lock
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub(crate) locks: u32,
    /// Number of locks held by the node that is destroyed
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) doomed: u32,
    /// Minutes for which 64 clients work before memory is measured; 0 skips this
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1440))]
    pub(crate) minutes: u32,
    /// Number of elections measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) elections: u32,
}

/// The sizes of listings and deletes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BystandersArgs {
    /// Number of keys listed
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    pub(crate) keys: u32,
    /// Number of keys that one request deletes; 0 skips this
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(0..=5_000_000))]
    pub(crate) deleted: u32,
    /// Size of their values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=6_000))]
    pub(crate) value: u32,
    /// Number of deleted keys that are locked
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) held: u32,
    /// Number of deleted keys that are watched
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) watched: u32,
    /// Number of clients that list
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) listers: u32,
    /// Number of other clients that write
    #[arg(long = "writers", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) clients: u32,
    /// Seconds for which the other clients are measured while nothing is deleted
    #[arg(long = "window", value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
}

/// One measurement, made in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The clients' work.
    pub(crate) work: Work,
    /// The number of clients.
    pub(crate) clients: usize,
}

/// The measurements in order, and their duration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) rounds: u32,
    pub(crate) length: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) kills: u32,
}

impl Options {
    /// Returns the selected services.
    pub(crate) fn systems(&self) -> Vec<System> {
        let takes_part = |system: &System| self.only.is_empty() || self.only.contains(system);
        System::ALL.into_iter().filter(takes_part).collect()
    }

    /// Returns the measurements.
    pub(crate) fn plan(&self) -> Plan {
        let wanted = |work: &Work| match self.work.is_empty() {
            true => !self.quick || *work != Work::StaleReads,
            false => self.work.contains(work),
        };
        let steps = Work::ALL.into_iter().filter(wanted).flat_map(|work| {
            let own: Vec<usize> = self.clients.iter().map(|count| *count as usize).collect();
            let counts = if own.is_empty() { work.clients().to_vec() } else { own };
            counts.into_iter().map(move |clients| Step { work, clients })
        });
        let (rounds, seconds, kills) = if self.quick { (2, 1, 3) } else { (3, 2, 10) };
        // A selection of work excludes the kills.
        let kills = if self.work.is_empty() { kills } else { 0 };
        Plan {
            steps: steps.collect(),
            rounds: self.rounds.unwrap_or(rounds),
            length: self.seconds.unwrap_or(Duration::from_secs(seconds)),
            warm_up: Duration::from_secs(seconds),
            kills: self.kills.unwrap_or(kills),
        }
    }

    /// Returns the locations of the programs.
    pub(crate) fn tools(&self) -> std::io::Result<Tools> {
        let lockmesh = match &self.lockmesh {
            Some(file) => file.clone(),
            None => std::env::current_exe()?.with_file_name("lockmesh"),
        };
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/compare");
        Ok(Tools { lockmesh, packages: self.tools.clone().unwrap_or(target) })
    }

    /// Creates a temporary folder for everything.
    pub(crate) fn folder(&self) -> std::io::Result<tempfile::TempDir> {
        let parent = self.data.clone().unwrap_or_else(std::env::temp_dir);
        let mut folder = tempfile::Builder::new().prefix("lockmesh-compare-").tempdir_in(parent)?;
        folder.disable_cleanup(self.keep);
        Ok(folder)
    }

    /// Returns the number of etcd clients that share a connection.
    pub(crate) fn sharing(&self) -> usize {
        self.sharing as usize
    }

    /// Returns the number of Lockmesh servers.
    pub(crate) fn servers(&self) -> usize {
        self.servers as usize
    }
}

fn servers(text: &str) -> Result<u32, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("must be 1 or 3".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be 0.05 to 3600 seconds".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    fn parse(words: &[&str]) -> Options {
        Options::try_parse_from([&["x"], words].concat()).expect("good words")
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_run_is_planned() {
        let full = parse(&[]).plan();
        assert_eq!((full.steps.len(), full.rounds, full.kills), (22, 3, 10));
        let quick = parse(&["--quick"]).plan();
        assert_eq!((quick.steps.len(), quick.rounds, quick.kills), (18, 2, 3));
        let own = parse(&["--work", "puts,handoff", "--clients", "1,8", "--rounds", "1", "--seconds", "0.5"]);
        let plan = own.plan();
        let expected = [(Work::Puts, 1), (Work::Puts, 8), (Work::Handoff, 1), (Work::Handoff, 8)];
        assert_eq!(plan.steps, expected.map(|(work, clients)| Step { work, clients }));
        assert_eq!((plan.length, plan.kills), (Duration::from_millis(500), 0));
    }

    #[test]
    fn services_take_part_in_their_order() {
        assert_eq!(parse(&[]).systems(), System::ALL);
        assert_eq!(parse(&["--only", "etcd,lockmesh"]).systems(), [System::Lockmesh, System::Etcd]);
        assert!(Options::try_parse_from(["x", "--seconds", "0"]).is_err());
    }
}
