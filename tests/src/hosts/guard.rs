//! Guards on the hosts: `lock` commands of Lockmesh or Consul that run a witness of their belief.

use super::belief::Belief;
use super::expectation::{LockDelay, Window};
use super::members::Hosts;
use super::network::Network;
use crate::binary;
use crate::fleet::shell;
use crate::member::text;
use crate::process::Process;
use std::fs;
use std::path::{Path, PathBuf};

/// A `lock` command on a host, with the record of its belief.
pub struct Guard {
    /// The host.
    pub host: &'static str,
    record: PathBuf,
    process: Process,
}

impl Guard {
    /// Starts a command on a host, with the witness as the program that it runs while it holds the
    /// lock.
    pub fn start(network: &Network, host: &'static str, command: &[&str], record: &Path) -> Self {
        let (place, record_option) = (network.on(host), text(record));
        let witness = std::env::current_exe().expect("a running program has a path");
        let witness = text(&witness);
        let words = [&place[..], command, &[&witness, "--believe", &record_option]].concat();
        Self { host, record: record.to_owned(), process: Process::start(Path::new("ip"), &words) }
    }

    /// Returns the belief recorded so far.
    pub fn belief(&self) -> Option<Belief> {
        Belief::read(&self.record)
    }

    /// Returns `true` if the command held the lock and lost it.
    pub fn has_lost(&self) -> bool {
        self.process.said().contains("ended with 121")
    }

    /// Ends the command and waits for its exit. Returns its belief and its output.
    pub fn end(self) -> (Option<Belief>, String) {
        // A command that has lost its lock has already exited.
        shell(&format!("kill -TERM {} 2>/dev/null", self.process.number()));
        self.process.ends();
        (self.belief(), format!("== guard on {} ==\n{}\n", self.host, self.process.said()))
    }
}

/// A hold by `lockmesh lock`, with the command's defaults unless specified.
#[derive(Clone, Copy)]
pub struct Hold<'h> {
    /// The name of the lock and of the session.
    pub name: &'h str,
    /// The session's window.
    pub window: Window,
    /// The session's lock-delay.
    pub lock_delay: LockDelay,
}

impl Hold<'_> {
    /// Starts the guard on a host. It waits while another session holds the lock.
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

/// Creates an empty folder for the records of one round.
pub fn records(folder: &Path, round: &str) -> PathBuf {
    let records = folder.join("records").join(round);
    fs::create_dir_all(&records).expect("the folder can be written to");
    records
}
