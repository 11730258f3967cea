//! A user event, which members forward: a message of a program or an operator to all hosts, or to
//! those that match its filters. Any member may fire an event and nothing is signed, so an event
//! must not trigger anything that a hostile member must not trigger.
//!
//! Each event is delivered at most once per host. It is not stored for hosts that were absent.

use crate::id::EventId;
use crate::wire;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of events that this build fires, and the highest that it understands.
pub const EVENT_VERSION: u8 = 1;

/// The maximum size of an event in bytes, counted as in Consul.
pub const MAX_EVENT_BYTES: usize = 512;

/// The maximum rate in bytes per second of the events that one host fires, and of the events that a
/// host accepts from all members together.
pub const EVENT_BYTES_PER_SECOND: u64 = 1_024;

/// The maximum burst of these events in bytes.
pub const EVENT_BYTES_AT_ONCE: u64 = 16 * 1_024;

/// The minimum size in bytes that an event counts as: each event is remembered for a while.
const LEAST_EVENT_BYTES: usize = 64;

/// The first byte of an item that contains an event. A verdict starts with its purpose as text.
const TAG: u8 = 1;

/// A user event, as members forward it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEvent {
    /// The version of its format: see [`EVENT_VERSION`].
    pub version: u8,
    /// The unique id.
    pub id: EventId,
    /// The Lamport time of its firing; 0 before that.
    pub time: LamportTime,
    /// The event's name.
    pub name: String,
    /// The payload.
    pub payload: Bytes,
    /// The target hosts.
    pub filters: EventFilters,
}

/// The target hosts of an event: regular expressions, which each receiver evaluates. An empty one
/// matches all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventFilters {
    /// The host name.
    pub node: String,
    /// The id of a service on the host.
    pub service: String,
    /// The tag of a matching service.
    pub tag: String,
}

/// The Lamport time of an event: later than all events that its host knew of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LamportTime(pub u64);

/// A host's Lamport clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct LamportClock(LamportTime);

/// The maximum advance of a clock by one event, so that a hostile event cannot exhaust it.
const MAX_LEAP: u64 = 1 << 32;

impl LamportClock {
    /// Returns the highest time seen or assigned.
    pub fn time(self) -> LamportTime {
        self.0
    }

    /// Returns a time later than all times seen.
    pub fn tick(&mut self) -> LamportTime {
        self.0 = LamportTime(self.0.0.saturating_add(1));
        self.0
    }

    /// Records the time of a received event.
    pub fn witness(&mut self, time: LamportTime) {
        self.0 = self.0.max(LamportTime(time.0.min(self.0.0.saturating_add(MAX_LEAP))));
    }
}

/// The reason why an event is invalid. The first two have Consul's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Name, payload and filters alone are too long.
    #[error("user event exceeds configured limit of {MAX_EVENT_BYTES} bytes before encoding")]
    LongBeforeEncoding,
    /// The event is too long after encoding.
    #[error("user event exceeds configured limit of {MAX_EVENT_BYTES} bytes after encoding")]
    LongAfterEncoding,
    /// The bytes are not an event.
    #[error("no event")]
    Malformed,
}

/// Returns the number of bytes that an event of this length counts as in rate limits.
pub fn cost(length: usize) -> u64 {
    length.max(LEAST_EVENT_BYTES) as u64
}

impl UserEvent {
    /// Creates an event that has not been fired.
    ///
    /// # Errors
    /// It is too long.
    pub fn new(id: EventId, name: String, payload: Bytes, filters: EventFilters) -> Result<Self, EventError> {
        let (version, time) = (EVENT_VERSION, LamportTime(0));
        let event = Self { version, id, time, name, payload, filters };
        event.check_length()?;
        Ok(event)
    }

    /// Returns `true` if an item is intended as an event.
    pub fn is_one(item: &[u8]) -> bool {
        item.first() == Some(&TAG)
    }

    /// Returns the item that members forward.
    pub fn to_item(&self) -> Vec<u8> {
        [vec![TAG], wire::encode(self)].concat()
    }

    /// Parses an item.
    ///
    /// # Errors
    /// It is not an event, or is not permitted.
    pub fn read(item: &[u8]) -> Result<Self, EventError> {
        let bytes = item.strip_prefix(&[TAG]).ok_or(EventError::Malformed)?;
        let event: Self = wire::decode::<_, MAX_EVENT_BYTES>(bytes).map_err(|_| EventError::Malformed)?;
        event.check_length()?;
        // The encoding is canonical, so that a re-encoded event does not count as new.
        match event.name.is_empty() || event.to_item() != item {
            true => Err(EventError::Malformed),
            false => Ok(event),
        }
    }

    fn check_length(&self) -> Result<(), EventError> {
        let (before, after) = self.lengths();
        match MAX_EVENT_BYTES {
            limit if before > limit => Err(EventError::LongBeforeEncoding),
            limit if after > limit => Err(EventError::LongAfterEncoding),
            _ => Ok(()),
        }
    }

    /// Returns the event's size in Consul's gossip: a MessagePack message that contains another
    /// one. Lockmesh's encoding is shorter, but clients that size payloads by Consul's limit must
    /// find the same limit.
    fn lengths(&self) -> (usize, usize) {
        // Map keys are encoded as text.
        let field = |key: &str, value: usize| 1 + key.len() + value;
        let optional = |key: &str, value: usize, is_empty| if is_empty { 0 } else { field(key, value) };
        let EventFilters { node, service, tag } = &self.filters;
        let within = 1
            + field("ID", text_length(36))
            + field("n", text_length(self.name.len()))
            + optional("p", binary_length(self.payload.len()), self.payload.is_empty())
            + optional("nf", text_length(node.len()), node.is_empty())
            + optional("sf", text_length(service.len()), service.is_empty())
            + optional("tf", text_length(tag.len()), tag.is_empty())
            + field("v", 1);
        let name = "consul:event:".len() + self.name.len();
        // The kind of the message, its map, and a Lamport time that is still low.
        let around = 2 + field("LTime", 1) + field("CC", 1);
        let after = around + field("Name", raw_length(name)) + field("Payload", raw_length(within));
        (name + within, after)
    }
}

/// Returns the size of a text in MessagePack, with its length prefix.
fn text_length(length: usize) -> usize {
    length + if length < 32 { 1 } else { binary_length(length) - length }
}

/// Returns the size of bytes in MessagePack.
fn binary_length(length: usize) -> usize {
    length + if length < 256 { 2 } else { 3 }
}

/// Returns the size of either in the old MessagePack format, which the outer message uses.
fn raw_length(length: usize) -> usize {
    length + if length < 32 { 1 } else { 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, payload: usize) -> Result<UserEvent, EventError> {
        let id = EventId::from_random([0xfe; 16]);
        UserEvent::new(id, name.into(), vec![7; payload].into(), EventFilters::default())
    }

    fn longest() -> UserEvent {
        let filters = EventFilters { node: "^web-".into(), service: "web".into(), tag: "v[12]".into() };
        let of = |length| {
            let payload = vec![255; length].into();
            UserEvent::new(EventId::from_random([255; 16]), "deploy".into(), payload, filters.clone())
        };
        let mut event = (0..MAX_EVENT_BYTES).rev().find_map(|length| of(length).ok()).expect("one fits");
        event.time = LamportTime(u64::MAX);
        event
    }

    #[test]
    fn event_round_trips_within_item_limit() {
        for event in [longest(), event("e", 0).expect("it is short")] {
            let item = event.to_item();
            assert!(item.len() <= crate::gossip::MAX_ITEM_BYTES, "{} bytes", item.len());
            assert!(UserEvent::is_one(&item));
            assert_eq!(UserEvent::read(&item), Ok(event));
        }
    }

    #[test]
    fn truncated_or_oversized_item_rejected() {
        let item = longest().to_item();
        for length in 0..item.len() {
            assert_eq!(UserEvent::read(&item[..length]), Err(EventError::Malformed), "{length} bytes");
        }
        assert_eq!(UserEvent::read(&[&item[..], &[0]].concat()), Err(EventError::Malformed));
        let nameless = UserEvent { name: String::new(), ..longest() };
        assert_eq!(UserEvent::read(&nameless.to_item()), Err(EventError::Malformed));
        let mut long = longest();
        long.name.push('s');
        assert_eq!(UserEvent::read(&long.to_item()), Err(EventError::LongAfterEncoding));
    }

    #[test]
    fn lamport_clock_advances_with_bounded_leap() {
        let mut clock = LamportClock::default();
        assert_eq!([(); 2].map(|()| clock.tick().0), [1, 2]);
        for (heard, next) in [(40, 41), (7, 42), (42, 43)] {
            clock.witness(LamportTime(heard));
            assert_eq!((clock.tick().0, clock.time().0), (next, next));
        }
        clock.witness(LamportTime(u64::MAX));
        assert_eq!(clock.tick().0, 43 + MAX_LEAP + 1);
        let mut last = LamportClock(LamportTime(u64::MAX - 1));
        last.witness(LamportTime(u64::MAX));
        assert_eq!([(); 2].map(|()| last.tick().0), [u64::MAX; 2]);
    }

    #[test]
    fn oversized_payload_or_name_rejected() {
        assert!(event("deploy", 400).is_ok());
        assert_eq!(event("deploy", 420), Err(EventError::LongAfterEncoding));
        assert_eq!(event("deploy", 800), Err(EventError::LongBeforeEncoding));
        assert_eq!(event(&"n".repeat(800), 0), Err(EventError::LongBeforeEncoding));
        let error = event("deploy", 800).expect_err("it is too long").to_string();
        assert_eq!(error, "user event exceeds configured limit of 512 bytes before encoding");
    }
}
