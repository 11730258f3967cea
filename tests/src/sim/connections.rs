//! Connections of agents: streams that deliver everything in order and exactly once, or break.
//!
//! A connection has a stream for each lane. Lost data is retransmitted while everything sent behind
//! it on the same stream waits; or the connection breaks, and
//! both ends learn of that. So if a connection breaks, a pending call may or may not have arrived,
//! and its reply may or may not have been sent. An agent may receive a last message of a connection
//! that it gave up, which was already on its way through the process.

use super::agent::{Agent, LISTEN_INTERVAL};
use super::another_cluster;
use super::invariant::AgentEvent;
use super::judge::Judge;
use super::marks::Mark;
use super::network::Place;
use super::plan::Retransmission;
use super::stage::{Ask, Event, Requester, Stage};
use lockmesh_agent_core::quorum_client::{ConnectionEnd, ConnectionId, Input, Outbox};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::{RequestId, ServerId};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallId, Lane, Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time without received data after which a connection ends.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(6);

/// Time after which an attempt to connect is given up.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time until a broken connection is noticed.
pub(super) const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

/// Delay of a retransmission, minimum and maximum.
const RETRANSMIT_INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Maximum time that the last message of a connection that was given up spends in the process.
const LAST_WORD: Duration = Duration::from_millis(50);

/// A connection, or an attempt at one.
#[derive(Debug)]
pub struct Connection {
    /// The number that the agent uses.
    id: ConnectionId,
    /// The server at the other end.
    pub(super) server: ServerId,
    /// The time of the first datagram of the attempt.
    dialled: Time,
    /// The number of times that data was received.
    received: u64,
    /// The time at which data was last received.
    heard: Time,
    /// Data lost on the way, and data waiting behind it.
    lost: BTreeMap<Channel, Lost>,
}

/// Data that waits for retransmission, in order.
#[derive(Debug, Default)]
struct Lost {
    waiting: VecDeque<Event>,
    since: Time,
    /// The number of retransmissions.
    attempts: u32,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From an agent to a server.
    There,
    /// From a server to an agent.
    Back,
}

/// A direction of a stream.
pub type Channel = (Way, Lane);

impl Agent {
    /// Notes that data was received on the connections to these servers.
    pub fn listened(&mut self, stage: &mut Stage, judge: &mut Judge, servers: &[ServerId]) {
        let now = stage.now;
        for (number, connection) in &mut self.connections {
            if servers.contains(&connection.server) {
                (connection.received, connection.heard) = (connection.received + 1, now);
            } else if now.since(connection.heard) >= IDLE_TIMEOUT {
                stage.after(Duration::ZERO, Event::Connection(self.place, *number, false));
            }
        }
        let all: Vec<_> =
            self.connections.values().map(|connection| (connection.id, connection.received)).collect();
        for (id, received) in all {
            self.handle_input(stage, judge, Input::Received(id, received));
        }
        self.take_over(stage, judge);
        stage.after(LISTEN_INTERVAL, Event::Listen(self.place, self.life));
    }

    /// An attempt to connect has finished, or a connection has ended.
    pub fn connection(&mut self, stage: &mut Stage, judge: &mut Judge, number: u64, is_up: bool) {
        let Some((id, is_given_up)) = self.known(stage, number) else { return };
        if is_given_up {
            stage.hit(Mark::LastWord);
        }
        if is_up {
            return self.handle_input(stage, judge, Input::Connected(id));
        }
        self.is_over(stage, judge, number);
        self.given_up.remove(&number);
        let reason = format!("connection {number} was lost");
        self.handle_input(stage, judge, Input::Ended(id, ConnectionEnd::Lost(reason)));
    }

    /// Returns a connection that is up, or one that was given up a moment ago.
    fn known(&self, stage: &Stage, number: u64) -> Option<(ConnectionId, bool)> {
        let stands = self.connections.get(&number).map(|connection| (connection.id, false));
        let last_word = self.given_up.get(&number).filter(|(_, until)| stage.now <= *until);
        stands.or(last_word.map(|(id, _)| (*id, true)))
    }

    /// Returns `true` if a connection is up, or is being made.
    pub fn is_connected(&self, connection: u64) -> bool {
        self.connections.contains_key(&connection)
    }

    /// Breaks the connections to a server that died.
    pub fn disconnected(&self, stage: &mut Stage, server: ServerId) {
        for (number, _) in self.connections.iter().filter(|(_, connection)| connection.server == server) {
            self.break_later(stage, *number);
        }
    }

    /// Breaks the connection of a call that no process received.
    pub fn lost(&self, stage: &mut Stage, call: u64) {
        if let Some((connection, ..)) = self.calls.get(&call) {
            self.break_later(stage, *connection);
        }
    }

    fn break_later(&self, stage: &mut Stage, connection: u64) {
        let wait = stage.draw.duration(Duration::from_millis(5), NOTICE_TIMEOUT);
        stage.after(wait, Event::Connection(self.place, connection, false));
    }

    /// Sends a server's reply to a call.
    pub fn answer(&mut self, stage: &mut Stage, call: u64, answer: Event) {
        if let Some((connection, _, lane)) = self.calls.get(&call) {
            self.transmit(stage, *connection, (Way::Back, *lane), answer);
        }
    }

    /// Sends an event on a stream. It waits behind lost data.
    fn transmit(&mut self, stage: &mut Stage, number: u64, channel: Channel, event: Event) {
        let place = self.place;
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let server = connection.server;
        let (way, lane) = channel;
        let (from, to) = ends(place, server, way);
        let lost = connection.lost.entry(channel).or_default();
        if !lost.waiting.is_empty() {
            lost.waiting.push_back(event);
            if stage.plan.network.retransmission.is_some() {
                // It is sent at once, and its acknowledgement reveals the earlier loss.
                self.send_again(stage, number, channel);
            }
            return;
        }
        if stage.send_on(lane, from, to, event.clone()) {
            return;
        }
        self.disturbed.insert(server, stage.now);
        if stage.plan.network.retransmission.is_none() && stage.draw.once_in(4) {
            stage.hit(if way == Way::There { Mark::RequestLost } else { Mark::AnswerLost });
            return self.break_later(stage, number);
        }
        lost.waiting.push_back(event);
        (lost.since, lost.attempts) = (stage.now, 0);
        retransmit_later(stage, place, number, (channel, 0));
    }

    /// Retransmits lost data, with everything that waits behind it.
    pub fn retransmit(&mut self, stage: &mut Stage, number: u64, channel: Channel) {
        if let Some(attempts) = self.send_again(stage, number, channel) {
            retransmit_later(stage, self.place, number, (channel, attempts));
        }
    }

    /// Retransmits lost data; returns the number of attempts if it was lost again.
    fn send_again(&mut self, stage: &mut Stage, number: u64, channel: Channel) -> Option<u32> {
        let place = self.place;
        let connection = self.connections.get_mut(&number)?;
        let server = connection.server;
        let (way, lane) = channel;
        let (from, to) = ends(place, server, way);
        let lost = connection.lost.entry(channel).or_default();
        while let Some(event) = lost.waiting.front() {
            if stage.now.since(lost.since) >= IDLE_TIMEOUT {
                stage.hit(Mark::ConnectionStarved);
                stage.after(Duration::ZERO, Event::Connection(place, number, false));
                return None;
            }
            if !stage.send_on(lane, from, to, event.clone()) {
                self.disturbed.insert(server, stage.now);
                lost.attempts += 1;
                return Some(lost.attempts);
            }
            self.disturbed.insert(server, stage.now);
            stage.hit(Mark::Retransmitted);
            lost.waiting.pop_front();
        }
        None
    }

    /// Delivers a server's reply to a call.
    pub fn answered(&mut self, stage: &mut Stage, judge: &mut Judge, call: u64, response: Response) {
        let as_of = judge.as_of.remove(&call);
        let Some((number, id, _)) = self.calls.remove(&call) else { return };
        let Some((connection, is_given_up)) = self.known(stage, number) else { return };
        self.learn(&response);
        match &response {
            Response::Unavailable(Unavailable::Unknown(_)) => stage.hit(Mark::UnknownOutcome),
            Response::Applied(Applied { reply: Reply::Queued { .. }, .. }) => stage.hit(Mark::Queued),
            _ => {}
        }
        if is_given_up {
            stage.hit(Mark::LastWord);
        } else {
            let event = AgentEvent::Replied { connection: number, call: id, response: &response };
            self.see(stage, judge, event);
        }
        self.handle_input_as_of(stage, judge, Input::Answers(connection, vec![(id, response)]), as_of);
    }

    /// Carries out the output of the quorum client.
    pub(super) fn carry_out(&mut self, stage: &mut Stage, judge: &mut Judge, outbox: &mut Outbox) {
        for dial in outbox.connect.drain(..) {
            self.dial(stage, judge, dial.connection, &dial.address);
        }
        for (id, call) in outbox.calls.drain(..) {
            let Some(number) = self.number_of(id) else { continue };
            match call {
                Call::Begin(call, request) => self.send(stage, judge, (number, call), Caller::Agent, request),
                Call::BeginAs(call, client, request) => {
                    self.send(stage, judge, (number, call), client, request);
                }
                Call::Cancel(call) => self.cancel(stage, judge, number, call),
            }
        }
        for id in outbox.disconnect.drain(..) {
            let Some(number) = self.number_of(id) else { continue };
            self.is_over(stage, judge, number);
            self.given_up.insert(number, (id, stage.now + LAST_WORD));
            if stage.draw.once_in(4) {
                let wait = stage.draw.duration(Duration::ZERO, LAST_WORD);
                stage.after(wait, Event::Connection(self.place, number, false));
            }
        }
        // Last, as in the shell: they may cause local calls, which are further turns (seed 11739).
        for notice in outbox.notices.drain(..) {
            self.notice(stage, judge, notice);
        }
    }

    fn number_of(&self, id: ConnectionId) -> Option<u64> {
        self.connections.iter().find(|(_, connection)| connection.id == id).map(|(number, _)| *number)
    }

    fn dial(&mut self, stage: &mut Stage, judge: &mut Judge, id: ConnectionId, address: &str) {
        let number = stage.call();
        let server = another_cluster::at(address).or_else(|| stage.addresses.get(address).copied());
        let server = server.unwrap_or(ServerId(0));
        self.see(stage, judge, AgentEvent::Dialled { connection: number, address, server });
        let connection = Connection {
            id,
            server,
            dialled: stage.now,
            received: 0,
            heard: stage.now,
            lost: BTreeMap::new(),
        };
        self.connections.insert(number, connection);
        self.shake_hands(stage, number, Duration::ZERO);
    }

    /// Sends the first datagram of a connection attempt of this age. If it is lost it is sent
    /// again, each time after twice the delay.
    pub fn shake_hands(&mut self, stage: &mut Stage, number: u64, age: Duration) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (place, server) = (self.place, connection.server);
        let dial = Event::Dial(server, place, number);
        if !stage.send(Place::Agent(place), Place::Server(server), dial) {
            self.handshake_lost(stage, number, age);
        }
    }

    /// A server's reply to a connection attempt was lost.
    pub fn handshake_reply_lost(&mut self, stage: &mut Stage, number: u64) {
        if let Some(connection) = self.connections.get(&number) {
            let age = stage.now.since(connection.dialled);
            self.handshake_lost(stage, number, age);
        }
    }

    /// Retries a handshake of this age after a loss. A network without retransmission breaks the
    /// attempt soon, so that the agent makes another one.
    fn handshake_lost(&mut self, stage: &mut Stage, number: u64, age: Duration) {
        let Some(connection) = self.connections.get(&number) else { return };
        let (place, server) = (self.place, connection.server);
        self.disturbed.insert(server, stage.now);
        let Some(retransmission) = stage.plan.network.retransmission else {
            return self.break_later(stage, number);
        };
        let next = 2 * age + retransmission.first_probe_timeout;
        match next < CONNECT_TIMEOUT {
            true => stage.after(next - age, Event::DialAgain(place, number, next)),
            false => {
                stage.after(CONNECT_TIMEOUT.saturating_sub(age), Event::Connection(place, number, false));
            }
        }
    }

    fn send(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        (number, id): (u64, CallId),
        client: Caller,
        request: Request,
    ) {
        let Some(server) = self.connections.get(&number).map(|connection| connection.server) else { return };
        self.see(stage, judge, AgentEvent::Sent { connection: number, call: id, request: &request });
        match &request {
            Request::Propose(Some(RequestId { generation, sequence, .. }), _) => {
                let before = self.sent_to.insert((generation.0, *sequence), server);
                if before.is_some_and(|before| before != server) {
                    stage.hit(Mark::RetryElsewhere);
                }
            }
            // The agent's own query for a server's index base goes to all servers.
            Request::Read {
                query: Query::NodeChecks(_),
                consistency: Consistency::Stale,
                blocking: None,
            } => {}
            Request::Read { consistency, blocking, .. }
                if *consistency == Consistency::Stale
                    || blocking.is_some_and(|blocking| blocking.waits()) =>
            {
                let before = self.home.replace(server);
                if before.is_some_and(|before| before != server) {
                    stage.hit(Mark::HomeLeft);
                }
            }
            _ => {}
        }
        let (call, lane) = (stage.call(), request.lane());
        self.calls.insert(call, (number, id, lane));
        let ask = Ask { by: Requester::Agent(self.place), call, client, request, bound: judge.bound };
        self.transmit(stage, number, (Way::There, lane), Event::Ask(server, Box::new(ask)));
    }

    /// Cancels a call. Its reply may already be on its way.
    fn cancel(&mut self, stage: &mut Stage, judge: &mut Judge, number: u64, id: CallId) {
        let Some(server) = self.connections.get(&number).map(|connection| connection.server) else { return };
        self.see(stage, judge, AgentEvent::Cancelled { connection: number, call: id });
        let found = self.calls.iter().find(|(_, (of, call, _))| (*of, *call) == (number, id));
        if let Some((call, lane)) = found.map(|(call, (.., lane))| (*call, *lane)) {
            let cancel = Event::Cancel(server, Requester::Agent(self.place), call);
            self.transmit(stage, number, (Way::There, lane), cancel);
        }
    }

    /// Closes a connection; the server learns of that at once.
    fn is_over(&mut self, stage: &mut Stage, judge: &mut Judge, number: u64) {
        if let Some(Connection { server, .. }) = self.connections.remove(&number) {
            self.see(stage, judge, AgentEvent::Ended { connection: number });
            // A reply that was just sent may be its last message.
            let now = stage.now;
            self.given_up.retain(|_, (_, until)| *until >= now);
            let (connections, given_up) = (&self.connections, &self.given_up);
            let is_known =
                |of: &u64| *of == number || connections.contains_key(of) || given_up.contains_key(of);
            self.calls.retain(|_, (of, ..)| is_known(of));
            stage.after(Duration::ZERO, Event::HungUp(server, self.place));
        }
    }
}

fn ends(agent: usize, server: ServerId, way: Way) -> (Place, Place) {
    match way {
        Way::There => (Place::Agent(agent), Place::Server(server)),
        Way::Back => (Place::Server(server), Place::Agent(agent)),
    }
}

fn retransmit_later(stage: &mut Stage, agent: usize, number: u64, (channel, attempts): (Channel, u32)) {
    let (least, most) = RETRANSMIT_INTERVAL;
    let wait = match stage.plan.network.retransmission {
        Some(Retransmission { probe_timeout, .. }) => probe_timeout * (1 << attempts.min(8)),
        None => stage.draw.duration(least, most),
    };
    stage.after(wait, Event::Retransmit(agent, number, channel));
}
