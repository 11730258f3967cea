//! The three services, each of three nodes: started in fresh folders on free ports, queried for
//! their leader, killed, restarted.
//!
//! | module | is |
//! |---|---|
//! | [`lockmesh`] | three servers and an agent, with their certificates |
//! | [`etcd`] | three members, from Debian's build |
//! | [`zookeeper`] | three servers on Debian's Java |
//! | [`failover`] | the time without writes after the leader is killed |
//!
//! Every node makes its writes durable before it acknowledges them, which is the default of all
//! three, and all keep their data on the same disk. Settings are defaults, except limits that the
//! work would reach.

pub(crate) mod etcd;
pub(crate) mod failover;
pub(crate) mod lockmesh;
pub(crate) mod zookeeper;

use crate::client::Client;
use crate::process::Program;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The longest time until a service serves; generous, for loaded machines.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// The nodes that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    /// The leader alone.
    Leader(usize),
    /// All in turn.
    All,
    /// All except one.
    Without(usize),
}

impl Targets {
    /// Returns the targets out of a list of nodes.
    fn of<T: Copy>(self, nodes: &[T]) -> Vec<T> {
        let wanted = |at: &usize| match self {
            Self::Leader(leader) => *at == leader,
            Self::All => true,
            Self::Without(dead) => *at != dead,
        };
        (0..nodes.len()).filter(wanted).map(|at| nodes[at]).collect()
    }
}

/// The locations of the measured programs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The `lockmesh` binary.
    pub(crate) lockmesh: PathBuf,
    /// The folder unpacked by `tests/bench/compare/setup`.
    pub(crate) packages: PathBuf,
}

impl Tools {
    /// Returns a file of the unpacked packages.
    fn unpacked(&self, path: &str) -> io::Result<PathBuf> {
        let file = self.packages.join("root").join(path);
        match file.exists() {
            true => Ok(file),
            false => Err(io::Error::other(format!(
                "{} is missing: run tests/bench/compare/setup first, or leave the service out with --only",
                file.display()
            ))),
        }
    }

    /// Returns the version of an unpacked package.
    fn version(&self, package: &str) -> io::Result<String> {
        let versions = std::fs::read_to_string(self.packages.join("versions"))?;
        let of = |line: &str| line.strip_prefix(package)?.strip_prefix(' ').map(str::to_owned);
        versions.lines().find_map(of).ok_or_else(|| io::Error::other(format!("{package} has no version")))
    }
}

/// A service of several nodes.
pub(crate) trait Cluster {
    /// Its client.
    type Client: Client;

    /// Returns its name and version, for the report.
    fn version(&self) -> &str;

    /// Returns its processes: the nodes in order, then any others.
    fn programs(&mut self) -> &mut [Program];

    /// Returns the leading node.
    async fn leader(&self) -> io::Result<usize>;

    /// Waits until every node serves and has caught up.
    async fn settle(&mut self) -> io::Result<()>;

    /// Returns the addresses for clients.
    fn site(&self, targets: Targets) -> Rc<<Self::Client as Client>::Site>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen() {
        let nodes = ['a', 'b', 'c'];
        assert_eq!(Targets::Leader(1).of(&nodes), ['b']);
        assert_eq!(Targets::All.of(&nodes), nodes);
        assert_eq!(Targets::Without(0).of(&nodes), ['b', 'c']);
    }

    #[test]
    fn missing_packages_say_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tools = Tools { lockmesh: PathBuf::new(), packages: folder.path().into() };
        let error = tools.unpacked("usr/bin/etcd").expect_err("nothing is there").to_string();
        assert!(error.contains("run tests/bench/compare/setup first"), "{error}");
        std::fs::write(folder.path().join("versions"), "etcd-server-x 1\netcd-server 3.4\n")
            .expect("written");
        assert_eq!(tools.version("etcd-server").expect("it is there"), "3.4");
        assert!(tools.version("etcd").is_err());
    }
}
