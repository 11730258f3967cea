//! The things that can be held: a lock's key, or a slot of a semaphore. Everything that differs
//! between them is in this file: the read, its evaluation, and the acquire.

use super::outbox::{Request, Write};
use super::slots::Slots;
use crate::LOCK_FLAGS;
use crate::entry::Entry;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use bytes::Bytes;
use std::time::Duration;

/// The flags that mark the keys of a semaphore for Consul's clients.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// Something that can be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A lock.
    Lock(LockGoal),
    /// A slot of a semaphore.
    Slot(SlotGoal),
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockGoal {
    /// The key.
    pub key: String,
    /// The value to write on acquire and on release.
    pub value: Bytes,
    /// The flags that distinguish a lock from other keys.
    pub flags: u64,
    /// Set for shared mode, in which any number of sessions hold the lock. It writes no value.
    pub is_shared: bool,
}

/// A slot of a semaphore: the session's name in the list of holders under the prefix, plus the
/// session's own key, which ends with the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotGoal {
    /// The prefix, without a trailing slash.
    pub prefix: String,
    /// The number of slots.
    pub limit: usize,
    /// The value of the session's own key.
    pub value: Bytes,
}

/// The result of a read, for a session that wants to acquire.
#[derive(Debug)]
pub(super) enum Look {
    /// Already held, because of a request whose reply was lost.
    Mine,
    /// Held by others.
    Taken,
    /// Free; acquired with this request.
    Free(Request),
}

impl Goal {
    /// Returns the key or prefix, for messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Lock(lock) => &lock.key,
            Self::Slot(slot) => &slot.prefix,
        }
    }

    /// Returns the request that reads the current holders, as this session sees them.
    pub(super) fn look(&self, session: &str, read: Read) -> Request {
        match self {
            Self::Lock(lock) if lock.is_shared => Request::GetHeld(lock.key.clone(), session.into(), read),
            Self::Lock(lock) => Request::Get(lock.key.clone(), read),
            Self::Slot(slot) => Request::List(slot.folder(), read),
        }
    }

    /// Returns the request that creates the session's own key, if the goal needs one first.
    pub(super) fn own_key(&self, session: &str) -> Option<Request> {
        match self {
            Self::Lock(_) => None,
            Self::Slot(slot) => Some(Request::Acquire(
                slot.write(slot.own_key(session), slot.value.clone()),
                session.into(),
                None,
            )),
        }
    }

    /// Evaluates a read for a session that wants to acquire and would wait up to `queue_for` in the
    /// queue.
    pub(super) fn judge_look(
        &self,
        session: &str,
        entries: &[Entry],
        queue_for: Option<Duration>,
    ) -> Result<Look, Error> {
        match self {
            Self::Lock(lock) => {
                let entry = entries.first();
                entry.map_or(Ok(()), |entry| lock.check(entry))?;
                let holder = entry.and_then(|entry| entry.session.as_deref());
                // With a queue, the acquire is sent even if others hold the lock: it waits there.
                // A shared lock may be free beside its holder.
                let may_be_free = lock.is_shared || holder.is_none_or(|holder| holder == session);
                if queue_for.is_none() && !may_be_free {
                    return Ok(Look::Taken);
                }
                let acquire = if lock.is_shared { Request::AcquireShared } else { Request::Acquire };
                Ok(Look::Free(acquire(lock.write(), session.into(), queue_for)))
            }
            Self::Slot(slot) => {
                let mut slots = slot.slots(entries)?.unwrap_or_else(|| Slots::empty(slot.limit));
                // A write whose reply was lost may have entered it.
                if slots.holds(session) {
                    return Ok(Look::Mine);
                }
                if !slots.enter(session) {
                    return Ok(Look::Taken);
                }
                Ok(Look::Free(slot.replace(&slots)))
            }
        }
    }

    /// Evaluates a read for a session that holds; `None` if the hold is intact.
    pub(super) fn judge_hold(&self, session: &str, entries: &[Entry]) -> Result<Option<Loss>, Error> {
        match self {
            Self::Lock(_) => Ok(match entries.first().map(|entry| entry.session.as_deref()) {
                None => Some(Loss::Deleted),
                Some(None) => Some(Loss::Released),
                Some(Some(holder)) if holder != session => Some(Loss::Taken(holder.to_owned())),
                Some(Some(_)) => None,
            }),
            Self::Slot(slot) => {
                // Others treat a holder without its own key as dead, so the holder must do the
                // same.
                let Some(slots) = slot.slots(entries)? else { return Ok(Some(Loss::Deleted)) };
                Ok((!slots.holds(session)).then_some(Loss::Unlisted))
            }
        }
    }
}

/// The use of a key by its flags, for people.
fn use_of(entry: &Entry) -> String {
    match entry.flags {
        SEMAPHORE_FLAGS => "is a semaphore".into(),
        LOCK_FLAGS => "is a lock".into(),
        flags => format!("is a key with flags {flags:#x}"),
    }
}

impl LockGoal {
    /// Rejects a key that is not a lock, before anything in it is overwritten.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), Error> {
        if entry.flags == self.flags {
            return Ok(());
        }
        let expected = match self.flags {
            LOCK_FLAGS => "a lock".into(),
            flags => format!("a lock with flags {flags:#x}"),
        };
        let reason = format!("{}, not {expected}", use_of(entry));
        Err(Error::Conflict { key: self.key.clone(), reason })
    }

    pub(super) fn write(&self) -> Write {
        Write { key: self.key.clone(), value: self.value.clone(), flags: self.flags }
    }
}

impl SlotGoal {
    /// Returns the common prefix of all keys of the semaphore.
    pub(crate) fn folder(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// Returns the key of the list of holders.
    pub(crate) fn list_key(&self) -> String {
        format!("{}/.lock", self.prefix)
    }

    pub(super) fn own_key(&self, session: &str) -> String {
        format!("{}/{session}", self.prefix)
    }

    /// Finds the list of live holders among the entries under the prefix; `None` if there is none
    /// yet. The write that changes the list removes the dead ones. Without a live holder, the
    /// number of slots is this contender's.
    pub(crate) fn slots(&self, entries: &[Entry]) -> Result<Option<Slots>, Error> {
        let Some(mut slots) = self.list(entries)? else { return Ok(None) };
        slots.prune(entries);
        match slots.limit() {
            limit if limit == self.limit => Ok(Some(slots)),
            _ if slots.taken() == 0 => Ok(Some(slots.resized(self.limit))),
            stored => Err(Error::SlotCount { prefix: self.prefix.clone(), stored, wanted: self.limit }),
        }
    }

    /// Finds the list of holders as it is stored, with any number of slots.
    pub(crate) fn list(&self, entries: &[Entry]) -> Result<Option<Slots>, Error> {
        let key = self.list_key();
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { return Ok(None) };
        let conflict = |reason| Error::Conflict { key: key.clone(), reason };
        if entry.flags != SEMAPHORE_FLAGS {
            return Err(conflict(format!("{}, not a semaphore", use_of(entry))));
        }
        Slots::parse(entry, self.limit).map(Some).map_err(|error| conflict(error.to_string()))
    }

    /// Returns the write of this list, which fails if the list was changed since it was read.
    pub(super) fn replace(&self, slots: &Slots) -> Request {
        Request::Cas(self.write(self.list_key(), slots.to_json().into()), slots.modify_index)
    }

    fn write(&self, key: String, value: Bytes) -> Write {
        Write { key, value, flags: SEMAPHORE_FLAGS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_lock_requested_beside_holder() {
        let goal = LockGoal { key: "job".into(), value: Bytes::new(), flags: 7, is_shared: true };
        let lock = Goal::Lock(goal.clone());
        let read = Request::GetHeld("job".into(), "me".into(), Read::stale());
        assert_eq!(lock.look("me", Read::stale()), read);
        let held = Entry { session: Some("you".into()), flags: 7, ..Entry::default() };
        let look = lock.judge_look("me", &[held], None).expect("it is a lock");
        let Look::Free(request) = look else { panic!("it may be shared: {look:?}") };
        assert_eq!(request, Request::AcquireShared(goal.write(), "me".into(), None));
    }

    #[test]
    fn entry_determines_hold_or_loss() {
        let lock =
            Goal::Lock(LockGoal { key: "job".into(), value: Bytes::new(), flags: 0, is_shared: false });
        let held_by = |session: Option<&str>| Entry { session: session.map(Into::into), ..Entry::default() };
        let judge = |entry: Option<Entry>| {
            lock.judge_hold("me", entry.as_slice()).expect("a lock is never in conflict")
        };
        assert_eq!(judge(Some(held_by(Some("me")))), None);
        assert_eq!(judge(Some(held_by(Some("you")))), Some(Loss::Taken("you".into())));
        assert_eq!(judge(Some(held_by(None))), Some(Loss::Released));
        assert_eq!(judge(None), Some(Loss::Deleted));
    }
}
