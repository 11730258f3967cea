//! User events relayed by a server: from the agent that fired one to the other servers, and to
//! every agent that syncs. Events therefore reach members that gossip missed, and members of other
//! cells; at any moment some of them sync.
//!
//! **Invariant:** storage is bounded and fair. Each agent has a quota of bytes, all agents together
//! have a larger one, and when space runs out, the agent with the most bytes loses its oldest
//! event.

use crate::observed::EventOutcome;
use bytes::Bytes;
use lockmesh_protocol::gossip::MAX_EVENTS;
use lockmesh_protocol::gossip::event::{
    self, EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND, LamportClock, LamportTime, UserEvent,
};
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::{BTreeMap, VecDeque};

/// The quota of all agents together, as a multiple of one agent's.
const ALL_AGENTS: u64 = 8;

/// The maximum size of all stored events: as much as an agent accepts at once.
const MAX_BYTES: usize = EVENT_BYTES_AT_ONCE as usize;

/// The user events that this server relays, and the quotas of agents that fire them.
#[derive(Debug)]
pub(crate) struct ServedEvents {
    /// Stored events, oldest first.
    relayed: VecDeque<RelayedEvent>,
    clock: LamportClock,
    /// Quotas of agents that fired recently.
    quotas: BTreeMap<AgentNumber, TokenBucket>,
    all: TokenBucket,
}

#[derive(Debug)]
struct RelayedEvent {
    came: Time,
    origin: AgentNumber,
    item: Bytes,
}

impl Default for ServedEvents {
    fn default() -> Self {
        let all =
            TokenBucket::full(Time(0), ALL_AGENTS * EVENT_BYTES_AT_ONCE, ALL_AGENTS * EVENT_BYTES_PER_SECOND);
        Self { relayed: VecDeque::new(), clock: LamportClock::default(), quotas: BTreeMap::new(), all }
    }
}

impl ServedEvents {
    /// Handles an event that an agent fired at this server.
    pub(super) fn fired(&mut self, now: Time, origin: AgentNumber, item: &Bytes) -> EventOutcome {
        self.quotas.retain(|_, quota| !quota.is_full(now));
        let full = || TokenBucket::full(now, EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND);
        let quota = self.quotas.entry(origin).or_insert_with(full);
        let cost = event::cost(item.len());
        // An agent over its own quota does not use up the common one.
        match quota.takes(now, cost) && self.all.takes(now, cost) {
            true => self.add(now, origin, item),
            false => EventOutcome::TooMany,
        }
    }

    /// Stores an event that an agent fired at this server or at another one.
    pub(super) fn add(&mut self, now: Time, origin: AgentNumber, item: &Bytes) -> EventOutcome {
        let Ok(event) = UserEvent::read(item) else { return EventOutcome::Malformed };
        if self.relayed.iter().any(|relayed| relayed.item == *item) {
            return EventOutcome::Known;
        }
        self.clock.witness(event.time);
        self.relayed.push_back(RelayedEvent { came: now, origin, item: item.clone() });
        while self.relayed.len() > MAX_EVENTS || self.bytes() > MAX_BYTES {
            self.forget_one();
        }
        EventOutcome::Taken
    }

    /// Returns the events that are currently sent.
    pub(super) fn current(&mut self, now: Time) -> impl Iterator<Item = Bytes> {
        while self.relayed.front().is_some_and(|relayed| now.since(relayed.came) > super::NEWS_LIFETIME) {
            self.relayed.pop_front();
        }
        self.relayed.iter().map(|relayed| relayed.item.clone())
    }

    /// Returns the highest Lamport time of a received event.
    pub(super) fn time(&self) -> LamportTime {
        self.clock.time()
    }

    fn bytes(&self) -> usize {
        self.relayed.iter().map(|relayed| relayed.item.len()).sum()
    }

    /// Drops the oldest event of the agent with the most stored bytes.
    fn forget_one(&mut self) {
        let mut bytes = BTreeMap::<AgentNumber, usize>::new();
        self.relayed
            .iter()
            .for_each(|relayed| *bytes.entry(relayed.origin).or_default() += relayed.item.len());
        let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(origin, _)| origin);
        let oldest = self.relayed.iter().position(|relayed| Some(relayed.origin) == most);
        oldest.and_then(|oldest| self.relayed.remove(oldest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::gossip::event::EventFilters;
    use lockmesh_protocol::id::EventId;
    use std::time::Duration;

    fn item(number: u32, payload: usize) -> Bytes {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let (id, filters) = (EventId::from_random(id), EventFilters::default());
        let event = UserEvent::new(id, "deploy".into(), vec![1; payload].into(), filters)
            .expect("the event is short");
        UserEvent { time: LamportTime(u64::from(number)), ..event }.to_item().into()
    }

    fn current(events: &mut ServedEvents, now: Time) -> Vec<Bytes> {
        events.current(now).collect()
    }

    #[test]
    fn event_served_once_until_expiry() {
        let mut events = ServedEvents::default();
        assert_eq!(events.fired(Time(0), AgentNumber(1), &item(7, 0)), EventOutcome::Taken);
        assert_eq!(events.add(Time(0), AgentNumber(1), &item(7, 0)), EventOutcome::Known);
        assert_eq!(events.add(Time(0), AgentNumber(2), &item(9, 0)), EventOutcome::Taken);
        assert_eq!(events.fired(Time(0), AgentNumber(1), &Bytes::from_static(b"x")), EventOutcome::Malformed);
        assert_eq!(
            (current(&mut events, Time(0)), events.time()),
            (vec![item(7, 0), item(9, 0)], LamportTime(9))
        );
        assert!(current(&mut events, Time(0) + super::super::NEWS_LIFETIME * 2).is_empty());
        assert_eq!(events.time(), LamportTime(9), "Lamport time is kept");
    }

    #[test]
    fn flooding_agent_cannot_starve_others() {
        let mut events = ServedEvents::default();
        let (flooder, other) = (AgentNumber(1), AgentNumber(2));
        let fired = |events: &mut ServedEvents, second: u64| {
            let now = Time(0) + Duration::from_secs(second);
            let numbers = (0..1_000).map(|number| second as u32 * 1_000 + number);
            numbers
                .filter(|number| events.fired(now, flooder, &item(*number, 400)) == EventOutcome::Taken)
                .count()
        };
        assert_eq!(fired(&mut events, 0), 37);
        assert_eq!(events.fired(Time(0), other, &item(100_000, 400)), EventOutcome::Taken);
        assert!(fired(&mut events, 60) == 37, "its quota is refilled");
        let now = Time(0) + Duration::from_secs(61);
        assert!(events.bytes() <= MAX_BYTES && current(&mut events, now).contains(&item(100_000, 400)));
        assert_eq!(events.quotas.len(), 1, "quotas of idle agents are dropped");
    }

    #[test]
    fn total_events_are_bounded() {
        let mut events = ServedEvents::default();
        let mut fire = |agent| events.fired(Time(0), AgentNumber(agent), &item(1_000 + agent, 400));
        let taken = (0..1_000).filter(|agent| fire(*agent) == EventOutcome::Taken).count();
        assert_eq!(taken, 8 * 16 * 1_024 / item(1_000, 400).len());
        (0..1_000).for_each(|agent| {
            events.add(Time(0), AgentNumber(agent), &item(10_000 + agent, 0));
        });
        assert!(events.relayed.len() <= MAX_EVENTS && events.bytes() <= MAX_BYTES);
    }
}
