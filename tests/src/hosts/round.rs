//! One round: a holder, two contenders, one fault, and the outcome for the lock.

use super::belief::{Belief, BootTime, overlaps};
use super::expectation::{Expectation, LockDelay, Window};
use super::fault::{Fault, HOLDER};
use super::guard::{Guard, Hold, records};
use super::members::{AGENTS, Hosts, TIMEOUT, json, wait_within};
use crate::cluster::idle_write;
use crate::dialect::let_pass;
use crate::http::Client;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The hosts that wait for the lock.
const CONTENDERS: [&str; 2] = [AGENTS[1], AGENTS[2]];
/// The host whose agent answers the test's queries: the first contender's.
const WITNESS: &str = CONTENDERS[0];
/// The maximum wait for the next holder, in addition to the lock-delay.
const LONGEST: Duration = Duration::from_secs(45);
/// The time beyond a window for which a lock that must be kept is observed.
const AFTERMATH: Duration = Duration::from_secs(3);
/// A guard that has recorded nothing for this time, in seconds, no longer believes; generous, for
/// loaded machines.
const SILENCE: f64 = 1.0;
/// The time for which the next holder continues, so that an overlapping belief shows.
const SHARED: Duration = Duration::from_millis(200);
/// The maximum time from the next holder's first moment until the loss history explains the loss.
const TOLD: Duration = Duration::from_secs(2);
/// The interval between polls of the member list.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// The status of a member that serves.
const ALIVE: &str = "alive";
/// The status of a member from which a majority of the servers has received nothing.
pub const FAILED: &str = "failed";

/// The plan of a round.
#[derive(Clone, Copy)]
pub struct Plan<'p> {
    /// The fault.
    pub fault: &'p Fault,
    /// The window of the holder's session.
    pub window: Window,
    /// The lock-delay of that session.
    pub lock_delay: LockDelay,
    /// The number of this round among those of its kind.
    pub number: usize,
}

/// The outcome of a round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// The fault's name.
    pub fault: &'static str,
    /// The window of the holder's session.
    pub window: Window,
    /// The number of this round among those of its kind.
    pub number: usize,
    /// Seconds from the fault to the next holder's first moment; `None` if the lock did not pass
    /// on.
    pub seconds: Option<f64>,
    /// `true` if the holder believed until the end and no other guard ever did.
    pub kept: bool,
    /// Seconds from the holder's last moment to the next holder's first.
    pub gap_seconds: Option<f64>,
    /// The number of pairs of holders that believed at the same moment.
    pub overlaps: usize,
    /// The loss history's entries for the holder's session.
    pub losses: Vec<Value>,
    /// The statuses of the holder's node in the first contender's agent, with times.
    pub members: Vec<Seen>,
    /// Seconds from the fault's end until the holder's agent accepted writes and its node was alive
    /// again; `None` if that did not happen.
    pub alive_seconds: Option<f64>,
    /// The most lines about connections that a flooded process logged.
    pub accept_lines: usize,
    /// The guards' output.
    #[serde(skip)]
    pub said: String,
}

/// A member's status, from its first observation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Seconds since the fault.
    pub seconds: f64,
    /// The status.
    pub status: String,
}

impl Plan<'_> {
    /// Runs the round. Afterwards all hosts are healthy again.
    pub fn run(&self, hosts: &mut Hosts) -> Round {
        let stage = self.prepare(hosts);
        let watch = MembersWatch::start(hosts.client(WITNESS));
        let flooded = self.fault.deed.flooded(stage.leader);
        let lines_before: Vec<usize> = flooded.iter().map(|host| hosts.accept_lines(host)).collect();
        let struck = BootTime::now();
        let mended = self.strike(hosts, &stage);
        let has_passed = stage.next().is_some();
        let kept = !has_passed
            && stage.holder.belief().is_some_and(|belief| BootTime::now().since(belief.last) < SILENCE);
        let losses = || losses_of(hosts, WITNESS, &stage.name, HOLDER);
        let losses = match has_passed {
            true => wait_within(TOLD, || Some(losses()).filter(|losses| !losses.is_empty())),
            false => Some(losses()),
        };
        let alive = wait_within(TIMEOUT, || {
            (watch.is_alive() && idle_write(&hosts.client(HOLDER)).is_some()).then_some(())
        });
        let members = watch.end();
        let alive_seconds = alive.map(|()| alive_after(&members, mended));
        let members = members.into_iter().map(|(at, status)| Seen { seconds: at.since(struck), status });
        let members = members.collect();
        let lines = flooded.iter().zip(lines_before).map(|(host, before)| hosts.accept_lines(host) - before);
        let accept_lines = lines.max().unwrap_or_default();
        let (beliefs, said) = stage.end();
        hosts.wait_until_whole();
        let next = beliefs[1..].iter().flatten().min_by_key(|belief| belief.first).filter(|_| has_passed);
        let gap = next.zip(beliefs[0].as_ref()).map(|(next, own)| next.first.since(own.last));
        Round {
            fault: self.fault.name,
            window: self.window,
            number: self.number,
            seconds: next.map(|next| next.first.since(struck)),
            kept,
            gap_seconds: gap,
            overlaps: overlaps(&beliefs.into_iter().flatten().collect::<Vec<_>>()),
            losses: losses.unwrap_or_default(),
            members,
            alive_seconds,
            accept_lines,
            said,
        }
    }

    /// Starts a guard that holds the lock, and two that wait for it.
    fn prepare(&self, hosts: &Hosts) -> Stage {
        let name = format!("{}-{}-{:?}-{}", self.fault.name, self.window, self.lock_delay, self.number);
        let folder = records(&hosts.folder, &name);
        let holder = self.guard(hosts, HOLDER, &name, &folder);
        hosts.wait_for("a holder", || holder.belief());
        let contenders = CONTENDERS.map(|host| self.guard(hosts, host, &name, &folder));
        hosts.wait_for("two that wait for the lock", || (waiters(hosts, WITNESS, &name)? == 2).then_some(()));
        Stage { name, leader: hosts.leader(WITNESS), holder, contenders }
    }

    fn guard(&self, hosts: &Hosts, host: &'static str, name: &str, folder: &Path) -> Guard {
        let hold = Hold { name, window: self.window, lock_delay: self.lock_delay };
        hold.start(hosts, host, &folder.join(host))
    }

    /// Injects the fault, holds it until the outcome is known, and undoes it. Returns the time of
    /// the undoing.
    fn strike(&self, hosts: &mut Hosts, stage: &Stage) -> BootTime {
        let (fault, leader) = (self.fault, stage.leader);
        let longest = LONGEST + self.lock_delay.length();
        fault.deed.strike(hosts, leader);
        match fault.length {
            Some(length) => let_pass(length),
            None => drop(wait_within(longest, || stage.next())),
        }
        let_pass(SHARED);
        fault.deed.mend(hosts, leader);
        let mended = BootTime::now();
        let limit = match fault.expectation(self.window) {
            Expectation::Passes(_) => longest,
            Expectation::Kept => self.window.length() + AFTERMATH,
            Expectation::Either => self.window.length() + AFTERMATH + self.lock_delay.length(),
        };
        if fault.length.is_some() {
            wait_within(limit, || stage.next());
        }
        mended
    }
}

/// The participants of a round.
struct Stage {
    /// The name of the lock and of its holder's session.
    name: String,
    leader: &'static str,
    holder: Guard,
    contenders: [Guard; 2],
}

impl Stage {
    /// Returns the belief of the contender that believed first.
    fn next(&self) -> Option<Belief> {
        self.contenders.iter().filter_map(Guard::belief).min_by_key(|belief| belief.first)
    }

    /// Ends all guards, the holder first. Returns all beliefs, the holder's first, and their
    /// output.
    fn end(self) -> ([Option<Belief>; 3], String) {
        let [one, other] = self.contenders;
        let ended = [self.holder, one, other].map(Guard::end);
        let said = ended.iter().map(|(_, said)| said.as_str()).collect();
        (ended.map(|(belief, _)| belief), said)
    }
}

/// Returns the number of sessions that wait for a lock, from a host's agent.
pub(crate) fn waiters(hosts: &Hosts, host: &str, name: &str) -> Option<u64> {
    let locks = hosts.json(host, &format!("/v1/lockmesh/locks?prefix={name}/"))?;
    locks.as_array()?.first()?["Waiters"].as_u64()
}

/// Returns the losses of one node's sessions with this name, from another host's agent. All
/// sessions of a round have the lock's name.
pub(super) fn losses_of(hosts: &Hosts, host: &str, name: &str, node: &str) -> Vec<Value> {
    let losses = hosts.json(host, "/v1/lockmesh/losses").unwrap_or_default();
    let losses = losses.as_array().cloned().unwrap_or_default();
    losses.into_iter().filter(|loss| loss["SessionName"] == name && loss["Node"] == node).collect()
}

/// Returns the seconds from a moment until the node was alive for good.
fn alive_after(members: &[(BootTime, String)], mended: BootTime) -> f64 {
    let last = members.last().filter(|(_, status)| status == ALIVE);
    last.map_or(0.0, |(at, _)| at.since(mended).max(0.0))
}

/// A poll of the first contender's agent for the status of the holder's node.
struct MembersWatch {
    seen: Arc<Mutex<Vec<(BootTime, String)>>>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl MembersWatch {
    fn start(client: Client) -> Self {
        let (seen, is_over) =
            (Arc::<Mutex<Vec<(BootTime, String)>>>::default(), Arc::<AtomicBool>::default());
        let (writing, ending) = (Arc::clone(&seen), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                if let Some(status) = status(&client) {
                    let mut seen = writing.lock().expect("the mutex is not poisoned");
                    if seen.last().is_none_or(|(_, last)| *last != status) {
                        seen.push((BootTime::now(), status));
                    }
                }
                let_pass(WATCH_INTERVAL);
            }
        });
        Self { seen, is_over, thread }
    }

    fn is_alive(&self) -> bool {
        let seen = self.seen.lock().expect("the mutex is not poisoned");
        seen.last().is_some_and(|(_, status)| status == ALIVE)
    }

    /// Returns every observed status with its first time.
    fn end(self) -> Vec<(BootTime, String)> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watch does not panic");
        std::mem::take(&mut self.seen.lock().expect("the mutex is not poisoned"))
    }
}

/// Returns the status of the holder's node in an agent's list, or `None` without a list.
fn status(client: &Client) -> Option<String> {
    let members = json(client, "/v1/agent/members")?;
    let member = members.as_array()?.iter().find(|member| member["Name"] == HOLDER);
    let Some(member) = member else { return Some("unlisted".into()) };
    // `State` is more precise than Consul's number.
    let state = member["State"].as_str().filter(|state| !state.is_empty());
    let status = state.map(str::to_owned).unwrap_or_else(|| match member["Status"].as_u64() {
        Some(1) => ALIVE.into(),
        Some(3) => "left".into(),
        Some(4) => FAILED.into(),
        other => format!("status {other:?}"),
    });
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_alive_after_last_change() {
        let seen = |list: &[(u64, &str)]| -> Vec<(BootTime, String)> {
            list.iter().map(|(at, status)| (BootTime(at * 1_000_000_000), (*status).to_owned())).collect()
        };
        let mended = BootTime(10_000_000_000);
        assert_eq!(alive_after(&seen(&[(1, ALIVE)]), mended), 0.0, "it never was anything else");
        assert_eq!(alive_after(&seen(&[(1, ALIVE), (4, FAILED), (12, ALIVE)]), mended), 2.0);
    }
}
