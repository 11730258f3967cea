//! The network: loses, delays, repeats and reorders what is sent, and is cut or clogged for a
//! while.

use super::draw::Draw;
use super::marks::{Mark, Marks};
use super::plan::NetworkPlan;
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

/// All links.
#[derive(Debug)]
pub struct Network {
    plan: NetworkPlan,
    calm: bool,
    cut: BTreeSet<Link>,
    /// What stays cut, whatever is mended.
    shut: BTreeSet<Link>,
    clogged: BTreeMap<Link, Time>,
    /// When the last message of a link arrives: what is not reordered must not come before it.
    last_arrivals: BTreeMap<Link, Time>,
}

impl Network {
    /// A network that is whole.
    pub fn new(plan: NetworkPlan) -> Self {
        Self {
            plan,
            calm: false,
            cut: BTreeSet::new(),
            shut: BTreeSet::new(),
            clogged: BTreeMap::new(),
            last_arrivals: BTreeMap::new(),
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
        is_stream: bool,
    ) -> Vec<Time> {
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

    fn arrival(
        &mut self,
        draw: &mut Draw,
        marks: &mut Marks,
        now: Time,
        link: Link,
        is_stream: bool,
    ) -> Time {
        let mut at = now + draw.duration(self.plan.delay.0, self.plan.delay.1);
        if !self.calm && draw.once_in(self.plan.lags_one_in) {
            at = at + draw.duration(Duration::ZERO, self.plan.lag);
        }
        at = at.max(self.clogged.get(&link).copied().unwrap_or_default());
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

    /// Cuts one direction.
    pub fn cut(&mut self, link: Link) {
        self.cut.insert(link);
    }

    /// Mends one direction.
    pub fn mend(&mut self, link: Link) {
        self.cut.remove(&link);
    }

    /// Whether anything is cut.
    pub fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Whether a direction works.
    pub fn carries(&self, link: Link) -> bool {
        !self.cut.contains(&link) && !self.shut.contains(&link)
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

    /// From now on nothing goes wrong.
    pub fn calm(&mut self) {
        self.calm = true;
        self.cut.clear();
        self.clogged.clear();
    }
}
