//! Links to the servers: when each is dialled, its pending calls, and whether it is slow or quiet.
//!
//! A link lasts while its slot is known; its connections come and go. **Invariant:** each slot has
//! at most one connection or dial, and events of any other connection are ignored.

use super::calls::{PendingCalls, Roles};
use super::input::ConnectionId;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The minimum and maximum pause between attempts to connect. The maximum applies to a server that
/// rejects this agent; for a lost server, the limit is [`LeaderTracker::longest_pause`].
///
/// [`LeaderTracker::longest_pause`]: crate::leader_tracker::LeaderTracker::longest_pause
const RECONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// The pauses before a server of another cluster is dialled again. That is a configuration mistake,
/// which faster retries do not repair.
const REFUSED_BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// The age at which a dial is restarted when it becomes urgent: its packets may have been lost
/// while the server was down, and their retransmission backs off.
const STALE_DIAL: Duration = Duration::from_millis(300);

/// The time without received data after which a connection counts as quiet. It is longer than the
/// keep-alive interval and shorter than the idle timeout.
const QUIET_TIMEOUT: Duration = Duration::from_millis(2500);

/// The state of a link's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// There is no connection.
    Down,
    /// A connection is being made.
    Dialling(ConnectionId),
    /// The connection is established.
    Up(ConnectionId),
    /// The last attempt failed; the next one starts at this time.
    Pausing(Time),
}

/// The data received on a connection, and the time of its last change.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    received: u64,
    since: Time,
    is_quiet: bool,
}

/// A link to one server.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) address: String,
    pub(super) state: LinkState,
    /// `true` if the link should be connected.
    pub(super) is_wanted: bool,
    /// `true` if the next pause is skipped.
    pub(super) is_hastened: bool,
    /// `true` if the link was dialled before.
    pub(super) was_dialled: bool,
    /// The start of the newest attempt to connect.
    pub(super) dialled_at: Time,
    pub(super) roles: Roles,
    pub(super) calls: PendingCalls,
    /// `true` if the send queue is full and requests should wait.
    pub(super) is_backlogged: bool,
    /// The failures that were logged.
    pub(super) log: LogOnChange,
    backoff: Backoff,
    refused_backoff: Backoff,
    /// Set while the oldest call is unanswered for too long: the time of the next check.
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
            log: LogOnChange::default(),
            backoff: Backoff::new(RECONNECT_BACKOFF, seed),
            refused_backoff: Backoff::new(REFUSED_BACKOFF, seed),
            slow: None,
            traffic: None,
        }
    }

    /// Returns the connection on which calls are sent.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.state {
            LinkState::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection, or the attempt to make one.
    pub(super) fn present(&self) -> Option<ConnectionId> {
        match self.state {
            LinkState::Up(connection) | LinkState::Dialling(connection) => Some(connection),
            LinkState::Down | LinkState::Pausing(_) => None,
        }
    }

    /// Returns `true` if the dial under way may be late to detect that the server answers.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        matches!(self.state, LinkState::Dialling(_)) && now.since(self.dialled_at) >= STALE_DIAL
    }

    /// Records an established connection.
    pub(super) fn connected(&mut self, connection: ConnectionId, now: Time) {
        self.state = LinkState::Up(connection);
        self.slow = None;
        self.traffic = Some(Traffic { received: 0, since: now, is_quiet: false });
    }

    /// Records that the server accepted this agent; the backoff starts over.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
        self.log.reset();
    }

    /// Records that the connection ended.
    pub(super) fn is_down(&mut self) {
        self.state = LinkState::Down;
        (self.slow, self.traffic, self.is_backlogged) = (None, None, false);
    }

    /// Waits before the next dial, for at most `longest`, unless it is urgent.
    pub(super) fn pause(&mut self, now: Time, longest: Duration) {
        self.backoff.limit(longest.min(RECONNECT_BACKOFF.1));
        let pause = self.backoff.next_pause();
        // Once only, so that a server that rejects at once is not dialled in a loop.
        if !std::mem::take(&mut self.is_hastened) {
            self.state = LinkState::Pausing(now + pause);
        }
    }

    /// Waits for long before the next dial, even if it is urgent.
    pub(super) fn pause_refused(&mut self, now: Time) {
        self.is_hastened = false;
        self.state = LinkState::Pausing(now + self.refused_backoff.next_pause());
    }

    /// Returns when to dial again or to call [`Link::notice_slowness`].
    pub(super) fn wakes_at(&self, probe_after: Duration) -> Option<Time> {
        match self.state {
            LinkState::Pausing(at) => Some(at),
            // The end of slowness is checked early, because it ends the search for another server.
            LinkState::Up(_) => self.slow.or_else(|| self.calls.oldest().map(|begun| begun + probe_after)),
            LinkState::Down | LinkState::Dialling(_) => None,
        }
    }

    /// Checks whether a call that expects a prompt reply is late. Returns the new state if it
    /// changed. While slow, the check repeats in smaller steps.
    pub(super) fn notice_slowness(&mut self, now: Time, probe_after: Duration) -> Option<bool> {
        let is_slow = self.calls.oldest().is_some_and(|begun| begun + probe_after <= now);
        let was_slow = std::mem::replace(&mut self.slow, is_slow.then(|| now + probe_after / 4)).is_some();
        (was_slow != is_slow).then_some(is_slow)
    }

    /// Checks whether data still arrives. Returns the new state if it changed. A parked call may
    /// wait for long, so only this distinguishes a stopped or partitioned server from one without
    /// news.
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
