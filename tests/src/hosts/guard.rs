//! Guards on the hosts: `lock` commands, Lockmesh's or Consul's, that run a witness of their
//! belief.

use super::belief::Belief;
use super::expectation::{LockDelay, Window};
use super::members::Hosts;
use super::network::Network;
use crate::binary;
use crate::cluster::text;
use crate::fleet::shell;
use crate::process::Process;
use std::fs;
use std::path::{Path, PathBuf};

/// A `lock` command on a host, with the record of what it believes.
pub struct Guard {
    /// Which host.
    pub host: &'static str,
    record: PathBuf,
    process: Process,
}

impl Guard {
    /// Starts a command on a host, and after it the witness that it runs while it holds the lock.
    pub fn start(network: &Network, host: &'static str, command: &[&str], record: &Path) -> Self {
        let (place, record_option) = (network.on(host), text(record));
        let witness = std::env::current_exe().expect("a running program has a path");
        let witness = text(&witness);
        let words = [&place[..], command, &[&witness, "--believe", &record_option]].concat();
        Self { host, record: record.to_owned(), process: Process::start(Path::new("ip"), &words) }
    }

    /// What it has believed so far.
    pub fn belief(&self) -> Option<Belief> {
        Belief::read(&self.record)
    }

    /// Asks it to end and waits for that; all that it believed, and what it said.
    pub fn end(self) -> (Option<Belief>, String) {
        // One that has lost its lock has ended by itself.
        shell(&format!("kill -TERM {} 2>/dev/null", self.process.number()));
        self.process.ends();
        (self.belief(), format!("== guard on {} ==\n{}\n", self.host, self.process.said()))
    }
}

/// A hold by `lockmesh lock`, with the values that it ships with unless they are named.
#[derive(Clone, Copy)]
pub struct Hold<'h> {
    /// The lock's name, and the session's.
    pub name: &'h str,
    /// The session's window.
    pub window: Window,
    /// The session's lock-delay.
    pub lock_delay: LockDelay,
}

impl Hold<'_> {
    /// Starts it on a host. It waits while the lock is held by another.
    pub fn start(&self, hosts: &Hosts, host: &'static str, record: &Path) -> Guard {
        let (program, address) = (text(binary::lockmesh()), hosts.socket_option(host));
        let mut command = vec![&*program, "lock", "--http-addr", &address, "--verbose", "--name", self.name];
        command.extend(self.window.class().into_iter().flat_map(|class| ["--window", class]));
        command.extend(self.window.asked_ttl().into_iter().flat_map(|ttl| ["--ttl", ttl]));
        command.extend(self.lock_delay.asked().into_iter().flat_map(|delay| ["--lock-delay", delay]));
        command.extend([self.name, "--"]);
        Guard::start(&hosts.network, host, &command, record)
    }
}

/// An empty folder for the records of one round.
pub fn records(folder: &Path, round: &str) -> PathBuf {
    let records = folder.join("records").join(round);
    fs::create_dir_all(&records).expect("the folder can be written to");
    records
}
