//! The newest user events that this host received and that its filters select, in order of arrival.
//! They are kept in memory only and are lost when the agent stops.

use crate::event_filter::EventFilter;
use lockmesh_protocol::gossip::event::{EVENT_VERSION, UserEvent};
use lockmesh_protocol::id::EventId;
use lockmesh_protocol::record::Service;
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of events kept.
pub const KEPT_EVENTS: usize = 256;

/// Consul's agents run commands on events of this name. Lockmesh agents never do, and list none of
/// them.
const REMOTE_EXECUTION: &str = "_rexec";

/// The newest user events of this host, at most [`KEPT_EVENTS`].
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    /// Oldest first.
    kept: VecDeque<Arc<UserEvent>>,
}

/// The outcome of receiving an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The event is kept.
    Kept,
    /// The event is for other hosts.
    ForOthers,
    /// The event was received before.
    Known,
    /// This build does not support the event's version, or its filters are invalid.
    NotUnderstood,
}

impl EventLog {
    /// Receives an event, on a host with this name and these services.
    pub fn record(&mut self, event: UserEvent, node: &str, services: &[Service]) -> Received {
        if event.version > EVENT_VERSION {
            return Received::NotUnderstood;
        }
        let Ok(filter) = EventFilter::new(&event.filters) else { return Received::NotUnderstood };
        if event.name == REMOTE_EXECUTION || !filter.matches(node, services) {
            return Received::ForOthers;
        }
        if self.kept.iter().any(|kept| kept.id == event.id) {
            return Received::Known;
        }
        if self.kept.len() >= KEPT_EVENTS {
            self.kept.pop_front();
        }
        self.kept.push_back(Arc::new(event));
        Received::Kept
    }

    /// Returns the events of this name, oldest first; all events without a name.
    pub fn list(&self, name: Option<&str>) -> Vec<Arc<UserEvent>> {
        self.of_name(name).cloned().collect()
    }

    /// Returns the index of a list of these events. It does not grow: a blocking query waits until
    /// it changes.
    pub fn index(&self, name: Option<&str>) -> u64 {
        self.of_name(name).next_back().map_or(1, |event| index_of(event.id))
    }

    fn of_name(&self, name: Option<&str>) -> impl DoubleEndedIterator<Item = &Arc<UserEvent>> {
        self.kept.iter().filter(move |event| name.is_none_or(|name| event.name == name))
    }
}

/// Returns the id of an event as a number, which Consul's clients also derive from the text.
pub fn index_of(id: EventId) -> u64 {
    let number = u128::from_be_bytes(*id.as_bytes());
    let folded = (number >> 64) as u64 ^ number as u64;
    // Clients take 0 for no index.
    folded.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::gossip::event::EventFilters;

    fn event(number: u16, name: &str) -> UserEvent {
        let mut id = [0; 16];
        id[14..].copy_from_slice(&number.to_be_bytes());
        let id = EventId::from_random(id);
        UserEvent::new(id, name.into(), Default::default(), EventFilters::default()).expect("it is short")
    }

    fn record(log: &mut EventLog, event: UserEvent) -> Received {
        log.record(event, "web-1", &[])
    }

    #[test]
    fn event_id_to_consul_index() {
        let id =
            [0xcb, 0x9a, 0x81, 0xad, 0xff, 0xf6, 0x52, 0xac, 0x92, 0xa7, 0x5f, 0x70, 0x68, 0x78, 0x05, 0xec];
        let id = EventId::from_random(id);
        assert_eq!(id.to_string(), "cb9a81ad-fff6-52ac-92a7-5f70687805ec");
        assert_eq!(index_of(id), 6_430_540_886_266_763_072);
        assert_eq!(index_of(EventId::from_random([7; 16])), 1, "never 0");
    }

    #[test]
    fn newest_256_listed_by_name() {
        let mut log = EventLog::default();
        assert_eq!((log.index(None), log.list(None).len()), (1, 0));
        for number in 0..300 {
            let name = if number % 2 == 0 { "even" } else { "odd" };
            assert_eq!(record(&mut log, event(1_000 + number, name)), Received::Kept);
        }
        let ids: Vec<_> = log.list(None).iter().map(|event| index_of(event.id)).collect();
        assert_eq!(ids, (1_044..1_300).collect::<Vec<_>>());
        assert_eq!((log.list(Some("odd")).len(), log.index(Some("odd"))), (128, 1_299));
        assert_eq!((log.index(Some("even")), log.index(None)), (1_298, 1_299));
        assert_eq!((log.list(Some("od")).len(), log.index(Some("od"))), (0, 1), "the whole name counts");
    }

    #[test]
    fn foreign_duplicate_or_unreadable_events_unlisted() {
        let mut log = EventLog::default();
        assert_eq!(record(&mut log, event(1, "deploy")), Received::Kept);
        assert_eq!(record(&mut log, event(1, "deploy")), Received::Known);
        assert_eq!(record(&mut log, event(2, "_rexec")), Received::ForOthers);
        let filtered = |node: &str| {
            let filters = EventFilters { node: node.into(), ..EventFilters::default() };
            UserEvent { filters, ..event(3, "deploy") }
        };
        assert_eq!(record(&mut log, filtered("^db-")), Received::ForOthers);
        assert_eq!(record(&mut log, filtered("[")), Received::NotUnderstood);
        let later = UserEvent { version: EVENT_VERSION + 1, ..event(4, "deploy") };
        assert_eq!(record(&mut log, later), Received::NotUnderstood);
        assert_eq!((log.list(None).len(), log.index(None)), (1, 1));
    }
}
