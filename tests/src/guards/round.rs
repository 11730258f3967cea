//! One round: a `lockmesh lock` under a fault, and another one on a second host that waits for the
//! same lock.

use super::command::{Kind, recorded};
use super::fault::{Fault, Output, Step, Target};
use super::holder::Holder;
use crate::binary;
use crate::fleet::shell;
use crate::hosts::belief::{Belief, BootTime};
use crate::hosts::expectation::Window;
use crate::hosts::guard::records;
use crate::hosts::members::{AGENTS, Hosts, wait_within};
use crate::hosts::round::waiters;
use crate::member::text;
use crate::process::Process;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The host of the holder.
const HOLDER: &str = AGENTS[0];
/// The host of the next holder.
const NEXT: &str = AGENTS[1];
/// The TTL of all sessions: the shortest that agents allow by default.
const TTL: &str = "10s";
/// The lock-delays that alternate.
const LOCK_DELAYS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(2)];
/// The maximum wait for the next holder. A session that is not renewed ends after two TTLs.
const LONGEST: Duration = Duration::from_secs(60);
/// The time beyond the next holder's first moment after which a process of the former command is a
/// survivor: longer than any time that a command is given to end.
const SURVIVAL: Duration = Duration::from_secs(7);

/// The variant of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The window of the sessions.
    pub window: Window,
    /// Their lock-delay.
    pub lock_delay: Duration,
    /// The behavior of the command.
    pub kind: Kind,
}

/// The choices that a run fixes; the others alternate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    /// The window.
    pub window: Option<Window>,
    /// The lock-delay.
    pub lock_delay: Option<Duration>,
    /// The behavior of the command.
    pub kind: Option<Kind>,
}

/// The outcome of a round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The number of this round among those of its fault.
    pub number: usize,
    /// The variant.
    pub variant: Variant,
    /// Seconds from the fault to the next holder's first moment; `None` if the lock did not pass
    /// on.
    pub next_seconds: Option<f64>,
    /// Seconds from the last moment of the former command to the next one's first; negative if they
    /// overlapped.
    pub gap_seconds: Option<f64>,
    /// The number of processes of the former command that were left.
    pub survivors: usize,
}

impl Variant {
    /// Returns the variant of a round. Twelve consecutive numbers have all variants.
    pub fn of(fault: &Fault, number: usize, fixed: Fixed) -> Self {
        let lock_delay = match fault.destroys() {
            true => LOCK_DELAYS[1],
            false => LOCK_DELAYS[number / 2 % 2],
        };
        Self {
            window: fixed.window.unwrap_or([Window::Fast, Window::Default][number % 2]),
            lock_delay: fixed.lock_delay.unwrap_or(lock_delay),
            kind: fixed.kind.unwrap_or(Kind::ALL[number % 3]),
        }
    }

    /// Returns the command line of a `lockmesh lock` on a host.
    fn words(self, hosts: &Hosts, host: &str, lock: &str, command: Vec<String>) -> Vec<String> {
        let (window, delay) = (self.window.name(), self.lock_delay.as_secs());
        let options =
            format!("--ttl {TTL} --window {window} --lock-delay {delay}s --verbose --name {lock} {lock}");
        let address = hosts.socket_option(host);
        let mut words = vec![text(binary::lockmesh()), "lock".into(), "--http-addr".into(), address];
        words.extend(options.split(' ').chain(["--"]).map(str::to_owned));
        words.extend(command);
        words
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (window, delay, kind) = (self.window, self.lock_delay.as_secs(), self.kind.name());
        write!(f, "{window}, lock-delay {delay} s, {kind}")
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.next_seconds, self.gap_seconds) {
            (Some(next), Some(gap)) => write!(f, "passed on after {next:.2} s, gap {:.0} ms", gap * 1e3),
            _ => f.write_str("not passed on"),
        }
    }
}

/// The participants of a round.
struct Stage {
    lock: String,
    holder: Holder,
    next: Process,
    folder: PathBuf,
}

impl Round {
    /// Runs the round. Afterwards all hosts are healthy again.
    pub fn run(fault: &Fault, number: usize, variant: Variant, hosts: &mut Hosts, keep: &Path) -> Self {
        let lock = format!("{}-{number}", fault.name);
        let stage = Stage::prepare(fault.output, variant, hosts, &keep.join(format!("{lock}.log")), lock);
        let struck = stage.strike(fault, hosts);
        let next = wait_within(LONGEST, || stage.recorded(NEXT));
        wait_within(SURVIVAL, || stage.holder.command().is_empty().then_some(()));
        let former = stage.recorded(HOLDER).expect("it held the lock").last;
        let survivors = stage.end(keep);
        mend(fault, hosts);
        Self {
            number,
            variant,
            next_seconds: next.map(|next| next.first.since(struck)),
            gap_seconds: next.map(|next| next.first.since(former)),
            survivors,
        }
    }
}

impl Stage {
    /// Starts a holder, and one that waits for the lock.
    fn prepare(output: Output, variant: Variant, hosts: &Hosts, log: &Path, lock: String) -> Self {
        let folder = records(&hosts.folder, &lock);
        for host in [HOLDER, NEXT] {
            fs::create_dir(folder.join(host)).expect("the folder is new");
        }
        let own = folder.join(HOLDER);
        let words = variant.words(hosts, HOLDER, &lock, variant.kind.words(&own));
        let holder = Holder::start(hosts, HOLDER, &words, output, &own, log);
        let words = variant.words(hosts, NEXT, &lock, Kind::Plain.words(&folder.join(NEXT)));
        let on = hosts.network.on(NEXT).into_iter();
        let words: Vec<&str> = on.chain(words.iter().map(String::as_str)).collect();
        let next = Process::start(Path::new("ip"), &words);
        hosts.wait_for("one that waits for the lock", || (waiters(hosts, NEXT, &lock)? == 1).then_some(()));
        Self { lock, holder, next, folder }
    }

    /// Returns the first and the last moment of a host's command.
    fn recorded(&self, host: &str) -> Option<Belief> {
        recorded(&self.folder.join(host))
    }

    /// Injects the fault. Returns the moment before its last step.
    fn strike(&self, fault: &Fault, hosts: &Hosts) -> BootTime {
        let client = hosts.client(NEXT);
        let session = client.holder(&format!("{}/.lock", self.lock)).expect("it is held");
        let mut struck = BootTime::now();
        for step in fault.steps {
            struck = BootTime::now();
            match *step {
                Step::Kill(target) => self.holder.kill(hosts, HOLDER, target),
                Step::Stop(target) => self.holder.stop(hosts, HOLDER, target),
                Step::Unplug => hosts.network.unplug(HOLDER),
                Step::Fill => self.holder.fill(),
                Step::Type(character) => self.holder.type_character(character),
                Step::Destroy => client.destroy(&session),
            }
        }
        struck
    }

    /// Ends both. Returns the number of processes of the former command that were left.
    fn end(self, keep: &Path) -> usize {
        let survivors = self.holder.end();
        // It may still wait for the lock.
        shell(&format!("kill -TERM {} 2>/dev/null", self.next.number()));
        self.next.ends();
        let log = keep.join(format!("{}-next.log", self.lock));
        fs::write(log, self.next.said()).expect("the folder can be written to");
        survivors
    }
}

/// Undoes what outlasts the processes of the round.
fn mend(fault: &Fault, hosts: &mut Hosts) {
    if fault.steps.contains(&Step::Unplug) {
        hosts.network.plug(HOLDER);
    }
    if fault.steps.contains(&Step::Kill(Target::Agent)) {
        hosts.wait_for_end(HOLDER);
        hosts.begin(HOLDER);
    }
    hosts.wait_until_whole();
}

#[cfg(test)]
mod tests {
    use super::super::fault;
    use super::*;

    #[test]
    fn twelve_rounds_have_all_variants() {
        let variant = |number| Variant::of(&fault::ALL[0], number, Fixed::default());
        let mut seen: Vec<Variant> = Vec::new();
        (5..17).map(variant).for_each(|variant| {
            assert!(!seen.contains(&variant), "{variant} is there twice");
            seen.push(variant);
        });
        let fixed = Fixed { kind: Some(Kind::Plain), lock_delay: Some(Duration::ZERO), window: None };
        let destroyed = fault::ALL.iter().find(|fault| fault.destroys()).expect("there is one");
        let variant = Variant::of(destroyed, 1, fixed);
        assert_eq!(
            (variant.window, variant.kind, variant.lock_delay),
            (Window::Default, Kind::Plain, Duration::ZERO)
        );
    }
}
