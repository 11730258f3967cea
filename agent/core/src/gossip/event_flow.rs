//! Rate limits and times of events: a process that fires continuously, by mistake or maliciously,
//! must not flood the mesh.
//!
//! Every event costs each member ten to sixteen times its length, and a member sends at most 33 KB
//! of gossip per second. Events are therefore limited in bytes, with a small rate and a larger
//! burst. A member cannot prove an event's origin to another, so there is no limit per origin here;
//! the servers, which know their peers, have one. Events from servers, events forwarded by members,
//! and this host's own events are therefore limited separately: a flood from one member leaves room
//! for the other two.

use lockmesh_protocol::gossip::event::{
    EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND, LamportClock, LamportTime, UserEvent, cost,
};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;

/// The buckets that limit events, and the Lamport clock that orders them.
#[derive(Debug)]
pub struct EventFlow {
    clock: LamportClock,
    own: TokenBucket,
    others: TokenBucket,
    /// Events of other hosts that servers sent.
    from_servers: TokenBucket,
}

/// This host has fired too many events recently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many events: this agent fires {EVENT_BYTES_AT_ONCE} bytes of them at once and {EVENT_BYTES_PER_SECOND} a \
     second on average; fire this one again later"
)]
pub struct TooManyEvents;

impl EventFlow {
    /// Creates the flow of a host that has received no event.
    pub fn new(now: Time) -> Self {
        let bucket = || TokenBucket::full(now, EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND);
        Self { clock: LamportClock::default(), own: bucket(), others: bucket(), from_servers: bucket() }
    }

    /// Assigns the next time to an event of this host.
    ///
    /// # Errors
    /// There were too many; the event is unchanged.
    pub fn fire(&mut self, now: Time, event: &mut UserEvent) -> Result<(), TooManyEvents> {
        if !self.own.takes(now, cost(event.to_item().len())) {
            return Err(TooManyEvents);
        }
        event.time = self.clock.tick();
        Ok(())
    }

    /// Returns `true` if there is room for another host's event of this length, forwarded by a
    /// member or sent by a server. If so, its time is recorded.
    pub fn admit(&mut self, now: Time, event: &UserEvent, length: usize, is_from_server: bool) -> bool {
        let room = if is_from_server { &mut self.from_servers } else { &mut self.others };
        let is_taken = room.takes(now, cost(length));
        if is_taken {
            self.clock.witness(event.time);
        }
        is_taken
    }

    /// Records that events up to this time have been fired.
    pub fn witness(&mut self, time: LamportTime) {
        self.clock.witness(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::gossip::event::EventFilters;
    use lockmesh_protocol::id::EventId;
    use std::time::Duration;

    fn event(time: u64) -> UserEvent {
        let (id, filters) = (EventId::from_random([1; 16]), EventFilters::default());
        let event = UserEvent::new(id, "deploy".into(), vec![0; 100].into(), filters).expect("it is short");
        UserEvent { time: LamportTime(time), ..event }
    }

    fn fire(flow: &mut EventFlow, now: Time) -> Option<u64> {
        let mut event = event(0);
        flow.fire(now, &mut event).ok().map(|()| event.time.0)
    }

    #[test]
    fn fired_time_exceeds_all_witnessed() {
        let mut flow = EventFlow::new(Time(0));
        assert_eq!(fire(&mut flow, Time(0)), Some(1));
        assert!(flow.admit(Time(0), &event(40), 150, false));
        assert_eq!(fire(&mut flow, Time(0)), Some(41));
        flow.witness(LamportTime(50));
        assert_eq!(fire(&mut flow, Time(0)), Some(51));
    }

    #[test]
    fn admits_burst_then_steady_rate() {
        let mut flow = EventFlow::new(Time(0));
        let taken =
            |flow: &mut EventFlow, now| (0..1_000).filter(|_| flow.admit(now, &event(1), 256, false)).count();
        assert_eq!(taken(&mut flow, Time(0)), 64);
        let second = Duration::from_secs(1);
        assert_eq!(taken(&mut flow, Time(0) + second), 4);
        assert_eq!(taken(&mut flow, Time(0) + second), 0);
        assert_eq!(taken(&mut flow, Time(0) + second * 3), 8);
        assert_eq!(taken(&mut flow, Time(0) + second * 1_000), 64);
        assert_eq!(taken(&mut flow, Time(u64::MAX)), 64);
        // Other hosts' events leave room for this host's own, and short events have a minimum cost.
        assert!(fire(&mut flow, Time(u64::MAX)).is_some());
        let mut flow = EventFlow::new(Time(0));
        assert_eq!((0..1_000).filter(|_| flow.admit(Time(0), &event(1), 1, false)).count(), 256);
    }
}
