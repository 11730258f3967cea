//! Faults of the holder's host or of the servers: each is injected, held for a while and undone.

use super::expectation::{Expectation, LockDelay, Window, of_silence};
use super::members::{AGENTS, Hosts, SERVERS};
use crate::process::run;
use std::time::Duration;

/// The host whose agent serves the holder.
pub const HOLDER: &str = AGENTS[0];

/// The time for which servers are stopped or cut off: longer than the windows of most sessions.
const OUTAGE: Duration = Duration::from_secs(6);

/// The lifetime of the connections of a host that receives nothing. Until then the servers receive
/// its renewals.
const DEAF_CONNECTION: Duration = Duration::from_secs(6);

/// The time for which clients take all connections: longer than the default window, a verdict and
/// several renewals.
const FLOOD: Duration = Duration::from_secs(12);

/// The time for which the mesh is cut off from the holder's host: longer than the default window
/// and a verdict together.
const MESH_OUTAGE: Duration = Duration::from_secs(10);

/// The maximum time of an orderly leave until the next contender holds the lock, in addition to its
/// lock-delay.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// The cause in the loss history of a session that its guard gave up.
pub const GIVEN_UP: &str = "given-up";

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The fault's name.
    pub name: &'static str,
    /// The action.
    pub deed: Deed,
    /// The duration; `None` until a contender holds the lock.
    pub length: Option<Duration>,
    /// The silent party during the fault.
    pub silent: Silent,
}

/// An action on a host.
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
    /// A link is taken down.
    Unplug(Which),
    /// Packets from one host to another are lost, in that direction only.
    Cut(Which, Which),
    /// Packets between hosts are lost, in both directions.
    Part(Which, Which),
    /// A host neither sends nor receives anything on a UDP port.
    Close(Which, u16),
    /// Datagrams that a host sends from a local UDP port are lost.
    Mute(Which, u16),
    /// Clients take every connection that a server or agent has room for, and with it its file
    /// descriptors. All processes have small limits.
    Flood(Which),
}

/// A set of hosts, by their roles when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The holder's host.
    Holder,
    /// The leader's host.
    Leader,
    /// The host of a server that is not the leader.
    Follower,
    /// All hosts except the holder's.
    Others,
    /// The hosts of all servers.
    Servers,
}

/// The silent party during a fault, which determines the expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The holder's host, as seen by the others.
    Holder,
    /// All others, as seen by the holder's host. Its messages arrive until its connections end;
    /// until then it may release the lock itself.
    Others,
    /// The servers, as seen by the holder's host. Its replies to checks still reach them. The node
    /// therefore stays alive, and the session ends because its guard gives it up.
    Acknowledgements,
    /// The other agents, as seen by the holder's host: the servers still receive its messages.
    Mesh,
    /// One server: a majority remains.
    Server,
    /// The holder's host towards the leader, or the leader towards it. The node lease takes another
    /// route. Commands do not, and TTL renewals are commands.
    OneWay,
    /// The holder's agent, after it announced its restart.
    Announced,
    /// The holder's agent, permanently, after it announced its leave.
    Left,
    /// No party: guards keep the connections that they have.
    None,
}

/// The holder's host loses its link.
pub const LINK_DOWN: Fault = gone("link-down", Deed::Unplug(Which::Holder), Silent::Holder);

/// All faults, in order of execution. For 30 s after an agent announced a restart the servers do
/// not judge its host. That fault therefore follows all faults that end in a verdict.
pub const ALL: [Fault; 19] = [
    gone("host-killed", Deed::Kill, Silent::Holder),
    LINK_DOWN,
    stopped("agent-stopped-1s", 1),
    stopped("agent-stopped-4s", 4),
    stopped("agent-stopped-10s", 10),
    gone("host-mute", Deed::Cut(Which::Holder, Which::Others), Silent::Holder),
    gone("host-deaf", Deed::Cut(Which::Others, Which::Holder), Silent::Others),
    gone("servers-cut", Deed::Part(Which::Holder, Which::Servers), Silent::Acknowledgements),
    gone("port-8300-closed", Deed::Close(Which::Holder, 8300), Silent::Acknowledgements),
    gone("port-8301-closed", Deed::Close(Which::Holder, 8301), Silent::Acknowledgements),
    gone("port-8301-mute", Deed::Mute(Which::Holder, 8301), Silent::Acknowledgements),
    Fault {
        name: "port-8302-closed",
        deed: Deed::Close(Which::Holder, 8302),
        length: Some(MESH_OUTAGE),
        silent: Silent::Mesh,
    },
    outage("cut-to-leader", Deed::Cut(Which::Holder, Which::Leader), Silent::OneWay),
    outage("cut-from-leader", Deed::Cut(Which::Leader, Which::Holder), Silent::OneWay),
    outage("follower-stopped", Deed::Freeze(Which::Follower), Silent::Server),
    outage("leader-stopped", Deed::Freeze(Which::Leader), Silent::Server),
    outage("leader-partitioned", Deed::Unplug(Which::Leader), Silent::Server),
    outage("agent-restarted", Deed::Terminate, Silent::Announced),
    gone("clean-leave", Deed::Leave, Silent::Left),
];

/// Faults that run only if named, because they limit the processes of the whole run.
pub const BY_NAME: [Fault; 2] = [
    Fault {
        name: "agent-flooded",
        deed: Deed::Flood(Which::Holder),
        length: Some(FLOOD),
        silent: Silent::None,
    },
    Fault {
        name: "servers-flooded",
        deed: Deed::Flood(Which::Servers),
        length: Some(FLOOD),
        silent: Silent::None,
    },
];

/// Returns every fault.
pub fn every() -> impl Iterator<Item = Fault> {
    ALL.into_iter().chain(BY_NAME)
}

/// Returns a fault that lasts until a contender holds the lock.
const fn gone(name: &'static str, deed: Deed, silent: Silent) -> Fault {
    Fault { name, deed, length: None, silent }
}

/// Returns a fault that freezes the holder's agent for some seconds.
const fn stopped(name: &'static str, seconds: u64) -> Fault {
    let length = Some(Duration::from_secs(seconds));
    Fault { name, deed: Deed::Freeze(Which::Holder), length, silent: Silent::Holder }
}

/// Returns a fault without an effect on the holder.
const fn outage(name: &'static str, deed: Deed, silent: Silent) -> Fault {
    Fault { name, deed, length: Some(OUTAGE), silent }
}

impl Deed {
    /// Performs the action. `leader` is the leader's host.
    pub fn strike(self, hosts: &mut Hosts, leader: &'static str) {
        match self {
            Self::Kill => hosts.kill_host(HOLDER),
            Self::Terminate => hosts.terminate(HOLDER),
            Self::Leave => leave(hosts),
            Self::Freeze(which) => which.hosts(leader).iter().for_each(|host| hosts.freeze(host)),
            Self::Unplug(which) => which.hosts(leader).iter().for_each(|host| hosts.network.unplug(host)),
            Self::Cut(from, to) => ways(from, to, leader).for_each(|(from, to)| hosts.network.cut(from, to)),
            Self::Part(one, other) => ways(one, other, leader).for_each(|(one, other)| {
                hosts.network.cut(one, other);
                hosts.network.cut(other, one);
            }),
            Self::Close(which, port) => {
                which.hosts(leader).iter().for_each(|host| hosts.network.close_port(host, port));
            }
            Self::Mute(which, port) => {
                which.hosts(leader).iter().for_each(|host| hosts.network.mute_port(host, port));
            }
            Self::Flood(which) => hosts.flood(&which.hosts(leader)),
        }
    }

    /// Undoes the action. `leader` is the host that led when the fault began.
    pub fn mend(self, hosts: &mut Hosts, leader: &'static str) {
        match self {
            Self::Kill | Self::Terminate | Self::Leave => hosts.begin(HOLDER),
            Self::Freeze(which) => which.hosts(leader).iter().for_each(|host| hosts.thaw(host)),
            Self::Unplug(which) => which.hosts(leader).iter().for_each(|host| hosts.network.plug(host)),
            Self::Cut(from, to) => ways(from, to, leader).for_each(|(from, to)| hosts.network.mend(from, to)),
            Self::Part(one, other) => ways(one, other, leader).for_each(|(one, other)| {
                hosts.network.mend(one, other);
                hosts.network.mend(other, one);
            }),
            Self::Close(which, port) => {
                which.hosts(leader).iter().for_each(|host| hosts.network.open_port(host, port));
            }
            Self::Mute(which, port) => {
                which.hosts(leader).iter().for_each(|host| hosts.network.unmute_port(host, port));
            }
            Self::Flood(_) => hosts.end_floods(),
        }
    }

    /// Returns the hosts whose server or agent is flooded.
    pub fn flooded(self, leader: &'static str) -> Vec<&'static str> {
        match self {
            Self::Flood(which) => which.hosts(leader),
            _ => Vec::new(),
        }
    }
}

impl Which {
    fn hosts(self, leader: &'static str) -> Vec<&'static str> {
        match self {
            Self::Holder => vec![HOLDER],
            Self::Leader => vec![leader],
            Self::Follower => SERVERS.into_iter().filter(|server| *server != leader).take(1).collect(),
            Self::Servers => SERVERS.to_vec(),
            Self::Others => SERVERS.into_iter().chain(AGENTS).filter(|host| *host != HOLDER).collect(),
        }
    }
}

/// Returns every path from one of the first hosts to one of the second.
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
    /// Returns the expectation for a lock without a lock-delay.
    pub fn expectation(&self, window: Window) -> Expectation {
        match self.silent {
            Silent::Holder => of_silence(self.length, window),
            Silent::Others => Expectation::Passes(window.settled().max(DEAF_CONNECTION + window.limit())),
            Silent::Acknowledgements => Expectation::Passes(window.settled()),
            // The means that save the node lease do not help a short TTL.
            Silent::OneWay | Silent::Announced if window == Window::Ttl => Expectation::Either,
            Silent::Server | Silent::OneWay | Silent::Announced | Silent::Mesh | Silent::None => {
                Expectation::Kept
            }
            Silent::Left => Expectation::Passes(LEAVE_LIMIT),
        }
    }

    /// Returns the approximate duration of a round with this fault, without its preparation.
    pub fn usual_length(&self, window: Window) -> Duration {
        match (self.length, self.expectation(window)) {
            (None, Expectation::Passes(limit)) => limit,
            (length, _) => length.unwrap_or_default() + window.length(),
        }
    }

    /// Returns `true` if the limit holds for each round, not only for the median.
    pub fn limits_each_round(&self) -> bool {
        matches!(self.silent, Silent::Acknowledgements | Silent::Others)
    }

    /// Returns the causes of which the loss history must name one if the lock passes on.
    pub fn causes(&self, window: Window) -> &'static [&'static str] {
        match (self.silent, window) {
            (Silent::Left, _) => &["node-left"],
            // A host that no check reaches cannot reply: the servers may fail its node first.
            (Silent::Others, _) => &[GIVEN_UP, "node-failed"],
            (Silent::Acknowledgements, _) if self.stops_questions() => &[GIVEN_UP, "node-failed"],
            (Silent::Acknowledgements, _) => &[GIVEN_UP],
            (_, Window::Ttl) => &["ttl-expired", GIVEN_UP],
            // An agent that was frozen may end the session itself as soon as it resumes.
            (_, _) if self.length.is_some() => &["node-failed", GIVEN_UP],
            _ => &["node-failed"],
        }
    }

    /// Returns `true` if checks may not reach the holder's agent, or its replies the servers.
    fn stops_questions(&self) -> bool {
        matches!(self.deed, Deed::Close(_, 8301) | Deed::Mute(_, 8301))
    }

    /// Returns the lock-delay of the holder's session. After a leave the guard learns of the loss
    /// only once it is done, so only a delay makes the next holder wait. All other ends come after
    /// the guard's own deadline, and need no delay.
    pub fn lock_delay(&self) -> LockDelay {
        match self.silent {
            Silent::Left => LockDelay::Second,
            _ => LockDelay::None,
        }
    }

    /// Returns `true` if all processes of the run need small limits.
    pub fn needs_limits(&self) -> bool {
        matches!(self.deed, Deed::Flood(_))
    }

    /// Returns the `lockmesh` command that the fault needs, if older programs lack it.
    pub fn command(&self) -> Option<&'static str> {
        (self.deed == Deed::Leave).then_some("leave")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str) -> Fault {
        every().find(|fault| fault.name == name).expect("there is such a fault")
    }

    #[test]
    fn fault_names_are_unique() {
        for fault in every() {
            assert_eq!(every().filter(|other| other.name == fault.name).count(), 1, "{}", fault.name);
        }
    }

    #[test]
    fn server_loss_keeps_lock() {
        for name in ["cut-to-leader", "leader-stopped", "leader-partitioned", "agent-restarted"] {
            assert_eq!(fault(name).expectation(Window::Fast), Expectation::Kept, "{name}");
        }
        for flood in BY_NAME {
            assert_eq!(flood.expectation(Window::Ttl), Expectation::Kept, "{}", flood.name);
            assert!(flood.needs_limits(), "{}", flood.name);
        }
        for name in ["cut-to-leader", "agent-restarted"] {
            assert_eq!(fault(name).expectation(Window::Ttl), Expectation::Either, "{name}");
        }
    }

    #[test]
    fn host_loss_names_its_cause() {
        assert_eq!(LINK_DOWN.expectation(Window::Fast), Expectation::Passes(Window::Fast.limit()));
        assert_eq!(LINK_DOWN.causes(Window::Fast), ["node-failed"]);
        assert_eq!(LINK_DOWN.causes(Window::Ttl), ["ttl-expired", GIVEN_UP]);
        assert_eq!(fault("agent-stopped-4s").causes(Window::Fast), ["node-failed", GIVEN_UP]);
        assert_eq!(fault("clean-leave").causes(Window::Fast), ["node-left"]);
    }

    #[test]
    fn deaf_host_releases_lock() {
        for name in ["servers-cut", "port-8300-closed", "port-8301-closed"] {
            let fault = fault(name);
            assert_eq!(
                fault.expectation(Window::Default),
                Expectation::Passes(Window::Default.settled()),
                "{name}"
            );
            assert!(fault.causes(Window::Default).contains(&GIVEN_UP), "{name}");
            assert!(fault.limits_each_round(), "{name}");
        }
        let deaf = fault("host-deaf");
        assert_eq!(deaf.expectation(Window::Fast), Expectation::Passes(Duration::from_secs(9)));
        assert_eq!(deaf.expectation(Window::Safe), Expectation::Passes(Window::Safe.settled()));
        assert_eq!(fault("port-8302-closed").expectation(Window::Fast), Expectation::Kept);
    }

    #[test]
    fn roles_resolve_by_current_leader() {
        assert_eq!(Which::Follower.hosts("s1"), ["s2"]);
        assert_eq!(Which::Follower.hosts("s2"), ["s1"]);
        assert_eq!(Which::Others.hosts("s1"), ["s1", "s2", "s3", "n2", "n3", "n4", "n5"]);
        assert_eq!(Which::Servers.hosts("s1"), SERVERS);
        assert_eq!(fault("servers-flooded").deed.flooded("s1"), SERVERS);
        assert!(fault("host-killed").deed.flooded("s1").is_empty());
        assert_eq!(ways(Which::Holder, Which::Leader, "s3").collect::<Vec<_>>(), [("n1", "s3")]);
        assert_eq!(ways(Which::Others, Which::Holder, "s3").count(), 7);
    }
}
