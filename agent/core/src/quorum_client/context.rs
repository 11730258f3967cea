//! The state that all parts of a client use: the time of the current input, its effects, the
//! timers and the counters.

use super::input::CallToken;
use super::outbox::{Answered, Notice, Outbox};
use super::owner::RequestNumber;
use crate::servers::Slot;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::{CallId, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;

/// Counters; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls sent for requests.
    pub attempts: u64,
    /// Attempts after the first one of a request.
    pub retries: u64,
    /// Attempts to connect after the first one of a server.
    pub reconnects: u64,
    /// Registrations of this agent.
    pub registrations: u64,
    /// Status queries for this agent's own use.
    pub questions: u64,
    /// The number of times that a leader was found.
    pub leaders: u64,
    /// Renewals of the node's lease that were sent.
    pub renewals: u64,
    /// Renewals that were acknowledged.
    pub renewals_acknowledged: u64,
    /// Challenges of servers that were answered with a renewal.
    pub challenges: u64,
}

/// The action of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The end of a request's backoff, or of its wait for a server.
    Request(RequestNumber),
    /// The timeout of a call.
    Call(Slot, CallId),
    /// The end of a local caller's wait.
    Caller(CallToken),
    /// The next query of a position in a lock's queue.
    Question(CallToken),
    /// The next attempt to register.
    Registration,
}

/// The time and the outputs of the current input, which every part gets as an argument.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) now: Time,
    pub(super) outbox: Outbox,
    timers: BTreeSet<(Time, Timer)>,
    pub(super) counts: Counts,
    pub(super) random: Random,
    /// `true` once blocking reads and lock waits end early.
    pub(super) in_hurry: bool,
    pub(super) is_closed: bool,
}

impl Context {
    pub(super) fn new(random: Random, now: Time) -> Self {
        Self {
            now,
            outbox: Outbox::default(),
            timers: BTreeSet::new(),
            counts: Counts::default(),
            random,
            in_hurry: false,
            is_closed: false,
        }
    }

    pub(super) fn start_timer(&mut self, at: Time, timer: Timer) {
        self.timers.insert((at, timer));
    }

    pub(super) fn stop_timer(&mut self, at: Time, timer: Timer) {
        self.timers.remove(&(at, timer));
    }

    /// Returns when the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Removes and returns the first timer, if it is due.
    pub(super) fn due_timer(&mut self) -> Option<Timer> {
        self.next_timer().filter(|at| *at <= self.now)?;
        self.timers.pop_first().map(|(_, timer)| timer)
    }

    /// Replies to a local caller.
    pub(super) fn reply(&mut self, token: CallToken, reply: Result<Answered, Unavailable>) {
        self.outbox.answers.push((token, reply));
    }

    /// Reports an event to operators.
    pub(super) fn notify(&mut self, notice: Notice) {
        self.outbox.notices.push(notice);
    }
}
