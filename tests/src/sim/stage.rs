//! State shared by all parts of the simulation: time, the event queue, randomness, the network, the
//! chronicle.

use super::bound_sessions::BoundEvent;
use super::challenges::Question;
use super::checks::CheckTimer;
use super::chronicle::{Chronicle, Detail};
use super::connections::Channel;
use super::disk::DiskEvent;
use super::draw::Draw;
use super::fault_injection::FaultInjection;
use super::greetings::Hello;
use super::guard::{Act, GuardEvent};
use super::intruder;
use super::marks::{Mark, Marks};
use super::network::{Carriage, Network, Place, Port};
use super::plan::{Focus, Plan};
use super::session_watches::WatchTimer;
use bytes::Bytes;
use lockmesh_agent_core::quorum_client::CallToken;
use lockmesh_core::frontend::{Caller, PartWanted};
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::acl;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId};
use lockmesh_protocol::rpc::{Lane, Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// An event at one moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// A process takes a turn; with its life number.
    Turn(ServerId, u64),
    /// A paused process resumes; with its life number.
    Resume(ServerId, u64),
    /// A server's disk has finished something; with the life number of the process that started it.
    Disk(ServerId, u64, DiskEvent),
    /// A message between servers arrives: the receiver, its life number, the sender.
    Peer(ServerId, u64, ServerId, Box<PeerMessage>),
    /// A server's hello to another server, or the answer.
    Hello(Box<Hello>),
    /// A server greets all others, as its links do when they are re-established; with its life
    /// number.
    Reconnect(ServerId, u64),
    /// A server is notified of its removal.
    ToldRemoved(ServerId),
    /// A server requests a part of its snapshot again; with its life number.
    Fetch(ServerId, u64),
    /// A server's reader has reached a part of a checkpoint; with the server's life number.
    Read(ServerId, u64, PartWanted),
    /// A client's request arrives at a server.
    Ask(ServerId, Box<Ask>),
    /// An agent's cancellation of a call arrives at a server.
    Cancel(ServerId, Requester, u64),
    /// A server's reply arrives at the requester.
    Answer(Requester, u64, ServerId, Box<Response>),
    /// An event of a guard: its agent, its number there.
    Guard(usize, usize, GuardEvent),
    /// A guard's action arrives at its agent: the agent, the guard's number there.
    GuardAct(usize, usize, Box<Act>),
    /// A timer of an agent's session watch: the agent, its life number, the session.
    SessionWatch(usize, u64, SessionId, WatchTimer),
    /// An event of an agent's bound sessions: the agent, its life number.
    Bound(usize, u64, BoundEvent),
    /// A process of a host dies: its agent, its id.
    ProcessDies(usize, u32),
    /// A timer of an agent's checks: the agent, its life number.
    Checks(usize, u64, CheckTimer),
    /// A client wakes up: the agent, its life number, the task.
    Think(usize, u64, usize),
    /// An agent's attempt to connect arrives at a server: the agent, the connection's number.
    Dial(ServerId, usize, u64),
    /// An agent's attempt to connect was lost and is retransmitted: the agent, the connection's
    /// number, the age of the attempt.
    DialAgain(usize, u64, Duration),
    /// An agent's connection is up or has ended: the agent, the connection's number.
    Connection(usize, u64, bool),
    /// A server learns that an agent's connection has ended.
    HungUp(ServerId, usize),
    /// A server's connection to an agent times out: the agent, the connection's number.
    GaveUp(ServerId, usize, u64),
    /// Data lost on an agent's connection is retransmitted: the agent, the connection's number, the
    /// direction.
    Retransmit(usize, u64, Channel),
    /// A waiting client disconnects: the agent, its life number, the call.
    GoAway(usize, u64, CallToken),
    /// A terminating agent ends: the agent, its life number.
    EndAgent(usize, u64),
    /// An agent checks which servers still send: the agent, its life number.
    Listen(usize, u64),
    /// A timer of an agent: the agent, its life number.
    Wake(usize, u64),
    /// A datagram of the mesh arrives at an agent's host.
    Datagram(usize, Rc<[u8]>),
    /// An agent takes a turn in the mesh: the agent, its life number.
    MeshTurn(usize, u64),
    /// A server's news of the mesh arrives at an agent.
    MeshItems(usize, Vec<Bytes>),
    /// A server's question arrives at an agent.
    Challenge(usize, Question),
    /// A server's question arrives at an agent that is to forward it to another agent.
    HandOn(usize, usize, Question),
    /// The other agent's answer arrives at the forwarding agent.
    HandBack(usize, Question, NodeAnswer),
    /// The answer arrives at the server, or the question timed out.
    Challenged(Question, Option<NodeAnswer>),
    /// The requester of a call times out.
    Tired(Requester, u64),
    /// A fault of a kind occurs.
    Fault(super::chaos::Kind),
    /// A fault ends.
    Mend(super::chaos::Mend),
    /// A dead server restarts.
    Restart(ServerId),
    /// The operator empties the folder of a server whose disk was set back.
    EmptyFolder(ServerId),
    /// All faults end.
    Calm,
    /// The operator continues unfinished work.
    Operator,
    /// The final check.
    Look,
    /// The check of the guards' locks.
    LookAtHeld,
}

impl Event {
    /// Returns the agent that receives this event, if any.
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
            | Self::Bound(agent, ..)
            | Self::Checks(agent, ..)
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
    /// Returns the port through which this event travels between a host and others; `None` for
    /// events between servers.
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

/// A requester at a server.
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
    /// Returns the endpoint that receives its replies.
    pub fn place(self) -> Place {
        match self {
            Self::Agent(agent) => Place::Agent(agent),
            Self::Operator => Place::Operator,
            Self::Server(id) => Place::Server(id),
        }
    }

    /// Returns its connection, as a server counts them.
    pub fn caller(self) -> Caller {
        Caller(match self {
            Self::Agent(agent) => agent as u64,
            Self::Operator => u64::MAX,
            Self::Server(id) => (1 << 32) + id.0,
        })
    }
}

/// A request in transit.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The requester.
    pub by: Requester,
    /// The number of the attempt, unique in the simulation.
    pub call: u64,
    /// The client for which it is sent.
    pub client: acl::Caller,
    /// The request.
    pub request: Request,
    /// The newest index in any reply when the client began: a fresh read must see it.
    pub bound: LogIndex,
}

/// The shared state.
#[derive(Debug)]
pub struct Stage {
    /// True time.
    pub now: Time,
    /// The random source.
    pub draw: Draw,
    /// The random source of the faults of [`super::reach`], so that they change no other draw.
    pub reach_draw: Draw,
    /// The parameters of the seed.
    pub plan: Plan,
    /// The deliberate bug.
    pub fault_injection: FaultInjection,
    /// The chronicle of the cluster.
    pub life: Chronicle,
    /// Rare branches.
    pub marks: Marks,
    /// The network.
    pub network: Network,
    /// The server at each address.
    pub addresses: BTreeMap<String, ServerId>,
    /// Sessions that a client other than their owner wants to destroy.
    pub revoked: BTreeSet<SessionId>,
    /// `true` if faults have ended.
    pub calm: bool,
    queue: BTreeMap<(Time, u64), Event>,
    last_event: u64,
    last_call: u64,
}

impl Stage {
    /// Returns an empty stage.
    pub fn new(seed: u64, focus: Focus, fault_injection: FaultInjection, detail: Detail) -> Self {
        let mut draw = Draw::new(seed);
        let mut plan = Plan::draw(&mut draw);
        // No random draw, so that the other seeds are unchanged.
        plan.has_acl = seed % 4 == 3;
        focus.adjust(&mut plan);
        fault_injection.adjust(&mut plan);
        plan.suit_reach();
        Self::of(plan, draw, fault_injection, detail)
    }

    /// Returns the caller of all clients.
    pub fn client(&self) -> acl::Caller {
        intruder::caller(if self.plan.has_acl { intruder::MANAGEMENT } else { "" })
    }

    /// Returns the stage of a plan that was made without randomness.
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

    /// Schedules an event at a time.
    pub fn at(&mut self, at: Time, event: Event) {
        self.last_event += 1;
        self.queue.insert((at.max(self.now), self.last_event), event);
    }

    /// Schedules an event after a delay.
    pub fn after(&mut self, wait: Duration, event: Event) {
        self.at(self.now + wait, event);
    }

    /// Sends something that becomes an event on arrival, unless it is lost.
    pub fn send(&mut self, from: Place, to: Place, event: Event) -> bool {
        self.send_on(Lane::Calls, from, to, event)
    }

    /// The same, on this stream if it is sent on one.
    pub fn send_on(&mut self, lane: Lane, from: Place, to: Place, event: Event) -> bool {
        let is_stream = matches!(from, Place::Agent(_)) || matches!(to, Place::Agent(_));
        let Self { network, draw, marks, .. } = self;
        let kind = match &event {
            Event::Dial(..) => Carriage::Handshake,
            Event::Challenge(..) => Carriage::Question,
            Event::Datagram(..) => Carriage::Datagram,
            _ if is_stream => Carriage::Stream(lane),
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

    /// Returns the next event, and advances the time to it.
    pub fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// Returns `true` if the next event comes no later than `until`; otherwise advances the time to
    /// `until`.
    pub fn is_due(&mut self, until: Time) -> bool {
        let is_due = self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until);
        if !is_due {
            self.now = self.now.max(until);
        }
        is_due
    }

    /// Returns an unused attempt number.
    pub fn call(&mut self) -> u64 {
        self.last_call += 1;
        self.last_call
    }

    /// Logs an event of interest to people.
    pub fn log(&mut self, words: impl FnOnce() -> String) {
        self.life.log(self.now, words);
    }

    /// Counts a rare branch.
    pub fn hit(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    /// Returns a random duration around a mean.
    pub fn around(&mut self, mean: Duration) -> Duration {
        self.draw.around(mean)
    }
}
