//! The command line, and the measurements that it selects.

use crate::Result;
use crate::cluster::Service;
use crate::report::Step;
use crate::work::Work;
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare Lockmesh, etcd, ZooKeeper and Consul under the same work on this machine, three nodes
/// each, all with fsync on
///
/// Closed loops in interleaved rounds, then the leaders are killed. Progress goes to stderr,
/// figures to stdout. `tests/bench/compare/setup` fetches the other services; `cargo build
/// --release` builds Lockmesh.
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "lockmesh-compare", version)]
pub(crate) struct Options {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Two rounds of one second and three kills, instead of three of two seconds and ten
    #[arg(long)]
    quick: bool,
    /// Only these services
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    only: Vec<Service>,
    /// Only this work
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    work: Vec<Work>,
    /// The `lockmesh` binary [default: target/release/lockmesh]
    #[arg(long, value_name = "FILE")]
    lockmesh: Option<PathBuf>,
    /// Folder into which the setup has unpacked the other services [default: target/compare]
    #[arg(long, value_name = "DIR")]
    tools: Option<PathBuf>,
    /// Parent of the temporary folder with all data; must be on a disk
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep the temporary folder, with all logs
    #[arg(long)]
    keep: bool,
}

/// The measurements in order, with the number of their rounds, and the duration of each.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<(Step, u32)>,
    pub(crate) length: Duration,
}

impl Options {
    /// Returns the selected services.
    pub(crate) fn services(&self) -> Vec<Service> {
        let takes_part = |service: &Service| self.only.is_empty() || self.only.contains(service);
        Service::value_variants().iter().copied().filter(takes_part).collect()
    }

    /// Returns the measurements.
    pub(crate) fn plan(&self) -> Plan {
        let (rounds, seconds, kills) = if self.quick { (2, 1, 3) } else { (3, 2, 10) };
        let mut steps = Vec::new();
        for work in
            Work::value_variants().iter().filter(|work| self.work.is_empty() || self.work.contains(work))
        {
            let counts: &[usize] = match work {
                Work::Puts | Work::Cycles => &[1, 64, 256],
                Work::Handoff => &[2, 64],
                Work::LeaderKilled => &[2],
            };
            let rounds = if *work == Work::LeaderKilled { kills } else { rounds };
            steps.extend(counts.iter().map(|clients| (Step { work: *work, clients: *clients }, rounds)));
        }
        Plan { steps, length: Duration::from_secs(seconds) }
    }

    /// Returns the path of the `lockmesh` binary.
    pub(crate) fn lockmesh(&self) -> Result<PathBuf> {
        present(self.lockmesh.clone().unwrap_or_else(|| target("release/lockmesh")), "cargo build --release")
    }

    /// Returns a file of the unpacked packages.
    pub(crate) fn unpacked(&self, path: &str) -> Result<PathBuf> {
        let folder = self.tools.clone().unwrap_or_else(|| target("compare"));
        present(folder.join(path), "tests/bench/compare/setup")
    }

    /// Creates a temporary folder for everything.
    pub(crate) fn folder(&self) -> Result<tempfile::TempDir> {
        let parent = self.data.clone().unwrap_or_else(std::env::temp_dir);
        let mut folder = tempfile::Builder::new().prefix("lockmesh-compare-").tempdir_in(parent)?;
        folder.disable_cleanup(self.keep);
        Ok(folder)
    }
}

fn target(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target").join(path)
}

fn present(file: PathBuf, maker: &str) -> Result<PathBuf> {
    match file.exists() {
        true => Ok(file.canonicalize()?),
        false => Err(format!("{} is missing: run {maker} first", file.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn parse(words: &[&str]) -> Options {
        Options::try_parse_from([&["x"], words].concat()).expect("good words")
    }

    #[test]
    fn work_and_services_are_selected() {
        assert_eq!((parse(&[]).plan().steps.len(), parse(&[]).services().len()), (9, 4));
        let own = parse(&["--quick", "--work", "handoff", "--only", "consul,lockmesh"]);
        assert_eq!(own.plan().steps[0], (Step { work: Work::Handoff, clients: 2 }, 2));
        assert_eq!(own.services(), [Service::Lockmesh, Service::Consul]);
    }

    #[test]
    fn missing_file_names_its_maker() {
        let error = parse(&["--tools", "/nowhere"]).unpacked("etcd").expect_err("nothing is there");
        assert!(error.to_string().contains("run tests/bench/compare/setup first"), "{error}");
    }
}
