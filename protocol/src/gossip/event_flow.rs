//! How many events are passed on, and their times: whoever fires without end, by mistake or on
//! purpose, must not fill the mesh.
//!
//! Every event costs each member its length some ten to sixteen times over, and a member sends 33
//! KB of gossip a second at most. So events are counted in bytes: a little all the time and more at
//! once. Whose event it was first no member can prove to another, so there is no limit for each
//! origin here; the servers, who know who speaks to them, have one. So what they tell is counted
//! apart from what members pass on, as this host's own is: a flood of one member leaves room for
//! both.

use super::event::{LamportClock, LamportTime, UserEvent};
use crate::time::Time;
use crate::token_bucket::TokenBucket;

/// So many bytes of events are passed on for others in a second, and as many of this host's own.
pub const EVENT_BYTES_PER_SECOND: u64 = 1_024;

/// So many at once, after a while without.
pub const EVENT_BYTES_AT_ONCE: u64 = 16 * 1_024;

/// A short event counts as one of this length: each of them is remembered for a while.
const LEAST_EVENT_BYTES: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub struct EventFlow {
    clock: LamportClock,
    own: TokenBucket,
    others: TokenBucket,
    /// Those of others that servers tell.
    told: TokenBucket,
}

/// This host has fired too many events of late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many events: this agent fires {EVENT_BYTES_AT_ONCE} bytes of them at once and {EVENT_BYTES_PER_SECOND} a \
     second on average; fire this one again later"
)]
pub struct TooManyEvents;

/// As how many bytes an event of this length counts.
pub fn cost(length: usize) -> u64 {
    length.max(LEAST_EVENT_BYTES) as u64
}

impl EventFlow {
    /// That of a host that has heard of no event.
    pub fn new(now: Time) -> Self {
        let bucket = || TokenBucket::full(now, EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND);
        Self { clock: LamportClock::default(), own: bucket(), others: bucket(), told: bucket() }
    }

    /// Gives an event of this host's own its time.
    ///
    /// # Errors
    /// There were too many; the event is as it was.
    pub fn fire(&mut self, now: Time, event: &mut UserEvent) -> Result<(), TooManyEvents> {
        if !self.own.takes(now, cost(event.to_item().len())) {
            return Err(TooManyEvents);
        }
        event.time = self.clock.tick();
        Ok(())
    }

    /// Whether there is room for an event of another host, which took so many bytes and which a
    /// member passed on or a server told. Then its time has been.
    pub fn take(&mut self, now: Time, event: &UserEvent, length: usize, is_told_by_server: bool) -> bool {
        let room = if is_told_by_server { &mut self.told } else { &mut self.others };
        let is_taken = room.takes(now, cost(length));
        if is_taken {
            self.clock.witness(event.time);
        }
        is_taken
    }

    /// Events up to this time have been fired.
    pub fn witness(&mut self, time: LamportTime) {
        self.clock.witness(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gossip::event::EventFilters;
    use crate::id::EventId;
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
    fn an_event_is_later_than_all_that_were_taken() {
        let mut flow = EventFlow::new(Time(0));
        assert_eq!(fire(&mut flow, Time(0)), Some(1));
        assert!(flow.take(Time(0), &event(40), 150, false));
        assert_eq!(fire(&mut flow, Time(0)), Some(41));
        flow.witness(LamportTime(50));
        assert_eq!(fire(&mut flow, Time(0)), Some(51));
    }

    #[test]
    fn many_at_once_are_taken_and_then_a_few_each_second() {
        let mut flow = EventFlow::new(Time(0));
        let taken =
            |flow: &mut EventFlow, now| (0..1_000).filter(|_| flow.take(now, &event(1), 256, false)).count();
        assert_eq!(taken(&mut flow, Time(0)), 64);
        let second = Duration::from_secs(1);
        assert_eq!(taken(&mut flow, Time(0) + second), 4);
        assert_eq!(taken(&mut flow, Time(0) + second), 0);
        assert_eq!(taken(&mut flow, Time(0) + second * 3), 8);
        assert_eq!(taken(&mut flow, Time(0) + second * 1_000), 64);
        assert_eq!(taken(&mut flow, Time(u64::MAX)), 64);
        // Those of others leave room for our own, and short ones do not come in crowds.
        assert!(fire(&mut flow, Time(u64::MAX)).is_some());
        let mut flow = EventFlow::new(Time(0));
        assert_eq!((0..1_000).filter(|_| flow.take(Time(0), &event(1), 1, false)).count(), 256);
    }
}
