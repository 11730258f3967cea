//! Locks during an upgrade: some are held by `lockmesh lock` all the time and awaited on another
//! agent, one is acquired and released repeatedly.

use crate::dialect::let_pass;
use crate::http::{Address, Client};
use crate::process::Process;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The output of `lockmesh lock --verbose` when it holds the lock, before the fence.
const HOLDING: &str = "holding it, fence ";
/// The maximum wait for a lock that is acquired and released in turn; agents are down for less.
const TURN_LIMIT: &str = "20s";
/// The pause between two turns.
const PAUSE: Duration = Duration::from_millis(200);

/// A lock that is held all the time.
pub struct Held {
    name: String,
    holder: Process,
    contender: Process,
}

impl Held {
    /// Holds the lock at one agent by this program, and waits for it at another.
    pub fn start(program: &Path, window: &str, holder: &Client, contender: &Client) -> Self {
        let name = format!("upgrade-{window}");
        let lock = |client: &Client| {
            let address = option(client);
            let words = [
                "lock",
                "--http-addr",
                &address,
                "--verbose",
                "--lock-delay",
                "0s",
                "--window",
                window,
                &name,
            ];
            Process::start(program, &[&words[..], &["--", "sleep", "86400"]].concat())
        };
        let holder = lock(holder);
        holder.says(HOLDING);
        let contender = lock(contender);
        contender.says("waiting for the lock");
        Self { name, holder, contender }
    }

    /// Ends the holder, and expects the contender to acquire the lock. Returns descriptions of all
    /// broken expectations.
    pub fn end(self) -> Vec<String> {
        let said = self.holder.said();
        let is_lost = said.contains("ended with") || self.contender.said().contains(HOLDING);
        let broken = match is_lost {
            true => {
                let last = said.lines().last().unwrap_or_default();
                Some(format!("{} was lost: {last}", self.name))
            }
            false => {
                end(&self.holder);
                let (first, next) = (fence(&said), fence(&self.contender.says(HOLDING)));
                (next <= first)
                    .then(|| format!("the fence of {} decreased from {first} to {next}", self.name))
            }
        };
        // The holder may have exited already.
        if is_lost && !self.holder.said().contains("ended with") {
            end(&self.holder);
        }
        end(&self.contender);
        broken.into_iter().collect()
    }
}

/// Ends a command gracefully, and with it the program that it runs.
fn end(command: &Process) {
    command.signal("TERM");
    command.ends();
}

/// Parses the fence in the output of `lockmesh lock`.
fn fence(said: &str) -> u64 {
    let after = said.split_once(HOLDING).expect("the command prints its fence").1;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a fence is a number")
}

/// A lock that two builds acquire in turn, at one agent after another.
pub struct Turns {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Turns {
    /// Starts the turns.
    pub fn start(programs: [PathBuf; 2], agents: Vec<Client>) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let ending = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut fences = Vec::new();
            let turns = programs.iter().cycle().zip(agents.iter().cycle());
            for (program, agent) in turns.take_while(|_| !ending.load(Ordering::Relaxed)) {
                fences.extend(turn(program, agent));
                let_pass(PAUSE);
            }
            fences
        });
        Self { is_over, thread }
    }

    /// Ends the turns. Returns the fence of every turn in order.
    pub fn end(self) -> Vec<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("turns do not panic")
    }
}

/// Runs one turn; returns `None` while the agent is down.
fn turn(program: &Path, agent: &Client) -> Option<u64> {
    let address = option(agent);
    let mut lock = Command::new(program);
    lock.args(["lock", "--http-addr", &address, "--timeout", TURN_LIMIT, "upgrade-turns", "--"]);
    lock.args(["sh", "-c", "echo \"$LOCKMESH_FENCE\""]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = lock.output().expect("lockmesh can be started");
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Returns the first pair of fences that does not increase.
pub fn first_fall(fences: &[u64]) -> Option<(u64, u64)> {
    fences.windows(2).find(|pair| pair[1] <= pair[0]).map(|pair| (pair[0], pair[1]))
}

/// Returns an agent's address as a command-line option.
fn option(client: &Client) -> String {
    match &client.address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix://{}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_read_and_compared() {
        assert_eq!(fence("lockmesh: holding it, fence 42\nlockmesh: more"), 42);
        assert_eq!(first_fall(&[1, 2, 5]), None);
        assert_eq!(first_fall(&[1, 5, 5, 4]), Some((5, 5)));
        assert_eq!(first_fall(&[]), None);
    }
}
