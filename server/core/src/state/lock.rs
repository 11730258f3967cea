//! Locks: who gets a key, who gives it back, and the fencing token of each grant.
//!
//! Contenders that do not wait have no order: the first acquire in the log that finds the lock free
//! wins. Those that wait are in a queue, and come before them.

use super::entry::lock_of;
use super::step::Step;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::NewEntry;
use lockmesh_protocol::id::{Fence, Key, LogIndex, SessionId};
use lockmesh_protocol::record::{Entry, Lock};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// How an attempt to take a lock ended.
pub(super) enum AcquireOutcome {
    /// The session holds it.
    Granted(Arc<Entry>),
    /// Another session holds it.
    Held,
    /// It is free, but closed for this long.
    Delayed(Duration),
}

impl AcquireOutcome {
    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Granted(entry) => Reply::Granted { fence: entry.lock.fence },
            Self::Held => Reply::Succeeded(false),
            Self::Delayed(remaining) => Reply::Delayed { remaining: *remaining },
        }
    }
}

impl Step<'_> {
    /// Takes the lock of a key. The holder itself may repeat it: that is how it changes the value.
    pub(super) fn acquire(&mut self, new: &NewEntry, session: SessionId) -> Result<AcquireOutcome, Refusal> {
        // As in Consul, which looks at the delay before it looks at the session.
        if let Some(delay) = self.state.delays.get(&new.key) {
            return Ok(AcquireOutcome::Delayed(delay.duration));
        }
        if !self.state.sessions.contains_key(&session) {
            return Err(Refusal::InvalidSession(session));
        }
        let existing = self.entry(&new.key);
        let lock = match lock_of(existing.as_ref()).session {
            Some(holder) if holder != session => return Ok(AcquireOutcome::Held),
            Some(_) => {
                self.make_known(existing.as_ref());
                // Neither fence nor lock index moves: the holder's sequencer stays good.
                return Ok(AcquireOutcome::Granted(self.set_entry(new)));
            }
            None => self.grant(&new.key, existing.as_ref(), session, None),
        };
        Ok(AcquireOutcome::Granted(self.write_entry(existing, new, lock)))
    }

    /// Gives a lock back; none if the session does not hold it, and then it waits for it no more
    /// either. The session need not live any more.
    pub(super) fn release(&mut self, new: &NewEntry, session: SessionId) -> Option<Arc<Entry>> {
        let existing = self.entry(&new.key);
        let lock = lock_of(existing.as_ref());
        if lock.session != Some(session) {
            // Only an agent knows that somebody waits, and where it died nobody does: whoever gives
            // back what it may have been granted unheard must not be granted it later.
            self.leave_queue(&new.key, session);
            return None;
        }
        Some(self.write_entry(existing, new, lock.freed()))
    }

    /// The holder acquires again, so it knows of its hold, whatever becomes of the request that
    /// waited for it. Nobody else sees a difference, so no index moves.
    fn make_known(&mut self, existing: Option<&Arc<Entry>>) {
        if let Some(entry) = existing.filter(|entry| entry.lock.granted_for.is_some()) {
            let lock = Lock { granted_for: None, ..entry.lock };
            let known = Entry { lock, ..Entry::clone(entry) };
            self.set(Change::Entry(entry.key.clone(), Some(Arc::new(known))));
        }
    }

    /// Opens a key again, if `started_at_index` names the delay that still closes it.
    pub(super) fn end_lock_delay(&mut self, key: &Key, started_at_index: LogIndex, base: u64) -> Reply {
        if base == self.state.index_base
            // Its index tells this delay from a later one of the same key, and the base one that a
            // restore brought.
            && self.state.delays.get(key).is_some_and(|delay| delay.started_at_index == started_at_index)
        {
            self.set(Change::LockDelay(key.clone(), None));
        }
        Reply::Done
    }

    /// A key's lock once it is granted, and for which waiting request.
    ///
    /// Every way to a lock leads through here, and out of the lock's queue: a transaction may free
    /// a lock and take it for a session that waits for it, and a holder that still waited would be
    /// granted its own release.
    pub(super) fn grant(
        &mut self,
        key: &Key,
        existing: Option<&Arc<Entry>>,
        session: SessionId,
        granted_for: Option<LogIndex>,
    ) -> Lock {
        self.leave_queue(key, session);
        // One counter for all keys, so that a token is never given twice, also where a key is
        // deleted and made again.
        let fence = Fence(self.state.fence.0 + 1);
        self.set(Change::Fence(fence));
        // Counts the grants of this entry, as Consul does; across a delete only the fence goes on.
        let index = lock_of(existing).index + 1;
        Lock { session: Some(session), index, fence, granted_at: self.at, granted_for }
    }
}
