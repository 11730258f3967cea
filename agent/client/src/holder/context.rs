//! The state that all holds share: the session, the time, the outputs, the requests in flight.

use super::SessionUse;
use super::endings::{EndingId, Endings};
use super::id::{HoldId, HolderRequest};
use super::moment::Moment;
use super::outbox::{Event, Notice, Outbox, Request};
use super::session::Session;
use crate::backoff::Jitter;
use crate::session_options::{HealthWindow, SessionOptions};
use std::collections::BTreeMap;
use std::time::Duration;

/// The purpose of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestPurpose {
    Creation { sent: Moment, ttl: Duration },
    Renewal { sent: Moment },
    NodeLease,
    Ending(EndingId),
    Hold(HoldId),
    GrantCheck(HoldId),
}

/// The session of a holder, and what its holds share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) options: SessionOptions,
    /// The window that the agent last assigned to a session without an explicit one.
    pub(super) default_window: Option<HealthWindow>,
    pub(super) session_use: SessionUse,
    pub(super) now: Moment,
    pub(super) outbox: Outbox,
    pub(super) jitter: Jitter,
    pub(super) session: Session,
    pub(super) endings: Endings,
    requests: BTreeMap<HolderRequest, RequestPurpose>,
    last_request: u64,
}

impl Context {
    pub(super) fn new(options: SessionOptions, session_use: SessionUse, seed: u64) -> Self {
        Self {
            options,
            default_window: None,
            session_use,
            now: Moment::default(),
            outbox: Outbox::default(),
            jitter: Jitter::new(seed),
            session: Session::default(),
            endings: Endings::default(),
            requests: BTreeMap::new(),
            last_request: 0,
        }
    }

    pub(super) fn send(&mut self, purpose: RequestPurpose, request: Request) -> HolderRequest {
        self.last_request += 1;
        let number = HolderRequest(self.last_request);
        self.requests.insert(number, purpose);
        self.outbox.requests.push((number, request));
        number
    }

    /// Returns the purpose of a request that is complete; `None` if it was cancelled.
    pub(super) fn complete(&mut self, number: HolderRequest) -> Option<RequestPurpose> {
        self.requests.remove(&number)
    }

    /// Cancels a request whose reply is no longer needed.
    pub(super) fn cancel(&mut self, number: Option<HolderRequest>) {
        // A request whose reply is being processed is not in flight any more.
        if let Some(number) = number
            && self.requests.remove(&number).is_some()
        {
            self.outbox.cancelled.push(number);
        }
    }

    /// Returns `true` if the session outlives its hold, with the locks that are left of several.
    pub(super) fn may_outlive(&self, session: &str) -> bool {
        self.session_use == SessionUse::Shared && self.is_kept(session)
    }

    pub(super) fn report(&mut self, event: Event) {
        self.outbox.events.push(event);
    }

    pub(super) fn log(&mut self, notice: Notice) {
        self.outbox.notices.push(notice);
    }
}
