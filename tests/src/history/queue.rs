//! Queues in the model: waiters are granted a lock in turn, by the command that frees it.
//!
//! A waiter that received no answer, or no grant, may have left at any time before its answer. If
//! it was granted the lock before that, leaving releases the lock.

use super::evidence::Told;
use super::model::{Acquired, Entry, Grant, Model, Place, Step, Undo};
use super::operation::Reply;
use std::collections::BTreeSet;

/// The identity of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asked {
    /// The index of the request.
    At(u64),
    /// The operation, if its index is unknown.
    By(u64),
}

/// A waiting session.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiter {
    pub(super) session: String,
    pub(super) value: String,
    pub(super) asked: Asked,
    pub(super) by: Option<u64>,
}

impl Asked {
    fn new(step: Step) -> Self {
        match (step.place, step.by) {
            (Place::Between { .. }, Some(number)) => Self::By(number),
            (place, _) => Self::At(place.latest()),
        }
    }
}

impl Model {
    /// Acquires a lock or a position in its queue, and checks the client's answer.
    pub(super) fn enqueue_told(
        &mut self,
        step: Step,
        key: &str,
        value: &str,
        session: &str,
        told: Option<&Reply>,
    ) -> Result<(), String> {
        let is_told_of_place = matches!(
            told,
            Some(Reply::Queued | Reply::GrantedLater { .. } | Reply::Succeeded(false) | Reply::Delayed)
        );
        let holds = self.entry(key).is_some_and(|entry| entry.session.as_deref() == Some(session));
        if self.session(session).is_none() {
            return match told {
                None | Some(Reply::Refused(_)) => Ok(()),
                Some(_) => Err("a refusal, for there is no such session, was expected".into()),
            };
        }
        let is_held = self.entry(key).is_some_and(|entry| entry.session.is_some());
        let stays_closed = self.is_closed(key) && (told.is_none() || is_told_of_place);
        if !holds && (is_held || stays_closed) {
            self.queue_up(step, key, value, session);
            return match told {
                None => Ok(()),
                Some(_) if is_told_of_place => Ok(()),
                Some(_) => Err("a place in the queue was expected".into()),
            };
        }
        if !holds {
            self.open(step, key)?;
        }
        let Acquired::Granted(grant) = self.acquire(step, key, value, session) else {
            return Err("a grant was expected".into());
        };
        if !holds {
            self.note_awaited(key, Asked::new(step));
        }
        match told {
            None => Ok(()),
            Some(Reply::Granted { fence }) => self.learn(grant, *fence),
            Some(_) => Err("a grant was expected".into()),
        }
    }

    /// Adds a waiter at the end; a session that is in the queue already keeps its position.
    fn queue_up(&mut self, step: Step, key: &str, value: &str, session: &str) {
        let (value, session) = (value.to_owned(), session.to_owned());
        let waiter = Waiter { value, session, asked: Asked::new(step), by: step.by };
        let mut queue = self.queue(key).to_vec();
        match queue.iter_mut().find(|known| known.session == waiter.session) {
            Some(known) => *known = waiter,
            None => queue.push(waiter),
        }
        self.put_queue(key, queue);
    }

    /// Gives up a queue position, or the lock that was granted to it. Returns the answer.
    pub(super) fn leave(&mut self, step: Step, key: &str, session: &str, asked: Asked) -> Reply {
        if self.stop_waiting(key, session, asked) {
            return Reply::Succeeded(true);
        }
        let held = self
            .entry(key)
            .filter(|entry| entry.session.as_deref() == Some(session) && entry.awaited == Some(asked));
        let Some(value) = held.map(|entry| entry.value.clone()) else { return Reply::Succeeded(false) };
        self.release(step, key, &value, session);
        Reply::Done
    }

    /// Gives up a queue position; returns `false` if it has none.
    pub(super) fn stop_waiting(&mut self, key: &str, session: &str, asked: Asked) -> bool {
        let mut queue = self.queue(key).to_vec();
        let before = queue.len();
        queue.retain(|waiter| waiter.session != session || waiter.asked != asked);
        let has_left = queue.len() < before;
        if has_left {
            self.put_queue(key, queue);
        }
        has_left
    }

    /// A release by a session that does not hold the lock removes its wait.
    pub(super) fn leave_queue(&mut self, key: &str, session: &str) {
        let waits = |waiter: &Waiter| waiter.session == session;
        if self.queue(key).iter().any(waits) {
            let stay = self.queue(key).iter().filter(|waiter| !waits(waiter)).cloned().collect();
            self.put_queue(key, stay);
        }
    }

    /// Grants a leaver's lock to the next waiter. Returns `true` if there was anything to give up.
    pub(super) fn leave_and_grant(&mut self, step: Step, key: &str, session: &str, asked: Asked) -> bool {
        let before = self.mark();
        let left = self.leave(step, key, session, asked);
        self.grant_freed(step, before);
        left != Reply::Succeeded(false)
    }

    /// Ends a lock-delay, and grants the lock to the first waiter.
    pub(super) fn open_and_grant(&mut self, step: Step, key: &str) -> Result<(), String> {
        let before = self.mark();
        self.open(step, key)?;
        self.grant_freed(step, before);
        Ok(())
    }

    /// Removes an ended session from all queues.
    pub(super) fn leave_all_queues(&mut self, session: &str) {
        let waits = |queue: &[Waiter]| queue.iter().any(|waiter| waiter.session == session);
        let keys: Vec<String> =
            self.queues().filter(|(_, queue)| waits(queue)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let mut queue = self.queue(&key).to_vec();
            queue.retain(|waiter| waiter.session != session);
            self.put_queue(&key, queue);
        }
    }

    /// Grants every lock that has become free since a mark to its first waiter.
    pub(super) fn grant_freed(&mut self, step: Step, since: usize) {
        let touched = self.changes_since(since).iter().filter_map(|change| match change {
            Undo::Entry(key, _) | Undo::Closed(key, _) => Some(key.clone()),
            _ => None,
        });
        for key in touched.collect::<BTreeSet<_>>() {
            let is_held = self.entry(&key).is_some_and(|entry| entry.session.is_some());
            if is_held || self.is_closed(&key) {
                continue;
            }
            let mut queue = self.queue(&key).to_vec();
            if queue.is_empty() {
                continue;
            }
            let first = queue.remove(0);
            self.put_queue(&key, queue);
            let step = Step { by: first.by, ..step };
            if let Acquired::Granted(_) = self.acquire(step, &key, &first.value, &first.session) {
                self.note_awaited(&key, first.asked);
            }
        }
    }

    /// Checks that a lock is held as reported to a waiter, by a grant at this index.
    pub(super) fn is_granted(&mut self, index: u64, told: &Told) -> Result<(), String> {
        let Told { key, value, session, fence, .. } = told;
        let held = self.entry(key).filter(|entry| entry.session.as_ref() == Some(session));
        let written = held.is_some_and(|entry| entry.value == *value);
        let Some(grant) = self.grant_of(key).filter(|_| written) else {
            let there = self.entry(key).map_or("absent".into(), Entry::to_string);
            return Err(format!("{session} received a grant of {key}, but it should be {there}"));
        };
        let Grant { place, .. } = self.grants[grant];
        match place.may_be(index) {
            true => self.learn(grant, *fence),
            false => Err(format!("{session} received a grant of {key}, but holds it since {place}")),
        }
    }
}
