//! The things that can be held: a lock, several locks, or a slot of a semaphore. Everything that
//! differs between them is in this file: the read, its evaluation, and the acquire.

use super::outbox::{KeysRead, Request, Write};
use super::slots::Slots;
use crate::LOCK_FLAGS;
use crate::entry::Entry;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use crate::shape::Blob;
use crate::shape::lockmesh::{LockClaim, LocksRequest};
use bytes::Bytes;
use std::time::Duration;

/// The flags that mark the keys of a semaphore for Consul's clients.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The time until shared locks of several are read again: a fencing token shows the end of the last
/// shared hold, and not of each.
const SHARED_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Something that can be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A lock.
    Lock(LockGoal),
    /// Several locks with different keys, all or none.
    Locks(Vec<LockGoal>),
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
    /// Returns the keys or the prefix, for messages.
    pub fn name(&self) -> String {
        self.names().join(" ")
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::Lock(lock) => vec![&lock.key],
            Self::Locks(locks) => locks.iter().map(|lock| lock.key.as_str()).collect(),
            Self::Slot(slot) => vec![&slot.prefix],
        }
    }

    /// Returns `true` if both have a key or the prefix in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.names().iter().any(|name| other.names().contains(name))
    }

    /// Returns `true` if the reads show this session as the holder of all keys.
    pub(super) fn is_holder_in(&self, session: &str, entries: &[Entry]) -> bool {
        let is_own = |entry: &&Entry| entry.session.as_deref() == Some(session);
        entries.iter().filter(is_own).count() == self.names().len()
    }

    /// Returns the request that reads the current holders, as this session sees them. `fences` are
    /// the tokens of its hold: a wait for a change of several locks ends when one is not current.
    pub(super) fn look(&self, session: &str, fences: &[u64], read: Read) -> Request {
        match self {
            Self::Locks(locks) => {
                let mut read = read;
                if locks.iter().any(|lock| lock.is_shared) {
                    read.wait = read.wait.map(|wait| wait.min(SHARED_CHECK_INTERVAL));
                }
                let keys = locks.iter().map(|lock| lock.key.clone()).collect();
                Request::GetAll(KeysRead { keys, session: session.into(), fences: fences.into(), read })
            }
            Self::Lock(lock) if lock.is_shared => Request::GetHeld(lock.key.clone(), session.into(), read),
            Self::Lock(lock) => Request::Get(lock.key.clone(), read),
            Self::Slot(slot) => Request::List(slot.folder(), read),
        }
    }

    /// Returns the request that creates the session's own key, if the goal needs one first.
    pub(super) fn own_key(&self, session: &str) -> Option<Request> {
        match self {
            Self::Lock(_) | Self::Locks(_) => None,
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
                // With a queue, the acquire is sent even if others hold the lock: it waits there.
                if queue_for.is_none() && !lock.may_be_free(session, entry) {
                    return Ok(Look::Taken);
                }
                let acquire = if lock.is_shared { Request::AcquireShared } else { Request::Acquire };
                Ok(Look::Free(acquire(lock.write(), session.into(), queue_for)))
            }
            Self::Locks(locks) => {
                for lock in locks {
                    let entry = lock.entry_in(entries);
                    entry.map_or(Ok(()), |entry| lock.check(entry))?;
                    if queue_for.is_none() && !lock.may_be_free(session, entry) {
                        return Ok(Look::Taken);
                    }
                }
                let locks = locks.iter().map(LockGoal::claim).collect();
                let request = LocksRequest { session: session.into(), locks };
                Ok(Look::Free(Request::AcquireAll(request, queue_for)))
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

    /// Returns the write that removes the session from the list of holders; `None` if it is not on
    /// it.
    pub(super) fn removal(&self, session: &str, entries: &[Entry]) -> Option<Request> {
        let Self::Slot(slot) = self else { unreachable!("only slots have a list") };
        // A key that is no list of holders does not name the session.
        let Ok(Some(mut slots)) = slot.list(entries) else { return None };
        slots.leave(session).then(|| slot.replace(&slots))
    }

    /// Evaluates a read for a session that holds with these fencing tokens; `None` if the hold is
    /// intact. A hold of several locks ends with the first of them.
    pub(super) fn judge_hold(
        &self,
        session: &str,
        fences: &[u64],
        entries: &[Entry],
    ) -> Result<Option<Loss>, Error> {
        match self {
            Self::Lock(lock) => Ok(lock.loss_in(entries.first(), session, None)),
            Self::Locks(locks) => {
                let mut held = locks.iter().zip(fences);
                Ok(held.find_map(|(lock, fence)| lock.loss_in(lock.entry_in(entries), session, Some(*fence))))
            }
            Self::Slot(slot) => {
                // Others treat a holder without its own key as dead, so the holder must do the
                // same.
                let Some(slots) = slot.slots(entries)? else { return Ok(Some(Loss::Deleted)) };
                Ok((!slots.holds(session)).then_some(Loss::Unlisted))
            }
        }
    }
}

/// Returns the writes that release the locks that the session still holds. Without tokens, any
/// grant counts.
pub(super) fn held_part(locks: &[LockGoal], session: &str, fences: &[u64], entries: &[Entry]) -> Vec<Write> {
    let tokens = fences.iter().copied().map(Some).chain(std::iter::repeat(None));
    let is_held = |lock: &LockGoal, fence| lock.loss_in(lock.entry_in(entries), session, fence).is_none();
    let held = locks.iter().zip(tokens).filter(|(lock, fence)| is_held(lock, *fence));
    held.map(|(lock, _)| lock.write()).collect()
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

    fn claim(&self) -> LockClaim {
        let mode = if self.is_shared { "shared" } else { "exclusive" }.into();
        LockClaim { key: self.key.clone(), mode, value: Blob(self.value.clone()), flags: self.flags }
    }

    fn entry_in<'a>(&self, entries: &'a [Entry]) -> Option<&'a Entry> {
        entries.iter().find(|entry| entry.key == self.key)
    }

    /// Returns `true` if an acquire may be granted at once. A shared lock may be free beside its
    /// holder.
    fn may_be_free(&self, session: &str, entry: Option<&Entry>) -> bool {
        let holder = entry.and_then(|entry| entry.session.as_deref());
        self.is_shared || holder.is_none_or(|holder| holder == session)
    }

    /// Returns the loss that a read shows. With a token, another grant is a loss too.
    fn loss_in(&self, entry: Option<&Entry>, session: &str, fence: Option<u64>) -> Option<Loss> {
        let Some(entry) = entry else { return Some(Loss::Deleted) };
        match entry.session.as_deref() {
            None => Some(Loss::Released),
            Some(holder) if holder != session => Some(Loss::Taken(holder.to_owned())),
            Some(_) => (fence.is_some() && entry.fence != fence).then_some(Loss::Released),
        }
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
        assert_eq!(lock.look("me", &[], Read::stale()), read);
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
            lock.judge_hold("me", &[], entry.as_slice()).expect("a lock is never in conflict")
        };
        assert_eq!(judge(Some(held_by(Some("me")))), None);
        assert_eq!(judge(Some(held_by(Some("you")))), Some(Loss::Taken("you".into())));
        assert_eq!(judge(Some(held_by(None))), Some(Loss::Released));
        assert_eq!(judge(None), Some(Loss::Deleted));
    }
}
