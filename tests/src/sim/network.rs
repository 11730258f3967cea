//! The network: loses, delays, repeats and reorders what is sent, and is cut or clogged for a
//! while.

use super::draw::Draw;
use super::marks::{Mark, Marks};
use super::plan::{NetworkPlan, Retransmission};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Who sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A server.
    Server(ServerId),
    /// An agent, by its number in the simulation.
    Agent(usize),
    /// The operator, and servers that want to join.
    Operator,
}

/// One direction between two places.
pub type Link = (Place, Place);

/// A UDP port of a host or a server: a firewall between two places may close one and leave the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The QUIC port of a server, to which agents connect.
    Server,
    /// The QUIC port of an agent, at which servers and other agents ask it.
    Agent,
    /// The gossip port of an agent.
    Gossip,
}

/// As what something travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// A message between servers.
    Message,
    /// On a stream, in order and once.
    Stream,
    /// A connection is made with it.
    Handshake,
    /// A question on a connection that is made for it, where there was none a moment ago.
    Question,
    /// In the mesh, where nothing is sent again.
    Datagram,
}

/// Who was asked nothing for so long has no connection for questions any more.
const QUESTIONS_END: Duration = Duration::from_secs(5);

/// So many datagrams, each waiting for the one before, make a connection.
const HANDSHAKE_DATAGRAMS: usize = 4;

/// Nothing is sent again after so long: the connection has ended before.
const RETRANSMISSION_ENDS: Duration = Duration::from_secs(6);

/// Whoever waits for what is this late cannot be as quick as it should be.
const NOTABLE: Duration = Duration::from_millis(500);

/// How much was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Between agents and servers.
    pub agents: u64,
    /// Between servers.
    pub servers: u64,
    /// Datagrams of the mesh.
    pub mesh: u64,
    /// Their bytes.
    pub mesh_bytes: u64,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    plan: NetworkPlan,
    /// One in so many datagrams of the mesh is lost besides; 0 for none.
    loses_datagrams_one_in: u64,
    calm: bool,
    cut: BTreeSet<Link>,
    /// What stays cut, whatever is mended.
    shut: BTreeSet<Link>,
    /// The number of faults that close a port for one direction.
    closed: BTreeMap<(Link, Port), usize>,
    clogged: BTreeMap<Link, Time>,
    /// Who is cut off from all who are not.
    dark: BTreeSet<Place>,
    /// When the last message of a link arrives: what is not reordered must not come before it.
    last_arrivals: BTreeMap<Link, Time>,
    /// When a question was asked last.
    questions: BTreeMap<Link, Time>,
    /// Until when something is on its way that was lost at first.
    delayed: BTreeMap<Link, Time>,
    /// How much was sent, be it carried or not.
    pub traffic: Traffic,
}

impl Network {
    /// A network that is whole.
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

    /// When a message arrives that is sent now; not at all, once, or twice. A stream repeats
    /// nothing and keeps the order.
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
        if kind == Carriage::Datagram {
            return self.datagram_arrivals(draw, marks, now, link);
        }
        if let Some(retransmission) = self.plan.retransmission.filter(|_| self.carries(link)) {
            let later = self.retransmitted(draw, now, link, (kind, retransmission));
            if later > NOTABLE {
                let until = self.delayed.entry(link).or_default();
                *until = (*until).max(now + later);
            }
            return vec![self.arrival(draw, marks, now + later, link, true)];
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
        (0..copies).map(|_| self.arrival(draw, marks, now, link, is_stream)).collect()
    }

    /// A datagram has no order and no other chance.
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
        is_stream: bool,
    ) -> Time {
        let clogged_until = self.clogged.get(&link).copied().unwrap_or_default();
        let mut at = self.on_its_way(draw, now).max(clogged_until);
        let last = self.last_arrivals.entry(link).or_default();
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

    /// How much later something comes than it would if nothing were lost.
    fn retransmitted(
        &mut self,
        draw: &mut Draw,
        now: Time,
        link: Link,
        (kind, Retransmission { probe_timeout, first_probe_timeout }): (Carriage, Retransmission),
    ) -> Duration {
        let makes_connection = match kind {
            Carriage::Message | Carriage::Stream | Carriage::Datagram => false,
            Carriage::Handshake => true,
            Carriage::Question => {
                let before = self.questions.insert(link, now);
                before.is_none_or(|before| now.since(before) > QUESTIONS_END)
            }
        };
        // Servers always have more to say, and what is heard of that tells what was lost before.
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

    /// How long a datagram stays lost that was sent just now: each time-out sends two more, and is
    /// so many times as long as the one before.
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

    /// Whether something was on its way between two places since then that was lost at first, for
    /// long.
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

    /// Closes a port for one direction, once more.
    pub fn close(&mut self, link: Link, port: Port) {
        *self.closed.entry((link, port)).or_default() += 1;
    }

    /// Opens a port for one direction that was closed once.
    pub fn reopen(&mut self, link: Link, port: Port) {
        if let Some(closed) = self.closed.get_mut(&(link, port)) {
            *closed = closed.saturating_sub(1);
        }
    }

    /// `true` if a fault closes a port for one direction.
    pub fn is_closed(&self, link: Link, port: Port) -> bool {
        self.closed.get(&(link, port)).is_some_and(|closed| *closed > 0)
    }

    /// `true` if a direction works for the connections of agents to servers.
    pub fn carries_calls(&self, link: Link) -> bool {
        !self.is_closed(link, Port::Server) && self.carries(link)
    }

    /// Whether anything is cut.
    pub fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Whether a direction works.
    pub fn carries(&self, link: Link) -> bool {
        let is_dark = |place| !self.dark.is_empty() && self.dark.contains(place);
        !self.cut.contains(&link) && !self.shut.contains(&link) && is_dark(&link.0) == is_dark(&link.1)
    }

    /// Cuts these off from all others, not from each other; nobody who was before.
    pub fn darken(&mut self, places: impl IntoIterator<Item = Place>) {
        self.dark = places.into_iter().collect();
    }

    /// Shuts one direction, until it is opened.
    pub fn shut(&mut self, link: Link) {
        self.shut.insert(link);
    }

    /// Opens one direction that was shut.
    pub fn open(&mut self, link: Link) {
        self.shut.remove(&link);
    }

    /// Holds everything back that is sent in one direction, until then.
    pub fn clog(&mut self, link: Link, until: Time) {
        self.clogged.insert(link, until);
    }

    /// From now on one in so many is lost; none for 0.
    pub fn lose_one_in(&mut self, loses_one_in: u64) {
        self.plan.loses_one_in = loses_one_in;
    }

    /// From now on nothing goes wrong.
    pub fn calm(&mut self) {
        self.calm = true;
        self.cut.clear();
        self.closed.clear();
        self.dark.clear();
        self.clogged.clear();
    }
}
