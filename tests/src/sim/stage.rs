//! What everybody in the simulation shares: the time, the one event queue, chance, the network, the
//! chronicle.

use super::challenges::Question;
use super::chronicle::{Chronicle, Detail};
use super::connections::Way;
use super::disk::DiskEvent;
use super::draw::Draw;
use super::fault_injection::FaultInjection;
use super::greetings::Hello;
use super::guard::{Act, GuardEvent};
use super::marks::{Mark, Marks};
use super::network::{Carriage, Network, Place, Port};
use super::plan::{Focus, Plan};
use super::session_watches::WatchTimer;
use bytes::Bytes;
use lockmesh_agent_core::quorum_client::CallToken;
use lockmesh_core::frontend::{Caller, PartWanted};
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Something that happens at one moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// A process takes its events; the number is its life.
    Turn(ServerId, u64),
    /// A process that stood still goes on.
    Resume(ServerId, u64),
    /// A server's disk has done something; the number is the life that began it.
    Disk(ServerId, u64, DiskEvent),
    /// A message between servers arrives: at whom, in which of its lives, and of whom.
    Peer(ServerId, u64, ServerId, Box<PeerMessage>),
    /// A server says hello to another one, or answers.
    Hello(Box<Hello>),
    /// A server says hello to all others, as its links do when they are made anew; the number is
    /// its life.
    Reconnect(ServerId, u64),
    /// A server is told that it was removed.
    ToldRemoved(ServerId),
    /// A server asks again for a part of the snapshot that it fetches; the number is its life.
    Fetch(ServerId, u64),
    /// A server's reader has come to a part of a checkpoint; the number is the server's life.
    Read(ServerId, u64, PartWanted),
    /// A client's request arrives at a server.
    Ask(ServerId, Box<Ask>),
    /// An agent's word arrives at a server that nobody waits for a call any more.
    Cancel(ServerId, Requester, u64),
    /// A server's answer arrives at whoever asked.
    Answer(Requester, u64, ServerId, Box<Response>),
    /// Something happens to a guard: its agent, its number there.
    Guard(usize, usize, GuardEvent),
    /// What a guard wants has come to its agent: the agent, the guard's number there.
    GuardAct(usize, usize, Box<Act>),
    /// An agent's watch over a session waits for this: the agent, its life, the session.
    SessionWatch(usize, u64, SessionId, WatchTimer),
    /// A client thinks of something to do: agent, its life, task.
    Think(usize, u64, usize),
    /// An agent's attempt to connect arrives at a server: the agent, the connection's number.
    Dial(ServerId, usize, u64),
    /// An agent's attempt to connect was lost and is sent again: the agent, the connection's
    /// number, how long ago it was begun.
    DialAgain(usize, u64, Duration),
    /// An agent's connection is there, or is there no more: the agent, the connection's number.
    Connection(usize, u64, bool),
    /// A server hears that an agent's connection has ended.
    HungUp(ServerId, usize),
    /// A server has heard nothing of an agent for too long: the agent, the connection's number.
    GaveUp(ServerId, usize, u64),
    /// What was lost on an agent's connection is sent again: the agent, the connection's number,
    /// the direction.
    Retransmit(usize, u64, Way),
    /// A client goes away while it waits: the agent, its life, the call.
    GoAway(usize, u64, CallToken),
    /// An agent that was asked to end does so: the agent, its life.
    EndAgent(usize, u64),
    /// An agent looks from whom anything arrives: the agent, its life.
    Listen(usize, u64),
    /// An agent looks at the clock: the agent, its life.
    Wake(usize, u64),
    /// A datagram of the mesh arrives at an agent's host.
    Datagram(usize, Rc<[u8]>),
    /// An agent's process in the mesh has its turn: the agent, its life.
    MeshTurn(usize, u64),
    /// What a server tells of the mesh comes to an agent.
    MeshItems(usize, Vec<Bytes>),
    /// A server's question comes to an agent.
    Challenge(usize, Question),
    /// A server's question comes to an agent that is to ask another one.
    HandOn(usize, usize, Question),
    /// What the other one answered comes to that agent.
    HandBack(usize, Question, NodeAnswer),
    /// Its answer comes to the server, or none came in time.
    Challenged(Question, Option<NodeAnswer>),
    /// Whoever asked has waited long enough for an answer to a call.
    Tired(Requester, u64),
    /// A fault of a kind happens.
    Fault(super::chaos::Kind),
    /// A fault ends.
    Mend(super::chaos::Mend),
    /// A server that was dead starts.
    Restart(ServerId),
    /// The operator empties the folder of a server whose disk was set back.
    EmptyFolder(ServerId),
    /// Faults end for good.
    Calm,
    /// The operator looks after what is not finished.
    Operator,
    /// Somebody looks whether everything is as it should be at last.
    Look,
    /// The locks of guards are looked at.
    LookAtHeld,
}

impl Event {
    /// The agent that takes this in, where it is one.
    pub fn agent(&self) -> Option<usize> {
        match self {
            Self::Answer(Requester::Agent(agent), ..)
            | Self::Tired(Requester::Agent(agent), _)
            | Self::Think(agent, ..)
            | Self::Challenge(agent, _)
            | Self::MeshItems(agent, _)
            | Self::HandOn(agent, ..)
            | Self::HandBack(agent, ..)
            | Self::GuardAct(agent, ..)
            | Self::SessionWatch(agent, ..)
            | Self::Connection(agent, ..)
            | Self::Retransmit(agent, ..)
            | Self::DialAgain(agent, ..)
            | Self::GoAway(agent, ..)
            | Self::EndAgent(agent, _)
            | Self::Listen(agent, _)
            | Self::MeshTurn(agent, _)
            | Self::Wake(agent, _) => Some(*agent),
            _ => None,
        }
    }
}

impl Event {
    /// The port through which this travels between a host and others; none for what travels between
    /// servers.
    fn port(&self) -> Option<Port> {
        match self {
            Self::Dial(..) | Self::Connection(..) => Some(Port::Server),
            Self::Answer(Requester::Agent(_), ..) | Self::Cancel(_, Requester::Agent(_), _) => {
                Some(Port::Server)
            }
            Self::Ask(_, ask) if matches!(ask.by, Requester::Agent(_)) => Some(Port::Server),
            Self::Challenge(..) | Self::HandOn(..) | Self::HandBack(..) => Some(Port::Agent),
            Self::Challenged(..) | Self::MeshItems(..) => Some(Port::Agent),
            Self::Datagram(..) => Some(Port::Gossip),
            _ => None,
        }
    }
}

/// Who asks a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// An agent, by its number in the simulation.
    Agent(usize),
    /// The operator, or a server that wants to join.
    Operator,
    /// Another server, which fetches a snapshot.
    Server(ServerId),
}

impl Requester {
    /// Where its answers go.
    pub fn place(self) -> Place {
        match self {
            Self::Agent(agent) => Place::Agent(agent),
            Self::Operator => Place::Operator,
            Self::Server(id) => Place::Server(id),
        }
    }

    /// Its connection, as a server counts them.
    pub fn caller(self) -> Caller {
        Caller(match self {
            Self::Agent(agent) => agent as u64,
            Self::Operator => u64::MAX,
            Self::Server(id) => (1 << 32) + id.0,
        })
    }
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who asks.
    pub by: Requester,
    /// Which attempt it is, unique in the simulation.
    pub call: u64,
    /// What it asks.
    pub request: Request,
    /// What had been answered to anybody when the client began: a fresh read must see it.
    pub bound: LogIndex,
}

/// What everybody shares.
#[derive(Debug)]
pub struct Stage {
    /// True time.
    pub now: Time,
    /// Chance.
    pub draw: Draw,
    /// Chance of the faults of [`super::reach`], so that they move no other draw.
    pub reach_draw: Draw,
    /// What the seed stands for.
    pub plan: Plan,
    /// What is broken on purpose.
    pub fault_injection: FaultInjection,
    /// The life of the cluster.
    pub life: Chronicle,
    /// Rare branches.
    pub marks: Marks,
    /// The network.
    pub network: Network,
    /// Who is reached at which address.
    pub addresses: BTreeMap<String, ServerId>,
    /// Sessions that somebody wants to destroy who does not own them.
    pub revoked: BTreeSet<SessionId>,
    /// Whether faults have ended.
    pub calm: bool,
    queue: BTreeMap<(Time, u64), Event>,
    last_event: u64,
    last_call: u64,
}

impl Stage {
    /// An empty stage.
    pub fn new(seed: u64, focus: Focus, fault_injection: FaultInjection, detail: Detail) -> Self {
        let mut draw = Draw::new(seed);
        let mut plan = Plan::draw(&mut draw);
        focus.adjust(&mut plan);
        fault_injection.adjust(&mut plan);
        plan.suit_reach();
        Self::of(plan, draw, fault_injection, detail)
    }

    /// The stage of a plan that was made without chance.
    pub fn of(plan: Plan, draw: Draw, fault_injection: FaultInjection, detail: Detail) -> Self {
        Self {
            now: Time(0),
            reach_draw: Draw::new(draw.clone().bits().rotate_left(24)),
            draw,
            network: Network::new(plan.network.clone(), plan.mesh.loses_one_in),
            plan,
            fault_injection,
            life: Chronicle::new(detail),
            marks: Marks::default(),
            addresses: BTreeMap::new(),
            revoked: BTreeSet::new(),
            calm: false,
            queue: BTreeMap::new(),
            last_event: 0,
            last_call: 0,
        }
    }

    /// Lets something happen at a time.
    pub fn at(&mut self, at: Time, event: Event) {
        self.last_event += 1;
        self.queue.insert((at.max(self.now), self.last_event), event);
    }

    /// Lets something happen after a while.
    pub fn after(&mut self, wait: Duration, event: Event) {
        self.at(self.now + wait, event);
    }

    /// Sends something that becomes an event when it arrives, if it does.
    pub fn send(&mut self, from: Place, to: Place, event: Event) -> bool {
        let is_stream = matches!(from, Place::Agent(_)) || matches!(to, Place::Agent(_));
        let Self { network, draw, marks, .. } = self;
        let kind = match &event {
            Event::Dial(..) => Carriage::Handshake,
            Event::Challenge(..) => Carriage::Question,
            Event::Datagram(..) => Carriage::Datagram,
            _ if is_stream => Carriage::Stream,
            _ => Carriage::Message,
        };
        if event.port().is_some_and(|port| network.is_closed((from, to), port)) {
            marks.hit(if kind == Carriage::Datagram { Mark::DatagramLost } else { Mark::Lost });
            return false;
        }
        let arrivals = network.arrivals(draw, marks, self.now, (from, to), kind);
        for at in &arrivals {
            self.at(*at, event.clone());
        }
        !arrivals.is_empty()
    }

    /// The next event; time goes on to it.
    pub fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// Whether the next event comes no later than that; if not, it is that time now.
    pub fn is_due(&mut self, until: Time) -> bool {
        let is_due = self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until);
        if !is_due {
            self.now = self.now.max(until);
        }
        is_due
    }

    /// A number that no attempt had before.
    pub fn call(&mut self) -> u64 {
        self.last_call += 1;
        self.last_call
    }

    /// Says something worth reading.
    pub fn say(&mut self, words: impl FnOnce() -> String) {
        self.life.say(self.now, words);
    }

    /// Counts a rare branch.
    pub fn hit(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    /// A duration around a mean.
    pub fn around(&mut self, mean: Duration) -> Duration {
        self.draw.around(mean)
    }
}
