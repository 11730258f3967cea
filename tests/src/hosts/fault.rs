//! What happens to the holder's host, or to the servers: each fault is done, held for a while and
//! undone again.

use super::expectation::{Expectation, LockDelay, Window, of_silence};
use super::members::{AGENTS, Hosts, SERVERS};
use crate::process::run;
use std::time::Duration;

/// The host whose agent serves the holder.
pub const HOLDER: &str = AGENTS[0];

/// How long servers are stopped or cut off: longer than the windows of most sessions.
const OUTAGE: Duration = Duration::from_secs(6);

/// For how long the connections of a host last that hears nothing. The servers hear its renewals
/// until then.
const DEAF_CONNECTION: Duration = Duration::from_secs(6);

/// How long the mesh is cut off from the holder's host: longer than the default window and a
/// verdict take together.
const MESH_OUTAGE: Duration = Duration::from_secs(10);

/// The longest that an orderly leave may take until the next contender holds the lock, beside its
/// lock-delay.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// The cause in the loss history of a session that its guard gave up.
pub const GIVEN_UP: &str = "given-up";

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
    /// What hosts send to each other is lost, in both directions.
    Part(Which, Which),
    /// A host neither sends nor receives anything on a UDP port.
    Close(Which, u16),
    /// What a host sends from a UDP port of its own is lost.
    Mute(Which, u16),
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
    /// Those of all servers.
    Servers,
}

/// Who is silent while a fault lasts, and with that what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The holder's host, as far as the others can see.
    Holder,
    /// All others, as far as the holder's host can see. It is heard until its connections end, and
    /// until then it may give the lock back itself.
    Others,
    /// The servers, as far as the holder's host can see. Its answers to questions still reach them,
    /// so the node is alive, and the session ends because its guard gave it up.
    Acknowledgements,
    /// The other agents, as far as the holder's host can see: the servers still hear it.
    Mesh,
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

/// All faults, in the order in which they are done. For 30 s after its agent announced a restart
/// the servers do not judge a host, so that fault comes after all that end in a verdict.
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
        }
    }

    /// Undoes it; the host is named that led when it was done.
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
    /// What must become of a lock without a lock-delay.
    pub fn expectation(&self, window: Window) -> Expectation {
        match self.silent {
            Silent::Holder => of_silence(self.length, window),
            Silent::Others => Expectation::Passes(window.settled().max(DEAF_CONNECTION + window.limit())),
            Silent::Acknowledgements => Expectation::Passes(window.settled()),
            // What saves the node's lease does nothing for a short TTL.
            Silent::OneWay | Silent::Announced if window == Window::Ttl => Expectation::Either,
            Silent::Server | Silent::OneWay | Silent::Announced | Silent::Mesh => Expectation::Kept,
            Silent::Left => Expectation::Passes(LEAVE_LIMIT),
        }
    }

    /// About how long a round with it takes, beside its preparation.
    pub fn usual_length(&self, window: Window) -> Duration {
        match (self.length, self.expectation(window)) {
            (None, Expectation::Passes(limit)) => limit,
            (length, _) => length.unwrap_or_default() + window.length(),
        }
    }

    /// Whether the limit holds for each round, and not for the median alone.
    pub fn limits_each_round(&self) -> bool {
        matches!(self.silent, Silent::Acknowledgements | Silent::Others)
    }

    /// The causes of which the loss history must name one where the lock passes on.
    pub fn causes(&self, window: Window) -> &'static [&'static str] {
        match (self.silent, window) {
            (Silent::Left, _) => &["node-left"],
            // A host that no question reaches cannot answer: the servers may fail its node first.
            (Silent::Others, _) => &[GIVEN_UP, "node-failed"],
            (Silent::Acknowledgements, _) if self.stops_questions() => &[GIVEN_UP, "node-failed"],
            (Silent::Acknowledgements, _) => &[GIVEN_UP],
            (_, Window::Ttl) => &["ttl-expired", GIVEN_UP],
            // An agent that stood still may end the session itself as soon as it goes on.
            (_, _) if self.length.is_some() => &["node-failed", GIVEN_UP],
            _ => &["node-failed"],
        }
    }

    /// `true` if questions may not reach the holder's agent, or its answers the servers.
    fn stops_questions(&self) -> bool {
        matches!(self.deed, Deed::Close(_, 8301) | Deed::Mute(_, 8301))
    }

    /// The lock-delay of the holder's session. A leave is somebody's act, of which the guard hears
    /// when it is done: only a delay keeps the next holder waiting until then. All other ends come
    /// after the guard's own deadline, and need none.
    pub fn lock_delay(&self) -> LockDelay {
        match self.silent {
            Silent::Left => LockDelay::Second,
            _ => LockDelay::None,
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
        assert_eq!(LINK_DOWN.causes(Window::Fast), ["node-failed"]);
        assert_eq!(LINK_DOWN.causes(Window::Ttl), ["ttl-expired", GIVEN_UP]);
        assert_eq!(fault("agent-stopped-4s").causes(Window::Fast), ["node-failed", GIVEN_UP]);
        assert_eq!(fault("clean-leave").causes(Window::Fast), ["node-left"]);
    }

    #[test]
    fn who_is_heard_but_hears_nothing_gives_the_lock_up() {
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
    fn hosts_are_who_they_are_when_it_begins() {
        assert_eq!(Which::Follower.hosts("s1"), ["s2"]);
        assert_eq!(Which::Follower.hosts("s2"), ["s1"]);
        assert_eq!(Which::Others.hosts("s1"), ["s1", "s2", "s3", "n2", "n3", "n4", "n5"]);
        assert_eq!(Which::Servers.hosts("s1"), SERVERS);
        assert_eq!(ways(Which::Holder, Which::Leader, "s3").collect::<Vec<_>>(), [("n1", "s3")]);
        assert_eq!(ways(Which::Others, Which::Holder, "s3").count(), 7);
    }
}
