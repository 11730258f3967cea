//! The network: it loses, delays, repeats and reorders what is sent, and links can be cut or
//! clogged for a while.

use super::draw::Draw;
use super::marks::{Mark, Marks};
use super::plan::{NetworkPlan, Retransmission};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::Lane;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An endpoint of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A server.
    Server(ServerId),
    /// An agent, by its number in the simulation.
    Agent(usize),
    /// The operator, and servers that want to join.
    Operator,
}

/// One direction between two endpoints.
pub type Link = (Place, Place);

/// A UDP port of a host or a server. A firewall between two endpoints may close one port and leave
/// the others open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The QUIC port of a server, to which agents connect.
    Server,
    /// The QUIC port of an agent, on which servers and other agents challenge it.
    Agent,
    /// The gossip port of an agent.
    Gossip,
}

/// The mode of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// A message between servers.
    Message,
    /// Data on a stream of a connection: in order and exactly once.
    Stream(Lane),
    /// The handshake of a connection.
    Handshake,
    /// A question on a connection that is made for it, if there was none a moment ago.
    Question,
    /// A datagram of the mesh, which is never retransmitted.
    Datagram,
}

/// Idle time after which a connection for questions is closed.
const QUESTIONS_END: Duration = Duration::from_secs(5);

/// Number of consecutive datagrams that establish a connection.
const HANDSHAKE_DATAGRAMS: usize = 4;

/// Nothing is retransmitted after this time: the connection has ended before.
const RETRANSMISSION_ENDS: Duration = Duration::from_secs(6);

/// Delay from which on its receiver cannot be expected to meet its time bounds.
const NOTABLE: Duration = Duration::from_millis(500);

/// Counts of what was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Between agents and servers.
    pub agents: u64,
    /// Between servers.
    pub servers: u64,
    /// Datagrams of the mesh.
    pub mesh: u64,
    /// Bytes of those datagrams.
    pub mesh_bytes: u64,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    plan: NetworkPlan,
    /// One in this many mesh datagrams is lost in addition; 0 for none.
    loses_datagrams_one_in: u64,
    calm: bool,
    cut: BTreeSet<Link>,
    /// Links that stay cut until opened explicitly; other mends do not affect them.
    shut: BTreeSet<Link>,
    /// The number of faults that close a port for one direction.
    closed: BTreeMap<(Link, Port), usize>,
    clogged: BTreeMap<Link, Time>,
    /// Endpoints that are cut off from all other endpoints.
    dark: BTreeSet<Place>,
    /// The arrival of a link's last message: a message that is not reordered must not arrive
    /// earlier.
    last_arrivals: BTreeMap<(Link, Lane), Time>,
    /// The time of the last question.
    questions: BTreeMap<Link, Time>,
    /// The time until which data that was lost at first is still under way.
    delayed: BTreeMap<Link, Time>,
    /// Counts of all that was sent, delivered or not.
    pub traffic: Traffic,
}

impl Network {
    /// Returns a network without faults.
    pub fn new(plan: NetworkPlan, loses_datagrams_one_in: u64) -> Self {
        Self {
            plan,
            loses_datagrams_one_in,
            calm: false,
            cut: BTreeSet::new(),
            shut: BTreeSet::new(),
            closed: BTreeMap::new(),
            clogged: BTreeMap::new(),
            dark: BTreeSet::new(),
            last_arrivals: BTreeMap::new(),
            questions: BTreeMap::new(),
            delayed: BTreeMap::new(),
            traffic: Traffic::default(),
        }
    }

    /// Returns the arrival times of a message sent now: none, one or two. A stream neither repeats
    /// nor reorders.
    pub fn arrivals(
        &mut self,
        draw: &mut Draw,
        marks: &mut Marks,
        now: Time,
        link: Link,
        kind: Carriage,
    ) -> Vec<Time> {
        match link {
            _ if kind == Carriage::Datagram => self.traffic.mesh += 1,
            (Place::Server(_), Place::Server(_)) => self.traffic.servers += 1,
            _ => self.traffic.agents += 1,
        }
        let lane = match kind {
            Carriage::Datagram => return self.datagram_arrivals(draw, marks, now, link),
            Carriage::Stream(lane) => lane,
            Carriage::Message | Carriage::Handshake | Carriage::Question => Lane::Calls,
        };
        if let Some(retransmission) = self.plan.retransmission.filter(|_| self.carries(link)) {
            let later = self.retransmitted(draw, now, link, (kind, retransmission));
            if later > NOTABLE {
                let until = self.delayed.entry(link).or_default();
                *until = (*until).max(now + later);
            }
            return vec![self.arrival(draw, marks, now + later, link, (true, lane))];
        }
        let is_stream = kind != Carriage::Message;
        if !self.carries(link) || (!self.calm && draw.once_in(self.plan.loses_one_in)) {
            marks.hit(Mark::Lost);
            return Vec::new();
        }
        let repeats = !is_stream && !self.calm && draw.once_in(self.plan.repeats_one_in);
        let copies = if repeats { 2 } else { 1 };
        if copies == 2 {
            marks.hit(Mark::Duplicate);
        }
        (0..copies).map(|_| self.arrival(draw, marks, now, link, (is_stream, lane))).collect()
    }

    /// A datagram has no order and is never retransmitted.
    fn datagram_arrivals(&self, draw: &mut Draw, marks: &mut Marks, now: Time, link: Link) -> Vec<Time> {
        let is_lost =
            !self.calm && (draw.once_in(self.plan.loses_one_in) || draw.once_in(self.loses_datagrams_one_in));
        if is_lost || !self.carries(link) {
            marks.hit(Mark::DatagramLost);
            return Vec::new();
        }
        let copies = if !self.calm && draw.once_in(self.plan.repeats_one_in) { 2 } else { 1 };
        let clogged_until = self.clogged.get(&link).copied().unwrap_or_default();
        (0..copies).map(|_| self.on_its_way(draw, now).max(clogged_until)).collect()
    }

    fn on_its_way(&self, draw: &mut Draw, now: Time) -> Time {
        let at = now + draw.duration(self.plan.delay.0, self.plan.delay.1);
        match !self.calm && draw.once_in(self.plan.lags_one_in) {
            true => at + draw.duration(Duration::ZERO, self.plan.lag),
            false => at,
        }
    }

    fn arrival(
        &mut self,
        draw: &mut Draw,
        marks: &mut Marks,
        now: Time,
        link: Link,
        (is_stream, lane): (bool, Lane),
    ) -> Time {
        let clogged_until = self.clogged.get(&link).copied().unwrap_or_default();
        let mut at = self.on_its_way(draw, now).max(clogged_until);
        let last = self.last_arrivals.entry((link, lane)).or_default();
        if at < *last {
            if self.plan.reorders && !self.calm && !is_stream {
                marks.hit(Mark::Overtaken);
            } else {
                at = *last;
            }
        }
        *last = at.max(*last);
        at
    }

    /// Returns the extra delay caused by losses and retransmission.
    fn retransmitted(
        &mut self,
        draw: &mut Draw,
        now: Time,
        link: Link,
        (kind, Retransmission { probe_timeout, first_probe_timeout }): (Carriage, Retransmission),
    ) -> Duration {
        let makes_connection = match kind {
            Carriage::Message | Carriage::Stream(_) | Carriage::Datagram => false,
            Carriage::Handshake => true,
            Carriage::Question => {
                let before = self.questions.insert(link, now);
                before.is_none_or(|before| now.since(before) > QUESTIONS_END)
            }
        };
        // Servers always have more to send, and acknowledgements of that reveal earlier losses.
        let is_busy = matches!(link, (Place::Server(_), Place::Server(_)));
        let mut later = self.lost_for(draw, probe_timeout, if is_busy { 1 } else { 2 });
        if makes_connection {
            for _ in 0..HANDSHAKE_DATAGRAMS {
                let on_its_way = draw.duration(self.plan.delay.0, self.plan.delay.1);
                later += on_its_way + self.lost_for(draw, first_probe_timeout, 2);
            }
        }
        later
    }

    /// Returns the delay of a datagram that was just lost: each timeout sends two more datagrams,
    /// and is `backoff` times as long as the one before.
    fn lost_for(&self, draw: &mut Draw, mut timeout: Duration, backoff: u32) -> Duration {
        let one_in = self.plan.loses_one_in;
        let mut lost_for = Duration::ZERO;
        let mut is_lost = draw.once_in(one_in);
        while is_lost && lost_for < RETRANSMISSION_ENDS {
            lost_for += timeout;
            timeout *= backoff;
            is_lost = draw.once_in(one_in) && draw.once_in(one_in);
        }
        lost_for
    }

    /// Returns `true` if something between two endpoints was lost and long delayed since then.
    pub fn was_delayed(&self, since: Time, (here, there): Link) -> bool {
        let was = |link| self.delayed.get(&link).is_some_and(|until| *until >= since);
        was((here, there)) || was((there, here))
    }

    /// Cuts one direction.
    pub fn cut(&mut self, link: Link) {
        self.cut.insert(link);
    }

    /// Mends one direction.
    pub fn mend(&mut self, link: Link) {
        self.cut.remove(&link);
    }

    /// Closes a port for one direction on behalf of one more fault.
    pub fn close(&mut self, link: Link, port: Port) {
        *self.closed.entry((link, port)).or_default() += 1;
    }

    /// Reopens a port for one direction on behalf of one fault.
    pub fn reopen(&mut self, link: Link, port: Port) {
        if let Some(closed) = self.closed.get_mut(&(link, port)) {
            *closed = closed.saturating_sub(1);
        }
    }

    /// Returns `true` if a fault closes a port for one direction.
    pub fn is_closed(&self, link: Link, port: Port) -> bool {
        self.closed.get(&(link, port)).is_some_and(|closed| *closed > 0)
    }

    /// Returns `true` if a direction works for connections of agents to servers.
    pub fn carries_calls(&self, link: Link) -> bool {
        !self.is_closed(link, Port::Server) && self.carries(link)
    }

    /// Returns `true` if any link is cut.
    pub fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Returns `true` if a direction works.
    pub fn carries(&self, link: Link) -> bool {
        let is_dark = |place| !self.dark.is_empty() && self.dark.contains(place);
        !self.cut.contains(&link) && !self.shut.contains(&link) && is_dark(&link.0) == is_dark(&link.1)
    }

    /// Cuts these endpoints off from all others, but not from each other; replaces the previous
    /// set.
    pub fn darken(&mut self, places: impl IntoIterator<Item = Place>) {
        self.dark = places.into_iter().collect();
    }

    /// Shuts one direction until it is opened.
    pub fn shut(&mut self, link: Link) {
        self.shut.insert(link);
    }

    /// Opens a direction that was shut.
    pub fn open(&mut self, link: Link) {
        self.shut.remove(&link);
    }

    /// Holds back everything sent in one direction until then.
    pub fn clog(&mut self, link: Link, until: Time) {
        self.clogged.insert(link, until);
    }

    /// Loses one in this many messages from now on; none for 0.
    pub fn lose_one_in(&mut self, loses_one_in: u64) {
        self.plan.loses_one_in = loses_one_in;
    }

    /// Ends all faults from now on.
    pub fn calm(&mut self) {
        self.calm = true;
        self.cut.clear();
        self.closed.clear();
        self.dark.clear();
        self.clogged.clear();
    }
}
