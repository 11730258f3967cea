//! The ends of sessions, each retried until the agent has acknowledged it.

use super::context::{Context, RequestPurpose};
use super::id::HoldId;
use super::moment::Moment;
use super::outbox::{EndReason, Event, Notice, Request};
use crate::backoff::Backoff;
use crate::error::Error;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of tries to end a session at the agent before it is left to its TTL, if no caller
/// waits for it.
pub(super) const DESTROY_TRIES: u32 = 5;

/// The end of a session, until the agent has acknowledged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndingId(u64);

#[derive(Debug)]
struct Ending {
    session: String,
    reason: EndReason,
    tries_left: u32,
    backoff: Backoff,
    wakes_at: Option<Moment>,
    then: Then,
}

/// The recipient of the result of a session's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// No recipient.
    Nothing,
    /// The caller that closed it.
    Closed,
    /// A hold that was released.
    Hold(HoldId),
}

/// The ends of sessions under way, with their retries.
#[derive(Debug, Default)]
pub(super) struct Endings {
    all: BTreeMap<EndingId, Ending>,
    last: u64,
}

impl Endings {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.all.values().filter_map(|ending| ending.wakes_at).min()
    }
}

impl Context {
    pub(super) fn begin_ending(&mut self, (session, reason): (String, EndReason), tries: u32, then: Then) {
        self.endings.last += 1;
        let id = EndingId(self.endings.last);
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(3));
        let ending = Ending { session, reason, tries_left: tries, backoff, wakes_at: None, then };
        self.endings.all.insert(id, ending);
        self.send_ending(id);
    }

    /// Sends the next end that is due again; returns `false` if none is due.
    pub(super) fn end_again_if_due(&mut self) -> bool {
        let is_due = |ending: &Ending| ending.wakes_at.is_some_and(|at| at <= self.now);
        let due = self.endings.all.iter().find(|(_, ending)| is_due(ending)).map(|(id, _)| *id);
        due.map(|id| self.send_ending(id)).is_some()
    }

    fn send_ending(&mut self, id: EndingId) {
        let Some(ending) = self.endings.all.get_mut(&id) else { return };
        ending.tries_left -= 1;
        ending.wakes_at = None;
        let request = Request::EndSession(ending.session.clone(), ending.reason);
        self.send(RequestPurpose::Ending(id), request);
    }

    /// Processes the reply to an end; returns the hold that waits for it, with the outcome.
    pub(super) fn ending_answered(
        &mut self,
        id: EndingId,
        result: Result<(), Error>,
    ) -> Option<(HoldId, Result<(), Error>)> {
        let ending = self.endings.all.get_mut(&id)?;
        if result.as_ref().is_err_and(Error::is_transient) && ending.tries_left > 0 {
            ending.wakes_at = Some(self.now + ending.backoff.failed(&mut self.jitter));
            return None;
        }
        let Ending { session, then, .. } = self.endings.all.remove(&id)?;
        if let Err(error) = &result {
            self.log(Notice::NotDestroyed(session, error.to_string()));
        }
        match then {
            Then::Nothing => None,
            Then::Closed => {
                self.report(Event::Closed(result));
                None
            }
            Then::Hold(hold) => Some((hold, result)),
        }
    }
}
