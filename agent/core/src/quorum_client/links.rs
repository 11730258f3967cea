//! The links to the servers: when each is dialled, what is under way on it, whether it is slow or
//! quiet.
//!
//! A link lasts as long as its slot is known; its connections come and go. **Invariant:** there is
//! at most one connection or attempt at one for each slot, and what is told of any other is not
//! listened to.

use super::calls::{PendingCalls, Roles};
use super::input::ConnectionId;
use super::owner::RequestNumber;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The pauses between attempts to connect. The longest one is for a server that refuses this agent;
/// for a server that is lost, [`LeaderTracker::longest_pause`] says how long it is.
///
/// [`LeaderTracker::longest_pause`]: crate::leader_tracker::LeaderTracker::longest_pause
const RECONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// The pauses before a server is dialled again that is not of this agent's cluster: it is a
/// configuration mistake, which no haste mends.
const REFUSED_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// An attempt at a connection that is older than this is made anew when it becomes urgent: its
/// packets may have been lost while the server did not run, and are repeated at growing intervals.
const STALE_DIAL: Duration = Duration::from_millis(300);

/// A connection on which nothing arrives for so long is quiet: longer than the pause between two
/// signs of life, and shorter than what ends a connection.
const QUIET_TIMEOUT: Duration = Duration::from_millis(2500);

/// Where a link's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// There is none.
    Down,
    /// It is being made.
    Dialling(ConnectionId),
    /// It stands.
    Up(ConnectionId),
    /// The last one failed; the next one is not made before then.
    Pausing(Time),
}

/// What arrived on a connection, and when that was noticed.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    received: u64,
    since: Time,
    is_quiet: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Link {
    pub(super) address: String,
    pub(super) state: LinkState,
    /// Whether it shall be connected.
    pub(super) is_wanted: bool,
    /// Whether the next pause shall be left out.
    pub(super) is_hastened: bool,
    /// Whether it was dialled before.
    pub(super) was_dialled: bool,
    /// When the newest attempt at a connection began.
    pub(super) dialled_at: Time,
    pub(super) roles: Roles,
    pub(super) calls: PendingCalls,
    /// Whether so much waits to be sent that no more requests should.
    pub(super) is_backlogged: bool,
    /// The requests that wait for that to end, in order.
    pub(super) backlog: VecDeque<RequestNumber>,
    /// What was told of its failures.
    pub(super) log: LogOnChange,
    backoff: Backoff,
    refused_backoff: Backoff,
    /// Whether the oldest call is unanswered for too long, and when that is looked at again.
    slow: Option<Time>,
    traffic: Option<Traffic>,
}

impl Link {
    pub(super) fn new(address: &str, seed: u64) -> Self {
        Self {
            address: address.into(),
            state: LinkState::Down,
            is_wanted: false,
            is_hastened: false,
            was_dialled: false,
            dialled_at: Time(0),
            roles: Roles::default(),
            calls: PendingCalls::default(),
            is_backlogged: false,
            backlog: VecDeque::new(),
            log: LogOnChange::default(),
            backoff: Backoff::new(RECONNECT_BACKOFF, seed),
            refused_backoff: Backoff::new(REFUSED_BACKOFF, seed),
            slow: None,
            traffic: None,
        }
    }

    /// The connection that calls are sent on.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.state {
            LinkState::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// The connection, or the attempt at one.
    pub(super) fn present(&self) -> Option<ConnectionId> {
        match self.state {
            LinkState::Up(connection) | LinkState::Dialling(connection) => Some(connection),
            LinkState::Down | LinkState::Pausing(_) => None,
        }
    }

    /// `true` if the attempt under way may not notice soon that the server answers.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        matches!(self.state, LinkState::Dialling(_)) && now.since(self.dialled_at) >= STALE_DIAL
    }

    /// The connection stands.
    pub(super) fn connected(&mut self, connection: ConnectionId, now: Time) {
        self.state = LinkState::Up(connection);
        self.slow = None;
        self.traffic = Some(Traffic { received: 0, since: now, is_quiet: false });
    }

    /// The server took this agent: the next failure is the first one.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
        self.log.reset();
    }

    /// There is no connection any more.
    pub(super) fn is_down(&mut self) {
        self.state = LinkState::Down;
        (self.slow, self.traffic, self.is_backlogged) = (None, None, false);
    }

    /// Waits before it is dialled again, at most for `longest`, unless that is urgent.
    pub(super) fn pause(&mut self, now: Time, longest: Duration) {
        self.backoff.limit(longest.min(RECONNECT_BACKOFF.1));
        let pause = self.backoff.next_pause();
        // Once only, so that a server which refuses at once is not dialled without end.
        if !std::mem::take(&mut self.is_hastened) {
            self.state = LinkState::Pausing(now + pause);
        }
    }

    /// Waits for long before it is dialled again, whatever is urgent.
    pub(super) fn pause_refused(&mut self, now: Time) {
        self.is_hastened = false;
        self.state = LinkState::Pausing(now + self.refused_backoff.next_pause());
    }

    /// When it is to be looked at: dialled again, or [`Link::notice_slowness`] called.
    pub(super) fn wakes_at(&self, probe_after: Duration) -> Option<Time> {
        match self.state {
            LinkState::Pausing(at) => Some(at),
            // The end of slowness is looked for early, because it ends the search for another
            // server.
            LinkState::Up(_) => self.slow.or_else(|| self.calls.oldest().map(|begun| begun + probe_after)),
            LinkState::Down | LinkState::Dialling(_) => None,
        }
    }

    /// Notices that a call that is to be answered soon is not, and when that is over: whether it
    /// changed, and to what. The end of slowness is looked for in smaller steps.
    pub(super) fn notice_slowness(&mut self, now: Time, probe_after: Duration) -> Option<bool> {
        let is_slow = self.calls.oldest().is_some_and(|begun| begun + probe_after <= now);
        let was_slow = std::mem::replace(&mut self.slow, is_slow.then(|| now + probe_after / 4)).is_some();
        (was_slow != is_slow).then_some(is_slow)
    }

    /// Notices that nothing arrives any more, and when that is over: whether it changed, and to
    /// what. Whoever waits for news may wait for long, so that only this tells a server that is
    /// stopped or cut off from one that has no news.
    pub(super) fn received(&mut self, received: u64, now: Time) -> Option<bool> {
        let traffic = self.traffic.as_mut()?;
        if traffic.received != received {
            (traffic.received, traffic.since) = (received, now);
        }
        let is_quiet = now.since(traffic.since) >= QUIET_TIMEOUT;
        let was_quiet = std::mem::replace(&mut traffic.is_quiet, is_quiet);
        (was_quiet != is_quiet).then_some(is_quiet)
    }
}
