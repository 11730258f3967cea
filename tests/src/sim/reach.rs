//! Faults between a host and the servers as a whole: closed ports, the loss of all servers while
//! other agents stay reachable, and outages of all servers or of a majority.
//!
//! A firewall closes ports, a router separates networks: neither is a cut between two endpoints.
//! Such a host may be alive to the servers, by its answers to challenges from other agents, while
//! nothing that its guards need gets through.
//!
//! These faults have their own random source, so that seeds without them are unchanged. In sparse
//! seeds there are no other faults, and most faults are old before the next one begins.

use super::chaos::Mend;
use super::draw::Draw;
use super::guard::Guard;
use super::marks::Mark;
use super::network::{Link, Place, Port};
use super::plan::Plan;
use super::stage::Event;
use super::world::World;
use lockmesh_protocol::id::ServerId;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Longest outage of servers.
const LONGEST_OUTAGE: Duration = Duration::from_secs(20);

/// The rate of these faults.
#[derive(Clone, Debug, Default)]
pub struct ReachPlan {
    /// The mean time between two of them; `None` for never.
    pub every: Option<Duration>,
    /// The same if seeds are spent on guards.
    pub every_for_guards: Option<Duration>,
    /// The maximum length of a cut.
    pub cut_length: Duration,
    /// Set when there are no other faults.
    pub is_sparse: bool,
    /// The length of the storm in a sparse seed.
    pub storm: Duration,
}

impl ReachPlan {
    /// Draws a plan.
    pub fn draw(draw: &mut Draw) -> Self {
        let is_sparse = draw.once_in(2);
        let mean = if is_sparse { *draw.pick(&[12, 30]) } else { 5 } * SECOND;
        let every = draw.around(mean);
        Self {
            every: draw.once_in(4).then_some(every),
            every_for_guards: draw.once_in(2).then_some(every),
            cut_length: *draw.pick(&[4, 20, 45]) * SECOND,
            is_sparse,
            storm: draw.duration(60 * SECOND, 110 * SECOND),
        }
    }

    /// `true` if only these faults occur.
    pub fn is_alone(&self) -> bool {
        self.every.is_some() && self.is_sparse
    }
}

impl Plan {
    /// Adds the conditions under which these faults matter: guards, and agents that can challenge
    /// for a server.
    pub fn suit_reach(&mut self) {
        if self.reach.every.is_none() {
            return;
        }
        self.clients.agents = self.clients.agents.max(3);
        self.guards.per_agent = self.guards.per_agent.max(1);
        if !self.reach.is_sparse {
            return;
        }
        self.steady_servers();
        self.guards.host_trouble = None;
        (self.faults.agent_stop, self.faults.suspension) = (None, None);
        self.guards.locks = 3;
        self.storm = self.reach.storm;
        (self.core.max_pending_proposals, self.core.max_watches) = (4_096, 1_000);
        let clients = &mut self.clients;
        (clients.lockers, clients.writers, clients.readers, clients.watchers) = (1, 1, 0, 1);
        (clients.archives, clients.think) = (false, clients.think.max(Duration::from_millis(60)));
    }
}

/// A set of closed ports.
#[derive(Clone, Copy, Debug)]
enum Closing {
    /// Everything between the host and the servers.
    Servers,
    /// The connections to the servers. Challenges pass.
    ServerPort,
    /// Traffic between the QUIC port of the agent and all others.
    AgentPort,
    /// Gossip. All connections pass.
    GossipPort,
    /// Everything between the host and the other agents.
    Agents,
    /// All connections. Gossip passes.
    Connections,
}

impl Closing {
    const ALL: [Self; 6] =
        [Self::Servers, Self::ServerPort, Self::AgentPort, Self::GossipPort, Self::Agents, Self::Connections];

    /// Returns the ports that are closed toward servers, and those toward other agents.
    fn ports(self) -> (&'static [Port], &'static [Port]) {
        match self {
            Self::Servers => (&[Port::Server, Port::Agent], &[]),
            Self::ServerPort => (&[Port::Server], &[]),
            Self::AgentPort => (&[Port::Agent], &[Port::Agent]),
            Self::GossipPort => (&[], &[Port::Gossip]),
            Self::Agents => (&[], &[Port::Agent, Port::Gossip]),
            Self::Connections => (&[Port::Server, Port::Agent], &[Port::Agent]),
        }
    }

    fn mark(self) -> Mark {
        match self {
            Self::Servers => Mark::ServersCutOff,
            Self::ServerPort => Mark::ServerPortClosed,
            Self::AgentPort => Mark::AgentPortClosed,
            Self::GossipPort => Mark::GossipPortClosed,
            Self::Agents => Mark::AgentsCutOff,
            Self::Connections => Mark::ConnectionsCut,
        }
    }
}

impl World {
    /// Performs one of these faults.
    pub(super) fn trouble_reach(&mut self) {
        match self.stage.reach_draw.below(8) {
            0..=3 => self.close_ports(),
            4 => self.take_servers_away(true),
            5 => self.take_servers_away(false),
            _ => self.trouble_hosts(),
        }
    }

    /// Returns a host with a guard that holds a lock, if there is one.
    fn host_of_interest(&mut self) -> usize {
        let holds = |agent: &usize| self.agents[*agent].guards.iter().any(Guard::is_holding);
        let holding: Vec<usize> = (0..self.agents.len()).filter(holds).collect();
        let some = self.stage.reach_draw.below(self.agents.len() as u64) as usize;
        self.stage.reach_draw.any(&holding).unwrap_or(some)
    }

    /// Closes ports of a host for a while, in one direction or both.
    fn close_ports(&mut self) {
        let agent = self.host_of_interest();
        let closing = *self.stage.reach_draw.pick(&Closing::ALL);
        let ways = [(true, true), (true, true), (true, false), (false, true)];
        let (inward, outward) = *self.stage.reach_draw.pick(&ways);
        let longest = self.stage.plan.reach.cut_length;
        let length = self.stage.reach_draw.duration(SECOND, longest);
        let here = Place::Agent(agent);
        let servers = self.machines.keys().copied().map(Place::Server);
        let others = (0..self.agents.len()).map(Place::Agent).filter(|other| *other != here);
        let (to_servers, to_agents) = closing.ports();
        let to_servers = servers.flat_map(|server| to_servers.iter().map(move |port| (server, *port)));
        let to_agents = others.flat_map(|other| to_agents.iter().map(move |port| (other, *port)));
        let mut closed: Vec<(Link, Port)> = Vec::new();
        for (there, port) in to_servers.chain(to_agents) {
            closed.extend(inward.then_some(((there, here), port)));
            closed.extend(outward.then_some(((here, there), port)));
        }
        self.stage.hit(closing.mark());
        self.stage.log(|| {
            format!("agent {agent}: {closing:?} closed for {length:?}: inward {inward}, outward {outward}")
        });
        closed.iter().for_each(|(link, port)| self.stage.network.close(*link, *port));
        self.stage.after(length, Event::Mend(Mend::Ports(closed)));
        self.fault_at(agent);
    }

    /// Pauses or crashes all servers, or a majority of them, for the same time.
    fn take_servers_away(&mut self, all: bool) {
        let mut left = self.running();
        let count = if all { left.len() } else { left.len() / 2 + 1 };
        let length = self.stage.reach_draw.duration(SECOND, LONGEST_OUTAGE);
        let dies = self.stage.reach_draw.once_in(2);
        if left.is_empty() {
            return;
        }
        let mut away: Vec<ServerId> = Vec::new();
        while away.len() < count {
            let place = self.stage.reach_draw.below(left.len() as u64) as usize;
            away.push(left.remove(place));
        }
        self.stage.hit(if all { Mark::AllServersAway } else { Mark::MajorityAway });
        self.stage.log(|| format!("servers {away:?} are unavailable for {length:?}; crashed: {dies}"));
        for id in away {
            if dies {
                self.crash(id);
                self.stage.after(length, Event::Restart(id));
            } else {
                self.stand_still(id, length);
            }
        }
        self.held.fault_everywhere(self.stage.now);
    }
}
