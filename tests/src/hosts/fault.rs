//! What happens to the holder's host, or to the servers: each fault is done, held for a while and
//! undone again.

use super::expectation::{Expectation, Window, of_silence};
use super::members::{AGENTS, Hosts, SERVERS};
use crate::process::run;
use std::time::Duration;

/// The host whose agent serves the holder.
pub const HOLDER: &str = AGENTS[0];

/// How long servers are stopped or cut off: longer than the windows of most sessions.
const OUTAGE: Duration = Duration::from_secs(6);

/// For how long the connections of a host last that hears nothing.
const DEAF_CONNECTION: Duration = Duration::from_secs(6);

/// The longest that an orderly leave may take until the next contender holds the lock, its
/// lock-delay included.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    /// What is done.
    pub deed: Deed,
    /// How long it is held; `None` until a contender holds the lock.
    pub length: Option<Duration>,
    /// Who is silent then.
    pub silent: Silent,
}

/// What is done to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// SIGKILL to every process of the holder's host.
    Kill,
    /// SIGTERM to the holder's agent.
    Terminate,
    /// `lockmesh leave` on the holder's host.
    Leave,
    /// SIGSTOP to a server or agent.
    Freeze(Which),
    /// A cable is pulled.
    Unplug(Which),
    /// What one host sends to another is lost, in that direction alone.
    Cut(Which, Which),
}

/// Some of the hosts, by what they are when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The holder's.
    Holder,
    /// The leader's.
    Leader,
    /// That of a server that does not lead.
    Follower,
    /// All but the holder's.
    Others,
}

/// Who is silent while a fault lasts, and with that what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The holder's host, as far as the others can see.
    Holder,
    /// All others, as far as the holder's host can see. It is still heard: when its guard gives up,
    /// it gives the lock back itself.
    Others,
    /// One server: a majority is there.
    Server,
    /// The holder's host towards the leader, or the leader towards it. The node's lease goes
    /// another way; commands do not, and among them are the renewals of a TTL.
    OneWay,
    /// The holder's agent, which said before that it will be back.
    Announced,
    /// The holder's agent, for good, as it said before.
    Left,
}

/// The holder's host loses its link.
pub const LINK_DOWN: Fault = gone("link-down", Deed::Unplug(Which::Holder), Silent::Holder);

/// All faults.
pub const ALL: [Fault; 14] = [
    gone("host-killed", Deed::Kill, Silent::Holder),
    LINK_DOWN,
    stopped("agent-stopped-1s", 1),
    stopped("agent-stopped-4s", 4),
    stopped("agent-stopped-10s", 10),
    gone("host-mute", Deed::Cut(Which::Holder, Which::Others), Silent::Holder),
    gone("host-deaf", Deed::Cut(Which::Others, Which::Holder), Silent::Others),
    outage("cut-to-leader", Deed::Cut(Which::Holder, Which::Leader), Silent::OneWay),
    outage("cut-from-leader", Deed::Cut(Which::Leader, Which::Holder), Silent::OneWay),
    outage("follower-stopped", Deed::Freeze(Which::Follower), Silent::Server),
    outage("leader-stopped", Deed::Freeze(Which::Leader), Silent::Server),
    outage("leader-partitioned", Deed::Unplug(Which::Leader), Silent::Server),
    outage("agent-restarted", Deed::Terminate, Silent::Announced),
    gone("clean-leave", Deed::Leave, Silent::Left),
];

/// One that lasts until a contender holds the lock.
const fn gone(name: &'static str, deed: Deed, silent: Silent) -> Fault {
    Fault { name, deed, length: None, silent }
}

/// The holder's agent stands still for some seconds.
const fn stopped(name: &'static str, seconds: u64) -> Fault {
    let length = Some(Duration::from_secs(seconds));
    Fault { name, deed: Deed::Freeze(Which::Holder), length, silent: Silent::Holder }
}

/// One that the holder must not feel.
const fn outage(name: &'static str, deed: Deed, silent: Silent) -> Fault {
    Fault { name, deed, length: Some(OUTAGE), silent }
}

impl Deed {
    /// Does it; the leader's host is named.
    pub fn strike(self, hosts: &mut Hosts, leader: &'static str) {
        match self {
            Self::Kill => hosts.kill_host(HOLDER),
            Self::Terminate => hosts.terminate(HOLDER),
            Self::Leave => leave(hosts),
            Self::Freeze(which) => which.hosts(leader).iter().for_each(|host| hosts.freeze(host)),
            Self::Unplug(which) => which.hosts(leader).iter().for_each(|host| hosts.network.unplug(host)),
            Self::Cut(from, to) => ways(from, to, leader).for_each(|(from, to)| hosts.network.cut(from, to)),
        }
    }

    /// Undoes it; the host is named that led when it was done.
    pub fn mend(self, hosts: &mut Hosts, leader: &'static str) {
        match self {
            Self::Kill | Self::Terminate | Self::Leave => hosts.begin(HOLDER),
            Self::Freeze(which) => which.hosts(leader).iter().for_each(|host| hosts.thaw(host)),
            Self::Unplug(which) => which.hosts(leader).iter().for_each(|host| hosts.network.plug(host)),
            Self::Cut(from, to) => ways(from, to, leader).for_each(|(from, to)| hosts.network.mend(from, to)),
        }
    }
}

impl Which {
    fn hosts(self, leader: &'static str) -> Vec<&'static str> {
        match self {
            Self::Holder => vec![HOLDER],
            Self::Leader => vec![leader],
            Self::Follower => SERVERS.into_iter().filter(|server| *server != leader).take(1).collect(),
            Self::Others => SERVERS.into_iter().chain(AGENTS).filter(|host| *host != HOLDER).collect(),
        }
    }
}

/// Every way from one of the first hosts to one of the second.
fn ways(from: Which, to: Which, leader: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let to = to.hosts(leader);
    from.hosts(leader).into_iter().flat_map(move |from| to.clone().into_iter().map(move |to| (from, to)))
}

fn leave(hosts: &mut Hosts) {
    let (code, _, said) = run(&["leave", "--http-addr", &hosts.socket_option(HOLDER)]);
    assert_eq!(code, 0, "lockmesh leave: {said}");
    hosts.wait_for_end(HOLDER);
}

impl Fault {
    /// What must become of the lock.
    pub fn expectation(&self, window: Window) -> Expectation {
        match self.silent {
            Silent::Holder => of_silence(self.length, window),
            // What it says is heard until its connections end, for it hears no answer on them.
            Silent::Others => match of_silence(self.length, window) {
                Expectation::Passes(limit) => Expectation::Passes(limit + DEAF_CONNECTION),
                other => other,
            },
            // What saves the node's lease does nothing for a short TTL.
            Silent::OneWay | Silent::Announced if window == Window::Ttl => Expectation::Either,
            Silent::Server | Silent::OneWay | Silent::Announced => Expectation::Kept,
            Silent::Left => Expectation::Passes(LEAVE_LIMIT),
        }
    }

    /// The cause that the loss history must name where the lock passes on; none where its holder
    /// may give it back.
    pub fn cause(&self, window: Window) -> Option<&'static str> {
        match (self.silent, window) {
            (Silent::Left, _) => Some("node-left"),
            (Silent::Others, _) => None,
            (_, Window::Ttl) => Some("ttl-expired"),
            _ => Some("node-failed"),
        }
    }

    /// The lock-delay of the holder's session. A leave is somebody's act, of which the guard hears
    /// when it is done: only a delay keeps the next holder waiting until then. All other ends come
    /// after the guard's own deadline, and need none.
    pub fn lock_delay(&self) -> &'static str {
        match self.silent {
            Silent::Left => "1s",
            _ => "0s",
        }
    }

    /// The command of `lockmesh` that it needs, where not every program has it.
    pub fn command(&self) -> Option<&'static str> {
        (self.deed == Deed::Leave).then_some("leave")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str) -> Fault {
        ALL.into_iter().find(|fault| fault.name == name).expect("there is such a fault")
    }

    #[test]
    fn names_are_told_apart() {
        for fault in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == fault.name).count(), 1, "{}", fault.name);
        }
    }

    #[test]
    fn who_only_loses_a_server_keeps_the_lock() {
        for name in ["cut-to-leader", "leader-stopped", "leader-partitioned", "agent-restarted"] {
            assert_eq!(fault(name).expectation(Window::Fast), Expectation::Kept, "{name}");
        }
        for name in ["cut-to-leader", "agent-restarted"] {
            assert_eq!(fault(name).expectation(Window::Ttl), Expectation::Either, "{name}");
        }
    }

    #[test]
    fn who_is_gone_loses_it_for_a_reason_that_is_told() {
        assert_eq!(LINK_DOWN.expectation(Window::Fast), Expectation::Passes(Window::Fast.limit()));
        assert_eq!(LINK_DOWN.cause(Window::Fast), Some("node-failed"));
        assert_eq!(LINK_DOWN.cause(Window::Ttl), Some("ttl-expired"));
        assert_eq!(fault("host-deaf").cause(Window::Fast), None);
        assert_eq!(fault("clean-leave").cause(Window::Fast), Some("node-left"));
    }

    #[test]
    fn hosts_are_who_they_are_when_it_begins() {
        assert_eq!(Which::Follower.hosts("s1"), ["s2"]);
        assert_eq!(Which::Follower.hosts("s2"), ["s1"]);
        assert_eq!(Which::Others.hosts("s1"), ["s1", "s2", "s3", "n2", "n3", "n4", "n5"]);
        assert_eq!(ways(Which::Holder, Which::Leader, "s3").collect::<Vec<_>>(), [("n1", "s3")]);
        assert_eq!(ways(Which::Others, Which::Holder, "s3").count(), 7);
    }
}
